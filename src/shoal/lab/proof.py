"""Proofs: whether the fate of a run of gradient descent is certain (docs/prove.md).

`prove` looks at the weights of a setup, or replays a run and finds the first recorded step from
which its fate is certain. The statement is about gradient descent in exact arithmetic, started at
these floats, on the real function that the model denotes.
"""

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal.errors import InputError, nearest
from shoal.lab import engine
from shoal.lab.replay import path_to, replayed
from shoal.lab.setup import Setup
from shoal.methods import gradient_descent
from shoal.models import predict
from shoal.runtime import in_float64
from shoal.verified import balls
from shoal.verified.balls import Refusal
from shoal.verified.blocks import Pieces, in_pieces
from shoal.verified.decide import LEVELS, Decision, decide, slack
from shoal.verified.facts import Question, facts, gradient
from shoal.verified.fate import Range, contraction_with_errors, distance_with_errors
from shoal.verified.restrict import restrict
from shoal.verified.through import stuck_through
from shoal.verified.translate import translate
from shoal.verified.values import Weight

if TYPE_CHECKING:
    from shoal.lab.run import Run

MOST_NUMBERS = 5e7
"""Numbers that the replayed weights of a run may hold."""
SCORES = "scores"
"""Name of what enters a softmax, where the user named nothing."""


@dataclasses.dataclass(frozen=True, eq=False)
class Proof:
    """What is certain about a run of gradient descent, and why."""

    verdict: str  # converges, stuck or undecided
    reason: str  # One sentence.
    theorem: str  # P1, P2 or P3; empty if undecided.
    step: int | None  # First recorded step from which it is certain; None for a setup.
    radius: float  # The run never leaves the ball of this radius around its weights.
    rate: tuple[float, float]  # Proved factor per step, now and later.
    risk: tuple[float, float]  # The limiting risk, enclosed (undecided: the risk now).
    constants: dict[str, float]
    slack: tuple[tuple[str, str, float], ...]  # Operation, source line, factor lost by its bound.
    seconds: float
    decisions: int  # How often weights were decided upon.
    num_weights: int
    num_outputs: int
    question: Question | None = None  # What was decided, with programs, weights and targets.
    level: str = ""  # jets, nodes or output: which bounds proved it.
    names: tuple[str, ...] = ()  # Trained blocks.
    through: str = ""  # The array of P3,
    at: tuple[int, ...] = ()  # and its number in every sample's program.
    jaxpr: str = ""  # The model as it was traced.
    remark: str = ""  # What holds for the run in floating point.
    checked: bool | None = None  # Whether `shoal check` accepts the certificate; None: not asked.
    replayed: str = ""  # What of a run folder was computed again (`Run.replay`).

    def to_json(self) -> dict[str, Any]:
        """What ``shoal prove --json`` prints."""
        from shoal.jsons import plain

        names = ("verdict", "reason", "step", "radius", "rate", "risk", "constants", "theorem",
                 "checked", "level", "slack", "seconds", "decisions", "num_weights", "num_outputs",
                 "remark", "replayed")  # fmt: skip
        return plain({name: getattr(self, name) for name in names})

    def save(self, path: str | Path) -> None:
        """Write the certificate: a JSON file, and one of arrays beside it (`shoal check`)."""
        from shoal.disk.proofs import write_proof

        write_proof(Path(path), self)

    def __repr__(self) -> str:
        from shoal.console import proof_text

        return proof_text(self)


# ---------------------------------------------------------------------------------- what is asked


def _require_plain(setup: Setup) -> None:
    """Refuse what the theorems are not about."""
    setting = setup.setting
    if not setup.has_samples and setting.residuals is None:
        msg = f"{setup.name} has no samples, and its risk is not known as a sum of squares"
        raise InputError(f"{msg}: prove needs residuals(params, problem) of its setting.")
    if setup.has_samples and setup.squares_weight is None:
        raise InputError("prove needs a squared loss (loss='squares' or 'mean_squares').")
    if setting.method != "gd":
        raise InputError(f"prove is about method=gd, and this setup has method={setting.method}.")
    method = gradient_descent(1.0)
    if setting.rule(method) is not method:
        raise InputError("prove is about plain gradient descent: no projection, no weight decay.")


