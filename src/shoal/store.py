"""Run folders: open to any tool, whole or not there at all.

A folder holds ``run.json``, ``trajectory.parquet``, ``problem.npz``, ``params0.npz``,
``params.npz``, ``certificates.json`` and, if arrays were recorded, ``probes.npz``; ``average.npz``
if the mean of the iterates was kept. It is written aside, under a name that begins with a dot, and
renamed when complete.
"""

import io
import json
import math
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import shoal
from shoal import settings, trees
from shoal.certificates import Certificate, Reading, readings, verdict
from shoal.errors import InputError, nearest
from shoal.experiments import Experiment, Paper, check_problem, problem_arrays, read_problem
from shoal.files import read_npz, write_aside
from shoal.training import Trajectory

FORMAT = 1


# ----------------------------------------------------------------------------------- as JSON


def plain(value: Any) -> Any:
    """Anything of ours as JSON can hold it: infinities and NaN become null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _reading(reading: Reading) -> dict[str, Any]:
    fields = reading._asdict()
    return {k: v for k, v in fields.items() if not (k == "at" and v is None)}


def certificate_json(seed: int, certificate: Certificate) -> dict[str, Any]:
    """One seed's confrontation, as ``shoal certify --json`` prints it."""
    hypotheses, conclusions = readings(certificate)
    return plain(
        {
            "seed": seed,
            "verdict": str(verdict(certificate)),
            "hypotheses": [_reading(h) for h in hypotheses],
            "conclusions": [_reading(c) for c in conclusions],
            "constants": certificate.constants,
            "predicted_rate": certificate.predicted_rate,
            "measured_rate": certificate.measured_rate,
        }
    )


def theorem_json(
    paper: str, theorem: str, seeds: Iterable[int], certificates: Iterable[Certificate]
) -> dict[str, Any]:
    """A theorem confronted with every seed of a run."""
    results = [certificate_json(s, c) for s, c in zip(seeds, certificates, strict=True)]
    return {"paper": paper, "theorem": theorem, "results": results}


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    found = {"shoal": shoal.__version__, "python": platform.python_version()}
    for name in ("jax", "jaxlib", "numpy", "scipy", "diffrax", "polars"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# ----------------------------------------------------------------------------------- writing


def require_free(folder: Path) -> None:
    """Refuse a folder that exists or cannot be made, before any work is done."""
    folder = _absolute(folder)
    try:
        if folder.exists() or folder.is_symlink():
            msg = f"{str(folder)!r} exists already; choose another --out, or move it away."
            raise InputError(msg)
        parent = folder.parent
        while not parent.exists() and not parent.is_symlink():
            parent = parent.parent
        Path(tempfile.mkdtemp(prefix=".shoal-", dir=parent)).rmdir()
        if len(os.fsencode(folder.name)) > 255:
            msg = f"{folder.name[:40]!r}... is too long a name for a folder."
            raise InputError(msg)
    except OSError as error:
        msg = (
            f"cannot make a folder {str(folder)[:200]!r} ({error.strerror}); choose another --out."
        )
        raise InputError(msg) from None


def _absolute(folder: Path) -> Path:
    return Path(os.path.abspath(folder))  # resolves `..` without asking which parts exist


def save_run(
    folder: Path,
    experiment: Experiment,
    run: Trajectory,
    theorems: list[dict[str, Any]],
    notes: dict[str, Any],
) -> None:
    """Write a run folder aside, then give it its name."""
    require_free(folder)
    folder = _absolute(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".shoal-", dir=folder.parent))
    try:
        _write_files(aside, experiment, run, theorems, notes)
        for path in aside.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        aside.chmod(0o755)
        require_free(folder)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _write_files(
    folder: Path,
    experiment: Experiment,
    run: Trajectory,
    theorems: list[dict[str, Any]],
    notes: dict[str, Any],
) -> None:
    seeds = np.asarray(experiment.seeds)
    arrays = {name: np.asarray(x) for name, x in run.probes.items()}
    scalar = {name: x for name, x in arrays.items() if x.ndim == 2}
    larger = {name: x for name, x in arrays.items() if x.ndim > 2}
    table = io.BytesIO()  # by way of memory: polars does not open every name that the system allows
    _frame(seeds, np.asarray(run.step), np.asarray(run.risk), scalar).write_parquet(table)
    (folder / "trajectory.parquet").write_bytes(table.getvalue())
    problem = {name: np.asarray(x) for name, x in problem_arrays(experiment).items()}
    _write_npz(folder / "problem.npz", problem)
    _write_npz(folder / "params0.npz", _arrays(experiment.params0))
    _write_npz(folder / "params.npz", _arrays(run.params))
    if run.average is not None:
        _write_npz(folder / "average.npz", _arrays(run.average))
    if larger:
        steps = {"seed": seeds, "step": np.asarray(run.step[0])}
        _write_npz(folder / "probes.npz", steps | larger)
    diverged = ~np.isfinite(np.asarray(run.risk))
    at = [int(run.step[0][np.argmax(row)]) if row.any() else None for row in diverged]
    about = {
        "format": FORMAT,
        "paper": experiment.paper.key,
        "setting": experiment.setting,
        "given": experiment.given,
        "seeds": experiment.seeds,
        "precision": experiment.precision,
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "diverged_at": at,
        "verdicts": {t["theorem"]: [r["verdict"] for r in t["results"]] for t in theorems},
        **notes,
    }
    _write_json(folder / "run.json", about)
    _write_json(folder / "certificates.json", theorems)


