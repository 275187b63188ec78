"""Pathfinder images: what the labels say is looked up in the segment map, pixel by pixel."""

import os
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
from PIL import Image, ImageDraw

from shoal import pathfinder
from shoal.errors import InputError
from shoal.pathfinder import (
    LENGTHS,
    CacheWarning,
    Pathfinder,
    dataset,
    sample_sheet,
)

COUNTS = {"trivial": 60, "easy": 300, "medium": 60, "hard": 30}


@pytest.fixture(scope="module")
def samples():
    return {level: generate(count, level, seed=11) for level, count in COUNTS.items()}


@pytest.fixture(params=list(LENGTHS))
def sample(request, samples):
    return LENGTHS[request.param], samples[request.param]


def generate(count, difficulty, seed):
    """The images, drawn in this process and not kept."""
    return pathfinder._some(LENGTHS[difficulty], seed, 0, count)


def assert_same(left, right):
    for name in Pathfinder._fields:
        a, b = getattr(left, name), getattr(right, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, err_msg=name)


def at_markers(maps, data):
    """Values of a map at the two marker centres, (N, 2)."""
    index = np.arange(len(maps))[:, None]
    return maps[index, data.markers[:, :, 0], data.markers[:, :, 1]]


def middles(data, image, contour):
    """Centre of each paddle of a contour, in order, from the maps alone."""
    order = np.where(data.segments[image] == contour, data.paddles[image], 0)
    return np.array([np.argwhere(order == k).mean(0) for k in range(1, order.max() + 1)])


def cross(P, Q):
    """Whether two polylines meet (orientation test, with bounding boxes for collinear pieces)."""

    def side(p, q, r):
        return np.sign(
            (q - p)[..., 0] * (r - p)[..., 1] - (q - p)[..., 1] * (r - p)[..., 0],
        )

    a, b, c, d = P[:-1, None], P[1:, None], Q[None, :-1], Q[None, 1:]
    apart = (np.maximum(a, b) < np.minimum(c, d)) | (np.maximum(c, d) < np.minimum(a, b))
    straddle = (side(a, b, c) * side(a, b, d) <= 0) & (side(c, d, a) * side(c, d, b) <= 0)
    return bool((straddle & ~apart.any(-1)).any())


# ------------------------------------------------------------------------------------- truth


def test_the_label_is_what_the_segment_map_says_at_the_markers(sample):
    _, data = sample
    contours = at_markers(data.segments, data)
    assert set(np.unique(contours)) == {1, 2}
    np.testing.assert_array_equal(contours[:, 0] == contours[:, 1], data.labels == 1)


@pytest.mark.slow
def test_so_it_is_on_a_thousand_images():
    for level, count in {"trivial": 200, "easy": 400, "medium": 300, "hard": 100}.items():
        data = generate(count, level, seed=12)
        contours = at_markers(data.segments, data)
        np.testing.assert_array_equal(contours[:, 0] == contours[:, 1], data.labels == 1)


def test_the_markers_lie_on_the_first_paddle_and_on_the_last(sample):
    length, data = sample
    np.testing.assert_array_equal(
        at_markers(data.paddles, data), np.broadcast_to([1, length], (len(data.labels), 2))
    )


def test_the_ends_are_on_their_contours_and_the_markers_on_the_ends(sample):
    length, data = sample
    index = np.arange(len(data.labels))
    for contour in (1, 2):
        for tip, paddle in ((0, 1), (1, length)):
            y, x = data.ends[:, contour - 1, tip].T
            assert (data.segments[index, y, x] == contour).all()
            assert (data.paddles[index, y, x] == paddle).all()
    chosen = at_markers(data.segments, data).astype(int) - 1
    for tip in (0, 1):
        np.testing.assert_array_equal(data.markers[:, tip], data.ends[index, chosen[:, tip], tip])


def test_the_two_contours_are_nowhere_neighbours(sample):
    _, data = sample
    first, second = (np.pad(data.segments == k, ((0, 0), (1, 1), (1, 1))) for k in (1, 2))
    for y in range(3):
        for x in range(3):
            assert not (first[:, y : y + 32, x : x + 32] & second[:, 1:33, 1:33]).any()


def test_the_two_contours_do_not_cross(sample):
    _, data = sample
    assert not any(cross(middles(data, i, 1), middles(data, i, 2)) for i in range(len(data.labels)))


def test_the_crossing_test_can_fail():
    P = np.array([[0.0, 0.0], [4.0, 4.0], [8.0, 4.0]])
    assert cross(P, np.array([[0.0, 4.0], [4.0, 0.0]]))
    assert cross(P, np.array([[4.0, 4.0], [4.0, 9.0]]))
    assert not cross(P, P + np.array([[0.0, 2.0]]))
    assert not cross(P[:2], P[:2] + 10)  # collinear and far apart


