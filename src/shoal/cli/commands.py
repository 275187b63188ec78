"""What the commands about one setup do: papers, train, certify, data, landscape, new."""

import keyword
import re
import shlex
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import shoal as sh
from shoal import cli, console, figures
from shoal.cli import Start
from shoal.cli.template import TEMPLATE
from shoal.diagnostics.data import data_report
from shoal.disk import runs as disk
from shoal.errors import InputError
from shoal.jsons import dumps
from shoal.lab.paper import Paper
from shoal.lab.run import Run, chosen_probes
from shoal.lab.setting import parse_assignments
from shoal.lab.setup import Setup
from shoal.lab.theorem import ANY_METHOD, Certificates, Theorem, require_covered
from shoal.pages import drawing, page
from shoal.papers import BUILT_IN, PAPERS, paper_of, split_target, target_of

PROBES: dict[str, Any] = {"": None, "none": ()}
"""What --probes says without names: the usual ones, or none."""
CERTIFIED_STEPS = 200  # of `certify`, for papers that leave the number of steps open


# --------------------------------------------------------------------- what all commands share


def answer(value: Any, parts: Iterable[Any] = (), note: str = "", *, json: bool) -> None:
    """End a command: the value as JSON, the only thing on standard output; or parts and a note."""
    if json:
        print(dumps(value), end="", file=cli.results())
        return
    terminal = console.console()
    for part in parts:
        terminal.print(console.printable(part) if isinstance(part, str) else part)
    if note:
        console.note(note)


def command_line() -> str:
    """The exact command that is running."""
    return shlex.join(["shoal", *cli.words])


def write_page(
    path: Path, title: str, lead: str, parts: list[page.Section], used: Iterable[Paper],
    *, interactive: bool = False,
) -> None:  # fmt: skip
    """Render and write a page, whole or not at all; ``interactive`` puts plotly's script in."""
    cited, said = [paper.citation() for paper in used], command_line()
    text = page.render(title, lead, parts, command=said, citations=cited, interactive=interactive)
    # names of files may not be UTF-8
    disk.write_whole(path, text.encode(errors="backslashreplace"))


def write_figure(folder: Path, figure: figures.Figure, record: Any) -> None:
    """Write a figure: a record as JSON, every number as Parquet, PNG and PDF."""
    disk.write_json(folder / f"{figure.key}.json", record)
    disk.write_rows(folder / f"{figure.key}.parquet", figures.rows(figure))
    drawing.save(figure, folder)


# ---------------------------------------------------------------------------- train and certify


