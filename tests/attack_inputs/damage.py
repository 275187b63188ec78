"""Ways to damage what shoal reads: bytes, JSON, arrays, tables, text, Python files, names."""

import hashlib
import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

WORDS = (
    "", " ", "0", "-1", "1", "2", "3", "0.5", "-0.0", "1e-300", "1e300", "1e999", "nan", "inf",
    "-inf", "100000000000000000000", "2147483648", "-9223372036854775809", "18446744073709551616",
    "true", "None", "null", "all", "none", "auto", "0x10", "1_0", "1,2", "1,2,3", "1,,2", "٣",
    "\x1b[31mred", "[bold]", "[/]", "a\nb", "a\tb", "\x07", "é", "\U0001f41f", "{}", "[]", "()",
    "'", '"', "..", "/", "*", "%s", "%n", "{0}", "$HOME", "=1+1", "x" * 300, "--", "-", "@", "+",
    "__class__", "\udcff", "1;2", "gd", "relu", "softmax", "1e5j",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e300, 1e-320, float("nan"), float("inf"), 2**31,
    2**63, 2**70, "", "x", "nan", "1", "\x1b[2J", "[red]", "x" * 5000, [], {}, [[]],
    [None], [1, "a"],
    {"a": 1}, {"": None}, [[[[[1]]]]], [1.0, float("nan")], "../../etc/passwd", "\udc80",
)  # fmt: skip


def damage_bytes(rng: random.Random, content: bytes) -> bytes:
    """Flip, cut, double, insert or replace."""
    data = bytearray(content)
    place = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0:
            return b""
        case 1:
            return bytes(data[:place])
        case 2:
            for _ in range(rng.choice((1, 1, 8, 64))):
                if data:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 3:
            return content + content
        case 4:
            data[place:place] = rng.choice((b"\0", b"\xff\xfe", b"\n\n", b"{", b"\x80" * 9))
        case 5:
            return rng.randbytes(rng.choice((1, 4, 100, 5000)))
        case 6:
            data[place : place + rng.randrange(1, 200)] = b""
    return bytes(data)