def test_every_contour_has_its_paddles_in_a_chain(sample):
    length, data = sample
    for i in range(len(data.labels)):
        for contour in (1, 2):
            found = data.paddles[i][data.segments[i] == contour]
            assert set(found.tolist()) == set(range(1, length + 1))
            first, *later = np.hypot(*np.diff(middles(data, i, contour), axis=0).T)
            # a paddle of 2 and a gap of 2, give or take the rounding to pixels; that of the seed,
            # three times upwards as published, can draw the second paddle onto the first
            assert 0.5 < first < 6.5
            assert min(later) > 1.5
            assert max(later) < 6


def test_distractors_are_a_third_as_long_and_at_most_twenty_paddles(sample):
    length, data = sample
    short = length // 3
    for segments, paddles in zip(data.segments, data.paddles, strict=True):
        chains = range(3, segments.max() + 1)
        assert len(chains) <= 20 // short
        assert all(set(paddles[segments == k].tolist()) == set(range(1, short + 1)) for k in chains)
    assert data.segments.max() > 3


def test_labels_are_balanced_and_either_contour_carries_the_first_marker(samples):
    labels = np.concatenate([data.labels for data in samples.values()])
    first = np.concatenate([at_markers(d.segments, d)[:, 0] for d in samples.values()])
    sigma = 0.5 / len(labels) ** 0.5
    assert abs(labels.mean() - 0.5) < 4 * sigma
    assert abs((first == 1).mean() - 0.5) < 4 * sigma
    assert set(labels.tolist()) == {0, 1}


# ------------------------------------------------------------------------------------- pixels


def test_both_disks_are_drawn_and_all_that_shines_is_a_paddle_or_a_disk(sample):
    _, data = sample
    assert data.images.dtype == np.uint8
    assert (at_markers(data.images, data) == 255).all()
    y, x = np.mgrid[:32, :32]
    for image, segments, markers in zip(data.images, data.segments, data.markers, strict=True):
        distance = np.min([np.hypot(y - v, x - u) for v, u in markers], axis=0)
        assert (image[distance <= 1] > 150).all()
        rest = image[(segments == 0) & (distance > 3.5)]
        assert rest.max() < 2 * 7  # ripples of the sampling, at the larger contrast
        assert image[segments > 0].min() > 1.5 * 15


@pytest.mark.parametrize("degrees", range(-180, 180, 7))
def test_paddles_are_those_of_pillow(degrees):
    angle = np.radians(degrees)
    end = np.ceil(8 + 4 * np.array([np.cos(angle), np.sin(angle)])).astype(int).tolist()
    fine = Image.new("L", (17, 17))
    ImageDraw.Draw(fine).line([(8, 8), tuple(end)], fill=255, width=1)
    line = np.array(fine)
    near = np.argwhere(line)
    grid = np.stack(np.mgrid[:17, :17], -1)[:, :, None]
    grown = 255 * (((grid - near) ** 2).sum(-1) <= 4).any(-1).astype(np.uint8)
    shape = pathfinder._shape(angle)
    for ours, theirs in ((shape.ink, line), (shape.shadow[0, 1:-1, 1:-1], grown)):
        small = np.array(Image.fromarray(theirs).resize((9, 9), Image.Resampling.LANCZOS))
        np.testing.assert_allclose(ours.astype(int), small, atol=1)


def test_disks_are_those_of_pillow():
    for y, x in ((15, 16), (2, 29), (3, 10)):
        grid = np.mgrid[:64, :64]
        fine = ((grid[0] - 2 * y) ** 2 + (grid[1] - 2 * x) ** 2 <= 9).astype(np.uint8)
        small = Image.fromarray(255 * fine).resize((32, 32), Image.Resampling.LANCZOS)
        np.testing.assert_allclose(pathfinder._disk(y, x).astype(int), np.array(small), atol=1)


def test_a_sheet_shows_positives_left_and_negatives_right(samples):
    data = samples["easy"]
    sheet = sample_sheet(data, 2, 4)
    assert sheet.shape == (65, 65 + 3 + 65)
    assert sheet.min() == 0
    assert sheet.max() == 1
    positives, negatives = (data.images[data.labels == k] / 255 for k in (1, 0))
    np.testing.assert_array_equal(sheet[:32, :32], positives[0])
    np.testing.assert_array_equal(sheet[33:, 33:65], positives[3])
    np.testing.assert_array_equal(sheet[:32, 68:100], negatives[0])
    np.testing.assert_array_equal(sheet[33:, 101:], negatives[3])


