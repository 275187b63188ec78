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
    finding: str = ""  # What came out, in one sentence; by default the first line of `words`.


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
