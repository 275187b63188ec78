r"""Pathfinder-32: are two disks joined by a dashed contour? Images generated here, labels certain.

Linsley, Kim, Veerabadran, Windolf and Serre (2018) and their published generator
(drewlinsley/pathfinder, read but not copied), with the parameters of Long Range Arena's
Pathfinder32: two contours of 6, 9 or 14 paddles among shorter distractors. One disk lies on the
origin of a contour, the other on the far end of the same contour (label 1) or of the other one
(label 0). The label is drawn first and moves no paddle, so only the disks carry it.

Coordinates are (y, x). A paddle has length $L = 2$ and margin $m = 1$. A contour goes from pivot to
pivot, $p' = \lceil p + (L + 2m)(\sin a, \cos a) \rceil$; the next head is a pixel on the circle of
radius $L + m$ about $p'$, drawn with weight $\cos^2(\min(|a' - a|, \pi/2))$ times the room left
there, and the paddle is drawn from the head back towards the pivot.

Where we differ from the published code, each time so that labels are certain or pixels definite:

1. A contour keeps away from the newest paddle of the other contour too; distractors from the last
   paddles of both, and this with their first paddle as well. The published masks forget these.
2. Visible pixels of the two contours are never neighbours, not even at corners, so the segment map
   alone tells them apart. By the published test on exclusion maps they are neighbours in a quarter
   of the easy images and two thirds of the hard ones, and cross through each other's gaps in about
   4 and 14 of 100. Distractors may still pass that close, and a contour may to itself.
3. Intensities are clipped at 1; published images are divided by their brightest pixel. As there,
   distractors have contrast 2 and contours 1.5.
4. Lines and Lanczos sampling are our own, equal to Pillow's within one grey level (tested).
"""

import hashlib
import io
import itertools
import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8  # not from _typing: worker processes must not import jax
from numpy.lib.stride_tricks import sliding_window_view

from shoal.errors import InputError, nearest
from shoal.files import read_npz, write_aside
from shoal.runtime import cores

# paddles in a contour: Linsley et al. (2018), and ours to begin a curriculum with
LENGTHS = {"trivial": 3, "easy": 6, "medium": 9, "hard": 14}
SIZE = 32
VERSION = 1  # of the generator: raise it when the same seed gives other images

# Long Range Arena, Pathfinder32
PADDING = 1  # pixels at the rim where no head may lie
LENGTH = 2  # of a paddle; its thickness is 0.5, one pixel at twice the resolution
MARGIN = 1
FINE = 2  # shapes are drawn this much larger, then sampled down
SEED_DISTANCE = 7
MARKER_RADIUS = 1.5
DISTRACTOR_PADDLES = 20  # in all, in chains a third as long as a contour
CONTOUR_CONTRAST = 2 * 0.75
DISTRACTOR_CONTRAST = 2.0  # the published code leaves the factor 0.75 out here
# the published code
PADDLE_TRIES, DISTRACTOR_TRIES = 3, 5
COLLISION = 459  # 1.8 * 255: two exclusion maps may not add up to this anywhere
OCCUPIED = 76  # 0.3 * 255: more than this is not free for a new chain
ENOUGH_ROOM = 0.01  # of the image must be free, or no distractor is tried

VISIBLE = 12  # grey levels: Lanczos ripples stay below 7, the paddles proper above 15
_HALF = LENGTH + 1 + MARGIN
_PATCH = 2 * _HALF + 1  # 9 pixels
_REACH = 8  # pixels around the image, so that no patch needs clipping
_SIDE = SIZE + 2 * _REACH
_AREA = _SIDE * _SIDE
_INSIDE = np.s_[_REACH:-_REACH, _REACH:-_REACH]
_AT_ONCE = 250  # images per worker process: starting one takes as long as drawing 50


