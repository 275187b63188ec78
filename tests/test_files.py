import gzip
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from shoal import files
from shoal.errors import InputError
from shoal.files import read_idx, read_idx_images, read_npz


def idx_bytes(array, kind=0x08):
    return (
        bytes([0, 0, kind, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


@pytest.fixture
def images(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4)).astype(np.uint8)
    labels = np.array([0, 1, 0, 1, 2, 2], np.uint8)
    (tmp_path / "images").write_bytes(idx_bytes(pixels))
    (tmp_path / "labels.gz").write_bytes(gzip.compress(idx_bytes(labels)))
    return tmp_path, pixels, labels


def test_idx_files_are_read_plain_and_gzipped(images):
    folder, pixels, labels = images
    read, classes = read_idx_images(folder / "images", folder / "labels.gz")
    np.testing.assert_allclose(read, pixels / pixels.max(), rtol=1e-15)
    np.testing.assert_array_equal(classes, labels)


def test_idx_numbers_are_big_endian(tmp_path):
    numbers = np.array([[1, -2], [300, 70000]], ">i4")
    (tmp_path / "f").write_bytes(idx_bytes(numbers, 0x0C))
    np.testing.assert_array_equal(read_idx(tmp_path / "f"), numbers)


@pytest.mark.parametrize("damage", ["truncated", "longer", "not idx", "huge", "empty", "bad gzip"])
def test_damaged_idx_files_are_refused(images, damage):
    folder, pixels, _ = images
    good = idx_bytes(pixels)
    (folder / "bad").write_bytes(
        {
            "truncated": good[:-1],
            "longer": good + b"x",
            "not idx": b"hello world",
            "huge": good[:4] + struct.pack(">3I", 2**31, 2**31, 2**31),
            "empty": b"",
            "bad gzip": b"\x1f\x8b" + b"\0" * 30,
        }[damage]
    )
    with pytest.raises(InputError):
        read_idx(folder / "bad")


def test_an_npz_that_holds_objects_is_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "pwned"), "w"))

    np.savez(tmp_path / "bad.npz", X=np.array([Trap()], dtype=object), y=np.ones(1))
    with pytest.raises(InputError, match="cannot be read as plain arrays"):
        read_npz(tmp_path / "bad.npz", ("X", "y"))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 broken"])
def test_what_is_not_an_npz_is_refused(tmp_path, content):
    (tmp_path / "f.npz").write_bytes(content)
    with pytest.raises(InputError, match="is not an npz file"):
        read_npz(tmp_path / "f.npz")


def test_missing_files_and_arrays_are_named(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_npz(tmp_path / "nowhere.npz")
    np.savez(tmp_path / "f.npz", X=np.ones(1), z=np.ones(1))
    with pytest.raises(InputError, match="lacks y; it has: X, z"):
        read_npz(tmp_path / "f.npz", ("X", "y"))


def test_a_flipped_byte_is_noticed(tmp_path):
    np.savez(tmp_path / "f.npz", X=np.ones(1000))
    raw = bytearray((tmp_path / "f.npz").read_bytes())
    raw[4000] ^= 1
    (tmp_path / "f.npz").write_bytes(raw)
    with pytest.raises(InputError, match="cannot be read"):
        read_npz(tmp_path / "f.npz")


def test_an_npz_larger_than_the_limit_is_refused_before_reading(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.files.LARGEST", 1000)
    np.savez_compressed(tmp_path / "f.npz", X=np.zeros(10**6))
    with pytest.raises(InputError, match="unpacks to"):
        read_npz(tmp_path / "f.npz")


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    code = (
        "import os, pathlib, signal\nfrom shoal.files import aside\n"
        "with aside(pathlib.Path('.')) as place:\n    (place / 'half').write_text('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(files.ASIDE)
    (tmp_path / f"{files.ASIDE}ab_12345").write_text("of an older version")
    (tmp_path / f"{files.ASIDE}notes").write_text("of the user")
    files.write_aside(tmp_path / "new", b"content")
    assert {path.name for path in tmp_path.iterdir()} == {"new", f"{files.ASIDE}notes"}


def test_of_two_files_without_room_for_both_none_is_written(tmp_path, monkeypatch):
    seen = []

    def full(number):
        seen.append(number)
        if len(seen) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_aside(tmp_path / "p.json", b"{}", {".npz": b"arrays"})
    assert not [*tmp_path.iterdir()]
    files.write_aside(tmp_path / "p.json", b"{}", {".npz": b"arrays"})
    assert {path.name for path in tmp_path.iterdir()} == {"p.json", "p.npz"}


def test_what_somebody_is_writing_stays(tmp_path):
    with files.aside(tmp_path) as place:
        (place / "half").write_text("x")
        files.write_aside(tmp_path / "new", b"content")
        assert (place / "half").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
