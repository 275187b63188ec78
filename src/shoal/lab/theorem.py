"""Theorems about runs: which runs they cover, and what they say of one."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal.certificates import Certificate, Inequality, condition, readings, verdict
from shoal.errors import InputError, nearest
from shoal.lab import engine
from shoal.lab.probes import probe_names
from shoal.lab.setup import Setup
from shoal.linalg import norm_fro
from shoal.models import predict
from shoal.runtime import in_float64
from shoal.theory.descent import ROOM, Ball, Split, descent_in
from shoal.theory.kernel_regime import kernel_regime as compare_with_kernel
from shoal.verified import balls
from shoal.verified.balls import Refusal
from shoal.verified.enclose import enclosure_width
from shoal.verified.facts import RADII, facts, on_balls

if TYPE_CHECKING:
    from shoal.lab.run import Run

ANY_METHOD = "any"
"""The method of a theorem about the start only."""


class Theorem(NamedTuple):
    """A statement that can be compared with a run.

    - ``key``: as in ``shoal certify PAPER.KEY``; ``statement``: what it says, in a sentence.
    - ``source``: provenance: paper; paper, as summarised; or ours, with more words.
    - ``certificate(setup, run)``: its hypotheses and conclusions for one seed, in JAX. ``run.step``
      and ``run.risk`` have one entry per record, and so has ``run.probes[name]``.
    - ``method``: the training rule that it covers, several of them, or ``any``.
    - ``needs``: probes that ``certificate`` reads in any case. ``certify`` records them by itself;
      a run without them is not compared with the theorem.
    - ``probes``: probes that are recorded too, but that ``certificate`` can do without
      (``run.probes.get``): without them it checks less.
    - ``largest_step(setup)``: the largest step that it allows; NaN where it allows none.
    - ``covers(setting)``: whether it is about this model at all.
    - ``facts(setup)``: numbers that are proved of one start outside of JAX; ``certificate`` finds
      them among ``run.probes``. ``largest_step`` among them is the largest step that is allowed.
    """

    key: str
    statement: str
    source: str
    certificate: Callable[[Setup, Any], Certificate]
    method: str | tuple[str, ...] = ANY_METHOD
    probes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    largest_step: Callable[[Setup], Any] | None = None
    covers: Callable[[Any], bool] = lambda _: True
    facts: Callable[[Setup], dict[str, float]] | None = None

    def covers_method(self, method: Any) -> bool:
        """Whether it covers a training rule."""
        known = (self.method,) if isinstance(self.method, str) else self.method
        return ANY_METHOD in known or method in known


class Certificates(list[Certificate]):
    """A theorem compared with every seed of a run; prints itself as the command line does."""

    def __init__(self, run: "Run", theorem: Theorem, found: Iterable[Certificate]) -> None:
        super().__init__(found)
        self.run, self.theorem = run, theorem

    @property
    def verdicts(self) -> list[str]:
        """The verdict of every seed."""
        return [str(verdict(one)) for one in self]

    @property
    def verdict(self) -> str:
        """The common verdict; ``mixed`` if seeds differ."""
        return self.verdicts[0] if len(set(self.verdicts)) == 1 else "mixed"

    def to_json(self, *, curves: bool = False) -> dict[str, Any]:
        """What ``shoal certify --json`` prints."""
        results = [
            _certificate_json(seed, one, curves=curves)
            for seed, one in zip(self.run.seeds, self, strict=True)
        ]
        return {
            "paper": self.run.setup.name,
            "theorem": self.theorem.key,
            "statement": self.theorem.statement,
            "source": self.theorem.source,
            "results": results,
        }

    def __repr__(self) -> str:
        from shoal.console import certificates_parts, text_of

        return text_of(*certificates_parts(self))

    def _repr_html_(self) -> str:
        from shoal.pages.notebook import certificates_html

        return certificates_html(self)


def _certificate_json(seed: int, certificate: Certificate, *, curves: bool) -> dict[str, Any]:
    """One seed's certificate in JSON-compatible values."""
    from shoal.figures import thinned
    from shoal.jsons import plain

    def line(reading: Any) -> dict[str, Any]:
        usual = {"at": None, "relation": "<="}
        return {k: v for k, v in reading._asdict().items() if (k, v) not in usual.items()}

    hypotheses, conclusions = readings(certificate)
    found = {
        "seed": seed,
        "verdict": str(verdict(certificate)),
        "hypotheses": [line(h) for h in hypotheses],
        "conclusions": [line(c) for c in conclusions],
        "constants": certificate.constants,
        "predicted_rate": certificate.predicted_rate,
        "measured_rate": certificate.measured_rate,
    }
    if certificate.without_rule:
        found["without_rule"] = certificate.without_rule
    if curves and certificate.curves:
        found["curves"] = {
            name: {"at": (at := thinned(len(y), 400)), "y": np.asarray(y)[at]}
            for name, y in certificate.curves.items()
        }
    return plain(found)


