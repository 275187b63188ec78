"""The command line. Nothing heavy is imported here: ``shoal --help`` must answer at once."""

import contextlib
import errno
import functools
import inspect
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from shoal import __version__
from shoal.errors import InputError, place_of, words_of

app = App(
    name="shoal",
    suppress_keyboard_interrupt=False,
    version=__version__,
    default_parameter=Parameter(  # neither --no-json nor [default: False] helps anybody
        negative=(), show_default=lambda v: None if v in ("", None) or v is False else str(v)
    ),
    help="""A laboratory for the training dynamics of Transformers and other small models.

    Train a paper's model, measure what its theorems assume, check each theorem against each run,
    and test what papers claim. A TARGET is a paper (wu2023) or a file that defines one (./mine.py).

    Start with 'shoal tour'; then try 'shoal papers' and 'shoal certify --help'.
    """,
)

_BEGIN = Group.create_ordered("Begin here")
_ONE = Group.create_ordered("One model")
_PAPER = Group.create_ordered("A paper")
_MANY = Group.create_ordered("Many runs")
_SHOW = Group.create_ordered("Pages and speed")
new = App(name="new", group=_BEGIN, help="Write a template, e.g. 'shoal new paper doe2024'.")
app.command(new)
app["--help"].group = app["--version"].group = Group.create_ordered("Other")


_results: ContextVar[Any] = ContextVar("results", default=None)


def results() -> Any:
    """Where results are printed."""
    return _results.get() or sys.stdout


@contextlib.contextmanager
def only_results(*, json: bool) -> Iterator[None]:
    """With --json, whatever else is printed, say by a user's file, goes to standard error."""
    token = _results.set(sys.stdout if json else None)
    try:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
            yield
    finally:
        _results.reset(token)


def _command(
    group: Group | None, module: str, name: str | None = None, parent: App = app
) -> Callable[[Callable], Callable]:
    """Register a command: its words and its help stand here, its work in a module of this package.

    The work is a function of the same name, called with the same arguments. Its module is imported
    only when the command runs, in float64 and with the cache of compiled programs.
    """

    def register(stub: Callable) -> Callable:
        @functools.wraps(stub)
        def work(*args: Any, **kwargs: Any) -> None:
            from shoal.runtime import command_session

            given = inspect.signature(stub).bind(*args, **kwargs)
            given.apply_defaults()
            for name in ("out", "markdown"):
                if isinstance(path := given.arguments.get(name), Path):
                    require_writable(path, f"--{name}")
            with command_session(), only_results(json=bool(given.arguments.get("json"))):
                function = getattr(import_module(f"shoal.cli.{module}"), stub.__name__)
                function(*given.args, **given.kwargs)

        parent.command(work, name=name or stub.__name__, group=group)
        return stub

    return register


_SET = "A setting as name=value; may be repeated. 'shoal papers PAPER' lists names and defaults."
_Settings = Annotated[list[str] | None, Parameter(name="--set", help=_SET)]
_Json = Annotated[bool, Parameter(help="Print as JSON.")]
_SCHEDULER = (
    "Run on a Dask cluster instead of this machine, e.g. tcp://node1:8786 (extra 'cluster')."
)
_Scheduler = Annotated[str | None, Parameter(name="--scheduler", help=_SCHEDULER)]
_Folder = Annotated[Path, Parameter(help="The folder of a sweep.")]


@dataclass
class Start:
    """What is trained, on which data, and from where."""

    set: _Settings = None
    data: Path | None = None
    "Your own data: .npz with X (samples, tokens, dim) and y (samples,), or Y with target rows."
    params: Path | None = None
    "Your own initial weights: .npz or .safetensors, optionally with a leading axis of seeds."
    seeds: str = "0"
    "Seeds of the initial weights, e.g. 0,1,2 or 0-99; all run in one call."
    steps: str | None = None
    "Number of training steps; short for --set num_steps=N."
    precision: str = "float64"
    "float64 or float32. Bounds and singular values are computed in float64 either way."
    probes: str = ""
    "What to record: names, all, none, or +name to add to the usual; name@50: every 50 steps."


