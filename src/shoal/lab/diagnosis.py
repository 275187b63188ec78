"""Why a run is slow or stuck: a verdict, its evidence, and causes whose remedies were tried.

    found = sh.diagnose(run)
    found.verdict, found.causes[0].advice

`shoal.lab.looking` has the numbers and the verdict, `shoal.lab.causes` one function for each cause.
Here remedies are tried by short trainings, and what does not help is not advised.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.errors import InputError
from shoal.figures import Curve, Panel
from shoal.lab.causes import BY_DEFAULT, CHECKS, STRUCTURAL, Cause, Remedy, Trial, floor_of
from shoal.lab.engine import default_steps
from shoal.lab.looking import HEALTHY, VERDICTS, Look, verdict
from shoal.lab.run import Run, train
from shoal.lab.setup import Setup
from shoal.runtime import in_float64

TRIAL_STEPS = 20_000
"""Most steps of a trial."""
TRIAL_FLOPS = 1e12
"""Most floating-point operations of a trial, by the compiler's count."""
HELPS, HELPS_MUCH = 3.0, 10.0
"""A remedy is advised if the risk ends at least this many times lower; more if it converges."""


class Diagnosis(NamedTuple):
    """What was found: a verdict with its reason, and causes, the likeliest first."""

    model: str
    seed: int
    verdict: str
    reason: str
    causes: tuple[Cause, ...]
    tried: tuple[Cause, ...]  # What was suspected, tried, and did not help.
    risk: Panel

    @property
    def advice(self) -> tuple[str, ...]:
        """What to change, the likeliest first."""
        return tuple(cause.advice for cause in self.causes)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as plain data."""
        return {
            "model": self.model, "seed": self.seed, "verdict": self.verdict, "reason": self.reason,
            "causes": [_cause_json(cause) for cause in self.causes],
            "tried": [_cause_json(cause) for cause in self.tried],
        }  # fmt: skip

    def page(self, out: str | Path) -> Path:
        """Write one self-contained HTML page, and return its path."""
        from shoal.pages.sections import report_page

        return report_page((self,), Path(out), f"Diagnosis of {self.model}")

    def __repr__(self) -> str:
        from shoal.pages.sections import sentence

        lines = [f"{self.model}, seed {self.seed}: {self.verdict}. {sentence(self.reason)}"]
        for number, cause in enumerate(self.causes, start=1):
            lines.append(f"{number}. {sentence(cause.sentence)}")
            lines.append(f"   {sentence(cause.advice)}")
            lines.append(f"   {tried_words(cause)}")
        lines += [f"Also tried, without use: {c.trial.change}." for c in self.tried if c.trial]
        if not self.causes and self.verdict not in HEALTHY:
            lines.append("No cause was found among those that shoal knows.")
        return "\n".join(lines)


def tried_words(cause: Cause) -> str:
    """What a trial showed, in a sentence."""
    trial = cause.trial
    if trial is None:
        return (
            "Not tried." if cause.remedies else "Not tried: shoal cannot make this change itself."
        )
    what = "Tried" if trial.change == cause.advice else f"Tried ({trial.change})"
    if trial.factor == 0:
        return f"{what}: the run diverges."
    said = f"{what}: after {trial.steps} steps the risk is"
    if trial.factor < 1.05:
        return f"{said} no lower; by itself this does not help."
    if trial.factor < HELPS:
        return f"{said} {trial.factor:.2g} times lower; by itself this does not help."
    return f"{said} {trial.factor:.3g} times lower."


def _cause_json(cause: Cause) -> dict[str, Any]:
    found = {
        "cause": cause.key, "sentence": cause.sentence, "value": cause.value, "limit": cause.limit,
        "why": cause.why, "advice": cause.advice, "places": dict(cause.places),
    }  # fmt: skip
    if (trial := cause.trial) is None:
        return found | {"trial": None}
    about = {"change": trial.change, "steps": trial.steps, "step_size": trial.step_size}
    ends = {"before": trial.before, "after": float(trial.changed[-1])}
    return found | {"trial": about | ends | {"factor": trial.factor}}


# ------------------------------------------------------------------------------------- the work


@in_float64
def diagnose(
    run: Any,
    *,
    steps: Any = None,
    step_size: Any = None,
    seed: int | None = None,
    trials: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Say why a run is slow or stuck, and what to change.

    ``run`` may be a setup, which is trained first (for ``steps`` with ``step_size``). Changes are
    tried by trainings as long as the run (shorter for large models) unless ``trials`` is false;
    a change that does not lower the risk at least threefold is not advised.
    """
    tell = progress or (lambda _: None)
    if isinstance(run, Setup):
        tell("training")
        run = train(run, steps=steps, step_size=step_size, probes=[])
    elif steps is not None or step_size is not None:
        raise InputError("steps and step_size are for a setup; this run is finished.")
    if not isinstance(run, Run):
        raise InputError(f"cannot diagnose a {type(run).__name__}; expected a run or a setup.")
    if not run.setup.has_samples:
        msg = (
            f"{run.setup.name} has a risk without samples, and a diagnosis looks at the outputs of "
            "samples; try the probe 'stationarity' (at the floor, slow, stuck or at a saddle)."
        )
        raise InputError(msg)
    if seed is not None and seed not in run.seeds:
        raise InputError(f"the run has no seed {seed}; it has {', '.join(map(str, run.seeds))}.")
    look = Look(run, 0 if seed is None else run.seeds.index(seed))
    tell(f"looking at seed {run.seeds[look.row]}")
    word, reason = verdict(look, floor_of(look))
    suspected: list[Cause] = []
    for check in CHECKS:
        suspected += check(look, word)
    causes, useless = _ranked(look, word, suspected, tell if trials else None)
    if word in ("stuck", "slow", "at a saddle") and any(c.key == "too_narrow" for c in causes):
        narrow = next(c for c in causes if c.key == "too_narrow")
        word, reason = "cannot fit", narrow.sentence
    picture = _risk_panel(look, causes)
    return Diagnosis(run.setup.name, run.seeds[look.row], word, reason, causes, useless, picture)


