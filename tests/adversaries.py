"""Certificates under attack: starts that are hard for floating point, judged at 60 digits.

``python tests/adversaries.py [COUNT] [THEOREM ...]`` attacks every theorem COUNT times and prints
how often it held, was violated, did not apply or was left open, and how often that was false.
"""

import collections
import sys
import time
from unittest import mock

import jax
import numpy as np

import digits
import referee
import shoal as sh
from shoal.certificates import readings, verdict
from shoal.lab.engine import per_start
from shoal.lab.run import train
from shoal.models import predict
from shoal.runtime import in_float64
from shoal.verified import enclose

SETTINGS = {
    "wu2023.theorem_a": {},
    "wu2023.theorem_b": {"method": "flow"},
    "wu2023.theorem_c": {},
    "song2024.theorem_1": {"train": "W_V"},
    "song2024.theorem_2": {"kernel": "gaussian"},
    "song2024.theorem_3": {"train": "W_Q"},
    "song2024.theorem_s": {"train": "W_Q"},
    "arda2026.theorem_a": {"radius": (4.0, 4.0, 4.0)},
    "arda2026.theorem_b": {"radius": (4.0, 4.0, 4.0)},
    "arda2026.theorem_c": {"radius": (0.1, 0.1, 0.1)},
    "qin2025.theorem_d": {},
    "qin2025.theorem_d0": {},
    "wu2023.kernel_regime": {},
    "song2024.kernel_regime": {},
    "arda2026.kernel_regime": {},
    "qin2025.kernel_regime": {},
}
REFEREED = {  # judged from the theory's pages too: every start, or every fifth (a Jacobian is dear)
    "wu2023.theorem_a": 1, "wu2023.theorem_b": 1, "song2024.theorem_2": 1, "qin2025.theorem_d": 5,
    "qin2025.theorem_d0": 5, "wu2023.kernel_regime": 5, "song2024.kernel_regime": 5,
    "arda2026.kernel_regime": 5, "qin2025.kernel_regime": 5,
}  # fmt: skip
SMALL = {
    "wu2023": {"num_samples": 2, "num_tokens": 3, "dim": 3, "width": 6, "pooling": "sum"},
    "song2024": {
        "num_samples": 2,
        "num_tokens": 2,
        "dim": 5,
        "key_dim": 2,
        "value_dim": 2,
        "num_heads": 1,
    },
    "arda2026": {"num_samples": 3, "num_tokens": 3, "dim": 2, "num_heads": 4},
    "qin2025": {
        "num_samples": 2,
        "num_tokens": 2,
        "dim": 4,
        "key_dim": 2,
        "width": 6,
        "out_dim": 1,
    },
}


def scale(rng):
    """A factor between 1e-8 and 1e8, often 1."""
    return 1.0 if rng.random() < 0.5 else 10 ** rng.uniform(-8, 8)


def _tokens(X, rng):
    kind = rng.integers(8)
    X = np.array(X)
    if kind == 0:
        X[:, 1] = X[:, 0]  # duplicate tokens
    elif kind == 1:
        X[1] = X[0]  # duplicate samples
    elif kind == 2:
        X[1] = X[0][::-1]  # a permuted sequence
    elif kind == 3:
        X[1] = X[0] + 10.0 ** -rng.integers(4, 16) * rng.normal(size=X[0].shape)
    elif kind == 4:
        X = X * scale(rng)
    elif kind == 5:
        X[0] = 0
    return X


NEARLY_ALWAYS_FAR = ("qin2025.theorem_d", "qin2025.theorem_d0")
"""Theorems whose hypotheses hold only beside the targets: some starts are put there."""


def _beside(made, rng):
    """Targets at the outputs but for 1e-3 to 1e-8; the weights are those that were drawn."""
    blocks = made.params0._asdict().items()
    params = type(made.params0)(
        *(np.asarray(W) + 10 ** rng.uniform(-9, -1) * rng.normal(size=W.shape) for _, W in blocks)
    )
    made = made.replace(params0=params, from_init=False)
    outputs = np.asarray(per_start(made, _outputs)[0])
    near = outputs + 10 ** rng.uniform(-8, -3) * rng.normal(size=outputs.shape)
    return made.replace(problem=made.problem._replace(y=near))