def theorem_of(setup: Setup, theorem: Any) -> Theorem:
    """A theorem by its key, or as it is, or made of a function ``(setup, run) -> Certificate``."""
    if isinstance(theorem, Theorem):
        return theorem
    if callable(theorem):
        name = getattr(theorem, "__name__", "theorem")
        return Theorem(name, (theorem.__doc__ or name).strip().splitlines()[0], "ours", theorem)
    key = str(theorem).rpartition(".")[2]
    if setup.paper:
        return setup.paper.theorem_of(key)
    return named_theorem(key, EVERY_MODEL, setup.name)


def named_theorem(key: str, theorems: Iterable[Theorem], owner: str) -> Theorem:
    """The one of some theorems with that key."""
    known = {theorem.key: theorem for theorem in theorems}
    if key not in known:
        raise InputError(f"{owner} has no theorem {key!r}; {nearest(key, known)}")
    return known[key]


def require_covered(setup: Setup, theorem: Theorem) -> None:
    """Refuse a theorem about another kind of model or another training rule."""
    setting = setup.setting
    if not theorem.covers(setting):
        asked: dict[str, Any]
        (asked, *_) = getattr(theorem.covers, "args", ({},))  # a paper may ask for values by name
        unmet = {k: v for k, v in asked.items() if getattr(setting, k, None) != v}
        said = ", ".join(f"{k}={v} (here {getattr(setting, k, None)})" for k, v in unmet.items())
        more = f": it asks for {said}." if said else "."
        raise InputError(f"{theorem.key} does not cover this model{more}")
    if theorem.facts is not None and (not setup.has_samples or setup.squares_weight is None):
        raise InputError(f"{theorem.key} needs a squared loss (loss='squares' or 'mean_squares').")
    if "kernel_distance" in theorem.needs and setup.abstractly(Setup.kernel) is None:
        why = "no samples" if not setup.has_samples else "another loss, or too many outputs"
        msg = f"{theorem.key} needs the tangent kernel of a squared loss; this setup has {why}."
        raise InputError(msg)
    if not theorem.covers_method(setting.method):
        wanted = theorem.method if isinstance(theorem.method, str) else " or ".join(theorem.method)
        raise InputError(
            f"{theorem.key} is about method={wanted}, and this run used method={setting.method}; "
            f"train with --set method={wanted.split(' ')[0]}."
        )


def certify(run: "Run", theorem: Any) -> Certificates:
    """Compare a theorem with every seed of a run. Bounds are computed in float64.

    ``theorem`` is a key such as ``"theorem_a"``, a `Theorem`, or a function
    ``(setup, run) -> Certificate`` of one start and its trajectory.
    """
    setup = run.setup
    chosen = theorem_of(setup, theorem)
    require_covered(setup, chosen)
    seen = run.trajectory._replace(probes=_recorded_throughout(run))
    if missing := [name for name in chosen.needs if not _is_recorded(run, name, seen.probes)]:
        lacking = ",".join(missing)
        raise InputError(
            f"{chosen.key} needs {lacking}, which was not recorded; train with "
            f'probes=["+{lacking}"] (command line: --probes +{lacking}).'
        )
    if chosen.facts is not None:
        seen = seen._replace(probes=seen.probes | _facts(setup, chosen.facts))
    try:
        return Certificates(run, chosen, engine.certificates(setup, seen, chosen.certificate))
    except KeyError as error:
        name = str(error.args[0]) if error.args else ""
        if name in seen.probes or name not in probe_names(setup):
            raise
        raise InputError(
            f"{chosen.key} reads the probe {name!r}, which was not recorded; say needs=({name!r},) "
            "where the theorem is defined."
        ) from None


def _is_recorded(run: "Run", name: str, columns: Mapping[str, Any]) -> bool:
    """Whether a probe is there: as a column of its name, or as one for each of its parts."""
    parts = [f"{name}_{part}" for part in run.parts.get(name, ())]
    return name in columns or (bool(parts) and all(part in columns for part in parts))


def _recorded_throughout(run: "Run") -> dict[str, Any]:
    """Probes that were recorded at every record, not less often."""
    if run.risk.shape[1] < 2:
        return run.probes
    finite = np.isfinite(run.risk[:, 1])

    def skipped(values: Any) -> bool:
        second = np.asarray(values)[finite, 1]
        return second.dtype.kind == "f" and second.size > 0 and bool(np.isnan(second).all())

    return {name: x for name, x in run.probes.items() if not skipped(x)}


def allowed_steps(setup: Setup, theorem: Any) -> np.ndarray:
    """For every seed, the largest step that a theorem allows; NaN where it allows none."""
    chosen = theorem_of(setup, theorem)
    if chosen.facts is not None:
        return _facts(setup, chosen.facts)["largest_step"]
    if chosen.largest_step is None:
        raise InputError(f"{chosen.key} does not say which steps it allows.")
    return engine.per_start(setup.replace(step_size=None), chosen.largest_step)


@in_float64
def _facts(setup: Setup, facts: Callable[[Setup], dict[str, float]]) -> dict[str, np.ndarray]:
    """What is proved of every start, with a leading axis of runs."""
    exact = setup.astype("float64")
    found = [facts(exact.one(i)) for i in range(setup.num_runs)]
    return {name: np.array([each[name] for each in found]) for name in found[0]}


