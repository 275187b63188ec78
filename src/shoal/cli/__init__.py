"""The command line. Nothing heavy is imported here: ``shoal --help`` must answer at once."""

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from shoal import __version__
from shoal.errors import InputError

app = App(
    name="shoal",
    suppress_keyboard_interrupt=False,
    version=__version__,
    help="""A laboratory for the training dynamics of Transformers and other small models.

    Train a paper's model, measure what its theorems assume, check each theorem against each run,
    and test what papers claim. A TARGET is a paper (wu2023) or a file of yours (./mine.py).

    Start with: shoal tour. Then: shoal papers, shoal certify wu2023.theorem_a --help.
    """,
)


def _command(function: Any = None, *, name: str | None = None) -> Any:
    """Register a command that runs in float64 with the cache of compiled programs."""
    if function is None:
        return functools.partial(_command, name=name)

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        from shoal.runtime import command_session

        with command_session():
            return function(*args, **kwargs)

    app.command(inside, name=name or function.__name__)
    return function


@dataclass
class Start:
    """What is trained, and from where."""

    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None
    "A setting as name=value; may be repeated. 'shoal papers PAPER' lists names and defaults."
    data: Annotated[Path | None, Parameter(name="--data")] = None
    "Your own problem: .npz with X (samples, tokens, dim) and y (samples,), or Y with target rows."
    params: Annotated[Path | None, Parameter(name="--params")] = None
    "Your own initial weights: an .npz file with the paper's arrays, maybe a leading axis of seeds."
    seeds: Annotated[str, Parameter(name="--seeds")] = "0"
    "Seeds of the initial weights, e.g. 0,1,2 or 0-99. All run in one call."
    steps: Annotated[str | None, Parameter(name="--steps")] = None
    "Number of training steps; short for --set num_steps=N."
    precision: Annotated[str, Parameter(name="--precision")] = "float64"
    "float64 or float32. Bounds and singular values are in float64 either way."
    probes: Annotated[str, Parameter(name="--probes")] = ""
    "Probes to record: names, 'all', 'none', '+name' to add; name@50 records every 50 steps."


_START = Start()
_Start = Annotated[Start, Parameter(name="*")]
_Out = Annotated[Path | None, Parameter(name="--out")]
_Json = Annotated[bool, Parameter(name="--json", negative=())]


@_command
def tour(
    *, out: Annotated[Path, Parameter(name="--out")] = Path("tour.html"), json: _Json = False
) -> None:
    """The main job: small runs of all papers, certificates and claims, on one HTML page.

    Parameters
    ----------
    out
        The page.
    json
        Print the results as JSON, and nothing else, on standard output.
    """
    from shoal.cli import touring

    touring.tour(out, as_json=json)


@_command
def papers(paper: str = "", /, *, json: _Json = False) -> None:
    """What is inside: papers, their theorems, settings and probes, and where each comes from.

    Parameters
    ----------
    paper
        Show one paper (a key or a file) with every setting and probe and what it does.
    json
        Print as JSON.
    """
    from shoal.cli import commands

    commands.papers_command(paper, as_json=json)


@_command
def train(paper: str, /, *, start: _Start = _START, out: _Out = None, json: _Json = False) -> None:
    """Train one setting, record probes along the way, and write a run folder.

    Example: shoal train wu2023 --set width=64 --set init=he --steps 200 --seeds 0,1 --out r1

    Parameters
    ----------
    paper
        A paper, e.g. wu2023, or a file that defines one, e.g. ./mine.py.
    out
        Folder for the run; it must not exist. Without it nothing is saved.
    json
        Print a summary as JSON.
    """
    from shoal.cli import commands

    commands.train_command(paper, start, out, as_json=json)


