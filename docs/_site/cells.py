"""Run the gallery and the notebooks, and keep what they print and draw.

A script is cut into cells at lines that begin with ``# %%``; one without such lines is one cell.
Results are kept in a folder called by a digest of the script and of shoal's code, so that a second
build runs nothing. ``python cells.py SCRIPT...`` runs scripts in this process.
"""

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = HERE.parent / "_build" / "cells"
STYLE = {
    "font.size": 9, "legend.frameon": False, "figure.figsize": (5.2, 3.2),
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9,
    "axes.formatter.min_exponent": 2,  # 0.2 and 3, not 2 x 10^-1
    "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5,
    "figure.constrained_layout.use": True,
}  # fmt: skip
COLOURS = ("#1b3a5c", "#b5432e", "#3f8f6b", "#c98a1b", "#7a5aa6", "#8c8c8c")


class Cell(NamedTuple):
    """A piece of a script: words or code."""

    words: bool
    text: str


def cells(source: str) -> list[Cell]:
    """The cells of a script.

    >>> [c.words for c in cells('# %% [markdown]\\n# Hello\\n# %%\\nx = 1\\n')]
    [True, False]
    """
    found: list[tuple[bool, list[str]]] = [(False, [])]
    for line in source.splitlines():
        if line.startswith("# %%"):
            found.append(("[markdown]" in line, []))
        else:
            found[-1][1].append(line)
    made = []
    for words, lines in found:
        if words:
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        if text := "\n".join(lines).strip("\n"):
            made.append(Cell(words, text))
    return made


def code_digest() -> str:
    """A digest of all that results depend on, beside the script itself."""
    found = hashlib.sha256()
    for path in sorted((ROOT / "src" / "shoal").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def folder_of(script: Path, code: str) -> Path:
    """Where the results of a script are kept."""
    mark = hashlib.sha256(code.encode() + script.read_bytes()).hexdigest()[:16]
    return CACHE / f"{script.stem}-{mark}"


def run_script(script: Path, folder: Path) -> None:
    """Execute the code cells; write what they printed, and their pictures."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcdefaults()
    plt.rcParams.update(STYLE | {"axes.prop_cycle": plt.cycler(color=COLOURS)})
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    outputs = []
    for number, cell in enumerate(cells(script.read_text())):
        said = io.StringIO()
        if not cell.words:
            with contextlib.redirect_stdout(said):
                exec(compile(cell.text, str(script), "exec"), names)
        pictures = []
        for figure in plt.get_fignums():
            pictures.append(f"{script.stem}-{number}-{figure}.png")
            plt.figure(figure).savefig(folder / pictures[-1], dpi=160)
        plt.close("all")
        outputs.append({"said": said.getvalue().rstrip(), "pictures": pictures})
    (folder / "outputs.json").write_text(json.dumps(outputs))


def results(scripts: list[Path], say: Any = lambda _: None) -> dict[Path, tuple[Path, list]]:
    """Folder and outputs of every script; what is not kept is run, on two cores."""
    code = code_digest()
    folders = {script: folder_of(script, code) for script in scripts}
    missing = [s for s, folder in folders.items() if not (folder / "outputs.json").is_file()]
    if missing:
        say(
            f"running {len(missing)} of {len(scripts)} scripts: "
            + ", ".join(s.stem for s in missing)
        )
    where = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    running = [
        subprocess.Popen([sys.executable, __file__, *map(str, part)], env=os.environ | {"PYTHONPATH": where},
                         stderr=subprocess.PIPE, text=True)
        for part in (missing[::2], missing[1::2]) if part
    ]  # fmt: skip
    ended = [(process.communicate()[1], process.returncode) for process in running]
    if wrong := [errors for errors, code in ended if code]:
        raise RuntimeError("a script of the site failed:\n" + "\n".join(wrong))
    return {s: (f, json.loads((f / "outputs.json").read_text())) for s, f in folders.items()}


if __name__ == "__main__":
    import tempfile
    import time

    shared = code_digest()
    for name in sys.argv[1:]:
        path, begun = Path(name).resolve(), time.perf_counter()
        with contextlib.chdir(tempfile.mkdtemp()):
            run_script(path, folder_of(path, shared))
        print(f"{path.stem}: {time.perf_counter() - begun:.1f} s", file=sys.stderr)
