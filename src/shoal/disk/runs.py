"""Run folders: open to any tool, whole or not there at all.

A folder holds ``run.json``, ``trajectory.parquet``, ``problem.npz``, ``params0.npz``,
``params.npz``, ``certificates.json`` and, if arrays were recorded, ``probes.npz``; ``average.npz``
if the mean of the iterates was kept. ``run.json`` holds a SHA-256 of every other file. A folder is
written aside, under a name that begins with a dot, and renamed when complete. Folders of 0.1.0
(format 1) are read too.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import platform
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal import trees
from shoal.disk.tables import read_table
from shoal.errors import InputError
from shoal.files import aside, npz_names, read_npz, read_regular, write_aside, write_npz
from shoal.jsons import dumps
from shoal.lab.probes import SENTENCES
from shoal.lab.replay import Loaded, drawn_again
from shoal.lab.run import Run
from shoal.lab.setting import with_values
from shoal.lab.setup import Setup, check_problem
from shoal.papers import known_paper
from shoal.problems import Samples, read_problem
from shoal.runtime import in_float64

FORMAT = 2
OPTAX = "optax"
"""The method in run.json if it was an object of optax, which cannot be written down."""
ALWAYS = ("trajectory.parquet", "problem.npz", "params0.npz", "params.npz", "certificates.json")
NOTES = (
    "command", "step_size_source", "seconds", "ended", "created", "data_file", "params_file",
)  # fmt: skip


def versions() -> dict[str, str]:
    """The packages that made the numbers."""
    found = {"shoal": shoal.__version__, "python": platform.python_version()}
    for name in ("jax", "jaxlib", "numpy", "scipy", "diffrax", "polars"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


# ----------------------------------------------------------------------------------- writing


def require_free(folder: Path) -> None:
    """Refuse a folder that exists or cannot be made, before any work is done."""
    folder = _absolute(folder)
    if os.path.lexists(folder):
        msg = f"{str(folder)!r} exists already; choose another --out, or move it away."
        raise InputError(msg)
    require_folder(folder)


def require_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written into, before any work is done."""
    parent = folder = _absolute(folder)
    try:
        while not parent.exists() and not parent.is_symlink():
            if len(os.fsencode(parent.name)) > 255:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            parent = parent.parent
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        msg = f"cannot write into {str(folder)[:200]!r} ({error.strerror}); choose another --out."
        raise InputError(msg) from None


def require_file(path: Path) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    if _absolute(path).is_dir():
        raise InputError(f"{str(path)!r} is a folder; choose another --out.")
    require_folder(_absolute(path).parent)


def _absolute(folder: Path) -> Path:
    return Path(os.path.abspath(folder))  # resolves `..` without asking which parts exist