class Pathfinder(NamedTuple):
    """Images, labels (1: the disks are on one contour), and what every pixel shows."""

    images: UInt8[np.ndarray, "N 32 32"]
    labels: Int[np.ndarray, " N"]
    segments: UInt8[np.ndarray, "N 32 32"]  # 0 no chain, 1 and 2 the contours, then distractors
    paddles: UInt8[np.ndarray, "N 32 32"]  # the paddle, counted from 1 along its chain; 0 none
    markers: Int[np.ndarray, "N 2 2"]  # the centre of the disk on an origin, then on a far end
    ends: Int[np.ndarray, "N 2 2 2"]  # tips of contour 1 and contour 2, each origin first


class CacheWarning(UserWarning):
    """A file of images could not be used or kept; the images themselves are right."""


# ------------------------------------------------------------------------------------- shapes


def _shrink(fine: np.ndarray, size: int) -> np.ndarray:
    """A black and white picture in ``size`` x ``size`` grey levels, rounded after each axis.

    A row of the matrix R samples one pixel: a stretched Lanczos kernel with 3 lobes.
    """
    scale = len(fine) / size
    centres = (np.arange(size)[:, None] + 0.5) * scale
    t = (np.arange(len(fine))[None] + 0.5 - centres) / scale
    R = np.where(np.abs(t) < 3, np.sinc(t) * np.sinc(t / 3), 0)
    R = R / R.sum(1, keepdims=True)
    across = np.clip(np.floor(255.0 * fine @ R.T + 0.5), 0, 255)
    return np.clip(np.floor(R @ across + 0.5), 0, 255).astype(np.uint8)


