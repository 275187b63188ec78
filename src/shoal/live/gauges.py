"""What a page shows of a theorem: hypotheses as gauges, the verdict in words, formulas as MathML.

Before and during a run the record is filled up with its last entry, so that the program that
compares a theorem with the finished run also serves the start: moving a slider compiles nothing.
Hypotheses that look at the run are then judged by what was seen so far.
"""

import inspect
from typing import Any

import jax
import numpy as np

from shoal.certificates import is_condition, undecided_words
from shoal.diagnostics import dynamics
from shoal.errors import InputError
from shoal.figures import thinned
from shoal.lab import engine
from shoal.lab.run import Run
from shoal.lab.setup import Setup
from shoal.lab.theorem import Theorem, allowed_steps, certify
from shoal.live.desk import Asked
from shoal.pages.formulas import FORMULAS
from shoal.runtime import numpy_tree

Records = dict[str, np.ndarray]
"""Risk and probes by name; one entry per record of one seed."""


def at_start(asked: Asked) -> Records:
    """The record before the first step."""
    return numpy_tree(engine.look(asked.setup, asked.setup.params0, asked.probes))


def run_of(asked: Asked, records: Records, params: Any = None, average: Any = None) -> Run:
    """Records of one seed as a run of the whole length; what is missing repeats the last entry."""
    setup, every = asked.setup, asked.setup.setting.every
    length = asked.total // every + 1
    if average is None and setup.setting.averages:
        average = setup.params0
    filled = {name: _filled(x, length)[None] for name, x in records.items()}
    risk = filled.pop("risk")
    ends = setup.params0 if params is None else params
    parts = engine.generic.parts_of(setup, asked.probes, filled)
    return Run(setup, np.arange(length) * every, risk, filled, ends, average, parts)


def _filled(x: np.ndarray, length: int) -> np.ndarray:
    rest = length - len(x)
    return np.concatenate([x, np.repeat(x[-1:], rest, axis=0)]) if rest > 0 else x


def judged(asked: Asked, records: Records, *, finished: bool = False, average: Any = None) -> dict:
    """Hypotheses with both sides and margin, the verdict, and the curves of the theorem."""
    if asked.theorem is None:
        return {"theorem": "", "words": asked.uncovered, "verdict": "", "hypotheses": []}
    found = certify(run_of(asked, records, average=average), asked.theorem)
    result = found.to_json(curves=True)["results"][0]
    failed = [line["name"] for line in result["hypotheses"] if line["holds"] is False]
    open_ = [line["name"] for line in result["hypotheses"] if line["holds"] is None]
    applies = not failed and not open_
    verdict, words = result["verdict"], _words(result, failed, open_)
    if not finished:
        verdict = "applies so far" if applies else "not applicable" if failed else "unresolved"
        words = _words_before(failed, open_)
    curves = result.get("curves", {}) if applies else {}
    every = asked.setup.setting.every
    return {
        "theorem": asked.theorem.key, "source": asked.theorem.source,
        "verdict": verdict, "words": words, "finished": finished,
        "hypotheses": [_gauge(line) for line in result["hypotheses"]],
        "conclusions": [_gauge(c) for c in result["conclusions"]] if finished and applies else [],
        "rates": [result["predicted_rate"], result["measured_rate"] if finished else None],
        "curves": {
            k: {"step": [every * i for i in c["at"]], "y": c["y"]} for k, c in curves.items()
        },
    }  # fmt: skip


def _gauge(line: dict[str, Any]) -> dict[str, Any]:
    shown = ("name", "lhs", "rhs", "holds", "margin", "at", "relation")
    return {k: line.get(k) for k in shown} | {"yes_or_no": is_condition(line["lhs"], line["rhs"])}


def _words_before(failed: list[str], open_: list[str]) -> str:
    if failed:
        some = "One hypothesis fails" if len(failed) == 1 else f"{len(failed)} hypotheses fail"
        return f"{some}, so the theorem says nothing about this run. It may still converge."
    if open_:
        return "Rounding could decide a hypothesis, so nothing is said."
    return "Every hypothesis holds so far. When the run ends, its conclusions are checked too."


def _words(result: dict[str, Any], failed: list[str], open_: list[str]) -> str:
    broken = [line["name"] for line in result["conclusions"] if line["holds"] is False]
    if result["verdict"] == "holds":
        return "Every hypothesis holds, and the run obeys every conclusion."
    if broken and not failed and not open_:
        return f"The hypotheses hold, but the run breaks: {'; '.join(broken)}."
    if failed:
        return _words_before(failed, open_)
    unsure = [line["name"] for line in result["conclusions"] if line["holds"] is None]
    return undecided_words([*open_, *unsure], result.get("without_rule", ()))


# ------------------------------------------------------------------------------- marks of the step


def _sharpness(setup: Setup) -> Any:
    return dynamics.sharpness(setup.risk, jax.random.key(0))(setup.params0)["value"]


def edge(asked: Asked) -> float | None:
    """2 / sharpness at the start: beyond it gradient descent is unstable, to first order."""
    sharp = float(engine.per_start(asked.setup, _sharpness)[0])
    return 2 / sharp if np.isfinite(sharp) and sharp > 0 else None


def largest(asked: Asked) -> float | None:
    """The largest step that the theorem allows; None where it allows none, or does not say."""
    if asked.theorem is None or asked.theorem.largest_step is None:
        return None
    found = float(allowed_steps(asked.setup, asked.theorem)[0])
    return found if np.isfinite(found) else None


def usual(asked: Asked) -> float:
    """The default step."""
    return float(engine.default_steps(asked.setup)[0])


# ----------------------------------------------------------------------------------- other curves


def prediction(asked: Asked) -> dict[str, Any] | None:
    """The risk that the tangent kernel at the start predicts, thinned."""
    setup = asked.setup
    if setup.setting.method != "gd":
        return None
    try:
        length = asked.total // setup.setting.every + 1
        found = engine.kernel_predictions(setup, np.arange(length) * setup.setting.every)
    except InputError:
        return None
    if found is None:
        return None
    at = thinned(length, 400)
    return {"step": at * setup.setting.every, "y": found[0][at]}


def statement(asked: Asked) -> dict[str, Any]:
    """The theorem in words and as formulas."""
    from shoal.pages.words import math_html

    theorem = asked.theorem
    if theorem is None:
        return {"key": "", "statement": "", "formula": "", "source": "", "details": ""}
    doc = inspect.cleandoc(theorem.certificate.__doc__ or "").split("\n\n")
    known = FORMULAS.get(f"{asked.setup.name}.{theorem.key}") or FORMULAS.get(theorem.key)
    # a paper of the user's own: the formulas of its docstring
    formula = " ".join(part for part in doc if "$" in part)
    if known is not None:
        formula = rf"$${known[0]}$$ $$\Longrightarrow\quad {known[1]}$$"
    details = " ".join(" ".join(doc[1:]).replace("``", "").split())
    return {
        "key": theorem.key,
        "statement": theorem.statement,
        "formula": math_html(" ".join(formula.split())) if formula else "",
        "details": math_html(details),
        "source": theorem.source,
    }


def theorems_of(asked: Asked) -> list[dict[str, Any]]:
    """All theorems of a target, for the menu."""
    listed: tuple[Theorem, ...] = asked.source.all_theorems()
    return [{"key": t.key, "statement": t.statement, "source": t.source} for t in listed]
