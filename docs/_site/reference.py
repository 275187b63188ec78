"""The reference: the door, the commands, settings and probes, written from the package."""

import inspect
import re
from pathlib import Path
from typing import Any

SECTIONS = {
    "Models, data, training": "setup train Run load Setup per_sample watch Problem",
    "What follows from a run": "certify prove Proof diagnose landscape report",
    "Theorems": "Theorem Certificate Inequality Equality condition",
    "Many runs": "Study decades",
    "Papers and claims": "Paper Setting Static Traced Data Claim Control per_doubling power_law compared measured "
    "above below between exponent",
    "Losses, initial weights, errors": "half_sum_of_squares mean_of_squares lecun InputError",
}
"""Names of the door, in the order in which a reader needs them."""
SHAPES = {
    "setup": "`x` (samples, ...), or a tuple or dict of such arrays; `y` (samples, ...); `params` any tree of arrays. Papers: `X` (samples, "
    "tokens, dim), `y` (samples,) or `Y` (samples, tokens, out).",
    "train": "`run.risk` (seeds, records); `run.step` (records,); a scalar probe (seeds, records), an array probe (seeds, records, ...).",
    "Run": "`risk` (seeds, records); `step` (records,); `probes[name]` (seeds, records, ...); every array of `params` has a leading axis of seeds.",
    "Problem": "`X` (samples, tokens, dim); `y` (samples,) or (samples, tokens, out); `q` (samples, dim) for arda2026.",
    "decades": "`risk` (seeds, records) gives (seeds,).",
    "Inequality": "`lhs` and `rhs` are numbers or arrays of one shape, such as (records,).",
    "lecun": "`spec` is a tree of shapes; the result is a tree of arrays of these shapes.",
    "half_sum_of_squares": "Outputs and targets of one shape give one number.",
    "mean_of_squares": "Outputs and targets of one shape give one number.",
}


MARKS = {
    "Static": "A mark for a field of a `Setting`: a float that an `if` or a shape looks at. Another value compiles again.",
    "Traced": "A mark for a field of a `Setting`: a whole number that compiled programs take as an argument.",
    "Data": "A mark for a field of a `Setting` that only makes data and weights: no program of training depends on it.",
}


def examples() -> dict[str, str]:
    """Examples that are not in docstrings, by name."""
    text = (Path(__file__).parent / "door_examples.md").read_text()
    parts = (part.partition("\n") for part in text.split("\n## ")[1:])
    return {name: code.strip() for name, _, code in parts}


def tidy(signature: str) -> str:
    """A signature without module paths and array decorations."""
    text = re.sub(r"jaxtyping\.\w+\[[\w.]*, '([^']*)'\]", r"Array['\1']", signature)
    text = re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", text)
    return re.sub(r"<factory>|<function (?:[^<>]|<\w+>)*>", "...", text)


def docstring(thing: Any) -> str:
    """A docstring as Markdown: examples become blocks of code."""
    lines, out, inside = (inspect.getdoc(thing) or "").splitlines(), [], False
    for line in lines:
        if line.startswith(">>> ") and not inside:
            out += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            out += ["```", ""]
            inside = False
        out.append(line)
    return "\n".join([*out, "```"] if inside else out)


def signature_of(name: str, thing: Any) -> str:
    """A call as a user writes it."""
    if not callable(thing) or (isinstance(thing, type) and issubclass(thing, Exception)):
        return f"sh.{name}"
    if name in ("Static", "Traced", "Data"):
        return f"sh.{name}[type]"
    if name == "Setting":
        return "class Mine(sh.Setting): ..."
    made = inspect.signature(thing)
    parts = []
    for one in made.parameters.values():
        text = tidy(str(one))
        parts.append(
            text if len(text) < 90 else tidy(str(one.replace(annotation=inspect.Parameter.empty)))
        )
    one_line = f"sh.{name}({', '.join(parts)})"
    return one_line if len(one_line) < 90 else f"sh.{name}(\n    " + ",\n    ".join(parts) + ",\n)"


def members(kind: Any) -> list[str]:
    """The public methods and properties of a class, each with its first sentence."""
    lines = []
    for name, member in inspect.getmembers(kind):
        own = name in vars(kind) and not name.startswith("_")
        if own and (inspect.isfunction(member) or isinstance(member, property)) and member.__doc__:
            call = "" if isinstance(member, property) else "()"
            lines.append(f"| `.{name}{call}` | {inspect.getdoc(member).split(chr(10) * 2)[0]} |")
    lines = [line.replace("\n", " ") for line in lines]
    return ["", "| member | is |", "|---|---|", *lines, ""] if lines else []


def door() -> str:
    """Every public name: signature, what it is, shapes, and an example that the tests run."""
    import shoal as sh

    shown = examples()
    lines = ["# The door", "", "`import shoal as sh` offers these names. Every example is run by the tests; "
             "`line` and `run` in them are these:", "", f"```pycon\n{shown['intro']}\n```", ""]  # fmt: skip
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names.split():
            thing = getattr(sh, name)
            lines += [f"### {name}", "", f"```python\n{signature_of(name, thing)}\n```", ""]
            lines += [MARKS.get(name) or docstring(thing), ""]
            lines += [f"*Shapes.* {SHAPES[name]}", ""] if name in SHAPES else []
            lines += members(thing) if isinstance(thing, type) else []
            lines += [f"```pycon\n{shown[name]}\n```", ""] if name in shown else []
    lines += [
        "## Modules",
        "",
        "Loaded when first used, as `sh.methods` and so on.",
        "",
        "| module | holds |",
        "|---|---|",
    ]
    for name in sh._MODULES:
        lines.append(
            f"| `sh.{name}` | {(inspect.getdoc(getattr(sh, name)) or '').splitlines()[0]} |"
        )
    return "\n".join(lines)


def commands() -> str:
    """Every command, from its own help."""
    from shoal.cli import app

    text = app.generate_docs(output_format="markdown")
    # the page's own list of contents is enough
    text = re.sub(r"^## Table of Contents\n.*?(?=^\*\*)", "", text, flags=re.MULTILINE | re.DOTALL)
    text = text.replace(" -m sphinx ", " ")  # the program that builds the site, not shoal
    return re.sub(r"^# shoal$", "# Commands", text, flags=re.MULTILINE)


def settings() -> str:
    """All settings and probes of all papers."""
    from shoal.console import _plain_value, probes_of, settings_of
    from shoal.papers import PAPERS

    lines = ["# Settings and probes", "", "As `shoal papers PAPER` prints them. A setting is a keyword of `sh.setup(\"PAPER\", ...)` and a "
             "`--set name=value` of every command; a probe is a name in `probes=[...]` or `--probes`, with `@50` for every 50 steps.", ""]  # fmt: skip
    for key, paper in PAPERS.items():
        defaults, usual = paper.setting().asdict(), paper.setting.default_probes
        lines += [
            f"## {key}",
            "",
            "| setting | default | what it does | source |",
            "|---|---|---|---|",
        ]
        for name, (said, source) in settings_of(paper.setting).items():
            said = said.replace("|", "\\|")
            lines.append(f"| `{name}` | {_plain_value(defaults[name])} | {said} | {source} |")
        lines += ["", "| probe | by default | what it is |", "|---|---|---|"]
        for name, said in probes_of(paper).items():
            said = said.replace("|", "\\|")
            lines.append(f"| `{name}` | {'yes' if name in usual else ''} | {said} |")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """All pages of this kind, by file name."""
    return {"door.md": door(), "commands.md": commands(), "settings.md": settings()}
