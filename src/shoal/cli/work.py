"""What the commands do: words in, runs and verdicts out."""

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from shoal.cli import Start, show
from shoal.errors import InputError, nearest
from shoal.session import begin

begin()  # precision and compile cache, before the first array

from shoal import store  # noqa: E402
from shoal.certificates import Certificate  # noqa: E402
from shoal.diagnostics.data import data_report  # noqa: E402
from shoal.diagnostics.dynamics import STATES  # noqa: E402
from shoal.experiments import (  # noqa: E402
    ANY_METHOD,
    ITERATES,
    Experiment,
    Paper,
    Theorem,
    allowed_step,
    default_step,
    endings,
    prepare,
    probe_names,
    require_covered,
    simulate,
    stride_of,
    theorem_of,
)
from shoal.experiments import certify as confront  # noqa: E402
from shoal.papers import PAPERS, paper_of  # noqa: E402
from shoal.settings import parse_assignments  # noqa: E402
from shoal.training import Trajectory  # noqa: E402

LARGEST_SEED = 2**31 - 1
CERTIFIED_STEPS = 200  # of `certify`, for papers that leave the number of steps open


class Done(NamedTuple):
    """A finished run with its certificates."""

    experiment: Experiment
    run: Trajectory
    theorems: list[tuple[Theorem, list[Certificate]]]
    notes: dict[str, Any]


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


def _prepared(paper: Paper, start: Start, **fixed: Any) -> Experiment:
    values: dict[str, Any] = dict(parse_assignments(start.set or []))
    if start.steps is not None:
        if "num_steps" in values:
            msg = "--steps and --set num_steps=... say the same thing; use one of them."
            raise InputError(msg)
        values["num_steps"] = start.steps
    if paper.setting.num_steps is None and fixed:
        values.setdefault("num_steps", CERTIFIED_STEPS)
    for name, value in fixed.items():
        if values.setdefault(name, value) != value:
            msg = f"{name}={values[name]}, but here it must be {value}; leave it out."
            raise InputError(msg)
    return prepare(
        paper,
        values,
        seeds=seeds_of(start.seeds),
        data=start.data,
        params=start.params,
        precision=start.precision,
    )


