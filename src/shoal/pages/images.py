"""Heat maps as tiny PNG files inside a page, all in one order of colours."""

import base64
import struct
import zlib

import numpy as np

STOPS = ("#00204d", "#213b6e", "#4c556c", "#6c6e72", "#8d8878", "#b1a570", "#d9c55c", "#ffea46")
"""From low to high; readable with any colour vision, and in grey (after the map "cividis")."""
LEVELS = 64


def _palette() -> np.ndarray:
    stops = np.array([[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in STOPS], float)
    at = np.linspace(0, len(stops) - 1, LEVELS)
    return np.stack(
        [np.interp(at, np.arange(len(stops)), stops[:, k]) for k in range(3)], axis=1
    ).astype(np.uint8)


PALETTE = _palette()


def colour(share: float) -> str:
    """The colour of a number, given as a share of its range.

    >>> colour(0.0), colour(1.0)
    ('#00204d', '#ffea46')
    """
    place = round(min(max(share, 0.0), 1.0) * (LEVELS - 1))
    return "#" + "".join(f"{part:02x}" for part in PALETTE[place])


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def png(values: np.ndarray, low: float, high: float) -> bytes:
    """An image with one pixel a number; what is not a number is transparent."""
    values = np.asarray(values, float)
    missing = ~np.isfinite(values)
    shares = np.clip((np.where(missing, low, values) - low) / (high - low or 1.0), 0, 1)
    index = np.where(missing, LEVELS, np.rint(shares * (LEVELS - 1))).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in index)
    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8, 3, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head)
        + _chunk(b"PLTE", PALETTE.tobytes() + b"\0\0\0")
        + _chunk(b"tRNS", b"\xff" * LEVELS + b"\0")
        + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")
    )  # fmt: skip


def data_uri(values: np.ndarray, low: float, high: float) -> str:
    """The image as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png(values, low, high)).decode()


def finer(values: np.ndarray, times: int) -> np.ndarray:
    """A plane with so many times the rows and columns, by straight lines between neighbours.

    >>> finer(np.array([[0.0, 1.0], [2.0, 3.0]]), 2)[0].tolist()
    [0.0, 0.5, 1.0]
    """
    rows, columns = values.shape
    down = np.linspace(0, rows - 1, (rows - 1) * times + 1)
    across = np.linspace(0, columns - 1, (columns - 1) * times + 1)
    tall = np.stack([np.interp(down, np.arange(rows), column) for column in values.T], axis=1)
    return np.stack([np.interp(across, np.arange(columns), row) for row in tall])
