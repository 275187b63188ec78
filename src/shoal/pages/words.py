"""Text of a page: every string escaped; formulas, indices and powers set as such."""

import re
from collections.abc import Iterator
from html import escape

from markupsafe import Markup

_RISKY = re.compile(r"[<>&\"]|\\(href|url|style|class|html|require|def|newcommand|text\w*|mbox)")
GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eta": "η", "kappa": "κ", "lambda": "λ",
    "mu": "μ", "rho": "ρ", "sigma": "σ", "phi": "φ", "chi": "χ",
    "tau": "τ", "epsilon": "ε", "theta": "θ", "omega": "ω",
}  # fmt: skip
_SPECIAL = re.compile(
    rf"\b(?P<base>{'|'.join(GREEK)}|[A-Za-z])_(?P<index>t\+1|[A-Za-z0-9]{{1,4}})\b"
    r"|(?<=[\w)|])\^(?P<power>[-−]?\w+(?:[/.]\d+)?|\([-−]?\w+(?:[/.]\d+)?\))"
    r"|\b(?P<front>\d+(?:\.\d+)?)e(?P<ten>[+-]?\d+)\b"
    rf"|\b(?P<letter>{'|'.join(GREEK)})\b|(?P<sign><=|>=)"
    r"|(?<=[\w)]) (?P<operator>[-*]) (?=[\w(])"
    r"|\b(?P<extreme>max|min)_(?P<over>[A-Za-z])\b|(?<![\w.)\]-])(?P<minus>-)(?=\.?\d)"
)


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


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """Text in pieces, each with how it is set: "" (plain), "i" (a symbol), "sub" or "sup".

    >>> list(pieces("a / beta^2, 3e-4 <= L_J"))[1:]
    [('', 'β'), ('sup', '2'), ('', ', '), ('', '3 · 10'), ('sup', '−4'), ('', ' '), ('', '≤'), \
('', ' '), ('i', 'L'), ('sub', 'J')]
    """
    end = 0
    for found in _SPECIAL.finditer(text):
        if found.start() > end:
            yield "", text[end : found.start()]
        yield from _special(found)
        end = found.end()
    if end < len(text):
        yield "", text[end:]


def _special(found: re.Match[str]) -> Iterator[tuple[str, str]]:
    if found["base"]:
        yield from (("i", GREEK.get(found["base"], found["base"])), ("sub", found["index"]))
    elif found["power"]:
        yield "sup", found["power"].strip("()").replace("-", "−")
    elif found["ten"]:
        if float(found["front"]) != 1:
            yield "", f"{found['front']} · 10"
        else:
            yield "", "10"
        yield "sup", str(int(found["ten"])).replace("-", "−")
    elif found["extreme"]:
        yield from (("", found["extreme"]), ("sub", found["over"]))
    elif found["minus"]:
        yield "", "−"
    elif found["operator"]:
        yield "", {"-": " − ", "*": " · "}[found["operator"]]
    else:
        yield "", GREEK.get(found["letter"] or "", {"<=": "≤", ">=": "≥"}.get(found["sign"], ""))


def _plain(text: str) -> str:
    """Escaped words with indices lowered, powers raised and Greek letters by their signs."""
    parts = (f"<{how}>{escape(x)}</{how}>" if how else escape(x) for how, x in pieces(text))
    return "".join(parts).replace("\n", "<br>")


def words(text: str) -> Markup:
    r"""Text as it is set on a page.

    >>> str(words("W_Q by width^-p & 4.5e-04 <b>"))
    '<i>W</i><sub>Q</sub> by width<sup>−p</sup> &amp; 4.5 · 10<sup>−4</sup> &lt;b&gt;'
    >>> str(words("|r_t+1| <= tau"))
    '|<i>r</i><sub>t+1</sub>| ≤ τ'
    >>> str(words("gamma <= chi / phi^2"))
    'γ ≤ χ / φ<sup>2</sup>'
    >>> str(words("(1 - step * mu)^t"))
    '(1 − step · μ)<sup>t</sup>'
    >>> str(words("max_t |K_t - K_0| is -0.5 in 2026-01-01"))
    'max<sub>t</sub> |<i>K</i><sub>t</sub> − <i>K</i><sub>0</sub>| is −0.5 in 2026-01-01'
    """
    parts = re.split(r"(\${1,2}[^$]+\${1,2})", str(text))
    return Markup("".join(math_html(p) if k % 2 else _plain(p) for k, p in enumerate(parts)))