_START = Start()
_Start = Annotated[Start, Parameter(name="*")]


@_command(_BEGIN, "touring")
def tour(*, out: Path = Path("tour.html"), interactive: bool = False, json: bool = False) -> None:
    """Visit every paper: small runs, certificates and claims, on one HTML page.

    Args:
        out: The HTML file to write.
        interactive: Charts to zoom and turn, by plotly: adds 4.8 MB to the page.
        json: Print the results as JSON.
    """


@app.command(group=_BEGIN)
def lab(
    target: str = "wu2023", /, *, settings: _Settings = None, port: int = 0,
    out: Path = Path("shoal-lab"),
    open_page: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
    json: bool = False,
) -> None:  # fmt: skip
    """Open the live laboratory in the browser: move a slider, watch the theorem.

    A server on this machine only (a random token is in the address) and one page: settings as
    sliders, hypotheses as gauges that move before anything is trained, the run as it goes. Needs
    the extra 'lab'. Ctrl-C ends it.

    Example: shoal lab my.py:model

    Args:
        target: A paper, e.g. wu2023, or a model of yours, e.g. my.py:name.
        port: Port to listen on; 0 takes any that is free.
        out: Folder for runs and pages that are saved from the page.
        open_page: Open the page in the browser.
        json: Print the address as JSON, and nothing else on standard output.
    """
    from shoal.cli import living  # without JAX: the worker loads it while the browser opens

    require_writable(out, "--out")
    living.lab(target, settings=settings, port=port, out=out, open_page=open_page, json=json)


@app.command(group=_BEGIN)
def papers(target: str = "", /, *, json: _Json = False) -> None:
    """List the papers with their theorems and figures, or describe one with its settings.

    Args:
        target: A paper (wu2023 or ./mine.py): also show each of its settings and probes.
    """
    from shoal.cli import listing  # without JAX, if it was asked before

    listing.papers(target, json=json)


@_command(_ONE, "commands")
def train(
    target: str, /, *, start: _Start = _START, out: Path | None = None, json: bool = False
) -> None:
    """Train a model, record probes along the way, and save the run.

    Example: shoal train wu2023 --set width=64 --set init=he --steps 200 --seeds 0,1 --out r1

    Args:
        target: A paper, e.g. wu2023, or a file that defines one, e.g. ./mine.py.
        out: Folder for the run; it must not exist. Without it nothing is saved.
        json: Print a summary as JSON.
    """