def _dilate(picture: np.ndarray, radius: int) -> np.ndarray:
    """Greatest value within ``radius``."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    windows = sliding_window_view(np.pad(picture, radius), y.shape)
    return windows[..., y**2 + x**2 <= radius**2].max(-1)


def _move(angle: float, distance: int, whole: Callable = math.ceil) -> tuple[int, int]:
    """The displacement in whole pixels, as seen from a pixel well inside the image."""
    # the detour by 16 rounds away the error in sin(pi), which `ceil` would make a pixel of
    dy, dx = distance * math.sin(angle), distance * math.cos(angle)
    return whole(16 + dy) - 16, whole(16 + dx) - 16


def _flat(displacement: tuple[int, int]) -> int:
    """The same in cells: places in the flattened, enlarged image."""
    return displacement[0] * _SIDE + displacement[1]


def _place(cell: int) -> tuple[int, int]:
    """The pixel (y, x) that lies at a cell."""
    return cell // _SIDE - _REACH, cell % _SIDE - _REACH


def _line(angle: float) -> np.ndarray:
    """A thin line from the centre of a patch, at ``FINE`` times the resolution (Bresenham)."""
    centre = _HALF * FINE
    dy, dx = _move(angle, LENGTH * FINE)
    steps = max(abs(dy), abs(dx))
    picture = np.zeros((2 * centre + 1, 2 * centre + 1), bool)
    i = np.arange(steps + 1)
    y, x = (np.sign(d) * ((2 * i * abs(d) + steps) // (2 * steps)) for d in (dy, dx))
    picture[centre + y, centre + x] = True
    return picture


class _Shape(NamedTuple):
    """A paddle in one direction, as patches and as lists of cells relative to its start.

    Python loops over ten cells are several times as fast as any NumPy call.
    """

    ink: np.ndarray  # grey levels, 9 x 9
    shadow: np.ndarray  # 3 x 11 x 11, what others must avoid: the layers of `_Field`
    limits: list[tuple[int, int]]  # cells of a field, and what is too much there
    core: list[tuple[int, int]]  # (y, x) where the exclusion is full: needed free by a seed


def _shape(angle: float) -> _Shape:
    line = _line(angle)
    ink = _shrink(line, _PATCH)
    exclusion = _shrink(_dilate(line, MARGIN * FINE), _PATCH)
    near = sliding_window_view(np.pad(ink >= VISIBLE, 2), (3, 3))
    shadow = np.stack(
        [np.pad(exclusion, 1), _dilate(np.pad(exclusion, 1), MARGIN), 255 * near.any((2, 3))]
    )
    places = [(y - _HALF, x - _HALF) for y, x in itertools.product(range(_PATCH), repeat=2)]
    cells = list(zip(map(_flat, places), exclusion.ravel().tolist(), ink.ravel(), strict=True))
    return _Shape(
        ink=ink,
        shadow=shadow.astype(np.uint8),
        limits=[(at, COLLISION - e) for at, e, _ in cells if COLLISION - e <= 255]
        + [(2 * _AREA + at, 1) for at, _, i in cells if i >= VISIBLE],
        # the published kernel for seeds is drawn one pixel off its centre, hence the 1
        core=[(y + 1, x + 1) for (y, x), e in zip(places, exclusion.flat, strict=True) if e == 255],
    )


class _Tables(NamedTuple):
    """All that depends on directions only: 360 of seeds (degrees), then those of the circle."""

    shapes: list[_Shape]  # of a seed, drawn from its tail; of a later paddle, drawn from its head
    head: list[int]  # from the tail of a seed, in cells
    first_pivot: list[int]  # likewise
    step: list[int]  # from pivot to pivot, in cells
    choices: list[list[tuple[int, float, int]]]  # cell from the pivot, weight, its direction
    first_seeds: list[list[int]]  # the cells where the first contour may begin


@cache
def _tables() -> _Tables:
    radius = LENGTH + MARGIN
    arc = np.arange(0, 2 * math.pi, 1 / radius).tolist()  # one sample per pixel
    circle = sorted({_move(angle, radius, math.floor) for angle in arc})
    degrees = [math.radians(d) for d in range(-180, 180)]
    around = [math.atan2(y, x) for y, x in circle]
    shapes = [_shape(a) for a in degrees] + [_shape(a + math.pi) for a in around]
    head = [_flat(_move(a, LENGTH)) for a in degrees]
    back = [_flat(_move(a + math.pi, radius)) for a in degrees]

    def choices(last: float) -> list[tuple[int, float, int]]:
        turns = [abs(math.remainder(a - last, 2 * math.pi)) for a in around]
        return [
            (_flat((y, x)), math.cos(turn) ** 2, 360 + k)
            for k, ((y, x), turn) in enumerate(zip(circle, turns, strict=True))
            if turn < math.pi / 2
        ]

    low, high = 2 * SEED_DISTANCE, SIZE - 2 * SEED_DISTANCE  # a box of 4 x 4 pixels
    first_seeds = [
        [
            _flat((y + _REACH, x + _REACH))
            for y, x in itertools.product(range(low, high), repeat=2)
            if all(low <= y + dy < high and low <= x + dx < high for dy, dx in shape.core)
        ]
        for shape in shapes[:360]
    ]
    return _Tables(
        shapes=shapes,
        head=head,
        first_pivot=[h + b for h, b in zip(head, back, strict=True)],
        step=[_flat(_move(a, LENGTH + 2 * MARGIN)) for a in degrees + around],
        choices=[choices(a) for a in degrees + around],
        first_seeds=first_seeds,
    )


# ------------------------------------------------------------------------------------- chains


class _Paddle(NamedTuple):
    """A link of a chain."""

    cell: int  # where it is drawn from
    direction: int
    pivot: int  # of the chain, from which the next one is reached


_Chain = list[_Paddle]

# What a growing chain must avoid, in three layers of the enlarged image: exclusion maps, the same
# dilated by the margin (the dilation of a maximum is the maximum of dilations, so it grows patch by
# patch), and the neighbourhood of visible pixels of the other contour. Read cell by cell.
_Field = bytearray


def _layers(field: _Field) -> UInt8[np.ndarray, "3 side side"]:
    """The same memory, to be written patch by patch."""
    return np.frombuffer(field, np.uint8).reshape(3, _SIDE, _SIDE)


@cache
def _empty() -> bytes:
    """The field where only the rim of the image, and all outside it, is to be avoided."""
    outside = np.pad(np.zeros((SIZE, SIZE), np.uint8), _REACH, constant_values=255)
    rim = np.zeros((_SIDE, _SIDE), np.uint8)
    rim[_INSIDE] = np.pad(np.zeros((SIZE - 2 * PADDING,) * 2), PADDING, constant_values=255)
    # outside, paddles do not collide (the published masks end with the image); heads may not lie
    return rim.tobytes() + np.maximum(_dilate(rim, MARGIN), outside).tobytes() + bytes(_AREA)


def _avoid(field: _Field, paddle: _Paddle, num_layers: int) -> None:
    y, x = divmod(paddle.cell, _SIDE)
    reach = np.s_[y - _HALF - 1 : y + _HALF + 2, x - _HALF - 1 : x + _HALF + 2]
    part = _layers(field)[:num_layers, *reach]
    np.maximum(part, _tables().shapes[paddle.direction].shadow[:num_layers], out=part)


def _fits(field: _Field, paddle: _Paddle) -> bool:
    limits = _tables().shapes[paddle.direction].limits
    return all(field[paddle.cell + at] < limit for at, limit in limits)


def _grow(field: _Field, chain: _Chain, uniform: Iterator[float]) -> bool:
    """Add a paddle to a chain, if there is room for it."""
    last = chain[-1]
    pivot = last.pivot + _tables().step[last.direction]
    choices, wide = _tables().choices[last.direction], pivot + _AREA
    sums = list(itertools.accumulate(w * (255 - field[wide + at]) for at, w, _ in choices))
    if sums[-1] < 255e-4:
        return False
    for _ in range(PADDLE_TRIES):
        aim = next(uniform) * sums[-1]
        at, _, new = next(c for c, s in zip(choices, sums, strict=True) if s > aim)
        paddle = _Paddle(pivot + at, new, pivot)
        if _fits(field, paddle):
            _avoid(field, last, 2)  # not yet the new one: it is too near its neighbour
            chain.append(paddle)
            return True
    return False


def _seed(places: Callable[[int], Any], uniform: Iterator[float]) -> _Paddle | None:
    """First paddle of a chain, in a random direction, at one of ``places(direction)``."""
    tables = _tables()
    for _ in range(PADDLE_TRIES):
        direction = int(next(uniform) * 360)
        free = places(direction)
        if not len(free):
            return None
        tail = int(free[int(next(uniform) * len(free))])
        head, pivot = tail + tables.head[direction], tail + tables.first_pivot[direction]
        if all(0 <= z < SIZE for z in _place(head) + _place(pivot)):
            return _Paddle(tail, direction, pivot)
    return None


def _nearby(cell: int, uniform: Iterator[float], _: int) -> list[int]:
    """A random cell at the seed distance from another one, whatever the direction there."""
    angle = math.radians(int(next(uniform) * 360))
    dy, dx = SEED_DISTANCE * math.sin(angle), SEED_DISTANCE * math.cos(angle)
    return [cell + _flat((round(dy), round(dx)))]


def _two_contours(length: int, uniform: Iterator[float]) -> list[_Chain] | None:
    """Two contours of ``length`` paddles, grown in turn; None when one of them gets stuck."""
    first = _seed(lambda direction: _tables().first_seeds[direction], uniform)
    if first is None:
        return None
    second = _seed(partial(_nearby, first.cell, uniform), uniform)
    fields = _Field(_empty()), _Field(_empty())
    _avoid(fields[1], first, 3)
    if second is None or not _fits(fields[1], second):
        return None
    _avoid(fields[0], second, 3)
    chains = [[first], [second]]
    for _ in range(length - 1):
        for own, chain in enumerate(chains):
            if not _grow(fields[own], chain, uniform):
                return None
            _avoid(fields[1 - own], chain[-1], 3)
    return chains


def _free(field: _Field, direction: int) -> np.ndarray:
    """Cells where a distractor may begin: the core of its paddle must be free."""
    free = np.zeros((_SIDE, _SIDE), bool)
    free[_INSIDE] = _layers(field)[0][_INSIDE] <= OCCUPIED
    good = np.zeros((_SIDE, _SIDE), bool)
    good[_INSIDE] = free.sum() >= ENOUGH_ROOM * SIZE**2
    for y, x in _tables().shapes[direction].core:
        good[_INSIDE] &= free[_REACH + y :, _REACH + x :][:SIZE, :SIZE]
    return np.flatnonzero(good)


def _distractor(field: _Field, length: int, uniform: Iterator[float]) -> _Chain | None:
    seed = _seed(partial(_free, field), uniform)
    if seed is None or not _fits(field, seed):
        return None
    field, chain = _Field(field), [seed]  # a copy: an attempt that fails must leave no trace
    grown = all(_grow(field, chain, uniform) for _ in range(length - 1))
    return chain if grown else None


def _distractors(contours: list[_Chain], length: int, uniform: Iterator[float]) -> list[_Chain]:
    """Up to ``DISTRACTOR_PADDLES // length`` short chains, where there is room for them."""
    field = _Field(_empty())
    for paddle in itertools.chain(*contours):
        _avoid(field, paddle, 2)
    chains = []
    for _ in range(DISTRACTOR_PADDLES // length):
        tries = (_distractor(field, length, uniform) for _ in range(DISTRACTOR_TRIES))
        if chain := next((t for t in tries if t), None):
            for paddle in chain:
                _avoid(field, paddle, 2)
            chains.append(chain)
    return chains


# ------------------------------------------------------------------------------------- images


@cache
def _disk(y: int, x: int) -> np.ndarray:
    fine = np.arange(SIZE * FINE)
    square = (fine[:, None] - FINE * y) ** 2 + (fine[None] - FINE * x) ** 2
    return _shrink(square <= (MARKER_RADIUS * FINE) ** 2, SIZE)


def _draw(chains: list[_Chain]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Intensities, segment map and paddle map of chains, of which the first two are contours."""
    image = np.zeros((_SIDE, _SIDE))
    segments, paddles, strongest = (np.zeros((_SIDE, _SIDE), np.uint8) for _ in range(3))
    for number, chain in enumerate(chains, start=1):
        contrast = CONTOUR_CONTRAST if number <= 2 else DISTRACTOR_CONTRAST
        for index, paddle in enumerate(chain, start=1):
            ink = _tables().shapes[paddle.direction].ink
            y, x = divmod(paddle.cell, _SIDE)
            part = np.s_[y - _HALF : y + _HALF + 1, x - _HALF : x + _HALF + 1]
            image[part] = np.maximum(image[part], contrast / 255 * ink)
            wins = (ink >= VISIBLE) & (ink > strongest[part])
            strongest[part][wins] = ink[wins]
            segments[part][wins] = number
            paddles[part][wins] = index
    return image[_INSIDE], segments[_INSIDE], paddles[_INSIDE]


def _uniform(seed: int, length: int, index: int) -> Iterator[float]:
    """Numbers in [0, 1) that depend on the seed, the difficulty and the image only."""
    generator = np.random.default_rng([seed, length, index])
    while True:
        yield from generator.random(256).tolist()


def _one(length: int, seed: int, index: int) -> tuple[np.ndarray, ...]:
    """The fields of one image."""
    uniform = _uniform(seed, length, index)
    label, start = (int(2 * next(uniform)) for _ in range(2))
    contours = None
    while contours is None:
        contours = _two_contours(length, uniform)
    chains = contours + _distractors(contours, length // 3, uniform)
    image, segments, paddles = _draw(chains)
    ends = np.array([[_place(c[0].cell), _place(c[-1].cell)] for c in contours])
    markers = np.stack([ends[start, 0], ends[start if label else 1 - start, 1]])
    disks = np.maximum(*(_disk(int(y), int(x)) for y, x in markers)) / 255
    pixels = np.floor(255 * np.minimum(np.maximum(image, disks), 1) + 0.5).astype(np.uint8)
    return pixels, np.array(label), segments, paddles, markers, ends


def _some(length: int, seed: int, start: int, stop: int) -> Pathfinder:
    """Images ``start`` to ``stop``; at top level, so that a worker process finds it."""
    fields = zip(*(_one(length, seed, index) for index in range(start, stop)), strict=True)
    return Pathfinder(*map(np.stack, fields))


# --------------------------------------------------------------------------- processes and disk


def dataset(count: int, difficulty: str, seed: int, folder: Path) -> Pathfinder:
    """Draw images, with one process per core, and keep them in ``folder`` for the next call.

    Image $i$ depends on the difficulty, the seed and $i$ only. A file with more images serves its
    first ones; one with fewer is extended; one that is damaged or of another version is replaced,
    with a `CacheWarning`. A folder that cannot be written makes the next call slow.
    """
    if difficulty not in LENGTHS:
        raise InputError(f"{difficulty=} is not known; {nearest(difficulty, LENGTHS)}")
    for name, value, least in (("count", count, 1), ("seed", seed, 0)):
        if value < least:
            msg = f"{name}={value}; expected a whole number, at least {least}: try {name}={least}."
            raise InputError(msg)
    length = LENGTHS[difficulty]
    path = Path(folder) / f"pathfinder-{difficulty}-{seed}.npz"
    kept = _load(path, length, seed)
    have = 0 if kept is None else len(kept.labels)
    if kept is not None and have >= count:
        return Pathfinder(*(field[:count] for field in kept))
    parts = [*([] if kept is None else [kept]), *_parts(length, seed, have, count)]
    data = Pathfinder(*map(np.concatenate, zip(*parts, strict=True)))
    content = io.BytesIO()
    np.savez_compressed(content, **data._asdict(), digest=_digest(data, length, seed))
    try:
        write_aside(path, content.getvalue())
    except OSError as error:
        text = f"cannot keep images in {str(path)!r} ({error.strerror}); they will be made again."
        warnings.warn(text, CacheWarning, stacklevel=2)
    return data


def _parts(length: int, seed: int, start: int, stop: int) -> list[Pathfinder]:
    """The images from ``start`` to ``stop``, in order, a few at a time."""
    cuts = [*range(start, stop, _AT_ONCE), stop]
    pieces = [(length, seed, low, high) for low, high in itertools.pairwise(cuts)]
    if len(pieces) > 1:
        try:
            with ThreadPoolExecutor(cores()) as pool:
                return list(pool.map(_elsewhere, pieces))
        except (subprocess.SubprocessError, OSError, ValueError, EOFError) as error:
            text = f"worker processes failed ({error}); going on in this one."
            warnings.warn(text, RuntimeWarning, stacklevel=3)
    return [_some(*piece) for piece in pieces]


def _elsewhere(piece: tuple[int, int, int, int]) -> Pathfinder:
    """`_some` in a process of its own.

    Not by fork, since the parent may have threads (jax) whose locks a fork would copy, and not by
    multiprocessing, which would run the user's script again in every worker.
    """
    words = [sys.executable, "-m", "shoal.pathfinder", *map(str, piece)]
    done = subprocess.run(words, capture_output=True, check=True)
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as arrays:
        return Pathfinder(**arrays)


def _digest(data: Pathfinder, length: int, seed: int) -> UInt8[np.ndarray, " 32"]:
    """SHA-256 of what the images are and of every byte of them."""
    sha = hashlib.sha256(f"{VERSION} {length} {seed}".encode())
    for name, field in data._asdict().items():
        sha.update(f" {name} {field.dtype.str} {field.shape} ".encode())
        sha.update(np.ascontiguousarray(field).data)
    return np.frombuffer(sha.digest(), np.uint8)


def _load(path: Path, length: int, seed: int) -> Pathfinder | None:
    """The images of a kept file, or None, with a warning if there is a file."""
    try:
        if not path.exists():
            return None
        arrays = read_npz(path, (*Pathfinder._fields, "digest"))
        digest = arrays.pop("digest")
        data = Pathfinder(**arrays)
        if np.array_equal(digest, _digest(data, length, seed)):
            return data
        reason = "it is of another version, or changed"
    except (ValueError, OSError) as error:  # InputError is a ValueError
        reason = str(error)
    text = f"{str(path)!r} cannot be used ({reason}); the images are generated again."
    warnings.warn(text, CacheWarning, stacklevel=3)
    return None


if __name__ == "__main__":  # a worker: contour length, seed, first and last image
    made = _some(*map(int, sys.argv[1:5]))
    np.savez(sys.stdout.buffer, **made._asdict())