class Squares(NamedTuple):
    """A risk as a sum of squares, weight |outputs - targets|^2, above ``lowest``."""

    outputs: Any  # A function of parameters and inputs.
    inputs: Any
    targets: Any
    weight: float
    lowest: float = 0.0


def as_squares(setup: Setup) -> Squares:
    """One start's risk as a sum of squares: of samples, or of the setting's ``residuals``."""
    setting, network = setup.setting, setup.network
    if setup.has_samples:
        weight: Any = setup.squares_weight
        return Squares(lambda p, x: predict(network, p, x), setup.inputs, setup.targets, weight)
    size = jax.eval_shape(setting.residuals, setup.params0, setup.problem).size
    lowest = float(setting.lowest(setup.problem) or 0.0)
    zeros = np.zeros((1, size))  # all residuals are one sample
    return Squares(lambda p, x: setting.residuals(p, x)[None], setup.problem, zeros, 0.5, lowest)


class Asked(NamedTuple):
    """The question of one start at some weights, and what its parts are called."""

    question: Question
    names: tuple[str, ...]  # of the blocks, or pieces of blocks
    marks: list[dict[str, int]]  # named values of every sample's program
    trained: tuple[str, ...]
    block: tuple[int, ...]  # piece k is entries[k] of trained[block[k]]
    entries: tuple[np.ndarray, ...]
    jaxpr: str


def question_of(setup: Setup, params: Any, step_size: float) -> Asked:
    """What is to be decided about one start at some weights."""
    ratios = {name: float(a) for name, a in setup.step_ratios.items()}
    names = tuple(name for name in setup.trained if ratios[name] > 0)
    blocks = trees.blocks(params)
    leaves = {k: np.asarray(W, np.float64) for k, W in blocks.items()}
    trained = {name: leaves[name] for name in names}
    frozen = {name: W for name, W in leaves.items() if name not in trained}
    squares = as_squares(setup)
    inputs = squares.inputs

    def outputs(trained: dict, frozen: dict, inputs: Any) -> Any:
        return squares.outputs(trees.with_blocks(params, trained | frozen), inputs)

    closed = jax.make_jaxpr(outputs)(trained, frozen, inputs)
    order = {name: k for k, name in enumerate(sorted(names))}  # dicts are flattened sorted
    arguments: list[Any] = [Weight(order[name]) for name in sorted(trained)]
    arguments += [np.asarray(x) for x in jax.tree.leaves((frozen, inputs))]
    program, named = translate(closed, arguments)
    finer = in_pieces(program, len(names))
    targets = np.asarray(squares.targets, np.float64)
    parts, marks = _by_sample(finer, named, targets)
    ordered = sorted(names)
    found = Question(
        tuple(parts),
        tuple(trained[ordered[b]].ravel()[at] for b, at in zip(*finer[1:3], strict=True)),
        tuple(y.ravel() for y in targets), np.array([ratios[ordered[b]] for b in finer.block]),
        _scale(squares.weight), float(step_size),
    )  # fmt: skip
    names_of = _piece_names(ordered, finer)
    return Asked(found, names_of, marks, tuple(ordered), *finer[1:3], str(closed))


def _piece_names(names: list[str], finer: Pieces) -> tuple[str, ...]:
    """``W`` for a whole block, ``W[0]``, ``W[1]`` for its pieces."""
    found = []
    for k, b in enumerate(finer.block):
        before = finer.block[:k].count(b)
        found.append(names[b] if finer.block.count(b) == 1 else f"{names[b]}[{before}]")
    return tuple(found)


