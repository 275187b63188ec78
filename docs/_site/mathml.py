"""Formulas as MathML, made when the site is built: no script, no font, nothing from elsewhere."""

import html
import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

LOG = logging.getLogger(__name__)


DOUBLE = {"R": "\N{DOUBLE-STRUCK CAPITAL R}", "E": "\N{MATHEMATICAL DOUBLE-STRUCK CAPITAL E}"}


def _letters(tex: str) -> str:
    """Write double-struck letters as themselves: browsers ignore MathML's word for them.

    In MathML ``mathvariant`` counts only on single letters, and only as ``normal``.
    """
    return re.sub(r"\\mathbb\s*\{?([RE])\}?", lambda m: rf"\mathrm{{{DOUBLE[m[1]]}}}", tex)


def mathml(tex: str, display: str) -> str:
    """A formula as a MathML element, which keeps its TeX as an annotation for copying."""
    made = convert(_letters(tex.strip()), display=display)
    head, _, rest = made.partition(">")
    inner = rest.removesuffix("</math>")
    note = f'<annotation encoding="application/x-tex">{html.escape(tex.strip())}</annotation>'
    return f"{head}><semantics>{inner}{note}</semantics></math>"


def _written(node: Any, display: str) -> str:
    try:
        return mathml(node.astext(), display)
    except Exception as error:  # whatever it is, the page and the formula must be named
        LOG.warning("cannot write %r: %s", node.astext(), error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def inline(self: Any, node: Any) -> None:
    """Write a formula within a line."""
    self.body.append(f'<span class="math">{_written(node, "inline")}</span>')
    raise nodes.SkipNode


def block(self: Any, node: Any) -> None:
    """Write a formula on a line of its own."""
    self.body.append(f'<div class="math">{_written(node, "block")}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