def seeds_of(text: str) -> tuple[int, ...]:
    """Seeds from words such as ``0,1,2`` or ``0-99``.

    >>> seeds_of("3,0-2")
    (3, 0, 1, 2)
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,11})(?:-(\d{1,11}))?", part.strip(), re.ASCII)
        if found is None:
            raise InputError(f"--seeds {text}: expected whole numbers such as 0,1,2 or 0-99.")
        low, high = int(found[1]), int(found[2] or found[1])
        if not low <= high < 2**31 or high - low >= 100_000:
            msg = f"--seeds {text}: {part} is not a range of at most 100000 seeds below 2**31."
            raise InputError(msg)
        seeds.extend(range(low, high + 1))
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {text}: a seed is named twice.")
    return tuple(seeds)


def _setup(paper: Any, start: Start, theorem: Theorem | None = None) -> Setup:
    """The setup that the options describe; a theorem decides the method where none is given."""
    values: dict[str, Any] = dict(parse_assignments(start.set or []))
    if start.steps is not None:
        if "num_steps" in values:
            raise InputError("--steps and --set num_steps=... say the same thing; use one of them.")
        values["num_steps"] = start.steps
    if theorem is not None:
        if isinstance(paper, Paper) and paper.setting().num_steps is None:
            values.setdefault("num_steps", CERTIFIED_STEPS)
        if theorem.method != ANY_METHOD:
            known = (theorem.method,) if isinstance(theorem.method, str) else theorem.method
            if (method := values.setdefault("method", known[0])) not in known:
                msg = f"method={method}, but {theorem.key} is about {' or '.join(known)}."
                raise InputError(msg)
    return paper.setup(
        values, seeds=seeds_of(start.seeds),
        data=start.data, params=start.params, precision=start.precision,
    )  # fmt: skip


def _execute(setup: Setup, probes: Any, step: str | None = None) -> Run:
    """Train with progress."""
    with console.progress(f"{setup.name}: training") as tell:
        run = sh.train(setup, step_size=step, probes=probes, progress=tell)
    if (ended := run.final_states()) is not None:
        run.notes["ended"] = ended
    run.notes["command"] = command_line()
    return run


def _save(run: Run, found: list[Certificates], start: Start, out: Path | None) -> None:
    if out is not None:
        for name, path in {"data_file": start.data, "params_file": start.params}.items():
            run.notes.setdefault(name, str(path) if path else None)
        run.save(out, found)
        console.note(f"wrote {out}")


def _setting_json(run: Run) -> dict[str, Any]:
    steps: Any = run.step_size
    if steps is not None and len(set(map(float, steps))) == 1:
        steps = float(steps[0])
    return run.setup.setting.asdict() | {"step_size": steps}


def train(target: str, *, start: Start, out: Path | None, json: bool) -> None:
    """``shoal train``: the run is compared with all theorems whose probes are recorded."""
    paper = target_of(target)
    if out is not None:
        disk.require_free(out)
    setup = _setup(paper, start)
    probes = chosen_probes(setup, PROBES.get(start.probes, start.probes))
    recorded = {name.partition("@")[0] for name in probes}
    lacking = {
        t: [n for n in t.needs if not any(f"{n}_".startswith(f"{r}_") for r in recorded)]
        for t in paper.all_theorems()
        if _is_about(t, setup)
    }
    run, found = _execute(setup, probes or ()), []
    for theorem in (t for t, needs in lacking.items() if not needs):
        try:
            found.append(sh.certify(run, theorem))
        except InputError as error:  # a theorem's mistake must not lose the run
            console.note(f"{theorem.key} not checked: {error}")
    _save(run, found, start, out)
    summary = {
        "paper": run.setup.name,
        "out": str(out) if out else None,
        "setting": _setting_json(run),
        "seeds": run.seeds,
        "first_risk": run.risk[:, 0],
        "last_risk": run.risk[:, -1],
        "verdicts": {c.theorem.key: c.verdicts for c in found},
    }
    hint = [] if out else ["[dim]Nothing was saved; add --out DIR to keep the run.[/]"]
    missed = [f"{t.key} (--probes +{','.join(n)})" for t, n in lacking.items() if n]
    if missed:
        hint.insert(0, f"[dim]Not checked, for lack of a probe: {', '.join(missed)}.[/]")
    answer(summary | run.notes, chain(console.run_parts(run, found), hint), json=json)


def _is_about(theorem: Theorem, setup: Setup) -> bool:
    """Whether a theorem covers this model and this rule."""
    try:
        require_covered(setup, theorem)
    except InputError:
        return False
    return True


def certify(name: str, *, start: Start, run: Path | None, out: Path | None, json: bool) -> None:
    """``shoal certify``: train and compare, or compare a run that is finished."""
    target, key = split_target(name)
    paper = target_of(target)
    if not key:
        names = ", ".join(f"{target}.{t.key}" for t in paper.all_theorems())
        raise InputError(f"{name!r} names a paper; which theorem? There are: {names}.")
    theorem = paper.theorem_of(key)
    if out is not None:
        disk.require_free(out)
    if run is None:
        setup = _setup(paper, start, theorem)
        require_covered(setup, theorem)
        probes = chosen_probes(setup, PROBES.get(start.probes, start.probes), theorem.probes)
        made = _execute(setup, probes, theorem.key)
    else:
        if start != Start():
            msg = "--run certifies a finished run: leave out --set, --data, --params, --seeds, ..."
            raise InputError(msg)
        made = disk.load_run(run, own_setup_of(target, run))
        if isinstance(paper, Paper) and made.setup.name != paper.key:
            raise InputError(f"{str(run)!r} is a run of {made.setup.name}, not of {paper.key}.")
        made.notes["step_size_source"] = f"the run in {run}"
    found = sh.certify(made, theorem)
    _save(found.run, [found], start, out)
    more = {"setting": _setting_json(made), "precision": made.setup.precision}
    said = found.run.notes
    note = f"replayed {said['replayed']}" if "replayed" in said else ""
    answer(found.to_json() | more | said, console.certificates_parts(found), note, json=json)


def own_setup_of(target: str, folder: Path) -> Setup | None:
    """The setup of a run of the own model that --paper names; a paper is known from now on."""
    source = target_of(target) if target else None
    if source is None or isinstance(source, Paper):
        return None
    given: Any = disk.read_json(folder / "run.json")
    for name in ("setting", "arguments"):  # a forged file is refused when the run is loaded
        given = given.get(name) if isinstance(given, dict) else None
    return source.setup(given if isinstance(given, dict) else {}, precision="float64")


# --------------------------------------------------------------------------- papers and their data


def papers(target: str, *, json: bool) -> None:
    """``shoal papers``."""
    wanted = [paper_of(target)] if target else list(PAPERS.values())
    if target:
        parts = console.paper_parts(wanted[0], target)
    else:
        hint = "[dim]shoal papers PAPER shows a paper's settings and probes.[/]"
        parts = chain(*(console.summary_parts(paper, paper.key) for paper in wanted), [hint])
    answer([_paper_json(paper) for paper in wanted] if json else None, parts, json=json)


def _paper_json(paper: Paper) -> dict[str, Any]:
    def listed(items: Iterable[Any], *names: str) -> list[dict[str, Any]]:
        return [{name: getattr(item, name) for name in names} for item in items]

    return {
        **listed([paper], "key", "title", "authors", "year", "arxiv", "about")[0],
        "theorems": listed(paper.all_theorems(), "key", "statement", "source", "method"),
        "claims": listed(paper.claims, "key", "statement", "source"),
        "figures": listed(paper.figures, "key", "title", "source"),
        "probes": console.probes_of(paper),
        "default_probes": paper.setting.default_probes,
        "setting": paper.setting().asdict(),
        "settings": {
            name: {"about": said, "source": source}
            for name, (said, source) in console.settings_of(paper.setting).items()
        },
    }


def data(target: str, *, settings: list[str] | None, data: Path | None, json: bool) -> None:
    """``shoal data``."""
    setup = _setup(paper_of(target), Start(set=settings, data=data))
    if getattr(setup.problem, "X", None) is None:  # icl2025 trains on a risk, not on data
        raise InputError(f"{setup.name} has no sequences of tokens to measure.")
    found = data_report(setup.problem)
    answer(found, console.data_parts(found), json=json)


def landscape(*folders: Path, out: Path, paper: str, json: bool, **options: Any) -> None:
    """``shoal landscape``."""
    runs = [disk.load_run(folder, own_setup_of(paper, folder)) for folder in folders]
    disk.require_folder(out)
    with console.progress("landscape") as tell:
        found = sh.landscape(*runs, names=tuple(map(str, folders)), progress=tell, **options)
    about = {"directions": found.kind, "blocks": found.blocks, "sides": found.measures}
    write_figure(out, found.figure, found.figure)
    disk.write_json(out / "measures.json", about)
    part = page.figure_section(found.figure)._replace(finding=found.finding, seen=found.explained)
    parts = [part._replace(tables=(("in numbers", *found.table),))]
    used = dict.fromkeys(run.setup.paper for run in runs if run.setup.paper)
    lead = f"Around the end of {' and '.join(map(str, folders))}."
    write_page(out / "index.html", "Landscape", lead, parts, used)
    wrote = f"wrote {out / 'index.html'}, landscape.png and landscape.pdf"
    answer({"out": str(out)} | about, found.parts(), wrote, json=json)


def new_paper(name: str, *, out: Path | None, json: bool) -> None:
    """``shoal new paper``."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InputError(f"{name!r} is not a Python name; expected one such as doe2024.")
    if name in BUILT_IN:
        raise InputError(f"{name!r} is a built-in paper; choose another name.")
    path = out or Path(f"{name}.py")
    if path.exists():
        raise InputError(f"{str(path)!r} exists already; choose another name or --out.")
    disk.write_whole(path, TEMPLATE.replace("NAME", name).encode())
    where = path if path.is_absolute() else f"./{path}"
    note = f"wrote {path}; try: shoal certify {where}.theorem_1"
    answer({"file": str(path)}, note=note, json=json)
