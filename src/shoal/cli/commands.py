"""What the commands about one setup do: papers, train, certify, data, landscape, new."""

import shlex
from pathlib import Path
from typing import Any

from shoal import cli, console
from shoal.cli import Source, Start
from shoal.diagnostics.data import data_report
from shoal.disk.runs import load_run, require_folder, require_free, write_json, write_rows
from shoal.errors import InputError
from shoal.jsons import dumps
from shoal.lab.paper import Paper
from shoal.lab.probes import probe_names, sentence
from shoal.lab.run import Run, chosen_probes, train
from shoal.lab.setting import parse_assignments
from shoal.lab.setup import Setup, paper_setup
from shoal.lab.theorem import ANY_METHOD, Certificates, Theorem, certify, require_covered
from shoal.papers import PAPERS, paper_of, split_target

LARGEST_SEED = 2**31 - 1
CERTIFIED_STEPS = 200  # of `certify`, for papers that leave the number of steps open


def print_json(value: Any) -> None:
    """Print JSON, the only thing on standard output."""
    print(dumps(value), end="")


def command_line() -> str:
    """The exact command that is running."""
    return shlex.join(["shoal", *cli.words])


def seeds_of(text: str) -> tuple[int, ...]:
    """Seeds from words such as ``0,1,2`` or ``0-99``.

    >>> seeds_of("3,0-2")
    (3, 0, 1, 2)
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _whole(first) or (dash and not _whole(last)):
            msg = f"--seeds {text}: expected whole numbers such as 0,1,2 or 0-99."
            raise InputError(msg)
        low, high = int(first), int(last or first)
        if not low <= high <= LARGEST_SEED or high - low >= 100_000:
            msg = f"--seeds {text}: {part} is not a range of at most 100000 seeds below 2**31."
            raise InputError(msg)
        seeds.extend(range(low, high + 1))
    if len(set(seeds)) < len(seeds):
        msg = f"--seeds {text}: a seed is named twice."
        raise InputError(msg)
    return tuple(seeds)


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12


def _setup(paper: Paper, start: Start, theorem: Theorem | None = None) -> Setup:
    """The setup that the options describe; a theorem decides the method where none is given."""
    values: dict[str, Any] = dict(parse_assignments(start.set or []))
    if start.steps is not None:
        if "num_steps" in values:
            msg = "--steps and --set num_steps=... say the same thing; use one of them."
            raise InputError(msg)
        values["num_steps"] = start.steps
    if theorem is not None:
        if paper.setting().num_steps is None:
            values.setdefault("num_steps", CERTIFIED_STEPS)
        if theorem.method != ANY_METHOD:
            known = (theorem.method,) if isinstance(theorem.method, str) else theorem.method
            if values.setdefault("method", known[0]) not in known:
                msg = f"method={values['method']}, but {theorem.key} is about {' or '.join(known)}."
                raise InputError(msg)
    return paper_setup(
        paper,
        values,
        seeds=seeds_of(start.seeds),
        data=start.data,
        params=start.params,
        precision=start.precision,
    )


def execute(
    setup: Setup, probes: Any, theorems: tuple[Theorem, ...], step: str | None = None
) -> tuple[Run, tuple[Certificates, ...]]:
    """Train with progress, and compare the run with theorems."""
    with console.progress(f"{setup.name}: training") as tell:
        run = train(setup, step_size=step, probes=probes, progress=tell)
    found = tuple(certify(run, theorem) for theorem in theorems)
    if (ended := run.final_states()) is not None:
        run.notes["ended"] = ended
    run.notes["command"] = command_line()
    return run, found


def _save(run: Run, found: tuple[Certificates, ...], start: Start, out: Path | None) -> None:
    if out is None:
        return
    for name, path in {"data_file": start.data, "params_file": start.params}.items():
        run.notes.setdefault(name, str(path) if path else None)
    run.save(out, found)
    console.note(f"wrote {out}")


def train_command(target: str, start: Start, out: Path | None, *, as_json: bool) -> None:
    """``shoal train``."""
    paper = paper_of(target)
    if out is not None:
        require_free(out)
    setup = _setup(paper, start)
    probes = chosen_probes(setup, _words(start.probes))
    recorded = {name.partition("@")[0] for name in probes}
    theorems = tuple(
        t
        for t in paper.all_theorems()
        if t.covers_method(setup.setting.method)
        and t.covers(setup.setting)
        and all(any(need == n or need.startswith(f"{n}_") for n in recorded) for need in t.needs)
    )
    run, found = execute(setup, probes or (), theorems)
    _save(run, found, start, out)
    if as_json:
        print_json(_summary(run, found, out))
        return
    terminal = console.console()
    for part in console.run_parts(run, found):
        terminal.print(part)
    if out is None:
        terminal.print("[dim]Nothing was saved; add --out DIR to keep the run.[/]")


def _words(text: str) -> Any:
    """The option --probes: nothing for the usual ones, ``none``, ``all``, or names."""
    return {"": None, "none": (), "all": "all"}.get(text, text)


def _summary(run: Run, found: tuple[Certificates, ...], out: Path | None) -> dict[str, Any]:
    steps = run.step_size
    return {
        "paper": run.setup.name,
        "out": str(out) if out else None,
        "setting": run.setup.setting.asdict() | {"step_size": _one_or_all(steps)},
        "seeds": run.seeds,
        "first_risk": run.risk[:, 0],
        "last_risk": run.risk[:, -1],
        "verdicts": {c.theorem.key: c.verdicts for c in found},
        **run.notes,
    }


def _one_or_all(steps: Any) -> Any:
    return steps if steps is None or len(set(map(float, steps))) > 1 else float(steps[0])


def certify_command(
    name: str, start: Start, folder: Path | None, out: Path | None, *, as_json: bool
) -> None:
    """``shoal certify``."""
    target, key = split_target(name)
    paper = paper_of(target)
    if not key:
        names = ", ".join(f"{target}.{t.key}" for t in paper.all_theorems())
        msg = f"{name!r} names a paper; which theorem? There are: {names}."
        raise InputError(msg)
    theorem = paper.theorem_of(key)
    if out is not None:
        require_free(out)
    if folder is not None:
        if start != Start():
            msg = "--run certifies a finished run: leave out --set, --data, --params, --seeds, ..."
            raise InputError(msg)
        run = load_run(folder)
        if run.setup.name != paper.key:
            msg = f"{str(folder)!r} is a run of {run.setup.name}, not of {paper.key}."
            raise InputError(msg)
        run.notes["step_size_source"] = f"the run in {folder}"
        found = certify(run, theorem)
    else:
        setup = _setup(paper, start, theorem)
        require_covered(setup, theorem)
        probes = chosen_probes(setup, _words(start.probes), theorem.probes)
        run, (found,) = execute(setup, probes, (theorem,), theorem.key)
    _save(run, (found,), start, out)
    if as_json:
        setting = run.setup.setting.asdict() | {"step_size": _one_or_all(run.step_size)}
        extra = {"setting": setting, "precision": run.setup.precision}
        print_json(found.to_json() | extra | run.notes)
        return
    terminal = console.console()
    for part in console.certificates_parts(found):
        terminal.print(part)


def papers_command(target: str, *, as_json: bool) -> None:
    """``shoal papers``."""
    wanted = [paper_of(target)] if target else list(PAPERS.values())
    if as_json:
        print_json([_paper_json(paper) for paper in wanted])
    elif target:
        console.paper(wanted[0], target, _probe_sentences(wanted[0]))
    else:
        for paper in wanted:
            console.paper_summary(paper, paper.key)
        console.console().print("[dim]shoal papers PAPER shows a paper's settings and probes.[/]")


def _probe_sentences(paper: Paper) -> dict[str, str]:
    """The probes of a paper's default setting, each with its sentence."""
    setup = paper_setup(paper, {})
    return {name: sentence(setup, name) for name in probe_names(setup)}


