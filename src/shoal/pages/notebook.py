"""Results as HTML for notebooks; formulas become MathML."""

import html
import inspect
from collections.abc import Sequence

from shoal.lab.run import Run
from shoal.lab.theorem import Certificates
from shoal.lab.visit import number
from shoal.pages.theorems import theorem_tables
from shoal.pages.words import math_html


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def certificates_html(found: Certificates) -> str:
    """A theorem compared with every seed; the tables are those of a page."""
    theorem = found.theorem
    first, *rest = inspect.cleandoc(theorem.certificate.__doc__ or "").split("\n\n")
    said = [first if "$" in first else theorem.statement, *(p for p in rest if "$" in p)]
    words = "</p><p>".join(math_html(" ".join(paragraph.split())) for paragraph in said)
    parts = [f"<p><b>{html.escape(theorem.key)}</b> {words}</p>"]
    for title, head, rows in theorem_tables(found.to_json()):
        parts.append(f"<p>{html.escape(title)}</p>{_table(head, rows)}")
    if len(found) > 3:
        counts = {v: found.verdicts.count(v) for v in dict.fromkeys(found.verdicts)}
        parts.append(f"<p>all {len(found)} seeds: {html.escape(str(counts))}</p>")
    return "".join(parts)


def run_html(run: Run) -> str:
    """What a training run did."""
    rows = [
        (str(seed), number(float(risk[0])), number(float(risk[-1])))
        for seed, risk in list(zip(run.seeds, run.risk, strict=True))[:10]
    ]
    title = f"{run.setup.name}: {len(run.seeds)} seed(s), {int(run.step[-1])} steps"
    return f"<p><b>{html.escape(title)}</b></p>{_table(('seed', 'first risk', 'last risk'), rows)}"
