"""A look at one run: every number that a diagnosis rests on, computed when it is first asked for.

`verdict` says in a word where the run is. Papers and own models look alike from here: a model is a
function of weights and a batch, written down as a list of operations (`shoal.diagnostics.inside`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from shoal import trees
from shoal.diagnostics import dynamics, inside
from shoal.lab.own import Own
from shoal.lab.run import Run
from shoal.lab.setup import Setup
from shoal.models import predict

MEETINGS = ("dot_general", "mul", "add")
"""Operations in which a block of weights meets something."""
SOLVED = 1e-10
"""A risk below this share of its start is at the floor."""
MOST_OUTPUTS = 2000
"""Outputs up to which the tangent kernel is formed."""


class Look:
    """The numbers of one seed of a run."""

    def __init__(self, run: Run, row: int) -> None:
        self.run, self.row = run, row
        self.given = run.setup.one(row)
        start = as_own(self.given)
        self.start = start.replace(problem=jax.tree.map(jnp.asarray, start.problem))
        self.targets = np.asarray(start.targets)
        self.end = jax.tree.map(lambda W: np.asarray(W, float)[row], run.params)
        self.risk = np.asarray(run.risk[row], float)
        self.steps = int(run.step[-1])
        self.step = None if run.step_size is None else float(run.step_size[row])
        self.plain = isinstance(run.setup.setting.method, str) and run.setup.setting.method == "gd"

    @functools.cached_property
    def finite(self) -> bool:
        """Whether the run ended with numbers."""
        ended = all(np.isfinite(W).all() for W in jax.tree.leaves(self.end))
        return ended and bool(np.isfinite(self.risk).all())

    @functools.cached_property
    def at(self) -> Any:
        """Where to look: the end, or the start if the run diverged."""
        return self.end if self.finite else self.start.params0

    # ------------------------------------------------------------------------------- curvature

    @functools.cached_property
    def sharpness(self) -> float:
        """Largest eigenvalue of the Hessian over the trained blocks, at the start."""
        return self._hessian(self.start.params0, "LA")

    @functools.cached_property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest eigenvalue of the Hessian where we look."""
        return self._hessian(self.at, "SA"), self._hessian(self.at, "LA")

    @functools.cached_property
    def _hessian_product(self) -> Callable:
        start = self.start
        _, unravel = ravel_pytree(start.moving(start.params0))

        def product(params: Any, v: Any) -> Any:
            def risk(blocks: Any) -> Any:
                return start.risk(trees.with_blocks(params, blocks))

            blocks = start.moving(params)
            return ravel_pytree(jax.jvp(jax.grad(risk), (blocks,), (unravel(v),))[1])[0]

        count = trees.size(start.moving(start.params0))
        return _quick(product, start.params0, np.zeros(count))

    def _hessian(self, params: Any, which: str) -> float:
        """An end of the Hessian's spectrum, by ARPACK on Hessian-vector products."""
        count = trees.size(self.start.moving(params))
        product = lambda v: np.asarray(self._hessian_product(params, np.ravel(v)))  # noqa: E731
        if count <= 60:
            matrix = np.stack([product(v) for v in np.eye(count)])
            if not np.isfinite(matrix).all():  # as at a kink
                return float("nan")
            return float(np.linalg.eigvalsh(matrix)[-1 if which == "LA" else 0])
        start = np.random.default_rng(0).normal(size=count)
        operator = LinearOperator((count, count), matvec=product, dtype=np.float64)
        most = min(20, max(6, 2**27 // count))  # vectors that are kept: 1 GiB of them
        options: Any = {"k": 1, "which": which, "v0": start, "tol": 1e-3, "maxiter": 400}
        options |= {"ncv": most} | ({"tol": 0.03, "maxiter": 8} if most < 20 else {})
        if not np.isfinite(curved := product(start)).all():
            return float("nan")
        if not np.any(curved):
            return 0.0
        try:
            return float(eigsh(operator, return_eigenvectors=False, **options)[0])
        except ArpackError:
            return float("nan")

    @functools.cached_property
    def gradients(self) -> tuple[dict[str, float], dict[str, float]]:
        """Norm of the gradient of every block, at the start and where we look."""
        probe = _quick(dynamics.gradient_norm(self.start.risk), self.start.params0)
        both = probe(self.start.params0), probe(self.at)
        start, end = ({name: float(value) for name, value in one.items()} for one in both)
        return start, end

    @property
    def slope(self) -> float:
        """Norm of the gradient over the trained blocks, where we look."""
        return float(np.linalg.norm([self.gradients[1][name] for name in self.start.trained]))

    # --------------------------------------------------------------------------------- outputs

    @functools.cached_property
    def outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs at the start, and where we look."""
        x = self.start.inputs
        both = _quick(self.start.setting.function, self.start.params0, x)
        return np.asarray(both(self.start.params0, x)), np.asarray(both(self.at, x))

    @functools.cached_property
    def squares(self) -> bool:
        """Whether the loss is a multiple of the sum of squared errors."""
        return self.start.squares_weight is not None

    @functools.cached_property
    def unit(self) -> float:
        """What risks are compared with: that of outputs zero for squares, else 1."""
        if not self.squares:
            return 1.0
        size = float(np.sum(np.square(self.targets))) * float(self.start.squares_weight or 1)
        return size if size > 0 else 1.0

    @functools.cached_property
    def chance(self) -> float:
        """The risk of the best constant output; of the start where the loss is not shoal's."""
        y, name = self.targets, getattr(self.start.setting.loss, "__name__", "")
        if self.squares:
            return float(self.start.squares_weight or 1) * float(np.sum((y - y.mean(0)) ** 2))
        if name in ("cross_entropy", "logistic"):
            share = np.unique(y, return_counts=True)[1] / y.size
            return float(-np.sum(share * np.log(share)))
        return float(self.risk[0])

    @functools.cached_property
    def convex(self) -> bool:
        """Whether the risk is convex: the model is linear in its weights, the loss one of ours."""
        named = getattr(self.start.setting.loss, "__name__", "") in ("cross_entropy", "logistic")
        if not (self.squares or named):
            return False
        start = self.start
        g = np.random.default_rng(0)
        away = {k: g.normal(size=W.shape) for k, W in start.moving(self.at).items()}
        program = _quick(start.setting.function, start.params0, start.inputs)
        moving = start.moving(self.at)
        seen = [
            np.asarray(program(trees.with_blocks(self.at, {k: W + t * away[k]
                               for k, W in moving.items()}), start.inputs)) for t in (0, 1, 2)
        ]  # fmt: skip
        bend = float(np.max(np.abs(seen[0] - 2 * seen[1] + seen[2])))
        return bend <= 1e-9 * float(np.max(np.abs(seen)))

    @functools.cached_property
    def kernels(self) -> dict[str, np.ndarray] | None:
        """Share of each trained block in the kernel that drives the outputs, where we look."""
        start = self.start
        parts = start.setting.block_kernels(start)
        if self.outputs[1].size > MOST_OUTPUTS or parts is None:
            return None
        factor = 2 * float(start.squares_weight or 0.5)
        ratios = start.step_ratios
        found = _quick(parts, start.params0)(self.at)
        return {k: factor * float(ratios[k]) * np.asarray(found[k]) for k in start.trained}

    @functools.cached_property
    def spectrum(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Eigenvalues and vectors of the tangent kernel where we look; the residual along each.

        The residual is outputs minus targets, or the slope of another loss in the outputs.
        """
        if self.kernels is None:
            return None
        values, vectors = np.linalg.eigh(sum(self.kernels.values()))
        outputs = self.outputs[1]
        if self.squares:
            residual = outputs - self.targets
        else:
            loss = self.start.setting.loss
            residual = np.asarray(jax.grad(loss)(jnp.asarray(outputs), self.start.targets))
        return values, vectors, vectors.T @ residual.ravel()

    # ---------------------------------------------------------------------------- what is inside

    @functools.cached_property
    def parts(self) -> inside.Parts:
        """Attention, units and streams of the model."""
        return inside.parts(self.start.setting.function, self.start.params0, self.start.inputs)

    @functools.cached_property
    def values(self) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        """All values of the model that checks use, at the start and where we look."""
        listed = self.parts.program
        wanted = {found.value for some in self.parts[:4] for found in some}
        wanted |= {found.before for some in self.parts[:3] for found in some}
        for weight in inside.weights(listed, MEETINGS):
            wanted |= {weight.given, weight.product}
        if (features := inside.last_features(listed)) is not None:
            wanted.add(features)
        wanted = {number for number in wanted if isinstance(number, int) and number >= 0}

        def captured(params: Any, x: Any) -> dict[int, Any]:
            values = listed.run(params, x)
            return {number: values[number] for number in wanted}

        params, x = self.start.params0, self.start.inputs
        program = _quick(captured, params, x)
        both = program(params, x), program(self.at, x)
        start, end = ({k: np.asarray(v) for k, v in one.items()} for one in both)
        return start, end

    def at_each(self, places: Any, measure: Callable) -> list[tuple[Any, float, float]]:
        """Places with a measure at the start and where we look."""
        start, end = self.values
        found = []
        for at in places:
            numbers = (float(measure(jnp.asarray(v[at.value]), at)) for v in (start, end))
            found.append((at, *numbers))
        return found


def _quick(function: Callable, *example: Any) -> Callable:
    """Compile for one or two calls: what is saved in compiling is worth more than speed."""
    options: Any = {"xla_backend_optimization_level": 0}
    return jax.jit(function).lower(*example).compile(compiler_options=options)


def as_own(one: Setup) -> Setup:
    """One start as that of an own model: its function, loss, data, weights and step ratios."""
    setting = one.setting
    if isinstance(setting, Own):
        return one
    network = one.network._replace(fast_outputs=None, fused_squares=None)
    leaves, structure = jax.tree.flatten(one.params0)
    ratios = {name: float(value) for name, value in setting.step_ratios().items()}
    own = Own(
        num_samples=len(one.targets), train=setting.train, loss_function=setting.loss,
        function=lambda params, x: predict(network, params, x),
        shapes=(structure, tuple(leaf.shape for leaf in leaves)), label=one.name,
        num_steps=setting.num_steps, every=setting.every, method=setting.method,
        ratios=tuple(ratios.items()),
    )  # fmt: skip
    return Setup(own, one.problem, one.params0, step_size=one.step_size)


# ------------------------------------------------------------------------------------ the verdict

VERDICTS = {
    "at the floor": "The risk has fallen as far as it can.",
    "converging": "The risk falls, and the rest takes no more than ten times as long.",
    "slow": "The risk falls, but the rest takes more than ten times as long.",
    "stuck": "The gradient has gone and no direction leads down.",
    "at a saddle": "The gradient has gone, and some direction leads down.",
    "unstable": "The risk rises and falls.",
    "diverging": "The risk grows without bound.",
    "cannot fit": "No weights, or none that this model can reach, bring the risk to zero.",
}
"""The words of a verdict, and what each means."""
HEALTHY = ("at the floor", "converging")


def verdict(look: Look, floor: float = 0.0) -> tuple[str, str]:
    """A word for where the run is, and why; ``floor`` is a proved lower bound of the risk."""
    if not look.finite:
        return "diverging", "the risk is no longer a finite number"
    last = look.risk[-1]
    word, reason = curve_verdict(look.run.step, look.risk, look.chance)
    if word not in ("diverging", "at the floor") and floor > 0 and floor >= 0.5 * last:
        share = f"{100 * floor / last:.3g}%"
        return "cannot fit", f"{share} of the risk cannot be removed by any weights"
    return (_at_rest(look) or (word, reason)) if word == "slow" else (word, reason)


def curve_verdict(
    step: np.ndarray, risk: np.ndarray, chance: float | None = None
) -> tuple[str, str]:
    """What the curve of the risk alone says; ``chance`` is the risk of a constant, if known.

    >>> curve_verdict(np.arange(100), 0.9 ** np.arange(100))[0]
    'converging'
    """
    risk = np.asarray(risk, float)
    first, last, steps = risk[0], risk[-1], int(step[-1])
    scale = first if chance is None else min(first, chance)
    if not np.isfinite(risk).all():
        return "diverging", "the risk is no longer a finite number"
    if last > 10 * first:
        return "diverging", f"the risk has grown to {last / first:.2g} times its start"
    if last <= SOLVED * max(first, chance or 0.0):
        return "at the floor", f"the risk fell to {last:.1e} from {first:.1e}"
    if _rises(risk):
        rises = int(np.count_nonzero(np.diff(risk) > 0))
        return "unstable", f"the risk rises at {rises} of {len(risk) - 1} records"
    if len(risk) < 3:
        return "slow", "the run is too short to say more"
    quarter = max(len(risk) * 3 // 4 - 1, 0)
    lost = float(np.log10(risk[quarter] / last)) if 0 < last < risk[quarter] else 0.0
    wanted = max(float(np.log10(last / (1e-3 * scale))), 1.0) if scale > 0 else np.inf
    # powers of ten still to lose
    took = int(step[-1] - step[quarter])
    if chance is not None and last > 1.001 * chance and steps:
        than = f"{last:.3g} after {steps} steps; a constant output has {chance:.3g}"
        return "slow", f"the risk is still above that of a constant ({than})"
    if lost > 0 and (left := wanted / lost * took) <= 10 * steps:
        fall = f"a power of ten in {took / lost:.2g} steps"
        goal = f"{last * 10.0**-wanted:.1e}"
        return "converging", f"it loses {fall}; down to {goal} takes about {left:.2g} more"
    if lost <= 0:
        return "slow", "the risk hardly falls"
    return "slow", f"it loses a power of ten in {took / lost:.2g} steps at its present rate"


def _rises(risk: np.ndarray) -> bool:
    """Whether the risk goes up and down and gets nowhere."""
    if risk[-1] > risk[0]:
        return True
    recent = risk[len(risk) // 2 :]
    if len(recent) < 8:
        return False
    before, after = np.array_split(recent, 2)
    ups = np.diff(recent) > 1e-6 * recent[:-1]
    wide = recent.max() > 1.02 * recent.min()
    return bool(np.mean(ups) > 0.15 and wide and np.mean(after) > 0.8 * np.mean(before))


def _at_rest(look: Look) -> tuple[str, str] | None:
    """Stuck or at a saddle, where neither the curve nor the gradient promises anything."""
    last, half = look.risk[-1], len(look.risk) // 2
    rate = float(np.log10(look.risk[half] / last)) if 0 < last < look.risk[half] else 0.0
    rate /= max(int(look.run.step[-1] - look.run.step[half]), 1)
    step = look.step if look.plain and look.step else 1 / max(abs(look.ends[1]), 1e-300)
    promised = step * look.slope**2 / last / np.log(10)  # powers of ten a step, to first order
    if max(rate, promised) * 1000 * look.steps > 1:
        return None
    low, high = look.ends
    share = last / look.risk[0]
    if look.convex:
        return "at the floor", "the model is linear in its weights, and this is the minimum"
    if low < -1e-4 * abs(high):
        return "at a saddle", f"the gradient is {look.slope:.1e}, the Hessian goes to {low:.1e}"
    return "stuck", f"the gradient is {look.slope:.1e}, the risk is {share:.3g} times the first"