def _by_sample(finer: Pieces, named: dict[str, int], y: np.ndarray) -> tuple[list, list]:
    program, count = finer.program, len(y)
    size = program.operations[program.output].size
    if size != y.size:
        raise InputError(f"the model has {size} outputs and there are {y.size} targets.")
    programs, marks = [], []
    for i in range(count):
        part, numbers = restrict(program, np.arange(i * size // count, (i + 1) * size // count))
        programs.append(part)
        moved = {name: finer.numbers[n] for name, n in named.items()}
        found = {name: numbers[n] for name, n in moved.items() if n in numbers}
        softmaxes = [op.inputs[0] for op in part.operations if op.kind == "softmax"]
        marks.append(({SCORES: softmaxes[0]} if len(softmaxes) == 1 else {}) | found)
    return programs, marks


def _scale(weight: float) -> Range:
    """The s of the risk s/2 |r|^2; 1/count may have been rounded once."""
    s = 2 * float(weight)
    if weight == 0.5:
        return Range(1.0, 1.0)
    return Range(float(np.nextafter(s, 0)), float(np.nextafter(s, np.inf)))


def require_same_gradient(setup: Setup, params: Any, asked: "Asked") -> None:
    """Refuse a model whose derivative in JAX is not that of its operations (trap 3)."""
    question, squares = asked.question, as_squares(setup)
    found = facts(question)
    trained = {n: jnp.asarray(trees.blocks(params)[n], float) for n in asked.trained}

    def outputs(trained: dict) -> Any:
        return squares.outputs(trees.with_blocks(params, trained), squares.inputs)

    rng = np.random.default_rng(0)
    value = jax.eval_shape(outputs, trained)
    pull = jax.jit(lambda p, v: jax.vjp(outputs, p)[1](v)[0])
    roots = np.sqrt(np.repeat(question.ratios, [W.size for W in question.weights]))
    for _ in range(2):
        v = rng.choice([-1.0, 1.0], size=value.size) * rng.uniform(0.5, 1.0, value.size)
        theirs = pull(trained, jnp.asarray(v.reshape(value.shape), value.dtype))
        own = [
            np.ravel(theirs[asked.trained[b]])[at]
            for b, at in zip(asked.block, asked.entries, strict=True)
        ]
        flat = np.concatenate(own) * roots
        J = found.jacobian
        room = np.abs(v) @ J.rad + 1e-6 * (np.abs(v) @ np.abs(J.mid)).max(initial=0.0) + 1e-12
        if not np.all(np.abs(flat - v @ J.mid) <= room):
            raise InputError(
                "JAX's derivative of the model is not that of its operations (a custom rule, or "
                "stop_gradient?), so a run follows another function; nothing can be proved."
            )
    middle = 0.5 * (found.risk.low + found.risk.high)
    as_jax = jax.tree.map(jnp.asarray, (setup, trees.with_blocks(params, trained)))
    seen = float(as_jax[0].risk(as_jax[1])) - squares.lowest
    if not abs(seen - middle) <= 1e-6 * middle + found.risk.high - found.risk.low + 1e-12:
        raise InputError(
            f"the risk is {seen:.6g}, and its squares_weight says {middle:.6g}; nothing is proved."
        )


# --------------------------------------------------------------------------------------- proving


@in_float64
def prove(
    target: "Run | Setup",
    step_size: float | None = None,
    *,
    seed: int | None = None,
    through: str | None = None,
    levels: Iterable[str] = LEVELS,
) -> Proof:
    """Decide whether the fate of gradient descent is certain: *converges*, *stuck* or *undecided*.

    On a setup: from its weights. On a run: replays it and finds the first recorded step from which
    the fate is certain, by bisection. ``seed`` chooses one of several. ``through`` names the
    intermediate array of theorem P3 (``jax.ad_checkpoint.checkpoint_name``; ``"scores"`` is what
    enters the softmax of a model with one, and is tried by itself).

    >>> import shoal as sh
    >>> setup = sh.setup(lambda w, x: x * w["a"] * w["b"], {"a": 1.2, "b": 0.8}, [1.0], [1.0])
    >>> prove(setup, 0.5).verdict
    'converges'
    """
    begun = time.perf_counter()
    chosen = tuple(levels)
    if unknown := [name for name in chosen if name not in LEVELS]:
        raise InputError(f"no level is called {unknown[0]!r}; {nearest(unknown[0], LEVELS)}")
    setup = target if isinstance(target, Setup) else target.setup
    _require_plain(setup)
    row = _row(setup, seed)
    setup = setup.rows([row])
    step = _step(setup.astype("float64"), step_size)
    prover = _Prover(setup.one().astype("float64"), step, through, chosen)
    if isinstance(target, Setup):
        found, at, remark = prover(prover.setup.params0), None, ""
        words = ""
    else:
        target = replayed(target)
        words = target.notes.get("replayed", "")
        found, at, remark = _first_certain(prover, target, setup, row)
    proof = dataclasses.replace(prover.proof(found, at), remark=remark, replayed=words)
    return dataclasses.replace(proof, seconds=round(time.perf_counter() - begun, 3))


@in_float64
def prove_until(
    setup: Setup, most_steps: int, *, seed: int | None = None, through: str | None = None
) -> Proof:
    """Train on, in stretches that double, until the fate is proved or ``most_steps`` are done."""
    from shoal.lab.run import train

    begun, done, stretch, decisions = time.perf_counter(), 0, 64, 0
    setup = setup.rows([_row(setup, seed)])
    setup = setup.with_steps(_step(setup, None))
    while True:
        steps = min(stretch, most_steps - done)
        run = train(setup, steps=steps, probes=[], every=1)
        proof = prove(run, through=through)
        decisions += proof.decisions
        if proof.verdict != "undecided" or done + steps >= most_steps:
            seconds = round(time.perf_counter() - begun, 3)
            at = None if proof.step is None else done + proof.step
            return dataclasses.replace(proof, step=at, seconds=seconds, decisions=decisions)
        setup, done, stretch = setup.replace(params0=run.params), done + steps, 2 * stretch


def _row(setup: Setup, seed: int | None) -> int:
    if seed is None:
        return 0
    if seed not in setup.seeds:
        raise InputError(f"{seed=}: the setup has the seeds {list(setup.seeds)}.")
    return setup.seeds.index(seed)


def _step(setup: Setup, step_size: float | None) -> float:
    if step_size is None:
        given = setup.step_size
        found = engine.default_steps(setup) if given is None else given
        return float(np.ravel(found)[0])
    if isinstance(step_size, bool) or not np.ndim(step_size) == 0 or not 0 < step_size < np.inf:
        raise InputError(f"{step_size=}: expected a number above 0.")
    return float(step_size)


class _Prover:
    """Decides at weights of one start, and remembers what it did."""

    def __init__(self, setup: Setup, step: float, through: str | None, levels: tuple) -> None:
        self.setup, self.step, self.through, self.levels = setup, step, through, levels
        self.decisions = 0
        self.asked: Asked | None = None
        self.used = ""
        self.params: Any = None

    def __call__(self, params: Any) -> Decision:
        self.decisions += 1
        self.used = ""
        try:
            asked = question_of(self.setup, params, self.step)
        except Refusal as refusal:
            return Decision("undecided", f"The rules do not cover this model: {refusal}.")
        self.asked, question, marks = asked, asked.question, asked.marks
        found = decide(question, levels=self.levels)
        if found.verdict == "undecided" and (name := self._intermediate(marks)):
            tried = stuck_through(question, tuple(mark[name] for mark in marks), found.risk)
            if tried.verdict == "stuck":
                self.used, found = name, tried
        self.params = params
        return found

    def seen(self) -> tuple:
        """What belongs to the last decision."""
        return self.asked, self.used, self.params

    def _intermediate(self, marks: list[dict[str, int]]) -> str:
        name = self.through or SCORES
        if all(name in mark for mark in marks):
            return name
        if self.through is not None:
            known = set.intersection(*(set(mark) for mark in marks))
            raise InputError(f"no array is called {name!r}; {nearest(name, sorted(known))}")
        return ""

    def proof(self, found: Decision, at: int | None) -> Proof:
        """The result, if JAX's derivative is that of the model's operations."""
        if found.verdict != "undecided" and self.asked is not None:
            require_same_gradient(self.setup, self.params, self.asked)
        question = None if self.asked is None else self.asked.question
        lost = () if question is None else slack(question)
        return Proof(
            found.verdict, found.reason, found.theorem, at, found.radius, found.rate,
            (float(found.risk.low), float(found.risk.high)), found.constants, lost, 0.0,
            self.decisions, 0 if question is None else question.num_weights,
            0 if question is None else question.num_outputs, question, found.level,
            () if self.asked is None else self.asked.names, self.used,
            tuple(mark[self.used] for mark in self.asked.marks) if self.asked and self.used else (),
            "" if self.asked is None else self.asked.jaxpr,
        )  # fmt: skip


def _first_certain(
    prover: _Prover, run: "Run", setup: Setup, row: int
) -> tuple[Decision, int, str]:
    """Bisection over the records of a run, replayed from its first weights."""
    steps, points = _path(run, setup, row)
    last = len(steps) - 1
    best, seen, high = prover(points(last)), prover.seen(), last
    for share in (1 / 2, 3 / 4, 1 / 4, 7 / 8, 5 / 8, 3 / 8):  # the end may lie on a kink
        if best.verdict != "undecided" or last < 8:
            break
        found = prover(points(int(share * last)))
        if found.verdict != "undecided":
            best, seen, high = found, prover.seen(), int(share * last)
    if best.verdict == "undecided":
        prover.asked, prover.used, prover.params = seen
        return best, int(steps[last]), ""
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        found = prover(points(middle))
        if found.verdict == best.verdict:
            best, high, seen = found, middle, prover.seen()
        else:
            low = middle
    prover.asked, prover.used, prover.params = seen
    later = sorted({high, (high + last) // 2, last - 1}) if high < last and steps[1] == 1 else []
    return best, int(steps[high]), _in_floats(best, prover, points, later)


def _in_floats(found: Decision, prover: _Prover, points: Any, steps: list[int]) -> str:
    """P1 and P2 with errors, for the largest error of some steps that the run took in floats."""
    errors = [_step_error(prover, points(k), points(k + 1)) for k in steps]
    if not errors or found.theorem == "P3":
        return ""
    c, error = found.constants, max(errors)
    told = (
        f"Of the run's own steps {len(errors)} were compared with exact ones and differ by at most "
        f"{error:.2g}; if none differs by more, "
    )
    if found.theorem == "P2":
        floor = distance_with_errors(found.rate[0], c["distance"], found.radius, error)
        return "" if floor is None else f"{told}the run ends within {floor:.2g} of the minimum."
    h, allowed = Range(c["step_low"], c["step_high"]), 0.5 * (c["residual"] + c["reach"])
    drift = contraction_with_errors(
        c["residual"], c["sigma"], c["beta"], c["L"], h, found.radius, allowed, error
    )
    if not drift.holds:
        return ""
    return (
        f"{told}the same rate holds for {drift.steps:.3g} steps, down to a residual of "
        f"{drift.floor:.2g}."
    )


def _step_error(prover: _Prover, before: Any, after: Any) -> float:
    """Upper bound of how far a step in floats ended from the exact one, in scaled coordinates."""
    try:
        asked = question_of(prover.setup, before, prover.step)
        slope = gradient(asked.question, facts(asked.question))
    except Refusal:  # a kink, say: nothing is known of this step
        return np.inf
    question = asked.question
    pieces = [(asked.trained[b], at) for b, at in zip(asked.block, asked.entries, strict=True)]
    ends, starts = (
        np.concatenate([np.ravel(trees.blocks(point)[name])[at] for name, at in pieces])
        for point in (after, before)
    )
    roots = np.repeat(question.ratios, [W.size for W in question.weights]) ** 0.5
    moved = balls.sub(balls.exact(ends), balls.exact(starts))
    scaled = balls.div(moved, balls.Ball(roots, 4 * balls.UNIT * roots))
    step = balls.mul(slope, balls.exact(np.array(question.step_size)))
    return balls.norm(balls.add(scaled, step))


def _path(run: "Run", setup: Setup, row: int) -> tuple[np.ndarray, Any]:
    """Recorded steps and the weights there, replayed; it must end where the run ended."""
    total = int(run.step[-1])
    size = sum(np.size(W) for W in setup.moving(setup.params0).values())
    every = int(run.step[1] - run.step[0]) if len(run.step) > 1 else 1
    while total and (total // every + 1) * size > MOST_NUMBERS:
        every = next(k for k in range(2 * every, total + 1) if total % k == 0)
    setup = setup.with_setting(num_steps=total, every=every)
    if total:
        blocks = path_to(setup, jax.tree.map(lambda W: np.asarray(W)[[row]], run.params))
    else:
        blocks = {name: np.asarray(W)[:1] for name, W in setup.moving(setup.params0).items()}
    start = jax.tree.map(lambda W: W[0], setup.params0)
    steps = np.arange(len(next(iter(blocks.values())))) * every
    return steps, lambda k: trees.with_blocks(start, {name: x[k] for name, x in blocks.items()})