@_command
def certify(
    theorem: str,
    /,
    *,
    start: _Start = _START,
    run: Annotated[Path | None, Parameter(name="--run")] = None,
    out: _Out = None,
    json: _Json = False,
) -> None:
    """Compare a theorem with a run: hypotheses, conclusions, margins, verdict.

    The verdict is 'holds', 'violated', 'not applicable' (a hypothesis failed: the theorem says
    nothing, the run may still converge) or 'unresolved' (float64 cannot tell). Without a step size
    the largest one that the theorem allows is taken.

    Example: shoal certify wu2023.theorem_a --set width=40000 --set score_exponent=1
    --set num_samples=3 --set num_tokens=2 --set tokens=unit --set pooling=sum

    Parameters
    ----------
    theorem
        TARGET.THEOREM, e.g. wu2023.theorem_a or ./mine.py.theorem_1; 'shoal papers' lists them.
    run
        Certify a run that 'shoal train' wrote, instead of training.
    out
        Folder for the run; it must not exist. Without it nothing is saved.
    json
        Print as JSON: paper, theorem, and for each seed verdict, hypotheses, conclusions,
        constants, predicted and measured rate.
    """
    from shoal.cli import commands

    commands.certify_command(theorem, start, run, out, as_json=json)


@_command
def data(paper: str, /, *, start: _Start = _START, json: _Json = False) -> None:
    """Measure the data assumptions of wu2023 on a problem: bounds, rank, dissimilarity.

    Example: shoal data wu2023 --set problem=digits --set num_samples=100

    Parameters
    ----------
    paper
        The paper whose settings describe the problem, e.g. wu2023; --data replaces it by yours.
    json
        Print as JSON.
    """
    from shoal.cli import commands

    commands.data_command(paper, start, as_json=json)


@_command
def claims(
    *papers: str,
    out: Annotated[Path, Parameter(name="--out")] = Path("shoal-claims"),
    markdown: Annotated[Path | None, Parameter(name="--markdown")] = None,
    full: Annotated[bool, Parameter(name="--full", negative=())] = False,
    json: _Json = False,
) -> None:
    """The ledger: each claim of a paper, its test, effect with interval, verdict.

    A claim is 'supported', 'contradicted' or 'inconclusive' by a rule fixed in code before the run.
    Finished measurements are kept: an interrupted ledger continues where it stopped.

    Parameters
    ----------
    papers
        Which papers, or single claims such as wu2023.width_helps_own_step; all, if none is named.
    out
        Folder for ledger.json and the page index.html.
    markdown
        Also write the ledger as a Markdown document, such as docs/ledger.md.
    full
        The paper's sizes instead of quick ones: hours instead of minutes.
    json
        Print the ledger as JSON.
    """
    from shoal.cli import publishing

    publishing.claims(papers, out, markdown, full=full, as_json=json)


@_command
def reproduce(
    name: str,
    /,
    *,
    out: _Out = None,
    full: Annotated[bool, Parameter(name="--full", negative=())] = False,
    json: _Json = False,
) -> None:
    """The paper's experiments as figures (PNG, PDF), numbers (Parquet) and one page.

    Example: shoal reproduce wu2023.scaling

    Parameters
    ----------
    name
        PAPER for all of its figures, PAPER.FIGURE for one; 'shoal papers' lists them.
    out
        Folder for the files, by default figures-PAPER.
    full
        The paper's sizes instead of quick ones.
    json
        Print the list of files as JSON.
    """
    from shoal.cli import publishing

    publishing.reproduce(name, out, full=full, as_json=json)


@_command
def landscape(
    *runs: Path,
    directions: Annotated[str, Parameter(name="--directions")] = "random",
    blocks: Annotated[str, Parameter(name="--blocks")] = "",
    span: Annotated[float, Parameter(name="--span")] = 1.0,
    points: Annotated[int, Parameter(name="--points")] = 51,
    samples: Annotated[int | None, Parameter(name="--samples")] = None,
    seed: Annotated[int, Parameter(name="--seed")] = 0,
    out: Annotated[Path, Parameter(name="--out")] = Path("landscape"),
    json: _Json = False,
) -> None:
    """The risk on a plane around where a run ended: contour, surface, and numbers.

    Several runs are shown on the same directions, those of the first. The numbers: strict local
    minima of the grid, shares of indefinite and negative curvature, roughness, flatness, and the
    ends of the Hessian's spectrum.

    Example: shoal landscape softmax-run gaussian-run --directions random --blocks W_Q,W_K

    Parameters
    ----------
    runs
        Run folders, as 'shoal train --out' writes them; the first seed of each.
    directions
        random (rows scaled to the weights'), pca (of the first run's path, which is run again) or
        path (from start to end, against a random one).
    blocks
        Parameters along which to move, e.g. W_Q,W_K; by default those that were trained.
    span
        How far to go, in units of the directions.
    points
        Points along each side of the grid.
    samples
        Use only the first samples of the problem: a fixed batch.
    seed
        Seed of the random directions.
    out
        Folder for the page, PNG, PDF, Parquet and measures.json.
    json
        Print the numbers as JSON.
    """
    from shoal.cli import commands

    options = {
        "directions": directions,
        "blocks": blocks,
        "span": span,
        "points": points,
        "samples": samples,
        "seed": seed,
    }
    commands.landscape_command(runs, out, options, as_json=json)


