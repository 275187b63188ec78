"""Text of a page: every string escaped; formulas, indices and powers set as such."""

import re
from html import escape

from markupsafe import Markup

_RISKY = re.compile(r"[<>&\"]|\\(href|url|style|class|html|require|def|newcommand|text\w*|mbox)")
_INDEX = re.compile(r"\b([A-Za-z])_([A-Za-z0-9]{1,4})\b")
_POWER = re.compile(r"\b(\d+(?:\.\d+)?)e([+-]?\d+)\b")
_EXPONENT = re.compile(r"(?<=[\w)|])\^(-?\w+(?:/\d+)?)")


def formula(latex: str) -> str:
    r"""LaTeX as MathML; what cannot be set, or could carry markup, is shown as it was written.

    >>> formula(r"\alpha \lt 1").count("<mo>")
    1
    >>> formula(r"\text{<b>x</b>}")
    '<code>\\text{&lt;b&gt;x&lt;/b&gt;}</code>'
    """
    from latex2mathml.converter import convert

    asked = latex.replace("<", r"\lt ").replace(">", r"\gt ")
    if not _RISKY.search(asked) and r"\text" not in latex:
        try:
            return convert(asked)
        except Exception:  # its parser raises whatever it meets
            return f"<code>{escape(latex)}</code>"
    return f"<code>{escape(latex)}</code>"


def math_html(text: str) -> str:
    r"""Words with formulas between dollar signs as HTML with MathML.

    >>> math_html("a < b")
    'a &lt; b'
    >>> [math_html(text).count("<math") for text in (r"rate $\alpha^2$", r"$$x$$ and $y$")]
    [1, 2]
    """
    parts = re.split(r"\${1,2}([^$]+)\${1,2}", text)
    return "".join(formula(part) if k % 2 else escape(part) for k, part in enumerate(parts))


def _power(match: re.Match[str]) -> str:
    power = str(int(match[2])).replace("-", "−")
    front = "" if match[1].rstrip("0").rstrip(".") == "1" else f"{match[1]} · "
    return f"{front}10<sup>{power}</sup>"


def _plain(text: str) -> str:
    """Escaped words with indices lowered and powers raised."""
    text = _INDEX.sub(r"<i>\1</i><sub>\2</sub>", escape(text))
    text = _EXPONENT.sub(lambda m: f"<sup>{m[1].replace('-', '−')}</sup>", text)
    return _POWER.sub(_power, text).replace("\n", "<br>")


def words(text: str) -> Markup:
    r"""Text as it is set on a page.

    >>> str(words("W_Q by width^-p & 4.5e-04 <b>"))
    '<i>W</i><sub>Q</sub> by width<sup>−p</sup> &amp; 4.5 · 10<sup>−4</sup> &lt;b&gt;'
    """
    parts = re.split(r"(\${1,2}[^$]+\${1,2})", str(text))
    return Markup("".join(math_html(p) if k % 2 else _plain(p) for k, p in enumerate(parts)))