def start(theorem, rng):
    """A setup that is hard for floating point, of one start."""
    paper = theorem.partition(".")[0]
    made = sh.setup(paper, **SMALL[paper], **SETTINGS[theorem])
    if theorem in NEARLY_ALWAYS_FAR and rng.random() < 0.4:
        return _beside(made, rng)
    problem = made.problem._replace(X=_tokens(made.problem.X, rng))
    factors = {k: scale(rng) for k in made.params0._fields}
    if rng.random() < 0.2:
        factors[rng.choice(list(factors))] = 0.0
    if theorem == "song2024.theorem_2" and rng.random() < 0.5:  # where it applies
        factors = dict.fromkeys(factors, 1.0) | {"W_O": 10 ** rng.uniform(3, 8)}
    if paper == "arda2026":
        factors = dict.fromkeys(factors, 1.0)
    blocks = made.params0._asdict().items()
    params = type(made.params0)(*(np.asarray(W) * factors[k] for k, W in blocks))
    made = made.replace(problem=problem, params0=params, from_init=False)
    return made.replace(problem=problem._replace(**_labels(made, rng)))


def _labels(made, rng):
    outputs = np.asarray(per_start(made, _outputs)[0])
    name = "y" if hasattr(made.problem, "y") and "y" in made.problem._fields else "Y"
    kind = rng.integers(4)
    noise = rng.normal(size=outputs.shape)
    if kind == 0:
        return {name: scale(rng) * noise}
    if kind == 1:
        return {name: 0 * noise}
    return {name: outputs + 10.0 ** -rng.integers(1, 14) * noise * (np.max(np.abs(outputs)) or 1.0)}


def _outputs(setup):
    return predict(setup.network, setup.params0, setup.inputs)


@in_float64
def attacked(theorem, seed, steps=8):
    """The verdict, and for every hypothesis what was said of it and whether it is true.

    Last, whether the theorem's page says that all of them are true; None where `referee` has none.
    """
    rng = np.random.default_rng([seed, sum(map(ord, theorem))])
    key = theorem.partition(".")[2]
    setup = start(theorem, rng)
    try:
        run = train(setup, steps=steps, step_size=key)
    except sh.InputError:  # no finite step
        return None
    chosen = setup.paper.theorem_of(key)
    digits.CHOICES.clear()
    with mock.patch.object(enclose, "_compiled", digits.recorded(enclose._compiled)):
        found = sh.certify(run, key)
    seen = jax.tree.map(lambda x: np.asarray(x)[0], run.trajectory._replace(params=()))
    one = run.setup.one().astype("float64")
    truth = digits.truths(chosen.certificate, one, seen)
    said = {line.name: line.holds for line in readings(found[0])[0]}
    page = None
    if theorem in REFEREED and seed % REFEREED[theorem] == 0:
        constants = {k: float(np.ravel(v)[0]) for k, v in found[0].constants.items()}
        if theorem.startswith("qin2025.theorem"):  # the radius that the enclosures chose
            (chosen,) = (made for made in digits.CHOICES.values() if len(made) == 4)
            constants["radius"] = float(np.ravel(chosen[1])[0])
        page = referee.certified(theorem, one, float(run.step_size[0]), constants)
    return str(verdict(found[0])), said, truth, page


def false_answers(result):
    """What is wrong with a verdict."""
    outcome, said, truth, page = result
    wrong = [f"{name}: said {said[name]}, is {truth[name]}" for name in said
             if None not in (said[name], truth[name]) and said[name] != truth[name]]  # fmt: skip
    if outcome == "holds" and None in truth.values():
        wrong.append("holds, and a hypothesis is not defined")
    if page is not None and (outcome, page) in (("holds", False), ("not applicable", True)):
        wrong.append(f"{outcome}, and the page says that all hypotheses are {page}")
    if outcome == "violated":
        wrong.append("violated")
    return wrong


def attack(theorem, seeds):
    """Counts of verdicts, and everything that was false."""
    counts, wrong = collections.Counter(), []
    for seed in seeds:
        result = attacked(theorem, seed)
        if result is None:
            counts["no step"] += 1
            continue
        counts[result[0]] += 1
        wrong += [(theorem, seed, each) for each in false_answers(result)]
    return counts, wrong


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    for theorem in sys.argv[2:] or SETTINGS:
        begun = time.time()
        counts, wrong = attack(theorem, range(count))
        told = f"{theorem} {dict(counts)}, {len(wrong)} false, {time.time() - begun:.0f} s\n"
        sys.stdout.write(told + "".join(f"    {each}\n" for each in wrong[:10]))
        sys.stdout.flush()
