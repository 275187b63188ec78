"""Song2024's tasks: words, IDX pictures, the next byte and sequences; and their claims."""

import gzip
import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
from shoal import losses, mnist, reviews
from shoal.errors import InputError
from shoal.lab.setup import completed
from shoal.models import predict
from shoal.papers.song2024 import classifier, data, figures, tasks
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import KERNELS
from test_files import idx_bytes
from test_song2024 import one_of

SMALL = {"model": "classifier", "num_samples": 12, "test_samples": 6, "num_layers": 1, "width": 8,
         "hidden": 8, "positions": 64}  # fmt: skip


# -------------------------------------------------------------------------------------- words


def test_a_vocabulary_is_that_of_the_training_part_alone():
    known = reviews.vocabulary([b"the cat, the dog", b"THE<br />cat"], 2)
    assert known == {b"the": 2, b"cat": 3}
    tokens = reviews.word_tokens([b"The dog sat", b"cat"], 3, known)
    assert tokens.tolist() == [[2, 1, 1], [3, 0, 0]]  # 1: not known, 0: nothing


def test_equally_frequent_words_are_taken_in_alphabetical_order():
    texts = [b"b a c", b"c b a"]
    assert list(reviews.vocabulary(texts, 2)) == [b"a", b"b"]
    assert reviews.vocabulary(texts[::-1], 2) == reviews.vocabulary(texts, 2)


def test_reviews_as_words_are_those_of_the_file():
    setting = completed(PAPER, SMALL | {"problem": "imdb", "vocabulary": 50, "num_tokens": 9})
    train, test = data.labelled(setting)
    texts, labels = reviews.reviews("imdb")
    rows, held = reviews.split(labels, 12, 6, 0)
    known = reviews.vocabulary([texts[i] for i in rows], 50)
    assert train.X.shape == (12, 9, 1)
    assert train.X.max() <= 51
    for part, some in ((train, rows), (test, held)):
        for x, y, i in zip(part.X, part.y, some, strict=True):
            plain = texts[i].lower().replace(b"<br />", b" ").decode("latin-1")
            spelt = "".join(
                c if c in "abcdefghijklmnopqrstuvwxyz0123456789'" else " " for c in plain
            )
            wanted = [known.get(word.encode(), 1) for word in spelt.split()[:9]]
            assert x[: len(wanted), 0].tolist() == wanted
            assert y == labels[i]


def test_shuffled_classes_are_the_same_ones_of_other_samples():
    values = SMALL | {"problem": "imdb", "vocabulary": 50, "num_tokens": 9}
    plain, mixed = (
        data.labelled(completed(PAPER, values | {"shuffled": on})) for on in (False, True)
    )
    np.testing.assert_array_equal(plain[0].X, mixed[0].X)
    assert sorted(plain[0].y.tolist()) == sorted(mixed[0].y.tolist())
    assert (plain[0].y != mixed[0].y).any()
    np.testing.assert_array_equal(plain[1].y, mixed[1].y)  # held out: as they are


# ------------------------------------------------------------------------------------ pictures


def write_pictures(folder, count=30, seed=0):
    """Four small files in the format of MNIST; the mean brightness tells the class."""
    rng = np.random.default_rng(seed)
    for part in ("train", "t10k"):
        labels = (np.arange(count) % 10).astype(np.uint8)
        pixels = rng.integers(0, 20, (count, 28, 28)) + 20 * labels[:, None, None]
        files = {"images-idx3": pixels.astype(np.uint8), "labels-idx1": labels}
        for name, array in files.items():
            path = folder / f"{part}-{name}-ubyte.gz"
            path.write_bytes(gzip.compress(idx_bytes(array)))
    return folder


@pytest.fixture
def pictures(tmp_path):
    mnist.pictures.cache_clear()
    yield write_pictures(tmp_path)
    mnist.pictures.cache_clear()


def test_pictures_are_cut_into_patches_as_tokens(pictures):
    values = SMALL | {"problem": "mnist", "folder": str(pictures), "classes": "all", "patch": 7}
    setup = one_of(sh.setup(PAPER, **values))
    assert setup.inputs.shape == (12, 16, 49)
    assert set(np.asarray(setup.targets).tolist()) <= set(range(10))
    brightness = np.asarray(setup.inputs).mean(axis=(1, 2)) * 255
    np.testing.assert_allclose(brightness, 20 * setup.targets + 9.5, atol=1.5)
    assert predict(setup.network, setup.params0, setup.inputs).shape == (12, 10)
    two = one_of(
        sh.setup(PAPER, **(values | {"num_samples": 4, "test_samples": 2, "classes": "3,8"}))
    )
    assert set(np.asarray(two.targets).tolist()) == {0.0, 1.0}
    assert predict(two.network, two.params0, two.inputs).shape == (4, 2)