@app.command
def sweep(
    file: Path,
    /,
    *,
    out: _Out = None,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative=())] = False,
    retry: Annotated[bool, Parameter(name="--retry", negative=())] = False,
    scheduler: Annotated[str | None, Parameter(name="--scheduler")] = None,
    json: _Json = False,
) -> None:
    """A grid of settings from one file: all cores, nothing lost, continued by the same command.

    The file is checked whole before anything runs. Runs of equal shape go into one compiled call;
    a run that fails or diverges is recorded with its reason. docs/sweeps.md has the format.

    Example: shoal sweep examples/widths.toml --dry-run

    Parameters
    ----------
    file
        The sweep: a TOML file.
    out
        Folder of the sweep, by default the file's name with -sweep.
    dry_run
        Only count: runs, programs, flops, time and memory.
    retry
        Do runs again that failed before, for lack of memory for example.
    scheduler
        Run on a Dask cluster instead of this machine, e.g. tcp://node1:8786 (extra 'cluster').
    json
        Print a summary as JSON.
    """
    from shoal.sweeps.parse import read

    written = read(file)  # before anything heavy is imported: what is wrong is told at once
    from shoal.cli import sweeping
    from shoal.runtime import command_session

    out = Path(f"{file.stem}-sweep") if out is None else out
    with command_session():
        sweeping.sweep(
            written, out, dry_run=dry_run, retry=retry, scheduler=scheduler, as_json=json
        )


@_command
def ls(folder: Path, /, *, json: _Json = False) -> None:
    """What a sweep has found so far: every setting, with the median of its seeds.

    Parameters
    ----------
    folder
        The folder of a sweep.
    json
        Print every run as JSON, without its curve.
    """
    from shoal.cli import sweeping

    sweeping.ls(folder, as_json=json)


@_command(name="show")
def show_run(folder: Path, run: str, /, *, json: _Json = False) -> None:
    """One run of a sweep: its settings, numbers, verdicts and risk curve.

    Parameters
    ----------
    folder
        The folder of a sweep.
    run
        The run's number, or the beginning of its key.
    json
        Print as JSON.
    """
    from shoal.cli import sweeping

    sweeping.show_run(folder, run, as_json=json)


@_command
def query(folder: Path, sql: str, /, *, json: _Json = False) -> None:
    """SQL over the runs of a sweep; the table is called runs.

    Example: shoal query widths-sweep "select width, avg(risk_last) from runs group by width"

    Parameters
    ----------
    folder
        The folder of a sweep.
    sql
        A select statement.
    json
        Print the rows as JSON.
    """
    from shoal.cli import sweeping

    sweeping.query(folder, sql, as_json=json)


@_command
def export(folder: Path, out: Path, /, *, json: _Json = False) -> None:
    """The runs of a sweep as one CSV or Parquet file, by the ending of its name.

    Parameters
    ----------
    folder
        The folder of a sweep.
    out
        The file to write.
    json
        Print what was written as JSON.
    """
    from shoal.cli import sweeping

    sweeping.export(folder, out, as_json=json)


@_command
def plan(
    paper: str,
    /,
    *,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    samples: Annotated[str | None, Parameter(name="--samples")] = None,
    seeds: Annotated[int | None, Parameter(name="--seeds")] = None,
    target: Annotated[float | None, Parameter(name="--target")] = None,
    theorem: Annotated[str | None, Parameter(name="--theorem")] = None,
    out: _Out = None,
    json: _Json = False,
) -> None:
    """How wide must a model be: to be certified by a theorem, and to train?

    For several numbers of samples: a phase diagram (share of seeds that train, over samples and
    width), the smallest width that trains and the smallest that the theorem certifies, both by
    seed, with fitted exponents.

    Example: shoal plan wu2023 --samples 2,4,8 --seeds 4

    Parameters
    ----------
    paper
        Which paper's model, e.g. wu2023.
    settings
        A setting as name=value; may be repeated.
    samples
        Numbers of samples, e.g. 2,4,8,16.
    seeds
        How many seeds.
    target
        Share of the first risk at which a run counts as trained, 0.01 unless told.
    theorem
        Which theorem certifies, by its key.
    out
        Folder for the figure, numbers and page, by default plan-PAPER.
    json
        Print as JSON.
    """
    from shoal.cli import planning

    planning.plan(
        paper,
        settings,
        out,
        samples=samples,
        seeds=seeds,
        target=target,
        theorem=theorem,
        as_json=json,
    )


