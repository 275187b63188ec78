"""Pages that shoal writes about itself: papers, gallery, notebooks, commands, settings, the door.

They are written into the source folder before Sphinx looks for pages (all of them are ignored by
git), and only where they changed.
"""

import contextlib
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cells
import pictures
import reference

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
EXTRA = DOCS / "_build" / "extra"
GROUPS = {
    "certify": "Certificates",
    "prove": "Proofs",
    "diagnose": "Diagnosis and landscapes",
    "probe": "Probes",
    "width": "Width",
    "model": "Models and training rules",
    "many": "Many runs",
}
NOTEBOOKS = ("first_certificate", "own_model", "the_trap", "widths")
FIGURES = {
    "wu2023": ("loss_by_width", "attention_maps"),
    "song2024": ("trap", "row_sums"),
    "arda2026": ("projection", "length"),
    "qin2025": ("conditioning", "certificate"),
    "icl2025": ("curves", "plateaus", "ranks", "softmax"),
}
"""Figures on a paper's page (quick size); of other papers the first two."""
VERDICTS = (
    "supported",
    "contradicted",
    "inconclusive",
    "not testable",
    "exploratory",
    "superseded",
)


def write(path: Path, text: str) -> None:
    """Write a page if it is new or changed, so that Sphinx reads again only what it must."""
    text = text.rstrip() + "\n"
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def toctree(names: Iterable[str], *more: str) -> str:
    """A hidden list of pages below this one."""
    return "\n".join(["```{toctree}", ":hidden:", *more, "", *names, "```", ""])


def fenced(text: str, kind: str) -> str:
    """A block of code or output."""
    return f"```{kind}\n{text}\n```\n"


def image(path: Path, words: str) -> str:
    """A picture from the folder of results."""
    where = Path("/") / path.relative_to(DOCS)
    return f"![{words}]({where.as_posix()})\n"


# ------------------------------------------------------------------------- gallery and notebooks


def split_docstring(source: str) -> tuple[str, str, str]:
    """Question, explanation and code of a script of the gallery."""
    _, words, code = source.split('"""', 2)
    question, _, more = words.strip().partition("\n\n")
    return question, " ".join(more.split()), code.strip("\n")


def gallery(results: dict[Path, tuple[Path, list]]) -> None:
    """A page for every script, and one that shows them all."""
    lines = [
        "# Gallery", "",
        "Each entry is a question, a few lines that answer it, and the picture that they draw. All of "
        "them were run when this page was built; copy one and change it.", "",
    ]  # fmt: skip
    names = []
    for prefix, title in GROUPS.items():
        lines += [f"## {title}", "", '<div class="gallery">']
        for script in sorted(s for s in results if s.stem.split("_")[0] == prefix):
            folder, outputs = results[script]
            question, words, code = split_docstring(script.read_text())
            shown = [folder / name for out in outputs for name in out["pictures"]]
            said = "\n".join(out["said"] for out in outputs if out["said"])
            body = [f"# {question}", "", words, "", *(image(p, question) for p in shown)]
            body += [fenced(code, "python"), fenced(said, "text") if said else ""]
            write(DOCS / "gallery" / f"{script.stem}.md", "\n".join(body))
            names.append(script.stem)
            lines += ["", f"[{image(shown[0], question).strip()} {question}]({script.stem}.md)", ""]
        lines += ["</div>", ""]
    write(DOCS / "gallery" / "index.md", "\n".join([*lines, toctree(names)]))


def notebook_json(parts: list[cells.Cell]) -> str:
    """A script as a notebook without outputs."""
    made = [
        {"cell_type": "markdown" if c.words else "code", "metadata": {}, "id": f"cell-{k}",
         "source": c.text.splitlines(keepends=True)}
        | ({} if c.words else {"execution_count": None, "outputs": []})
        for k, c in enumerate(parts)
    ]  # fmt: skip
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps(
        {"cells": made, "metadata": about, "nbformat": 4, "nbformat_minor": 5}, indent=1
    )