def _probes(experiment: Experiment, text: str, extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    paper = experiment.paper
    known = probe_names(paper, experiment.setting)
    if experiment.held_out is None:
        known = tuple(name for name in known if not name.startswith("test_"))
    if text == "all":
        return known
    names = tuple(n.strip() for n in text.removeprefix("+").split(",") if n.strip())
    usual = [name for name in paper.default_probes if name in known]
    chosen = () if text == "none" else (*(usual if text[:1] in ("", "+") else ()), *names)
    extra = tuple(name for name in extra if name in known)
    for name, _ in map(stride_of, chosen):
        if name not in (*known, ITERATES):
            msg = f"{paper.key} has no probe {name!r}; {nearest(name, known)}"
            raise InputError(msg)
    # what a theorem looks at is recorded at every record, and a name that is given again counts
    last = {stride_of(text)[0]: text for text in (*chosen, *extra)}
    return tuple(last.values())


def with_step(experiment: Experiment, theorem: Theorem | None) -> tuple[Experiment, str]:
    """Choose a step size if the user did not, and say where it came from."""
    if experiment.setting.step_size is not None:
        return experiment, "given"
    step = allowed_step(experiment, theorem) if theorem is not None else None
    source = "largest that the theorem allows"
    if step is None:
        step, source = default_step(experiment), "default: shoal papers says how it is chosen"
    return experiment._replace(setting=experiment.setting._replace(step_size=step)), source


def execute(
    experiment: Experiment, probes: tuple[str, ...], theorems: tuple[Theorem, ...], source: str
) -> Done:
    """Train, then confront the run with theorems."""
    begun = time.perf_counter()
    with show.progress(f"{experiment.paper.key}: training") as report:
        run = simulate(experiment, probes, progress=report)
    found = [(theorem, confront(experiment, theorem, run)) for theorem in theorems]
    ends = endings(experiment, run)
    seconds = time.perf_counter() - begun
    notes = {
        "command": shlex.join(["shoal", *sys.argv[1:]]),
        "step_size_source": source,
        "seconds": round(seconds, 3),
    }
    if ends is not None:
        notes["ended"] = [
            {name: value[i] for name, value in ends.items()}
            | {"state": STATES[int(ends["state"][i])]}
            for i in range(len(experiment.seeds))
        ]
    return Done(experiment, run, found, notes)


def theorems_json(done: Done) -> list[dict[str, Any]]:
    """Every certificate of a run in the form of ``certify --json``."""
    paper, seeds = done.experiment.paper.key, done.experiment.seeds
    return [store.theorem_json(paper, t.key, seeds, found) for t, found in done.theorems]


def _finish(done: Done, start: Start | None, out: Path | None) -> None:
    if out is None:
        return
    files = {"data_file": start and start.data, "params_file": start and start.params}
    notes = done.notes | {k: str(v) if v else None for k, v in files.items()}
    store.save_run(out, done.experiment, done.run, theorems_json(done), notes)
    show.note(f"wrote {out}")


def print_json(value: Any) -> None:
    """The only thing on standard output."""
    print(json.dumps(store.plain(value), indent=1, allow_nan=False))


def train(key: str, start: Start, out: Path | None, *, as_json: bool) -> None:
    """``shoal train``."""
    paper = paper_of(key)
    if out is not None:
        store.require_free(out)
    experiment = _prepared(paper, start)
    probes = _probes(experiment, start.probes)
    experiment, source = with_step(experiment, None)
    ours = tuple(
        t
        for t in paper.theorems
        if t.method in (ANY_METHOD, experiment.setting.method)
        and t.covers(experiment.setting)
        and set(t.needs) <= set(probes)
    )
    done = execute(experiment, probes, ours, source)
    _finish(done, start, out)
    if as_json:
        print_json(_summary(done, out))
    else:
        show.run_summary(done.experiment, done.run, done.theorems, done.notes, out)


def _summary(done: Done, out: Path | None) -> dict[str, Any]:
    risk = done.run.risk
    return {
        "paper": done.experiment.paper.key,
        "out": str(out) if out else None,
        "setting": done.experiment.setting,
        "seeds": done.experiment.seeds,
        "first_risk": risk[:, 0],
        "last_risk": risk[:, -1],
        "verdicts": {
            t["theorem"]: [r["verdict"] for r in t["results"]] for t in theorems_json(done)
        },
        **done.notes,
    }


def _named_theorem(name: str) -> tuple[Paper, Theorem]:
    key, dot, theorem = name.partition(".")
    paper = paper_of(key)
    if not dot:
        names = ", ".join(f"{key}.{t.key}" for t in paper.theorems)
        msg = f"{name!r} names a paper; which theorem? There are: {names}."
        raise InputError(msg)
    return paper, theorem_of(paper, theorem)


def certify(
    name: str, start: Start, folder: Path | None, out: Path | None, *, as_json: bool
) -> None:
    """``shoal certify``."""
    paper, theorem = _named_theorem(name)
    if out is not None:
        store.require_free(out)
    if folder is not None:
        if start != Start():
            msg = "--run certifies a finished run: leave out --set, --data, --params, --seeds, ..."
            raise InputError(msg)
        experiment, run = store.load_run(folder, PAPERS)
        if experiment.paper.key != paper.key:
            msg = f"{str(folder)!r} is a run of {experiment.paper.key}, not of {paper.key}."
            raise InputError(msg)
        notes = {"step_size_source": f"the run in {folder}"}
        done = Done(experiment, run, [(theorem, confront(experiment, theorem, run))], notes)
    else:
        fixed = {} if theorem.method == ANY_METHOD else {"method": theorem.method}
        experiment = _prepared(paper, start, **fixed)
        require_covered(experiment.paper, experiment.setting, theorem)
        probes = _probes(experiment, start.probes, theorem.probes)
        experiment, source = with_step(experiment, theorem)
        done = execute(experiment, probes, (theorem,), source)
    _finish(done, start, out)
    if as_json:
        found = theorems_json(done)[0]
        extra = {"setting": done.experiment.setting, "precision": done.experiment.precision}
        print_json(found | extra | done.notes)
    else:
        show.certificates(done.experiment, theorem, done.theorems[0][1], done.notes)


def papers(key: str, *, as_json: bool) -> None:
    """``shoal papers``."""
    wanted = [paper_of(key)] if key else list(PAPERS.values())
    if as_json:
        print_json([_paper_json(paper) for paper in wanted])
    elif key:
        show.paper(wanted[0], probe_names(wanted[0]))
    else:
        show.papers(wanted)


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
            for t in paper.theorems
        ],
        "claims": [{"key": c.key, "statement": c.statement} for c in paper.claims],
        "figures": [{"key": r.key, "title": r.title} for r in paper.figures],
        "probes": probe_names(paper),
        "default_probes": paper.default_probes,
        "setting": paper.setting,
    }


def data(key: str, start: Start, *, as_json: bool) -> None:
    """``shoal data``."""
    paper = paper_of(key)
    experiment = _prepared(paper, start)
    report = data_report(experiment.problem)
    if as_json:
        print_json(report)
    else:
        show.data(paper, report)
