"""A visit: what `shoal tour` shows of a paper."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shoal.figures import Panel, band
from shoal.lab.run import Run, train
from shoal.lab.theorem import certify


class Visit(NamedTuple):
    """What a paper has to show: numbers for scripts, a table and words for people."""

    title: str
    rows: list[dict[str, Any]]  # Numbers, as JSON.
    head: tuple[str, ...]  # Column heads of the table.
    cells: list[tuple[str, ...]]  # Its rows; a cell that is a verdict is coloured.
    words: str  # What came out, in sentences that depend on it.
    about: str = ""  # What the paper says, in one sentence.
    panels: tuple[Panel, ...] = ()
    verdicts: tuple[tuple[str, str], ...] = ()  # What, verdict.
    runs: tuple[tuple[str, Run, tuple[str, ...]], ...] = ()
    """Runs that the page shows at length: title, run, theorems to compare it with."""
    finding: str = ""  # What came out, in one sentence; by default the first line of `words`.


def compared(
    paper: Any, title: str, shared: Mapping[str, Any],
    cases: Iterable[tuple[Mapping[str, Any], str]], words: str, *, about: str,
) -> Visit:  # fmt: skip
    """A visit of short runs, each compared with a theorem; ``words`` has a {} for each verdict.

    ``cases`` pairs settings, beside those that all runs share, with the key of a theorem.
    """
    rows, curves, cases = [], [], tuple(cases)
    for values, theorem in cases:
        run = train(paper.setup({**shared, **values}))
        curves.append(band(", ".join(map(str, values.values())), run.step, run.risk, positive=True))
        row = {**values, "theorem": theorem, "last risk": float(run.risk[0, -1])}
        rows.append(row | {"verdict": certify(run, theorem).verdict})
    head = (*dict.fromkeys(name for values, _ in cases for name in values), "theorem", "last risk")
    texts = [[number(x) if isinstance(x := row.get(k, ""), float) else str(x) for k in head]
             for row in rows]  # fmt: skip
    verdicts = [row["verdict"] for row in rows]
    named = zip(curves, (row["theorem"] for row in rows), verdicts, strict=True)
    return Visit(
        title, rows, (*head, "verdict"), [(*t, v) for t, v in zip(texts, verdicts, strict=True)],
        words.format(*verdicts), about=about,
        panels=(Panel("the runs", "step", "risk", tuple(curves), log_y=True),),
        verdicts=tuple((f"{theorem}, {curve.label}", v) for curve, theorem, v in named),
    )  # fmt: skip


def number(value: float) -> str:
    """Four significant digits.

    >>> number(0.000123456), number(29.5489), number(float("inf"))
    ('1.235e-04', '29.55', 'inf')
    """
    if value == 0 or value != value or abs(value) == float("inf"):
        return f"{value + 0.0:g}"  # -0.0 + 0.0 is 0.0
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"


def signed(margin: float) -> str:
    """A margin with its sign.

    >>> signed(0.18523), signed(-1), signed(2e-06)
    ('+0.185', '-1.000', '+2e-06')
    """
    return f"{margin:+.3f}" if abs(margin) > 5e-4 else f"{margin:+.0e}"