def test_pictures_are_found_below_the_data_folders(tmp_path, monkeypatch):
    mnist.pictures.cache_clear()
    place = tmp_path / "datasets" / "fashion-mnist"
    place.mkdir(parents=True)
    write_pictures(place)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path / 'no'}:{tmp_path}")
    train, test = mnist.pictures("fashion_mnist")
    assert len(train.images) == len(test.images) == 30
    with pytest.raises(InputError, match=r"needs the file train-images-idx3-ubyte\.gz"):
        mnist.pictures("mnist")
    mnist.pictures.cache_clear()


def broken(name):
    """A hostile file: its name among the four, and its bytes."""
    small = np.zeros((30, 28, 28), np.uint8)
    images, labels = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
    classes = (np.arange(30) % 10).astype(np.uint8)
    huge = bytes([0, 0, 8, 3]) + b"\x00\x00\xff\xff" + b"\x00\x00\x40\x00" * 2
    return {
        "other sizes": (images, idx_bytes(small[:, :14])),
        "floats": (images, idx_bytes(small.astype(">f4"), 0x0D)),
        "no pictures": (images, idx_bytes(classes)),
        "too large": (images, huge),
        "cut": (images, idx_bytes(small)[:-5]),
        "more than declared": (images, idx_bytes(small) + b"\0"),
        "another format": (images, b"\x89PNG\r\n\x1a\n" + b"\0" * 100),
        "labels are missing": (labels, idx_bytes(classes[:-1])),
        "eleven classes": (labels, idx_bytes(classes + 1)),
        "a matrix of labels": (labels, idx_bytes(classes.reshape(15, 2))),
        "255 axes": (labels, bytes([0, 0, 8, 255]) + b"\0" * 40),
    }[name]


BROKEN = ("other sizes", "floats", "no pictures", "too large", "cut", "more than declared",
          "another format", "labels are missing", "eleven classes", "a matrix of labels",
          "255 axes")  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_hostile_files_of_pictures_are_refused(pictures, name):
    path, content = broken(name)
    (pictures / path).write_bytes(gzip.compress(content))
    with pytest.raises(InputError):
        mnist.pictures("mnist", str(pictures))


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_is_read(pictures, monkeypatch):
    header = bytes([0, 0, 8, 3]) + b"".join(k.to_bytes(4, "big") for k in (10**6, 28, 28))
    (pictures / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header))
    asked = []
    opened = gzip.GzipFile.read
    monkeypatch.setattr(
        gzip.GzipFile, "read", lambda file, size=-1: asked.append(size) or opened(file, size)
    )
    with pytest.raises(InputError, match="cannot be right"):
        mnist.pictures("mnist", str(pictures))
    assert max(asked) < 1000


# ----------------------------------------------------------------------- answers at every place


def test_the_target_of_a_byte_is_the_next_one():
    setting = completed(PAPER, SMALL | {"problem": "next_byte", "num_tokens": 20})
    train, test = data.labelled(setting)
    texts = reviews.reviews("imdb")[0]
    for part in (train, test):
        np.testing.assert_array_equal(part.X[:, 1:, 0], part.y[:, :-1])
        window = bytes(int(k) - 1 for k in (*part.X[0, :, 0], part.y[0, -1]))
        assert any(window in text for text in texts)


@pytest.mark.parametrize("kernel", ["softmax", "gaussian"])
def test_a_byte_does_not_see_those_after_it(kernel):
    values = SMALL | {"problem": "next_byte", "num_tokens": 10, "kernel": kernel, "num_layers": 2}
    setup = one_of(sh.setup(PAPER, **values))
    x = jnp.asarray(setup.inputs[0])
    changed = x.at[6:].set(1 + x[6:] % 250)
    design = setup.setting.design
    one, other = (classifier.class_scores(setup.params0, z, design) for z in (x, changed))
    np.testing.assert_allclose(one[:6], other[:6], rtol=1e-12)
    assert (np.abs(one[6:] - other[6:]).max(axis=1) > 1e-9).all()
    seen = classifier._seen_by(jnp.array([1.0, 0.0, 1.0]), jnp.ones((3, 1)))
    assert seen.tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]  # padding stays unseen