def damage_json(rng: random.Random, value: Any) -> Any:
    """Replace, remove or add one entry somewhere inside."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        new = rng.choice(WORDS[:60]), rng.choice(VALUES)
        return _one_entry(rng, value, new, damage_json)
    place = rng.randrange(len(value))
    match rng.randrange(5):
        case 0:
            return value[:place] + value[place + 1 :]
        case 1:
            return [*value, rng.choice(VALUES)]
        case _:
            return [*value[:place], damage_json(rng, value[place]), *value[place + 1 :]]


def _one_entry(rng: random.Random, entries: dict, new: tuple[str, Any], damage: Callable) -> dict:
    """One entry less, one more, or one damaged."""
    key, changed = rng.choice(list(entries)), dict(entries)
    match rng.randrange(6):
        case 0:
            del changed[key]
        case 1:
            changed[new[0]] = new[1]
        case _:
            changed[key] = damage(rng, entries[key])
    return changed


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def damage_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """Another type, shape or value."""
    number = array.dtype.kind in "fiu"
    choices: list[Callable[[], np.ndarray]] = [
        lambda: array[:0],
        lambda: array[None],
        lambda: array[..., None],
        lambda: array.reshape(-1),
        lambda: np.concatenate([array, array]) if array.ndim else np.stack([array, array]),
        lambda: array.astype(str),
        lambda: np.array(rng.choice(VALUES[:12]), dtype=object),
        lambda: np.zeros((), float),
        lambda: np.zeros((0, 3)),
        lambda: np.zeros((1,) * 30),
        lambda: np.array([b"x"]),
        lambda: np.array(["2026-01-01"], "datetime64[D]"),
        lambda: np.zeros(2, dtype=[("a", "f8")]),
    ]
    if number:
        value = rng.choice((np.nan, np.inf, -np.inf, 1e300, -1e308, 1e-310, 0.0))
        choices += [
            lambda: array.astype(complex),
            lambda: array.astype(np.float16),
            lambda: array.astype(bool),
            lambda: array.astype(">f8"),
            lambda: array.T.copy(),
            lambda: np.full(array.shape, value),
            lambda: _with(array.astype(float), rng, value),
            lambda: np.asfortranarray(array) * 1e300,
        ]
    with np.errstate(all="ignore"):
        return rng.choice(choices)()


def _with(array: np.ndarray, rng: random.Random, value: float) -> np.ndarray:
    if array.size:
        array.reshape(-1)[rng.randrange(array.size)] = value
    return array


def damage_arrays(rng: random.Random, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    name = rng.choice(("q", "X", "Y", "y", "W", "file", "a/b", "x" * 200))
    return _one_entry(rng, arrays, (name, next(iter(arrays.values()))), damage_array)


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """As `numpy.savez`, with objects too, but under any names."""
    with zipfile.ZipFile(content := io.BytesIO(), "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
    return content.getvalue()


def damage_table(rng: random.Random, table: pl.DataFrame) -> pl.DataFrame:
    """A column less, of another type, with gaps; other rows."""
    name = rng.choice(table.columns)
    column = pl.col(name)
    other: list[Callable[[], pl.DataFrame]] = [
        lambda: table.drop(name),
        lambda: table.rename({name: rng.choice(("other", "[red]", "\x1b[2J", "x" * 300))}),
        lambda: table.with_columns(pl.lit(rng.choice(("word", "\x1b[31m", "[/]", ""))).alias(name)),
        lambda: table.with_columns(pl.lit(None).alias(name)),
        lambda: table.with_columns(pl.lit(float("nan")).alias(name)),
        lambda: table.with_columns(pl.lit(-(2**62)).alias(name)),
        lambda: table.with_columns(pl.lit(2**63, pl.UInt64).alias(name)),
        lambda: table.with_columns(pl.lit([1.0, None], pl.List(pl.Float64)).alias(name)),
        lambda: table.with_columns(pl.lit([], pl.List(pl.Float64)).alias(name)),
        lambda: table.with_columns(pl.struct(column.alias("inner")).alias(name)),
        lambda: table.with_columns(pl.date(2026, 1, 1).alias(name)),
        lambda: table.with_columns(pl.lit(b"\xff").alias(name)),
        lambda: table.with_columns(pl.lit(True).alias(name)),
        lambda: (
            table.with_columns(column.cast(pl.String, strict=False).cast(pl.Categorical))
            if not isinstance(table.schema[name], pl.List)
            else table.drop(name)
        ),
        lambda: table.head(0),
        lambda: pl.concat([table, table]),
        lambda: table.reverse(),
        lambda: table.with_columns(**{f"more{k}": pl.lit(k) for k in range(200)}),
    ]
    return rng.choice(other)()


def table_bytes(table: pl.DataFrame) -> bytes:
    table.write_parquet(content := io.BytesIO())
    return content.getvalue()


def damage_text(rng: random.Random, text: str) -> str:
    """One line removed, doubled, swapped or with another value; a strange character."""
    lines = text.split("\n")
    place = rng.randrange(len(lines))
    line = lines[place]
    match rng.randrange(7):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, line)
        case 2:
            head, equals, _ = line.partition("=")
            lines[place] = f"{head}{equals} {rng.choice(WORDS)}" if equals else line
        case 3:
            head, equals, _ = line.partition("=")
            lines[place] = f"{head}{equals} {json.dumps(rng.choice(VALUES))}" if equals else line
        case 4:
            other = rng.randrange(len(lines))
            lines[place], lines[other] = lines[other], line
        case 5:
            at = rng.randrange(len(line) + 1)
            lines[place] = line[:at] + rng.choice(("\0", "é", "]", "=", '"', "#", "  ")) + line[at:]
        case 6:
            lines[place] = line.swapcase()
    return "\n".join(lines)


def damage_file(rng: random.Random, path: Path) -> None:
    """Damage a file in the way of its kind, or as bytes, or put something else in its place."""
    kind = rng.random()
    if kind < 0.12:
        return _replace(rng, path)
    content = path.read_bytes()
    if kind < 0.4 or path.suffix in (".safetensors", ".png", ".pdf"):
        path.write_bytes(damage_bytes(rng, content))
    elif path.suffix == ".json":
        path.write_bytes(json_bytes(damage_json(rng, json.loads(content))))
    elif path.suffix == ".npz":
        with np.load(io.BytesIO(content)) as archive:
            path.write_bytes(npz_bytes(damage_arrays(rng, dict(archive))))
    elif path.suffix == ".parquet":
        path.write_bytes(table_bytes(damage_table(rng, pl.read_parquet(content))))
    else:
        text = damage_text(rng, content.decode())
        path.write_bytes(text.encode(errors="surrogatepass"))
    return None


def _replace(rng: random.Random, path: Path) -> None:
    path.unlink()
    match rng.randrange(6):
        case 0:
            path.mkdir()
        case 1:
            os.mkfifo(path)
        case 2:
            path.symlink_to(path.name)
        case 3:
            path.symlink_to("/dev/zero")
        case 4:
            path.symlink_to("/dev/null")
        case 5:
            pass  # nothing is there


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def reseal(folder: Path) -> None:
    """Make digests right again, as a forger would: those of a run folder and of sweep tables."""
    record = folder / "run.json"
    try:
        about = json.loads(record.read_bytes() if _is_regular(record) else b"")
        files = about["files"]
        for name in filter(lambda name: _is_regular(folder / name), files):
            files[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        record.write_bytes(json_bytes(about))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    for path in list((folder / "runs").glob("*.parquet")):
        if _is_regular(path):
            name = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
            path.rename(path.with_stem(name))


def damaged_copy(rng: random.Random, specimen: Path, place: Path) -> Path:
    """A copy of a file or folder with one part damaged."""
    target = place / specimen.name
    if specimen.is_file():
        shutil.copy(specimen, target)
        with_arrays = specimen.with_suffix(".npz")  # of a proof
        if specimen.suffix == ".json" and with_arrays.is_file():
            shutil.copy(with_arrays, place)
            target = (
                rng.choice((target, place / with_arrays.name)) if rng.random() < 0.3 else target
            )
        damage_file(rng, target)
        return place / specimen.name
    shutil.copytree(specimen, target)
    files = sorted(p for p in target.rglob("*") if p.is_file() and p.name not in ("lock", ".lock"))
    damage_file(rng, rng.choice(files))
    if rng.random() < 0.5:
        reseal(target)
    return target