@_command(_ONE, "commands")
def certify(
    theorem: str, /, *, start: _Start = _START,
    run: Path | None = None, out: Path | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Check a theorem against a run: hypotheses, conclusions, margins, verdict.

    The verdict is 'holds', 'violated', 'not applicable' (a hypothesis fails: the theorem says
    nothing, and the run may still converge) or 'unresolved' (rounding could decide). Unless a step
    size is given, the largest one that the theorem allows is used, or the default where it allows
    none.

    Example: shoal certify wu2023.theorem_a --set width=40000 --set score_exponent=1
    --set num_samples=3 --set num_tokens=2 --set tokens=unit --set pooling=sum

    Args:
        theorem: TARGET.THEOREM, e.g. wu2023.theorem_a or ./mine.py.theorem_1; 'shoal papers' lists
            them.
        run: Check a run folder that 'shoal train' wrote, instead of training.
        out: Folder for the run; it must not exist. Without it nothing is saved.
        json: Print as JSON: paper, theorem, source, and for each seed the verdict, hypotheses,
            conclusions, constants, predicted rate and measured rate.
    """


@_command(_ONE, "diagnosing")
def diagnose(
    target: str = "", /, *, start: _Start = _START, run: Path | None = None,
    step_size: float | None = None, seed: int | None = None,
    trials: Annotated[bool, Parameter(negative="--no-trials")] = True,
    out: Path | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Say why training is slow or stuck, and what to change; changes are tried before advised.

    The verdict is one of: at the floor, converging, slow, stuck, at a saddle, unstable, diverging,
    cannot fit. Each cause comes with its number, the limit that it passed, what to change, and what
    a trial with that change brought.

    Example: shoal diagnose my.py:model --steps 500 --out page.html

    Args:
        target: A paper, a model of yours (my.py:name), a run folder, or a log of sh.watch.
        run: Diagnose a finished run or a log instead of training; TARGET names its model.
        step_size: Step of the training, if there is one to diagnose.
        seed: Which seed of the run; the first by default.
        trials: Try the changes by short trainings.
        out: HTML page to write.
        json: Print as JSON: verdict, reason, causes with value, limit, advice and trial.
    """


@_command(_ONE, "proving")
def prove(
    target: str = "", /, *, start: _Start = _START, run: Path | None = None,
    until_proved: bool = False, most_steps: int = 100_000, through: str | None = None,
    out: Path | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Prove the fate of a run of gradient descent: converges, stuck or undecided.

    Trains, and finds the first recorded step from which it is certain what becomes of the run, with
    enclosures that rounding cannot fool. 'Undecided' never means 'diverges'. --steps 0 looks at
    the initial weights only.

    Example: shoal prove qin2025 --set dim=8 --set width=12 --steps 2000

    Args:
        target: A paper, e.g. wu2023, a file that defines one, or a model, e.g. my.py:setup.
        run: Prove the fate of a run folder that 'shoal train' wrote, instead of training; it is
            replayed.
        until_proved: Go on training, in stretches, until the fate is proved.
        most_steps: Steps after which --until-proved gives up.
        through: Name of the intermediate array of theorem P3.
        out: Write the certificate: this JSON file, and one of arrays beside it.
        json: Print as JSON: verdict, reason, step, radius, rate, risk, constants, theorem, checked.
    """


@_command(_ONE, "proving")
def check(proof: Path, /, *, json: bool = False) -> None:
    """Check a proof that 'shoal prove --out' wrote, with a small independent program.

    Exit code 0 if the proof is checked, 1 if it is not.

    Args:
        proof: The JSON file of the certificate.
        json: Print as JSON: checked, verdict, reason.
    """


@_command(_ONE, "commands")
def data(
    target: str, /, *, settings: _Settings = None, data: Path | None = None, json: _Json = False
) -> None:
    """Measure the data assumptions of wu2023 on any data: bounds, rank, dissimilarity.

    Example: shoal data wu2023 --set problem=digits --set num_samples=100

    Args:
        target: The paper whose settings describe the data, e.g. wu2023; --data replaces them by
            yours.
        data: Your own data: .npz with X (samples, tokens, dim) and y (samples,), or Y with target
            rows.
    """


@_command(_PAPER, "claiming")
def claims(
    *names: str, until_decided: bool = False, budget: str = "", seeds: int | None = None,
    replicate: bool = False, replay: bool = False,
    listed: Annotated[bool, Parameter(name="--list")] = False, ledger: Path = Path("ledger"),
    scheduler: _Scheduler = None, out: Path | None = None, markdown: Path | None = None,
    json: bool = False,
) -> None:  # fmt: skip
    """List what papers claim with verdicts, or spend seeds on them until they are decided.

    Without options nothing is run: a table of all claims and what deciding the rest would cost; of
    one claim, its statement, verdict, rule and effect. 'shoal claims freeze NAMES' registers claims
    (rule, limits, design, seeds) before their seeds are run; without that they stay exploratory.

    Example: shoal claims qin2025 --until-decided --budget 30m

    Args:
        names: Papers, or single claims such as wu2023.width_helps_own_step; by default all.
        until_decided: Run seeds where a decision is nearest. Every batch is kept: the same command
            continues, and the result does not depend on interruptions or on how often you look.
        budget: Time to spend, such as 30m or 2h; without it until nothing is left to decide.
        seeds: Seeds to spend instead of a time: the whole run is then reproducible.
        replicate: Run the decided claims once more on seeds that nobody used.
        replay: Recompute two seeds of every result with the present code; what differs is stale.
        listed: Print one line per claim: its name, and its verdict or why it has none.
        ledger: Folder of registrations and results.
        out: Folder for pages: an index and a page per claim.
        markdown: Also write the short table, such as docs/ledger.md.
        json: Print the records as JSON.
    """


@_command(_PAPER, "publishing")
def reproduce(
    name: str, /, *, out: Path | None = None, full: bool = False, interactive: bool = False,
    scheduler: _Scheduler = None, json: bool = False,
) -> None:  # fmt: skip
    """Reproduce a paper's figures: PNG, PDF, their numbers (Parquet) and one page.

    Example: shoal reproduce wu2023.scaling

    Args:
        name: A paper for all of its figures, PAPER.FIGURE for one; 'shoal papers' lists them.
        out: Folder for the files, by default figures-PAPER.
        full: More seeds and larger sizes, hours instead of minutes; a caption says which.
            They are the paper's own sizes only where the caption says so.
        interactive: Charts to zoom and turn, by plotly: adds 4.8 MB to the page.
        json: Print the list of files as JSON.
    """


@_command(_ONE, "commands")
def landscape(
    *runs: Path, directions: str = "random", blocks: str = "", span: float = 1.0, points: int = 51,
    samples: int | None = None, seed: int = 0, out: Path = Path("landscape"), paper: str = "",
    json: bool = False,
) -> None:  # fmt: skip
    """Draw the risk on a plane around the end of a run, and measure its shape.

    Several runs are drawn along the same directions, those of the first. The measures: strict local
    minima on the grid, shares of indefinite and negative curvature, roughness, flatness, and the
    ends of the Hessian's spectrum.

    Example: shoal landscape softmax-run gaussian-run --directions random --blocks W_Q,W_K

    Args:
        runs: Run folders that 'shoal train --out' wrote; the first seed of each is drawn.
        directions: random (rows scaled like the weights), pca (of the first run's path, which is
            run again) or path (from start to end, and a random one across).
        blocks: Parameters to move, e.g. W_Q,W_K; by default those that were trained.
        span: Half the side of the plane, in units of the directions.
        points: Points along each side of the grid.
        samples: Use only this many samples, the first ones.
        seed: Seed of the random directions.
        out: Folder for the page, PNG, PDF, Parquet and measures.json.
        paper: The file that defines the paper, if it is your own (./mine.py).
        json: Print the measures as JSON.
    """


@app.command(group=_MANY)
def sweep(
    file: Path, /, *, out: Path | None = None, dry_run: bool = False, retry: bool = False,
    scheduler: _Scheduler = None, json: bool = False,
) -> None:  # fmt: skip
    """Run a grid of settings from a file, on all cores; the same command continues it.

    The whole file is checked before anything runs. Runs of equal shape share one compiled call; a
    run that fails or diverges is recorded with its reason. docs/sweeps.md describes the format.

    Example: shoal sweep examples/widths.toml --dry-run

    Args:
        file: The sweep: a TOML file.
        out: Folder of the sweep, by default the file's name with -sweep.
        dry_run: Only count runs, programs, flops, time and memory.
        retry: Repeat runs that failed before, for example for lack of memory.
        json: Print a summary as JSON.
    """
    from shoal.sweeps.parse import read

    written = read(file)  # before anything heavy is imported: what is wrong is told at once
    from shoal.cli import sweeping
    from shoal.runtime import command_session

    folder = out or Path(f"{file.stem}-sweep")
    require_writable(folder, "--out")
    with command_session(), only_results(json=json):
        sweeping.sweep(
            written, folder, dry_run=dry_run, retry=retry, scheduler=scheduler, json=json
        )


@_command(_MANY, "tiling")
def kernel(
    target: str, /, *, settings: _Settings = None, data: Path | None = None,
    params: Path | None = None, seed: int = 0, part: int = 2000, scheduler: _Scheduler = None,
    out: Path = Path("kernel"), json: bool = False,
) -> None:  # fmt: skip
    """Make the tangent kernel of many samples, in parts, as one array on disk, with its extremes.

    Processes make the kernels of some samples each, side by side; every finished part is kept, and
    the same command continues. DIR/kernel.npy is opened by np.load(..., mmap_mode="r"). On a
    cluster the folder must be one that all machines see.

    Example: shoal kernel wu2023 --set num_samples=20000 --set width=256 --out k

    Args:
        target: A paper, e.g. wu2023, or a model of yours, e.g. my.py:name.
        data: Your own data: .npz with X (samples, tokens, dim) and y (samples,), or Y.
        params: Weights at which the kernel is meant: .npz with the paper's arrays.
        seed: Seed of the weights, if none are given.
        part: Samples of a part; its kernel is held in memory, part x part numbers.
        out: Folder for kernel.npy and kernel.json.
        json: Print sizes and extreme eigenvalues as JSON.
    """


@_command(_MANY, "sweeping")
def ls(folder: _Folder, /, *, json: bool = False) -> None:
    """List the results of a sweep so far: every setting, with medians over seeds.

    Args:
        json: Print every run as JSON, without its curve.
    """


@_command(_MANY, "sweeping", name="show")
def show_run(folder: _Folder, run: str, /, *, json: _Json = False) -> None:
    """Show one run of a sweep: settings, numbers, verdicts and risk curve.

    Args:
        run: The run's number, or the beginning of its key.
    """


@_command(_MANY, "sweeping")
def query(folder: _Folder, sql: str, /, *, json: bool = False) -> None:
    """Query the runs of a sweep with SQL; the table is called runs.

    Example: shoal query widths-sweep "select width, avg(risk_last) from runs group by width"

    Args:
        sql: A select statement.
        json: Print the rows as JSON.
    """


@_command(_MANY, "sweeping")
def export(folder: _Folder, out: Path, /, *, json: bool = False) -> None:
    """Write the runs of a sweep to a CSV or Parquet file.

    Args:
        out: The file to write, ending in .csv or .parquet.
        json: Print what was written as JSON.
    """


@_command(_PAPER, "planning")
def plan(
    paper: str, /, *, settings: _Settings = None, samples: str | None = None,
    seeds: int | None = None, target: float | None = None, theorem: str | None = None,
    scheduler: _Scheduler = None, out: Path | None = None, json: _Json = False,
) -> None:  # fmt: skip
    """Find how wide a model must be to train, and to be certified by a theorem.

    For several numbers of samples: a phase diagram (share of seeds that train, by samples and
    width), the smallest width that trains and the smallest that the theorem certifies, for each
    seed, with fitted exponents.

    Example: shoal plan wu2023 --samples 2,4,8 --seeds 4

    Args:
        paper: The paper whose model is meant, e.g. wu2023.
        samples: Numbers of samples, e.g. 2,4,8,16.
        seeds: Number of seeds.
        target: Share of the first risk at which a run counts as trained, by default 0.01.
        theorem: Key of the theorem that certifies, e.g. theorem_a.
        out: Folder for the figure, numbers and page, by default plan-PAPER.
    """


@_command(_SHOW, "benching")
def bench(
    *questions: str, out: Path = Path("shoal-bench"), markdown: Path | None = None,
    rounds: int | None = None, json: _Json = False,
) -> None:  # fmt: skip
    """Measure speed against the alternatives, as ratios within one run.

    PyTorch eager, torch.compile, plain JAX, Jacobian contraction and the machine's own matrix
    product do the same work in turns; answers are compared before anything is timed. Everything
    takes half an hour. PyTorch comes with the extra 'bench'; without it the other columns run.

    Example: shoal bench training kernel --rounds 3

    Args:
        questions: Some of training, small_runs, kernel, probes, cold_start, landscape, heads,
            blocks and growth; by default all.
        out: Folder for bench.json, the page index.html and the growth curves.
        markdown: Also write the tables as a document, such as docs/performance.md.
        rounds: Turns that each side takes, instead of 3 to 7.
    """


@_command(_SHOW, "publishing")
def report(
    *paths: Path, out: Path | None = None, paper: str = "", interactive: bool = False,
    json: bool = False,
) -> None:  # fmt: skip
    """Make one self-contained HTML page of runs, certificates or figures.

    Args:
        paths: Run folders, folders of 'shoal reproduce', or files with what 'shoal certify --json'
            printed.
        out: The page, by default report.html in the first folder (or beside the first file).
        paper: The file that defines the paper, if it is your own (./mine.py).
        interactive: Charts to zoom and turn, by plotly: adds 4.8 MB to the page.
        json: Print the page's path as JSON.
    """


@_command(None, "commands", "paper", new)
def new_paper(name: str, /, *, out: Path | None = None, json: bool = False) -> None:
    """Write NAME.py: a working paper with a model, a theorem, a claim and a figure.

    Example: shoal new paper doe2024, then shoal certify ./doe2024.py.theorem_1

    Args:
        name: Key of the paper: a Python name such as doe2024.
        out: The file to write, by default NAME.py.
        json: Print the file's path as JSON.
    """


BAD_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EILSEQ)
"""Errors of the system that mean the name of a file, which a user gave."""
words: list[str] = []
"""The words of the command that is running, for records and pages."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 done, 2 bad input, 1 failure, 130 and 143 when interrupted."""
    words[:] = sys.argv[1:] if arguments is None else arguments
    with _sigterm_interrupts() as terminated:
        try:
            if any("\0" in word for word in words):  # no system has such a name
                raise InputError("a word on the command line holds a NUL character.")
            app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        except (InputError, CycloptsError) as error:
            print(f"shoal: {_one_line(error)}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"shoal: stopped{_after_a_stop()}", file=sys.stderr)
            return 143 if terminated else 130
        except BrokenPipeError:
            sys.stderr.close()
            return 1
        except (OSError, MemoryError) as error:
            print(f"shoal: {type(error).__name__}: {_one_line(error)}", file=sys.stderr)
            return 2 if getattr(error, "errno", None) in BAD_NAMES else 1
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) and "Out of memory" not in str(error):
                if not _tell_users_file(error):
                    raise
                return 2
            advice = "try fewer seeds, samples, tokens or probes, or a smaller width"
            print(f"shoal: the memory of this machine does not suffice; {advice}.", file=sys.stderr)
            return 1
        except BaseException as error:
            if isinstance(error, Exception):
                if not _tell_users_file(error):
                    raise
                return 2
            if not (place := place_of(error)) and isinstance(error, SystemExit):
                return error.code if isinstance(error.code, int) else 1
            kind = type(error).__name__  # in a user's file: sys.exit, for example
            print(f"shoal: {place} ends the command: {kind} {_one_line(error)}", file=sys.stderr)
            return 2
    return 0


def _tell_users_file(error: Exception) -> bool:
    """Whether an exception came from a line of a user's file: then that is said."""
    if place := place_of(error):
        reason = words_of(error).strip().partition("\n")[0]
        said = f"{place} fails: {type(error).__name__}: {reason[:300].rstrip('.')}."
        print(f"shoal: {_one_line(InputError(said))}", file=sys.stderr)
    return bool(place)


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


GRACE = 3.0
"""Seconds that a command has to stop by itself; a long call into XLA cannot be interrupted."""


@contextlib.contextmanager
def last_resort() -> Iterator[None]:
    """End the process if it does not react to Ctrl-C or SIGTERM, and its workers with it.

    Python's handlers run between two instructions of Python, so not during a long call of compiled
    code; the byte that Python writes for every signal is seen at once by another thread. Results
    appear on disk whole or not at all, so that nothing is half-written.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    done = threading.Event()

    def wait() -> None:
        with ours:
            while number := ours.recv(1):
                if number[0] in (signal.SIGINT, signal.SIGTERM) and not done.wait(GRACE):
                    _kill_children()
                    os.write(2, f"shoal: stopped{_after_a_stop()}\n".encode())
                    os._exit(128 + number[0])

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        theirs.close()


def _end_now(code: int) -> None:
    """End the process without waiting for its threads."""
    from shoal.files import remove_own_cache

    remove_own_cache()
    _kill_children()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _kill_children() -> None:
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in listed.read_text().split():
                os.kill(int(child), signal.SIGKILL)


CONTINUES = {
    "claims": "every finished batch is kept",
    "reproduce": "finished runs are kept",
    "tour": "finished claims are kept",
    "bench": "finished questions are kept",
    "sweep": "finished batches are kept",
    "kernel": "finished parts are kept",
}
"""What an interrupted command keeps; the same command continues from there."""


def _after_a_stop() -> str:
    """What an interrupted command leaves behind, and how to continue."""
    command = words[0] if words else ""
    if command in CONTINUES:
        return f"; {CONTINUES[command]}, and the same command continues."
    if command in ("train", "certify"):
        return "; nothing was saved."
    if command == "lab":
        return "; what was saved from the page is kept."
    return "; nothing is half-written, and the same command begins again."


LONGEST_MESSAGE = 2000
"""Characters; what is there instead may be thousands of names."""


def _one_line(error: BaseException) -> str:
    """A message without line breaks or control characters, whatever the user typed."""
    if isinstance(error, MissingArgumentError) and error.argument and error.command_chain:
        command = " ".join(error.command_chain)
        text = f"{command} needs {error.argument.name}; see shoal {command} --help."
    elif isinstance(error, UnknownOptionError) and _takes_settings(error):
        option = error.token.keyword or error.token.value
        name = option.lstrip("-").partition("=")[0].replace("-", "_")
        text = f"there is no option {option}; a setting is given as --set {name}=VALUE."
    elif isinstance(error, UnusedCliTokensError):
        text = f"too many arguments: {' '.join(error.unused_tokens or ())}"
    else:
        text = words_of(error)
    line = re.sub(r"\S{400,}", lambda long: f"{long[0][:200]}...", " ".join(text.split()))
    if len(line) > LONGEST_MESSAGE:
        line = f"{line[:LONGEST_MESSAGE]}..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _takes_settings(error: UnknownOptionError) -> bool:
    return any("--set" in argument.names for argument in error.argument_collection)


def require_writable(path: Path, option: str) -> None:
    """Refuse a path where nothing can be written, before any work is done."""
    from shoal.files import require_no_device

    try:
        require_no_device(path)
        place = path if path.is_dir() else path.parent
        while not place.exists():
            place = place.parent
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        msg = f"cannot write into {str(path)[:200]!r} ({reason}); choose another {option}."
        raise InputError(msg) from None


def entry() -> None:
    """What the installed command calls; the process is shoal's own."""
    # LAPACK's threads spin for tens of milliseconds after each small call, on cores that training
    # needs; this must be said before NumPy is loaded
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _open_streams()
    with last_resort():
        code = main()
        if code in (130, 143):  # a call into XLA may go on in a thread, for minutes
            _end_now(code)
    sys.exit(code or _last_words())


def _open_streams() -> None:
    """Give closed streams a place to go, and let names of files be printed that are not UTF-8."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # the next file that is opened must not take its place
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(os.devnull, "r+" if number else "r"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _last_words() -> int:
    """Write what is still waiting to be written; 1 if that fails, for example on a full device."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            if not isinstance(error, BrokenPipeError):
                print(f"shoal: {type(error).__name__}: {_one_line(error)}", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would complain once more
        return 1
    return 0