def notebooks(results: dict[Path, tuple[Path, list]]) -> None:
    """A page for every notebook, with what it printed and drew."""
    intro = [
        "# Notebooks", "",
        "Four longer walks. Each is a plain Python script with cells (`# %%`), which VS Code, Spyder and "
        "Jupyter (with jupytext) open as a notebook; the pages show what came out, and offer the same as "
        "an `.ipynb` file.", "",
    ]  # fmt: skip
    for name in NOTEBOOKS:
        script = DOCS / "notebooks" / f"{name}.py"
        folder, outputs = results[script]
        parts = cells.cells(script.read_text())
        body = []
        for cell, out in zip(parts, outputs, strict=True):
            body += [cell.text, ""] if cell.words else [fenced(cell.text, "python")]
            body += [fenced(out["said"], "text")] if out["said"] else []
            body += [image(folder / p, "what this cell draws") for p in out["pictures"]]
        write(EXTRA / "notebooks" / f"{name}.ipynb", notebook_json(parts))
        body += [f'<p><a href="{name}.ipynb" download>This page as a notebook</a></p>', ""]
        write(script.with_suffix(".md"), "\n".join(body))
        title = next(c.text for c in parts if c.words).splitlines()[0].lstrip("# ")
        intro.append(f"- [{title}]({name}.md)")
    write(DOCS / "notebooks" / "index.md", "\n".join([*intro, "", toctree(NOTEBOOKS)]))


# --------------------------------------------------------------------------------------- papers


def ledger() -> list[dict[str, Any]]:
    """All records of the ledger, with a page for each claim; kept by what they come from."""
    found = hashlib.sha256(cells.code_digest().encode())
    for path in sorted((ROOT / "ledger").rglob("*.json*")):
        found.update(path.read_bytes())
    kept, out = DOCS / "_build" / f"ledger-{found.hexdigest()[:16]}.json", EXTRA / "claims"
    if not (kept.is_file() and out.is_dir()):
        from shoal.cli import main

        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.chdir(ROOT):
            if main(["claims", "--json", "--out", str(out)]):
                raise RuntimeError("shoal claims failed")
        write(kept, said.getvalue())
    return [with_infinities(r) for r in json.loads(kept.read_text())]