@pytest.mark.parametrize("problem", ["reverse", "sort"])
def test_sequences_ask_for_their_symbols_in_another_order(problem):
    setting = completed(PAPER, SMALL | {"problem": problem, "num_tokens": 10, "vocabulary": 4})
    train, test = data.labelled(setting)
    assert train.X.shape == (12, 10, 1)
    assert train.y.shape == (12, 5)
    for part in (train, test):
        for x, y in zip(np.asarray(part.X)[..., 0], part.y, strict=True):
            given = [int(symbol) for symbol in x[:5]]
            assert set(given) <= {1, 2, 3, 4}
            assert (x[5:] == 5).all()
            assert y.tolist() == (given[::-1] if problem == "reverse" else sorted(given))


def test_scores_of_the_last_tokens_against_loops_over_them():
    values = SMALL | {"problem": "reverse", "num_tokens": 6}
    setup = one_of(sh.setup(PAPER, **values))
    x, W, design = setup.inputs[0], setup.params0, setup.setting.design
    tokens = classifier.layer_inputs(W, x, design)[1]
    centred = tokens - tokens.mean(axis=1, keepdims=True)
    z = centred / np.sqrt((np.asarray(centred) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    slow = [np.maximum(np.asarray(z[i] @ W.W_H), 0) @ W.W_C for i in (3, 4, 5)]
    np.testing.assert_allclose(predict(setup.network, W, x[None])[0], slow, rtol=1e-9)
    scores, y = np.asarray(slow), np.asarray(setup.targets[0], int)
    worked = np.mean([math.log(np.exp(s).sum()) - s[k] for s, k in zip(scores, y, strict=True)])
    found = losses.cross_entropy(jnp.asarray(scores), jnp.asarray(setup.targets[0]))
    np.testing.assert_allclose(found, worked, rtol=1e-12)
    right = np.mean([s.argmax() == k for s, k in zip(scores, y, strict=True)])
    assert float(losses.accuracy(jnp.asarray(scores), jnp.asarray(setup.targets[0]))) == right


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"problem": "reverse", "num_tokens": 7}, "even number of tokens"),
        ({"problem": "digits", "vocabulary": 9}, "is for reviews, reverse and sort"),
        ({"model": "layer", "problem": "reverse"}, "set model=classifier"),
        ({"problem": "mnist", "patch": 5}, "try 1, 2, 4, 7"),
        ({"problem": "next_byte", "num_tokens": 20000, "positions": 20000}, "fewer"),
    ],
)
def test_words_that_do_not_fit_a_task_are_refused(values, hint):
    with pytest.raises(InputError, match=hint):
        sh.setup(PAPER, **(SMALL | values))


def test_answers_from_a_file_are_checked(tmp_path):
    X = np.ones((3, 4, 1))
    values = {"model": "classifier", "problem": "reverse"}
    for Y, hint in ((np.ones((3, 3)), "last 2 tokens"), (np.full((3, 2), 12), "0 .. 11")):
        np.savez(tmp_path / "F.npz", X=X, Y=Y)
        with pytest.raises(InputError, match=hint):
            sh.setup(PAPER, **values, data=tmp_path / "F.npz")
    np.savez(tmp_path / "F.npz", X=X, Y=np.ones((3, 2)))
    assert sh.setup(PAPER, **values, data=tmp_path / "F.npz").targets.shape == (3, 2)


# ------------------------------------------------------------------------------------- claims


def runs_ending_at(accuracy, loss):
    """Two sides that end at these held-out numbers, one for each seed."""

    def run(kernel):
        ends = {"test_accuracy": accuracy[kernel], "test_risk": loss[kernel]}
        return SimpleNamespace(probes={k: np.array(v)[:, None] for k, v in ends.items()})

    return lambda design, seeds: {kernel: run(kernel) for kernel in KERNELS}


def test_draws_on_which_nothing_is_learnt_abstain_and_a_diverged_side_loses(monkeypatch):
    accuracy = {"softmax": [0.5, 0.8, 0.7, np.nan], "gaussian": [0.55, 0.7, np.nan, 0.9]}
    loss = {"softmax": [0.7, 0.4, 0.5, np.nan], "gaussian": [0.7, 0.6, np.nan, 0.3]}
    monkeypatch.setattr(tasks, "sides", runs_ending_at(accuracy, loss))
    design = {"learned": 60, "compare": "accuracy"}
    points = [None if v is None else v[0] for v in tasks.ahead(design, (0, 1, 2, 3))]
    assert points[0] is None
    np.testing.assert_allclose(points[1:], [-10, -70, 90])
    _, worse, lost, won = tasks.ahead({"learned": 60, "compare": "loss"}, (0, 1, 2, 3))
    np.testing.assert_allclose(worse, (-0.2, -0.2), atol=1e-12)
    assert (lost, won) == ((-np.inf, -np.inf), (np.inf, np.inf))
    np.testing.assert_allclose([v[0] for v in tasks.learnt({}, (0, 1, 2, 3))], [55, 80, 70, 90])


