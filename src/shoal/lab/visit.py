"""A visit: what `shoal tour` shows of a paper."""

from typing import Any, NamedTuple

from shoal.figures import Panel
from shoal.lab.run import Run


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


def number(value: float) -> str:
    """Four significant digits.

    >>> number(0.000123456), number(29.5489), number(float("inf"))
    ('1.235e-04', '29.55', 'inf')
    """
    if value == 0 or value != value or abs(value) == float("inf"):
        return f"{value:g}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"