def _paper_json(paper: Paper) -> dict[str, Any]:
    return {
        "key": paper.key,
        "title": paper.title,
        "authors": paper.authors,
        "year": paper.year,
        "arxiv": paper.arxiv,
        "about": paper.about,
        "theorems": [
            {"key": t.key, "statement": t.statement, "source": t.source, "method": t.method}
            for t in paper.all_theorems()
        ],
        "claims": [
            {"key": c.key, "statement": c.statement, "source": c.source} for c in paper.claims
        ],
        "figures": [{"key": f.key, "title": f.title, "source": f.source} for f in paper.figures],
        "probes": _probe_sentences(paper),
        "default_probes": paper.setting.default_probes,
        "setting": paper.setting().asdict(),
        "settings": {
            name: {"about": said, "source": source}
            for name, (said, source) in console.settings_of(paper.setting).items()
        },
    }


def data_command(target: str, source: Source, *, as_json: bool) -> None:
    """``shoal data``."""
    setup = _setup(paper_of(target), Start(set=source.set, data=source.data))
    if not hasattr(setup.problem, "X"):
        msg = f"{setup.name} has no sequences of tokens to measure."
        raise InputError(msg)
    report = data_report(setup.problem)
    if as_json:
        print_json(report)
    else:
        console.data(report)


def landscape_command(
    folders: tuple[Path, ...], out: Path, options: dict[str, Any], paper: str, *, as_json: bool
) -> None:
    """``shoal landscape``."""
    from shoal import figures
    from shoal.cli.publishing import write_page
    from shoal.landscapes import cell, landscape
    from shoal.pages import drawing, page

    if paper:
        paper_of(paper)  # from now on its runs are known
    runs = [load_run(folder) for folder in folders]
    require_folder(out)
    with console.progress("landscape") as tell:
        found = landscape(*runs, names=tuple(map(str, folders)), progress=tell, **options)
    about = {"directions": found.kind, "blocks": found.blocks, "sides": found.measures}
    write_json(out / "landscape.json", found.figure)
    write_json(out / "measures.json", about)
    write_rows(out / "landscape.parquet", figures.rows(found.figure))
    drawing.save(found.figure, out)
    head = tuple(found.measures[0])
    cells = tuple(tuple(cell(row[k]) for k in head) for row in found.measures)
    table = ("in numbers", tuple(k.replace("_", " ") for k in head), cells)
    parts = [page.figure_section(found.figure)._replace(tables=(table,))]
    papers = list(dict.fromkeys(run.setup.paper for run in runs if run.setup.paper))
    lead = f"Around the end of {' and '.join(map(str, folders))}."
    write_page(out / "index.html", "Landscape", lead, parts, papers)
    if as_json:
        print_json({"out": str(out)} | about)
        return
    print(found)
    console.note(f"wrote {out / 'index.html'}, landscape.png and landscape.pdf")