def with_infinities(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: an end that is null is open."""

    def ends(found: list[float | None] | None) -> list[float] | None:
        if found is None:
            return None
        low, high = found
        return [-math.inf if low is None else low, math.inf if high is None else high]

    if "sequence" not in record:  # an identity or an existence: a test decides it, not draws
        return record
    sequence = record["sequence"] | {"median": ends(record["sequence"]["median"])}
    return record | {"median": ends(record["median"]), "sequence": sequence}


def figure_script(paper: Any) -> Path:
    """A script that draws some figures of a paper; run and kept like the gallery."""
    wanted = FIGURES.get(paper.key) or tuple(figure.key for figure in paper.figures[:2])
    path = DOCS / "_build" / "figures" / f"figures_{paper.key}.py"
    lines = [
        "from shoal.pages.drawing import draw", "from shoal.papers import PAPERS", "",
        f"made = {{f.key: f for f in PAPERS[{paper.key!r}].figures}}",
        f"for key in {wanted!r}:", "    figure = made[key].make(False)", "    draw(figure)",
        "    print(f'{figure.title}. {figure.caption} Source: {made[key].source}.')",
    ]  # fmt: skip
    write(path, "\n".join(lines))
    return path


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _claims_table(records: list[dict[str, Any]]) -> list[str]:
    from shoal.pages.ledger import effect_text, median_text, reason_of, word_of

    lines = ["| claim | verdict | draws | median [95 % sequence] |", "|---|---|---|---|"]
    for r in sorted(records, key=lambda r: VERDICTS.index(word_of(r))):
        page = f"../claims/{r['claim']}.v{r['version']}.html"
        reason = f" ({reason_of(r)})" if reason_of(r) else ""
        claim = f'{cell(r["statement"])} (<a href="{page}">{r["claim"].partition(".")[2]}</a>; {r["provenance"]})'
        draws = f"{r['seeds']['above']} of {r['seeds']['counted']}"
        numbers = cell(f"{median_text(r)}, {effect_text(r)}")
        lines.append(f"| {claim} | **{word_of(r)}**{reason} | {draws} | {numbers} |")
    return lines


def paper_page(paper: Any, records: list[dict[str, Any]], made: tuple[Path, list]) -> str:
    """Model, what the paper says, what we prove, what came out, and what is open."""
    from shoal.pages.formulas import FORMULAS
    from shoal.pages.ledger import counts, reason_of, word_of

    mine = [r for r in records if r["claim"].startswith(f"{paper.key}.")]
    tested, others = [r for r in mine if "verdict" in r], [r for r in mine if "verdict" not in r]
    where = f" [arXiv {paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})." if paper.arxiv else ""
    lines = [
        f"# {paper.key}: {paper.title}",
        "",
        f"{paper.authors}, {paper.year}.{where} About {paper.about}.",
        "",
    ]
    model = DOCS / "_site" / "models" / f"{paper.key}.md"
    lines += ["## The model", ""]
    if paper.key in pictures.MODELS:
        lines += [pictures.model_picture(paper.key), ""]
    lines += [model.read_text() if model.is_file() else (paper.setting.__doc__ or ""), ""]
    lines += [
        f"Every setting and probe is listed in [settings](../reference/settings.md#{paper.key}).",
        "",
    ]
    said = [r for r in mine if r["provenance"].startswith("paper")]
    lines += ["## What the paper says", "", "Statements that an experiment can decide. *paper* means that "
              "its words are known, *paper, as summarised* that an abstract or a public summary says so.", ""]  # fmt: skip
    lines += [f"- {r['statement']} (*{r['provenance']}*)" for r in said] or [
        "- Nothing that we test."
    ]
    lines += ["", "## What is proved", ""]
    theory = DOCS / "theory" / f"{paper.key}.md"
    if theory.is_file():
        lines += [f"Proofs, constants and worked numbers: [theory](../theory/{paper.key}.md).", ""]
    for theorem in paper.all_theorems():
        source = theorem.source.partition(";")[0]
        lines += [f"**`{paper.key}.{theorem.key}`** (*{source}*). {theorem.statement}", ""]
        formulas = FORMULAS.get(f"{paper.key}.{theorem.key}") or FORMULAS.get(theorem.key)
        if formulas:
            lines += [f"$${formulas[0]}\\quad\\Longrightarrow\\quad {formulas[1]}$$", ""]
    lines += ["## What came out", "", pictures.verdict_bar(counts(tested), VERDICTS), ""]
    lines += ["The chance that any verdict of the ledger is wrong by the luck of the draw is at most 5 % "
              "([how](../evidence.md)). Each claim leads to its page: setting, rule, every draw, controls.", ""]  # fmt: skip
    lines += [*_claims_table(tested), ""] if tested else []
    lines += [f"- {r['statement']} ({r['kind']}; {r['provenance']})" for r in others] + [""]
    folder, (output, *_) = made
    for name, words in zip(output["pictures"], output["said"].splitlines(), strict=True):
        lines += [
            image(folder / name, words.partition(".")[0].replace("[", "(").replace("]", ")")),
            f"*{words}*",
            "",
        ]
    lines += [f"`shoal reproduce {paper.key}` makes all {len(paper.figures)} figures: "
              + ", ".join(f"`{figure.key}`" for figure in paper.figures) + ".", ""]  # fmt: skip
    lines += ["## What is open", ""]
    open_ones = [r for r in tested if word_of(r) in ("inconclusive", "not testable", "exploratory")]
    lines += [f"- {r['statement']} *({reason_of(r) or word_of(r)})*" for r in open_ones]
    more = DOCS / "_site" / "open" / f"{paper.key}.md"
    lines += ["", more.read_text()] if more.is_file() else []
    lines += ["", f"`shoal claims {paper.key} --until-decided --budget 30m` spends seeds on them."]
    return "\n".join(lines)


def papers(results: dict[Path, tuple[Path, list]], records: list[dict[str, Any]]) -> None:
    """A page for every paper, and a table of them."""
    from shoal.papers import PAPERS

    lines = ["# Papers", "", "| key | paper | about | theorems | claims |", "|---|---|---|---|---|"]
    for key, paper in PAPERS.items():
        write(
            DOCS / "papers" / f"{key}.md", paper_page(paper, records, results[figure_script(paper)])
        )
        count = len(paper.theorems), len(paper.claims)
        lines.append(
            f"| [{key}]({key}.md) | {paper.title} | {paper.about} | {count[0]} | {count[1]} |"
        )
    lines += ["", (DOCS / "_site" / "provenance.md").read_text()]
    write(DOCS / "papers" / "index.md", "\n".join([*lines, toctree(PAPERS)]))


def everything(say: Any) -> None:
    """All pages that are made."""
    from shoal.papers import PAPERS

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    scripts = sorted((DOCS / "gallery").glob("*.py")) + sorted((DOCS / "notebooks").glob("*.py"))
    results = cells.results([*scripts, *map(figure_script, PAPERS.values())], say)
    gallery({s: r for s, r in results.items() if s.parent.name == "gallery"})
    notebooks({s: r for s, r in results.items() if s.parent.name == "notebooks"})
    papers(results, ledger())
    for name, text in reference.pages().items():
        write(DOCS / "reference" / name, text)


def setup(app: Any) -> dict[str, Any]:
    """Write them before Sphinx looks for pages."""
    from sphinx.util import logging

    say = logging.getLogger(__name__).info
    app.connect("config-inited", lambda *_: everything(say))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