def _ranked(
    look: Look, word: str, suspected: list[Cause], tell: Callable[[str], None] | None
) -> tuple[tuple[Cause, ...], tuple[Cause, ...]]:
    """Causes in order, and what was suspected and did not help.

    First what helped, in the order of the checks; then what could not be tried, and faults that are
    there although mending them alone does not help. What a cause of the first kind explains is
    dropped. Of a run that converges, only what helps much is said.
    """
    wanted = HELPS_MUCH if word in HEALTHY else HELPS
    causes: list[Cause] = []
    others: list[Cause] = []
    for suspect in suspected:
        cause = suspect
        if any(cause.key in (other.key, *other.explains) for other in causes):
            continue
        if tell is not None and cause.remedies:
            tell(f"trying: {cause.remedies[0].words}")
            cause = _with_trial(look, cause)
        if cause.trial is None or cause.trial.factor < wanted:
            others.append(cause)
            continue
        # a part of what an earlier suspect would mend: the whole is the cause, if it helps at all
        whole = next((o for o in others if cause.key in o.explains and _helps(o)), cause)
        others = [o for o in others if o is not whole]
        causes.append(whole)
    beside = [c for c in others if word not in HEALTHY and (c.trial is None or c.key in STRUCTURAL)]
    beside = [c for c in beside if not any(c.key in other.explains for other in causes)]
    return (*causes, *beside), tuple(cause for cause in others if cause not in beside)


def _helps(cause: Cause) -> bool:
    return cause.trial is not None and cause.trial.factor >= HELPS


def _with_trial(look: Look, cause: Cause) -> Cause:
    """The cause with the trial of its best remedy."""
    tried = [found for remedy in cause.remedies if (found := _trial(look, remedy)) is not None]
    if not tried:
        return cause
    best = max(tried, key=lambda trial: trial.factor)
    if best.factor < HELPS:
        return cause._replace(trial=best)
    return cause._replace(trial=best, advice=best.change)