@_command
def bench(
    *questions: str,
    out: Annotated[Path, Parameter(name="--out")] = Path("shoal-bench"),
    markdown: Annotated[Path | None, Parameter(name="--markdown")] = None,
    rounds: Annotated[int | None, Parameter(name="--rounds")] = None,
    json: _Json = False,
) -> None:
    """Speed against the alternatives, as ratios in one run.

    PyTorch eager, torch.compile, plain JAX, Jacobian contraction and the machine's own matrix
    product do the same work in turns; answers are compared before anything is timed. Half an hour
    for everything; PyTorch comes with the extra 'bench', and without it the other columns run.

    Example: shoal bench training kernel --rounds 3

    Parameters
    ----------
    questions
        Some of: training, small_runs, kernel, probes, cold_start, landscape, heads, blocks,
        growth; all, if none is named.
    out
        Folder for bench.json, the page index.html and the growth curves.
    markdown
        Also write the tables as a document, such as docs/performance.md.
    rounds
        Turns that every side takes, instead of 3 to 7.
    json
        Print as JSON.
    """
    from shoal.cli import benching

    benching.bench(questions, out, markdown, rounds=rounds, as_json=json)


@_command
def report(
    *paths: Path,
    out: _Out = None,
    paper: Annotated[str, Parameter(name="--paper")] = "",
    json: _Json = False,
) -> None:
    """One self-contained HTML page from runs, certificates, reproductions or ledgers.

    Parameters
    ----------
    paths
        Run folders, folders of 'shoal claims' or 'shoal reproduce', or files with what
        'shoal certify --json' printed.
    out
        The page, by default report.html in the first folder (or beside the first file).
    paper
        The file that defines the paper, if it is one of yours: it is run to know the model.
    json
        Print the page's path as JSON.
    """
    from shoal.cli import publishing

    publishing.report(paths, out, paper, as_json=json)


new = App(name="new", help="Write a template: shoal new paper NAME.")
app.command(new)


@new.command(name="paper")
def new_paper(name: str, /, *, out: _Out = None, json: _Json = False) -> None:
    """Write NAME.py: a working paper with a model, a theorem, a claim and a figure.

    Example: shoal new paper doe2024, then shoal certify ./doe2024.py.theorem_1

    Parameters
    ----------
    name
        Key of the paper: a Python name such as doe2024.
    out
        The file to write, by default NAME.py here.
    json
        Print the file's path as JSON.
    """
    from shoal.cli import template

    template.new_paper(name, out, as_json=json)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 done, 2 bad input, 1 failure, 130 and 143 when interrupted."""
    with contextlib.ExitStack() as session:
        terminated = session.enter_context(_sigterm_interrupts())
        try:
            app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        except (InputError, CycloptsError) as error:
            print(f"shoal: {_one_line(error)}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("shoal: stopped.", file=sys.stderr)
            return 143 if terminated else 130
        except BrokenPipeError:
            sys.stderr.close()
            return 1
        except (OSError, MemoryError) as error:
            print(f"shoal: {type(error).__name__}: {_one_line(error)}", file=sys.stderr)
            return 1
    return 0


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[list[int]]:
    """Let SIGTERM clean up as Ctrl-C does; the handler is as before afterwards."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def interrupt(number: int, _: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGTERM, before)


def _one_line(error: BaseException) -> str:
    """A message without line breaks or control characters, whatever the user typed."""
    words = " ".join(str(error).split())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)


def entry() -> None:
    """What the installed command calls; the process is shoal's own."""
    # LAPACK's threads spin for tens of milliseconds after each small call, on cores that training
    # needs; this must be said before NumPy is loaded
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