# ------------------------------------------------------------------- theorems about every model


def _kernel_regime(setup: Setup, run: Any) -> Certificate:
    weight: Any = setup.squares_weight
    K0, size = setup.kernel()(setup.params0), setup.setting.output_size(setup)
    e0 = (predict(setup.network, setup.params0, setup.inputs) - setup.targets).ravel()
    half_sum = run._replace(risk=run.risk * (0.5 / weight))
    noise = _kernel_noise(K0, run.risk.dtype)
    found = compare_with_kernel(
        K0, e0, setup.step_size, half_sum, output_size=size, kernel_noise=noise
    )
    extra = getattr(setup.setting, "kernel_hypotheses", None)
    more: dict[str, Inequality] = {} if extra is None else extra(run)
    curves = {name: y * (weight / 0.5) for name, y in found.curves.items()}
    return found._replace(hypotheses=found.hypotheses | more, curves=curves)


def _kernel_noise(K0: Any, precision: Any) -> Any:
    """Error of the recorded distance between two kernels: each is rounded like the first."""
    finest = jnp.finfo(jnp.float64).eps
    wide = norm_fro(enclosure_width(K0)) + 8 * len(K0) * finest * norm_fro(K0)
    return 2 * jnp.finfo(precision).eps / finest * wide


KERNEL_REGIME = Theorem(
    key="kernel_regime",
    statement="The loss curve is the one that the tangent kernel at the start predicts, up to "
    "what the measured movement of the kernel allows.",
    source="ours; proof in docs/theory/kernel_regime.md",
    certificate=_kernel_regime,
    method="gd",
    probes=("kernel_distance",),
    needs=("kernel_distance",),
)


def _jet_facts(setup: Setup) -> dict[str, float]:
    r"""A ball around one start, and bounds of the Jacobian on it by norm jets.

    In units of $\tfrac12\lVert r\rVert^2$: steps are twice the loss's weight times the step size.
    """
    from shoal.lab.proof import question_of  # proofs are about runs, which are about theorems

    nothing = dict.fromkeys(("jet_radius", "jet_alpha", "jet_beta", "jet_lipschitz"), np.nan)
    try:
        question = question_of(setup, setup.params0, 1.0).question
        found = facts(question)
        balls_ = on_balls(question, found, RADII)
    except Refusal:
        return nothing | {"largest_step": np.nan}
    alpha = np.maximum(balls.down(found.sigma - balls.up(balls_.L * balls_.radii)), 0.0)
    reach = balls.down(Split().c * balls_.radii * alpha)
    fits = [k for k, reason in enumerate(balls_.reasons) if not reason and np.isfinite(reach[k])]
    enough = [k for k in fits if reach[k] > found.residual_norm]
    if not fits:
        return nothing | {"largest_step": np.nan}
    k = enough[0] if enough else max(fits, key=lambda k: reach[k])
    beta, L = float(balls_.beta[k]), float(balls_.L[k])
    turn = L * found.residual_norm
    by_size = Split().a / beta**2 if beta > 0 else np.inf
    step = min(by_size, Split().b / turn if turn > 0 else np.inf)
    weight: Any = setup.squares_weight
    allowed = (1 - ROOM) * step / (2 * weight) if enough and np.isfinite(step) else np.nan
    return {
        "jet_radius": float(RADII[k]), "jet_alpha": float(alpha[k]), "jet_beta": beta,
        "jet_lipschitz": L, "largest_step": allowed,
    }  # fmt: skip


def _theorem_d0(setup: Setup, run: Any) -> Certificate:
    weight: Any = setup.squares_weight
    e0 = (predict(setup.network, setup.params0, setup.inputs) - setup.targets).ravel()
    half_sum = run._replace(risk=run.risk * (0.5 / weight))
    names = ("jet_radius", "jet_alpha", "jet_beta", "jet_lipschitz")
    ball = Ball(*(run.probes[name] for name in names))
    ratios = [setup.step_ratios[name] for name in setup.trained]
    alike = jnp.all(jnp.stack([jnp.asarray(r, float) == 1 for r in ratios]))
    found = descent_in(
        ball, norm_fro(e0), 2 * weight * setup.step_size, half_sum,
        output_size=setup.setting.output_size(setup), weights_size=trees.norm(setup.params0),
    )  # fmt: skip
    curves = {name: y * (weight / 0.5) for name, y in found.curves.items()}
    same = {"all trained blocks move at one step": condition(alike)}
    return found._replace(hypotheses=same | found.hypotheses, curves=curves)


THEOREM_D0 = Theorem(
    key="theorem_d0",
    statement="Inside a ball around the start, every step of gradient descent contracts the "
    "residual by 1 - c step alpha^2; alpha, beta and L_J are proved by norm jets.",
    source="ours; proof in docs/theory/qin2025.md, jets in docs/theory/prove.md",
    certificate=_theorem_d0,
    method="gd",
    probes=("distance",),
    facts=_jet_facts,
)
EVERY_MODEL = KERNEL_REGIME, THEOREM_D0
"""Theorems that need nothing but a squared loss."""