# ------------------------------------------------------------------------------- determinism


def test_a_shorter_run_is_a_prefix_and_an_image_depends_on_its_number_only():
    data = generate(12, "medium", seed=3)
    assert_same(generate(5, "medium", seed=3), Pathfinder(*(f[:5] for f in data)))
    assert_same(pathfinder._some(9, 3, 7, 9), Pathfinder(*(f[7:9] for f in data)))


def test_seeds_and_difficulties_give_different_images():
    images = [generate(1, level, seed).images for level in LENGTHS for seed in (0, 1)]
    assert len({image.tobytes() for image in images}) == len(images)
    many = generate(50, "easy", seed=0).images
    assert len({image.tobytes() for image in many}) == 50


def test_processes_do_not_change_the_images(tmp_path, monkeypatch):
    monkeypatch.setattr(pathfinder, "_AT_ONCE", 7)
    pieces, elsewhere = [], pathfinder._elsewhere
    monkeypatch.setattr(
        pathfinder, "_elsewhere", lambda piece: pieces.append(piece[2:]) or elsewhere(piece)
    )
    data = dataset(30, "easy", 5, tmp_path)
    assert sorted(pieces) == [(0, 7), (7, 14), (14, 21), (21, 28), (28, 30)]
    monkeypatch.undo()
    assert_same(data, generate(30, "easy", 5))


def test_worker_processes_that_die_are_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr(pathfinder, "_AT_ONCE", 2)

    def broken(piece):
        if piece[2] > 0:
            raise pathfinder.subprocess.CalledProcessError(1, "a worker died")
        return pathfinder._some(*piece)

    monkeypatch.setattr(pathfinder, "_elsewhere", broken)
    with pytest.warns(RuntimeWarning, match="a worker died"):
        data = dataset(5, "easy", 5, tmp_path)
    assert_same(data, generate(5, "easy", 5))


# ------------------------------------------------------------------------------------- files


@pytest.fixture
def kept(tmp_path):
    """A folder with a file of ten images, and these images."""
    data = dataset(10, "easy", 2, tmp_path)
    (path,) = tmp_path.iterdir()
    return path, data


def no_drawing(monkeypatch):
    def fail(*_):
        raise AssertionError("an image was drawn")

    monkeypatch.setattr(pathfinder, "_one", fail)


def test_a_file_serves_its_images_and_their_prefixes(kept, monkeypatch):
    path, data = kept
    no_drawing(monkeypatch)
    assert_same(dataset(10, "easy", 2, path.parent), data)
    assert_same(dataset(4, "easy", 2, path.parent), Pathfinder(*(f[:4] for f in data)))
    with pytest.raises(AssertionError, match="drawn"):
        dataset(10, "easy", 3, path.parent)


def test_a_file_with_fewer_images_is_extended(kept, monkeypatch):
    path, _ = kept
    drawn, one = [], pathfinder._one
    monkeypatch.setattr(pathfinder, "_one", lambda *a: drawn.append(a[2]) or one(*a))
    data = dataset(13, "easy", 2, path.parent)
    assert drawn == [10, 11, 12]
    monkeypatch.undo()
    assert_same(data, generate(13, "easy", 2))
    assert list(path.parent.iterdir()) == [path]


def resaved(path, **changes):
    with np.load(path) as old:
        arrays = dict(old)
    np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})


DAMAGE = {
    "flipped byte": lambda p: p.write_bytes(flipped(p.read_bytes())),
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:-500]),
    "empty": lambda p: p.write_bytes(b""),
    "not a zip": lambda p: p.write_bytes(b"these are not images"),
    "another version": lambda p: newer(p),
    "a digest of another shape": lambda p: resaved(p, digest=np.zeros(3)),
    "no digest": lambda p: resaved(p, digest=None),
    "a changed label": lambda p: resaved(p, labels=np.ones(10, int)),
    "wrong shape": lambda p: resaved(p, images=np.zeros((10, 32, 31), np.uint8)),
    "wrong type": lambda p: resaved(p, images=np.zeros((10, 32, 32))),
    "labels that are dates": lambda p: resaved(p, labels=np.zeros(10, "M8[s]")),
    "one label too few": lambda p: resaved(p, labels=np.ones(9, int)),
    "of another seed": lambda p: dataset(10, "easy", 3, p.parent) and other(p).replace(p),
}


def newer(path):
    data = generate(10, "easy", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pathfinder, "VERSION", pathfinder.VERSION + 1)
        resaved(path, digest=pathfinder._digest(data, 6, 2))


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 64]) + content[middle + 1 :]