def test_controls_shuffle_one_side_or_both():
    claims = {c.key.partition(".")[2]: c for c in PAPER.claims}
    for key, task in tasks.TASKS.items():
        learnt, ahead = claims[f"{key}_is_learnt"], claims[f"{key}_equal_step"]
        assert learnt.controls[0].changes == {"shuffled": list(KERNELS)}
        assert [c.changes["shuffled"] for c in ahead.controls] == [["gaussian"], ["softmax"]]
        assert task.chance + 2 <= learnt.test.rule.against_limit < task.learned
        for more in (task.full, task.first):
            completed(PAPER, {"model": "classifier"} | task.values | (more or {}))


@pytest.mark.slow
def test_sorting_is_learnt_and_shuffled_answers_are_not():
    sizes = {"num_samples": 600, "test_samples": 200, "num_steps": 40, "every": 20}
    design = tasks._design(tasks.TASKS["sort"]._replace(values={"problem": "sort"} | sizes), "loss")
    assert tasks.learnt(design, (0,))[0][0] > 60
    shuffled = design | {"shuffled": list(KERNELS)}
    assert tasks.learnt(shuffled, (0,))[0][0] < 40
    (lead,) = tasks.ahead(design | {"shuffled": ["gaussian"]}, (0,))
    assert lead[1] < 0


# ------------------------------------------------------------------------------------- figures


def curves_of(key, kernel, seed, *, full):
    """What a run would keep: curves that tell the kernels and seeds apart."""
    level = 0.5 + 0.1 * (kernel == "gaussian") + 0.01 * seed
    flat = np.full(3, level)
    return {"step": np.arange(3), "risk": flat, "test_accuracy": flat, "test_risk": 1 - flat}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("key", ["text", "images", "transfer", "pathfinder"])
def test_figures_of_tasks_show_both_kernels_and_say_their_sizes(monkeypatch, key, full):
    asked = []

    def kept(*about, full):
        asked.append(about)
        return curves_of(*about, full=full)

    monkeypatch.setattr(tasks, "kept_run", kept)
    monkeypatch.setattr(figures.pathfinder, "dataset", few_pictures)
    recipe = next(f for f in PAPER.figures if f.key == key)
    figure = recipe.make(full)
    shown = [panel for panel in figure.panels if panel.curves]
    assert bool(shown) == (full or key != "pathfinder")
    for panel in shown:
        assert {curve.label for curve in panel.curves} == set(KERNELS)
    assert ("5 seeds" in figure.caption) == full
    wanted = [job.args for job in recipe.jobs(full)]
    assert wanted == ([] if not full else list(dict.fromkeys(wanted)))
    assert not full or sorted(wanted) == sorted(asked)


def few_pictures(count, difficulty, seed, folder):
    blank = np.zeros((count, 32, 32), np.uint8)
    ends = np.zeros((count, 2, 2, 2), int)
    labels = np.arange(count) % 2
    return figures.pathfinder.Pathfinder(blank, labels, blank, blank, ends[:, 0], ends)


def test_a_landscape_s_caption_says_whether_anything_was_trained(monkeypatch):
    line = np.linspace(-1, 1, 5)
    heights = line[:, None] ** 2 + line[None] ** 2
    plane = {"line": line, "heights": heights, "risk": np.array(0.25)}
    monkeypatch.setattr(figures, "_kept_plane", lambda kernel, full: plane)
    quick, full = (figures.landscapes(full).caption for full in (False, True))
    assert "not trained" in quick
    assert "not trained" not in full
    assert "290 digits" in full
    for caption in (quick, full):
        assert "softmax: training risk 0.25, 1 strict minima" in caption


def test_a_finished_run_of_a_task_is_not_done_again(monkeypatch, tmp_path):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    calls = []

    def trained(values, first, step, seeds):
        calls.append((values["kernel"], seeds))
        rows = {name: np.ones((1, 2)) for name in tasks.PROBES}
        return SimpleNamespace(probes=rows, step=np.arange(2), risk=np.ones((1, 2)))

    monkeypatch.setattr(tasks, "task_run", trained)
    todo = tasks.jobs(("sort",), 2)
    for job in todo[:3]:  # and then somebody pulls the plug
        job()
    for job in tasks.jobs(("sort",), 2):
        job()
    assert calls == [(kernel, (seed,)) for seed in (0, 1) for kernel in KERNELS]