def save_run(folder: Path, run: Run, certificates: Iterable[Any] = ()) -> None:
    """Write a run folder aside, then give it its name."""
    if "problem" in run.setup.stacked:
        raise InputError("a run folder holds one problem, and here every seed has its own data.")
    require_free(folder)
    folder = _absolute(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with aside(folder.parent) as place:
        made = place / "run"
        made.mkdir()
        _write_files(made, run, [found.to_json(curves=True) for found in certificates])
        for path in made.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        made.chmod(0o755)
        require_free(folder)
        made.rename(folder)


def _write_files(folder: Path, run: Run, theorems: list[dict[str, Any]]) -> None:
    setup = run.setup
    # by way of memory: polars does not open every name that the system allows
    run.frame().write_parquet(table := io.BytesIO())
    (folder / "trajectory.parquet").write_bytes(table.getvalue())
    files: dict[str, dict[str, Any]] = {
        "problem": _problem_arrays(setup),
        "params0": trees.blocks(setup.params0),
        "params": trees.blocks(run.params),
    }
    if run.average is not None:
        files["average"] = trees.blocks(run.average)
    if arrays := {name: x for name, x in run.probes.items() if x.ndim > 2}:
        files["probes"] = {"seed": np.asarray(run.seeds), "step": run.step} | arrays
    for name, content in files.items():
        write_npz(folder / f"{name}.npz", content)
    (folder / "certificates.json").write_text(dumps(theorems), encoding="utf-8")
    steps, drawn = setup.step_size, drawn_again(setup)
    if steps is not None and np.ptp(steps) == 0:
        steps = float(steps[0])
    about = {
        "format": FORMAT,
        "paper" if setup.paper else "model": setup.name,
        "setting": _setting_json(setup) | {"step_size": steps},
        "given": setup.overrides,
        "seeds": setup.seeds,
        "precision": setup.precision,
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "diverged_at": run.diverged_at,
        "from_init": setup.from_init and (not setup.paper or "weights" in drawn),
        "drawn": drawn,
        "probes": run.parts,
        "verdicts": {t["theorem"]: [r["verdict"] for r in t["results"]] for t in theorems},
        "files": {path.name: _digest(path) for path in sorted(folder.iterdir())},
        **run.notes,
    }
    (folder / "run.json").write_text(dumps(about), encoding="utf-8")


def _setting_json(setup: Setup) -> dict[str, Any]:
    values = setup.setting.asdict()
    return values if isinstance(values["method"], str) else values | {"method": OPTAX}


def _digest(path: Path) -> str:
    return hashlib.sha256(read_regular(path, follow=True)).hexdigest()


def _problem_arrays(setup: Setup) -> dict[str, np.ndarray]:
    """A problem under the names of a problem file."""
    if not setup.has_samples:
        return trees.blocks(setup.problem)
    if isinstance(setup.problem, Samples):
        return {k.replace(".", "_", 1): array for k, array in trees.blocks(setup.problem).items()}
    names = {"y": setup.setting.target()}
    return {
        f"{names.get(name, name)}{end}": array
        for end, part in (("", setup.problem), ("_test", setup.held_out))
        for name, array in trees.blocks(part).items()
    }


def write_whole(path: Path, content: bytes, **beside: bytes) -> None:
    """Write a file aside, and those ``beside`` it, then give it its name, replacing what was."""
    path = _absolute(path)
    try:
        write_aside(path, content, {f".{end}": more for end, more in beside.items()})
    except OSError as error:
        msg = f"cannot write {str(path)[:200]!r} ({error.strerror}); choose another --out."
        raise InputError(msg) from None


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_whole(path, dumps(value).encode())


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as a Parquet table, whole or not at all."""
    import polars as pl

    pl.DataFrame(rows).write_parquet(table := io.BytesIO())
    write_whole(path, table.getvalue())


# ----------------------------------------------------------------------------------- reading


@in_float64
def load_run(folder: Path, setup: Setup | None = None) -> Run:
    """Read a run folder back, checking that its parts belong together.

    A run of a user's own model needs the ``setup`` that it came from.
    """
    about = read_json(folder / "run.json")
    try:
        found = _setup_of(folder, about, setup)
        expected = range(0, about["setting"]["num_steps"] + 1, about["setting"]["every"])
        loaded = Loaded(str(folder), _drawn(about), _check_files(folder, about))
        parts = {str(name): tuple(map(str, some)) for name, some in about.get("probes", {}).items()}
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        reason = f"{type(error).__name__}: {error}"
        msg = f"{str(folder / 'run.json')!r} is not a shoal run folder ({reason})."
        raise InputError(msg) from None
    step, risk, probes = _read_trajectory(folder / "trajectory.parquet", found, expected)
    params = _stacked(folder / "params.npz", found)
    average = _stacked(folder / "average.npz", found) if found.setting.averages else None
    probes |= _read_arrays(folder / "probes.npz", risk.shape)
    notes = {name: about[name] for name in NOTES if name in about}
    parts = parts or _parts_by_name(found, probes)
    return Run(found, step, risk, probes, params, average, parts, notes, loaded)


def _drawn(about: dict[str, Any]) -> tuple[str, ...] | None:
    names = about.get("drawn")
    if about["format"] == 1 or names is None:
        return None
    if not set(names) <= {"data", "weights"}:
        raise InputError(f"run.json: drawn={names!r}; expected some of data and weights.")
    return tuple(names)


def _setup_of(folder: Path, about: dict[str, Any], setup: Setup | None) -> Setup:
    if about["format"] not in (1, FORMAT):
        msg = f"this run has format {about['format']!r}; this version reads 1 and {FORMAT}."
        raise InputError(msg)
    values = dict(about["setting"])
    steps = values.pop("step_size")
    if "paper" in about:
        made = _paper_setup(folder, about, values, steps)
    elif setup is not None:
        names = ("num_steps", "every", "method", "train", "batch_size")
        made = setup.with_setting(**{name: values[name] for name in names if name in values})
        _require_same_start(folder, made)
    else:
        msg = (
            f"{str(folder)!r} is a run of the model {about['model']!r}; give the setup that it "
            "came from: --paper my.py:NAME, or sh.load(folder, setup)."
        )
        raise InputError(msg)
    return made if steps is None else made.with_steps(steps)


def _paper_setup(folder: Path, about: dict[str, Any], values: dict[str, Any], steps: Any) -> Setup:
    paper, method = known_paper(str(about["paper"])), values.pop("method")
    chosen = values if method == OPTAX else values | {"method": method}
    setting = with_values(paper.setting(), chosen, owner=paper.key).complete()
    seeds, precision = about["seeds"], about["precision"]
    if (
        (steps is None and method != OPTAX)
        or precision not in ("float64", "float32")
        or not isinstance(seeds, list)
        or not seeds
        or any(type(seed) is not int or seed < 0 for seed in seeds)
        or len(set(seeds)) < len(seeds)
        or np.shape(steps) not in ((), (len(seeds),))
        or not np.isfinite(np.asarray(0.0 if steps is None else steps, float)).all()
    ):
        raise InputError("run.json: step_size, precision or seeds are not those of a finished run.")
    path, held_out = folder / "problem.npz", None
    if setting.objective is None:
        problem, held_out = read_problem(path, setting.target(), queries=setting.queries)
        _require_sizes(setting, problem)
        check_problem(setting, problem, held_out)
    else:
        problem = _law(path, setting.data_spec())
    made = Setup(
        setting, problem, (), tuple(seeds), held_out=held_out, precision=precision,
        overrides=tuple(str(name) for name in about["given"]),
        from_init=about.get("from_init", about.get("params_file") is None),
    )  # fmt: skip
    made = made.replace(params0=_stacked(folder / "params0.npz", made)).astype(precision)
    made.trained  # noqa: B018 (refuses names that the model does not have)
    return made.with_setting(method=OPTAX) if method == OPTAX else made


def _law(path: Path, spec: Any) -> Any:
    """The arrays of a risk of its own (`Setting.objective`): numbers of the shapes in ``spec``."""
    expected = trees.blocks(spec)
    found = read_npz(path, tuple(expected))
    for name, like in expected.items():
        array = found[name]
        if array.shape != like.shape or array.dtype.kind not in "fiu":
            msg = f"{name} is {array.dtype} of shape {array.shape}; expected {like.shape}"
            raise InputError(f"{str(path)!r}: {msg}.")
        if not np.isfinite(array).all():
            raise InputError(f"{str(path)!r}: {name} has entries that are not finite.")
    return trees.with_blocks(spec, {name: array.astype(float) for name, array in found.items()})


def _require_sizes(setting: Any, problem: Any) -> None:
    shape = setting.num_samples, setting.num_tokens, setting.dim
    if problem.X.shape != shape:
        raise InputError(f"problem.npz: X has shape {problem.X.shape}, but run.json says {shape}.")
    expected = getattr(setting, "out_dim", 1)
    if problem.y.ndim == 3 and problem.y.shape[2] != expected:
        raise InputError(f"problem.npz: Y has {problem.y.shape[2]} outputs, not {expected}.")


def _require_same_start(folder: Path, setup: Setup) -> None:
    """Refuse data and first weights that are not those of the setup."""
    for name, expected in (
        ("problem", _problem_arrays(setup)), ("params0", trees.blocks(setup.params0)),
    ):  # fmt: skip
        path = folder / f"{name}.npz"
        found = read_npz(path, tuple(expected))
        for key, array in expected.items():
            if not np.array_equal(found[key], np.asarray(array)):
                raise InputError(f"{str(path)!r}: {key} is not that of the setup which was given.")


def _check_files(folder: Path, about: dict[str, Any]) -> tuple[str, ...]:
    """Compare every file with its digest in run.json; what could not be compared."""
    digests = about.get("files", {})
    if about["format"] == 1 or not digests:
        return ("files without hashes were not compared with any",)
    seen = {name for name in os.listdir(folder) if name.endswith((".npz", ".parquet"))}
    if missing := sorted({*ALWAYS, *seen} - set(digests)):
        raise InputError(f"run.json has no hash of {missing[0]}; train again.")
    for name, digest in digests.items():
        path = folder / Path(name).name
        if not path.is_file():
            raise InputError(f"{str(path)!r} is missing.")
        if _digest(path) != digest:
            raise InputError(f"{str(path)!r} was changed after the run was saved; train again.")
    return ()


def _stacked(path: Path, setup: Setup) -> Any:
    """Weights of every seed, with the shapes and the precision that run.json says."""
    spec = setup.setting.network().spec
    wanted = trees.blocks(spec)
    found = read_npz(path, tuple(wanted))
    for block, array in found.items():
        expected, where = (len(setup.seeds), *wanted[block].shape), f"{str(path)!r}: {block}"
        if array.shape != expected:
            raise InputError(f"{where} has shape {array.shape}; expected {expected}.")
        if array.dtype != setup.precision:
            raise InputError(f"{where} is {array.dtype}, not {setup.precision}.")
    return trees.with_blocks(spec, found)


def _read_arrays(path: Path, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Probes that are arrays, (seeds, records, ...)."""
    if not path.is_file():
        return {}
    found = read_npz(path, tuple(name for name in npz_names(path) if name not in ("seed", "step")))
    for name, array in found.items():
        if array.shape[:2] != shape or array.dtype.kind not in "fiub":
            msg = f"{str(path)!r}: {name} has shape {array.shape}; expected {shape} in front."
            raise InputError(msg)
    return found


def _parts_by_name(setup: Setup, recorded: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """For folders of 0.1.0: which columns belong to one probe, by the probes' names."""
    known = sorted((*SENTENCES, *setup.setting.probe_sentences), key=len, reverse=True)
    parts: dict[str, tuple[str, ...]] = {}
    for column in recorded:
        name = next((k for k in known if column == k or column.startswith(f"{k}_")), column)
        rest = () if column == name else (column.removeprefix(f"{name}_"),)
        parts[name] = parts.get(name, ()) + rest
    return parts


def read_json(path: Path) -> Any:
    """A JSON file from outside, or what is wrong with it."""
    try:
        return json.loads(read_regular(path, follow=True).decode())
    except FileNotFoundError:
        msg = f"{str(path.parent)!r} is not a run folder (it has no {path.name})."
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{str(path)!r} cannot be read ({error})."
    raise InputError(msg)


def _read_trajectory(
    path: Path, setup: Setup, expected: range
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    import polars as pl

    seeds, where = setup.seeds, repr(str(path))
    try:
        frame = read_table(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{where} cannot be read ({str(error).splitlines()[0]}).") from None
    if missing := {"seed", "step", "risk"} - set(frame.columns):
        raise InputError(f"{where} lacks the columns {', '.join(sorted(missing))}.")
    if not frame["seed"].dtype.is_integer() or not frame["step"].dtype.is_integer():
        raise InputError(f"{where}: seed and step must be whole numbers.")
    kinds = frame.schema.items()
    odd = [c for c, kind in kinds if not (kind.is_numeric() or kind == pl.Boolean)]
    odd += [c for c, kind in kinds if kind in (pl.Int128, pl.Decimal)]
    if odd or any(frame.null_count().row(0)):
        msg = f"{where}: every column must hold numbers, with none missing ({', '.join(odd)})."
        raise InputError(msg)
    exactly = f"{where} does not hold exactly the steps of run.json for each of its seeds."
    if len(frame) != len(seeds) * len(expected):
        raise InputError(exactly)
    steps = np.array(expected)
    places = {seed: place for place, seed in enumerate(seeds)}
    place = np.array([places.get(seed, len(seeds)) for seed in frame["seed"]])
    frame = frame[np.lexsort((frame["step"].to_numpy(), place))]  # in the order of the seeds
    if (
        frame["seed"].to_list() != np.repeat(seeds, len(steps)).tolist()
        or frame["step"].to_list() != np.tile(steps, len(seeds)).tolist()
    ):
        raise InputError(exactly)

    def column(name: str) -> np.ndarray:
        return frame[name].to_numpy(writable=True).reshape(len(seeds), len(steps))

    risk = column("risk")
    if risk.dtype != np.dtype(setup.precision) or (setup.has_samples and (risk < 0).any()):
        msg = f"{where}: risk must hold {setup.precision} numbers that are not negative."
        raise InputError(msg)
    others = [name for name in frame.columns if name not in ("seed", "step", "time", "risk")]
    return steps, risk, {name: column(name) for name in others}