def _arrays(blocks: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in trees.blocks(blocks).items()}


def write_whole(path: Path, content: bytes) -> None:
    """Write a file aside, then give it its name, replacing what was there."""
    path = _absolute(path)
    try:
        write_aside(path, content)
    except OSError as error:
        msg = f"cannot write {str(path)[:200]!r} ({error.strerror}); choose another --out."
        raise InputError(msg) from None


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    text = json.dumps(plain(value), indent=1, allow_nan=False) + "\n"
    write_whole(path, text.encode())


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as a Parquet table, whole or not at all."""
    import polars as pl

    table = io.BytesIO()
    pl.DataFrame(rows).write_parquet(table)
    write_whole(path, table.getvalue())


def _write_npz(path: Path, arrays: dict[str, Any]) -> None:
    np.savez(path, **arrays)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(plain(value), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _frame(seeds: np.ndarray, step: np.ndarray, risk: np.ndarray, scalar: dict) -> Any:
    import polars as pl  # lazily: the command line must start quickly

    count = risk.shape[1]
    columns = {"seed": np.repeat(seeds, count), "step": step.ravel(), "risk": risk.ravel()}
    return pl.DataFrame(columns | {name: x.ravel() for name, x in scalar.items()})


# ----------------------------------------------------------------------------------- reading


def load_run(folder: Path, papers: dict[str, Paper]) -> tuple[Experiment, Trajectory]:
    """Read a run folder back, checking that its parts belong together."""
    about = read_json(folder / "run.json")
    try:
        paper, setting, seeds, given, precision, drawn = _described(about, papers)
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        msg = (
            f"{str(folder / 'run.json')!r} is not a run of ours ({type(error).__name__}: {error})."
        )
        raise InputError(msg) from None
    problem, held_out = read_problem(
        folder / "problem.npz", paper.target(setting), queries=paper.queries
    )
    shape = (setting.num_samples, setting.num_tokens, setting.dim)
    if problem.X.shape != shape:
        msg = f"problem.npz: X has shape {problem.X.shape}, but run.json says {shape}."
        raise InputError(msg)
    check_problem(paper, setting, problem, held_out)
    expected = getattr(setting, "out_dim", 1)
    if problem.y.ndim == 3 and problem.y.shape[2] != expected:
        msg = f"problem.npz: Y has {problem.y.shape[2]} outputs, not {expected}."
        raise InputError(msg)
    spec = paper.model(setting).spec

    def stacked(name: str) -> Any:
        found = read_npz(folder / name, spec._fields)
        for block, want in trees.blocks(spec).items():
            if found[block].shape != (len(seeds), *want.shape):
                got, expected = found[block].shape, (len(seeds), *want.shape)
                msg = f"{str(folder / name)!r}: {block} has shape {got}; expected {expected}."
                raise InputError(msg)
            if found[block].dtype != precision:
                msg = f"{str(folder / name)!r}: {block} is {found[block].dtype}, not {precision}."
                raise InputError(msg)
        return type(spec)(**{k: jnp.asarray(v) for k, v in found.items()})

    experiment = Experiment(
        paper,
        setting,
        given,
        trees.cast(problem, precision),
        stacked("params0.npz"),
        seeds,
        precision,
        drawn,
        None if held_out is None else trees.cast(held_out, precision),
    )
    expected = np.arange(0, setting.num_steps + 1, setting.every)
    step, risk, probes = _read_trajectory(
        folder / "trajectory.parquet", seeds, expected, np.dtype(precision)
    )
    average = stacked("average.npz") if paper.averages else None
    return experiment, Trajectory(step, risk, probes, stacked("params.npz"), average)


def _described(about: dict[str, Any], papers: dict[str, Paper]) -> tuple:
    """What run.json says, checked."""
    if about["format"] != FORMAT:
        msg = f"this run has format {about['format']!r}; this version reads {FORMAT}."
        raise InputError(msg)
    if about["paper"] not in papers:
        msg = f"run.json names the paper {about['paper']!r}; {nearest(str(about['paper']), papers)}"
        raise InputError(msg)
    paper = papers[about["paper"]]
    setting = settings.with_values(paper.setting, dict(about["setting"]), owner=paper.key)
    setting = paper.complete(setting)
    trained = None if setting.train == "all" else setting.train.split(",")
    trees.block_names(paper.model(setting).spec, trained)
    seeds, given, precision = about["seeds"], about["given"], about["precision"]
    if (
        setting.step_size is None
        or precision not in ("float64", "float32")
        or not isinstance(seeds, list)
        or not seeds
        or any(type(seed) is not int or seed < 0 for seed in seeds)
        or len(set(seeds)) < len(seeds)
    ):
        msg = "run.json: step_size, precision or seeds are not those of a finished run."
        raise InputError(msg)
    names = tuple(str(name) for name in given)
    return paper, setting, tuple(seeds), names, precision, about["params_file"] is None


def read_json(path: Path) -> Any:
    """A JSON file from outside, or what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        msg = f"{str(path.parent)!r} is not a run folder (it has no {path.name})."
        raise InputError(msg) from None
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{str(path)!r} cannot be read ({error})."
        raise InputError(msg) from None
    return value