def other(path):
    return path.with_name("pathfinder-easy-3.npz")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_cannot_be_trusted_is_replaced(kept, damage, monkeypatch):
    path, data = kept
    DAMAGE[damage](path)
    with pytest.warns(CacheWarning, match=r"pathfinder-easy-2\.npz.* cannot be used"):
        again = dataset(10, "easy", 2, path.parent)
    assert_same(again, data)
    no_drawing(monkeypatch)
    assert_same(dataset(10, "easy", 2, path.parent), data)  # and the new file is good


def test_every_flipped_byte_is_noticed_or_harmless(kept):
    path, data = kept
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for position in generator.integers(0, len(content), 60).tolist():
        changed = bytearray(content)
        changed[position] ^= 1 << int(generator.integers(8))
        path.write_bytes(changed)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loaded = pathfinder._load(path, 6, 2)
        assert (loaded is None) == (len(told) == 1)
        if loaded is not None:  # e.g. in the time stamps of the zip
            assert_same(loaded, data)


def test_a_run_that_is_killed_leaves_no_file_of_that_name(tmp_path):
    script = f"""
        import os
        from pathlib import Path
        from shoal import pathfinder
        Path.replace = lambda *_: os._exit(9)  # the content is written, the name not yet given
        pathfinder.dataset(6, "easy", 2, Path({str(tmp_path)!r}))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == 9
    assert list(tmp_path.glob("pathfinder*")) == []
    assert_same(dataset(6, "easy", 2, tmp_path), generate(6, "easy", 2))


def test_an_interrupted_run_leaves_the_old_file(kept, monkeypatch):
    path, data = kept

    def interrupt(*_):
        raise KeyboardInterrupt

    for module, name in ((pathfinder, "_one"), (os, "fsync")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                dataset(20, "easy", 2, path.parent)
    assert list(path.parent.iterdir()) == [path]
    no_drawing(monkeypatch)
    assert_same(dataset(10, "easy", 2, path.parent), data)


def test_a_folder_that_cannot_be_written_is_slow_but_right(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for folder in (blocked, blocked / "below"):
        with pytest.warns(CacheWarning, match="cannot"):
            data = dataset(3, "easy", 2, folder)
        assert_same(data, generate(3, "easy", 2))
    assert os.listdir(tmp_path) == ["file"]


# ---------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((5, "harder", 0), "did you mean 'hard'"),
        ((0, "easy", 0), "count=0"),
        ((-3, "easy", 0), "count=-3"),
        ((5, "easy", -1), "seed=-1"),
    ],
)
def test_bad_requests_are_refused_with_advice(arguments, says, tmp_path):
    with pytest.raises(InputError, match=says):
        dataset(*arguments, tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------- baselines


def marker_distance_accuracy(data):
    """Held-out accuracy of the best rule we can fit to the distance between the disks alone."""
    return histogram_accuracy(np.hypot(*(data.markers[:, 0] - data.markers[:, 1]).T), data.labels)


def pixel_mean_accuracy(data):
    """Held-out accuracy of the best rule we can fit to the mean brightness alone."""
    return histogram_accuracy(data.images.mean((1, 2)), data.labels)


def histogram_accuracy(feature, labels):
    """The commoner label in each of 16 equally filled bins, fitted to the first 80 % of images."""
    cut = round(0.8 * len(labels))
    edges = np.quantile(feature[:cut], np.arange(1, 16) / 16)
    bins = np.searchsorted(edges, feature, side="right")
    votes = np.bincount(bins[:cut], weights=2 * labels[:cut] - 1, minlength=16)
    overall = labels[:cut].mean() >= 0.5  # where a bin is empty or tied
    guess = np.where(votes == 0, overall, votes > 0)
    return (guess[bins[cut:]] == labels[cut:]).mean()


def test_baselines_on_real_images(samples):
    distance = marker_distance_accuracy(samples["easy"])
    assert 0.5 <= distance < 1
    sigma = 0.5 / 100**0.5
    assert abs(pixel_mean_accuracy(samples["easy"]) - 0.5) < 3.5 * sigma


def test_baselines_find_what_is_planted(samples):
    data = samples["easy"]
    far = np.hypot(*(data.markers[:, 0] - data.markers[:, 1]).T) > 10
    assert marker_distance_accuracy(data._replace(labels=far.astype(int))) > 0.93
    bright = data.images.mean((1, 2))
    planted = data._replace(labels=(bright > np.median(bright)).astype(int))
    assert pixel_mean_accuracy(planted) > 0.93
    assert abs(marker_distance_accuracy(planted) - 0.5) < 0.2