def _trial(look: Look, remedy: Remedy) -> Trial | None:
    """Train with the remedy, as long as the run where that is cheap.

    The step stays unless the remedy changes it; where that does not help, the default step of the
    changed model, a tenth and a hundredth of it are tried.
    """
    start = remedy.start()
    if not all(np.isfinite(W).all() for W in jax.tree.leaves(start.params0)):
        return None
    steps = _trial_steps(look)
    before = _before(look, steps)
    method = remedy.method or (look.run.setup.setting.method if _known(look) else "gd")
    back = remedy.scale**2 if look.squares else 1.0
    if not isinstance(method, str):  # its step is inside
        risk = _trained(start, method, steps, None).risk[0]
        return Trial(remedy.words, steps, None, before, risk * back)
    given = look.step if look.run.notes.get("step_size_source") == "given" else None
    best: Trial | None = None
    for step, said in _steps(start, remedy.step, given):
        risk = _trained(start, method, steps, step).risk[0] * back
        trial = Trial(remedy.words, steps, said, before, risk)
        if said is not None and remedy.step is None and trial.factor >= HELPS:
            alone = _trained(look.start, method, steps, step).risk[0, -1]  # the new step by itself
            trial = trial._replace(before=min(before, alone) if np.isfinite(alone) else before)
        best = trial if best is None or trial.factor > best.factor else best
        if best.factor >= HELPS:
            break
    return best


def _steps(start: Setup, wanted: Any, given: float | None) -> Iterator[tuple[float, float | None]]:
    """Steps to try, each with what must be said about it: nothing, if it stays as it was."""
    if isinstance(wanted, float):
        yield wanted, wanted
        return
    if given is not None and wanted != BY_DEFAULT:
        yield given, None
    usual = float(default_steps(_lifted(start))[0])
    yield usual, None if given is None else usual
    for part in (10, 100):
        yield usual / part, usual / part


def _known(look: Look) -> bool:
    return look.run.setup.setting.method != "unknown"


def _trial_steps(look: Look) -> int:
    cost = _flops(look)
    return int(max(min(look.steps, TRIAL_STEPS, TRIAL_FLOPS / max(cost, 1)), min(look.steps, 20)))


def _flops(look: Look) -> float:
    found = jax.jit(jax.grad(look.start.risk)).lower(look.start.params0).cost_analysis() or {}
    return float(found.get("flops", 0.0))


def _before(look: Look, steps: int) -> float:
    """The risk of the run itself at some step (trained again if it was not recorded).

    If it diverges, the lower of its start and the risk of a constant output.
    """
    upto = look.run.step <= steps
    if look.run.step[upto][-1] == steps and _known(look):
        last = float(look.risk[upto][-1])
    else:
        method = look.run.setup.setting.method if _known(look) else "gd"
        last = float(_trained(look.start, method, steps, look.step or None).risk[0, -1])
    idle = min(float(look.risk[0]), look.chance)
    return last if np.isfinite(last) and last < 10 * look.risk[0] else idle


def _lifted(start: Setup) -> Setup:
    """One start as a setup of one seed."""
    params0 = jax.tree.map(lambda W: np.asarray(W, float)[None], start.params0)
    return start.replace(params0=params0, seeds=(0,), step_size=None, own_probes=())


def _trained(start: Setup, method: Any, steps: int, step: Any) -> Run:
    """A run of one start; the risk is recorded at about a hundred steps."""
    every = next(k for k in range(max(steps // 100, 1), steps + 1) if steps % k == 0)
    chosen = step if isinstance(method, str) else None
    setup = _lifted(start)
    return train(setup, steps=steps, every=every, step_size=chosen, method=method, probes=[])


def _risk_panel(look: Look, causes: tuple[Cause, ...]) -> Panel:
    curves = [_curve("the run", look.run.step, look.risk)]
    for number, cause in enumerate(causes, start=1):
        if (trial := cause.trial) is not None:
            at = np.linspace(0, trial.steps, len(trial.changed))
            curves.append(_curve(f"{number}: {trial.words}", at, trial.changed))
    title = "the run, and each change that was tried" if len(curves) > 1 else "the run"
    return Panel(title, "step", "risk", tuple(curves), log_y=True)


def _curve(label: str, x: Any, y: np.ndarray) -> Curve:
    keep = np.isfinite(y) & (y > 0)
    x, y = np.asarray(x, float)[keep], y[keep]
    return Curve(label, x, y, y, y)


__all__ = ["VERDICTS", "Cause", "Diagnosis", "diagnose"]