def _read_trajectory(
    path: Path, seeds: tuple[int, ...], steps: np.ndarray, dtype: np.dtype
) -> tuple[Any, Any, dict[str, Any]]:
    import polars as pl

    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        msg = f"{str(path)!r} cannot be read ({str(error).splitlines()[0]})."
        raise InputError(msg) from None
    if missing := {"seed", "step", "risk"} - set(frame.columns):
        msg = f"{str(path)!r} lacks the columns {', '.join(sorted(missing))}."
        raise InputError(msg)
    if not frame["seed"].dtype.is_integer() or not frame["step"].dtype.is_integer():
        msg = f"{str(path)!r}: seed and step must be whole numbers."
        raise InputError(msg)
    odd = [
        c
        for c in frame.columns
        if not (frame[c].dtype.is_numeric() or frame[c].dtype == pl.Boolean)
    ]
    odd += [c for c in frame.columns if frame[c].dtype in (pl.Int128, pl.Decimal)]
    if odd or any(frame[c].null_count() for c in frame.columns):
        msg = (
            f"{str(path)!r}: every column must hold numbers, with none missing ({', '.join(odd)})."
        )
        raise InputError(msg)
    frame = frame.sort("seed", "step", maintain_order=True)
    order = np.argsort(seeds)
    if (
        frame["seed"].to_list() != np.repeat(np.asarray(seeds)[order], len(steps)).tolist()
        or frame["step"].to_list() != np.tile(steps, len(seeds)).tolist()
    ):
        msg = f"{str(path)!r} does not hold exactly the steps of run.json for each of its seeds."
        raise InputError(msg)
    rank = np.argsort(order)  # rows of the sorted table in the order of the seeds

    def column(name: str) -> np.ndarray:
        return frame[name].to_numpy().reshape(len(seeds), len(steps))[rank]

    if column("risk").dtype != dtype or (column("risk") < 0).any():
        msg = f"{str(path)!r}: risk must hold {dtype} numbers that are not negative."
        raise InputError(msg)
    others = [name for name in frame.columns if name not in ("seed", "step", "risk")]
    probes = {name: jnp.asarray(column(name)) for name in others}
    return jnp.asarray(column("step")), jnp.asarray(column("risk")), probes
