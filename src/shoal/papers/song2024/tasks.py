"""Tasks that are learnt: real text and pictures, the next byte, and sequences put in order.

Each task has a claim that it is learnt at its size, whose control are shuffled classes, and one
about the two kernels, whose controls shuffle the classes of one side. The paper has the first 4000
bytes of a review and 1024 pixels of a picture, a few hours of a GPU for a run; words as tokens,
patches as tokens and all sizes are ours, the smallest at which something is learnt.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.figures import Panel, band
from shoal.lab import effects
from shoal.lab.claim import Control, Design, Measure, Value, above
from shoal.lab.run import Run, train
from shoal.lab.setting import OURS, SUMMARY
from shoal.lab.study import Seeds, fresh_setup, seeds_of
from shoal.papers.song2024.model import PAPER
from shoal.papers.song2024.studies import KERNELS

PROBES = "test_accuracy", "test_risk"


class Task(NamedTuple):
    """A problem of the classifier at a size at which it is learnt."""

    words: str  # As in a sentence.
    values: dict[str, Any]  # Settings.
    learned: float  # Per cent held out from which on it counts as learnt.
    chance: float  # Per cent of a model that knows the classes alone.
    seconds: float  # Processor time of both kernels for one seed.
    step: float = 1e-3
    first: dict[str, Any] | None = None  # A first stage, from which the weights come.
    full: dict[str, Any] | None = None  # What changes at full size.
    source: str = OURS
    waits: str = ""  # Why its claims are not registered.


UNSEEN = "nobody has looked yet whether anything is learnt at this size: exploratory seeds first"
TEXT_SIZES: dict[str, Any] = {
    "vocabulary": 2000, "num_tokens": 64, "num_samples": 2000, "test_samples": 500,
    "num_steps": 120, "every": 30,
}  # fmt: skip
PICTURE_SIZES: dict[str, Any] = {
    "classes": "all", "patch": 7, "num_samples": 2000, "test_samples": 500,
    "num_steps": 160, "every": 40,
}  # fmt: skip
PATHFINDER_SIZES: dict[str, Any] = {
    "problem": "pathfinder", "patch": 8, "places": "sinusoidal", "embedding_scale": 0.5,
    "batch_size": 128, "test_samples": 2000, "num_samples": 100_000, "num_steps": 9000,
    "every": 1500,
}  # fmt: skip
TASKS = {
    "imdb": Task(
        "IMDb reviews", {"problem": "imdb"} | TEXT_SIZES, learned=60, chance=50, seconds=40.0,
        full={"num_tokens": 128, "vocabulary": 4000, "num_samples": 8000, "test_samples": 1000,
              "num_steps": 400, "every": 50},
        source=SUMMARY,
    ),
    "rotten_tomatoes": Task(
        "Rotten Tomatoes", {"problem": "rotten_tomatoes"} | TEXT_SIZES
        | {"num_tokens": 24, "num_samples": 4000, "num_steps": 160, "every": 40},
        learned=60, chance=50, seconds=12.0,
        waits=UNSEEN,
    ),
    "pathfinder": Task(
        "easy Pathfinder", PATHFINDER_SIZES, learned=60, chance=50, seconds=900.0,
        first={"difficulty": "trivial", "num_samples": 40_000, "num_steps": 4000, "every": 4000},
        source=SUMMARY,
    ),
    "fashion_mnist": Task(
        "Fashion-MNIST", {"problem": "fashion_mnist"} | PICTURE_SIZES, learned=60, chance=10,
        seconds=12.0, full={"num_samples": 20_000, "test_samples": 2000, "num_steps": 2000,
                            "every": 200},
        waits=UNSEEN,
    ),
    "next_byte": Task(
        "the next byte of IMDb reviews",
        {"problem": "next_byte", "num_tokens": 32, "num_samples": 4000, "test_samples": 200,
         "num_steps": 200, "every": 50},
        learned=25, chance=18, seconds=20.0, full={"num_samples": 20_000, "num_steps": 2000,
                                                   "every": 200},
        waits=UNSEEN,
    ),
    "sort": Task(
        "sorting eight symbols", {"problem": "sort", "num_samples": 2000, "test_samples": 500,
                                  "num_steps": 100, "every": 25},
        learned=60, chance=28, seconds=10.0,
    ),
    "reverse": Task(
        "turning eight symbols round", {"problem": "reverse", "num_samples": 2000,
                                        "test_samples": 500, "num_steps": 40, "every": 10},
        learned=60, chance=10, seconds=8.0,
        waits=UNSEEN,
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------- runs


def task_run(values: dict[str, Any], first: dict[str, Any], step: float, seeds: Seeds) -> Run:
    """Train on one task with fresh data for every seed; the same call is done once in a process."""
    words = tuple(sorted(values.items())), tuple(sorted(first.items()))
    return _task_run(*words, step, seeds_of(seeds))


@functools.lru_cache(maxsize=2)  # both kernels; the data may be large
def _task_run(values: tuple, first: tuple, step: float, seeds: tuple[int, ...]) -> Run:
    def setup(given: dict[str, Any]) -> Any:
        sizes = {"model": "classifier", **given}
        return fresh_setup(PAPER, sizes, seeds=seeds, precision="float32")

    start = setup(dict(values))
    if first:
        before = train(setup(dict(values) | dict(first)), step_size=step, probes=())
        start = start.replace(params0=before.params)
    return train(start, step_size=step, probes=PROBES)


def sides(design: Design, seeds: Seeds) -> dict[str, Run]:
    """Both kernels from the same weights on the same data, except for shuffled classes."""
    found = {}
    for kernel in KERNELS:
        values = {**design["task"], "kernel": kernel, "shuffled": kernel in design["shuffled"]}
        found[kernel] = task_run(values, design["first"], design["steps"][kernel], seeds)
    return found


def last_percent(run: Any) -> np.ndarray:
    """Held-out accuracy at the end; a run that diverged is never right."""
    return np.nan_to_num(100 * run.probes["test_accuracy"][:, -1].astype(float), nan=0.0)


def one_by_one(measure: Measure) -> Measure:
    """Seed by seed: the data of many do not fit into memory."""
    return lambda design, seeds: [v for seed in seeds for v in measure(design, (seed,))]


def _last_loss(run: Any) -> np.ndarray:
    """Held-out loss at the end; infinite if the run diverged."""
    loss = run.probes["test_risk"][:, -1].astype(float)
    return np.where(np.isnan(loss), np.inf, loss)


def learnt(design: Design, seeds: tuple[int, ...]) -> list[Value]:
    """Held-out accuracy of the better kernel."""
    found = [last_percent(run) for run in sides(design, seeds).values()]
    return list(effects.points(np.max(found, axis=0)))


def ahead(design: Design, seeds: tuple[int, ...]) -> list[Value]:
    """Points of held-out accuracy, or of loss, by which the Gaussian is ahead of softmax."""
    runs = sides(design, seeds)
    percent = {kernel: last_percent(run) for kernel, run in runs.items()}
    met = np.maximum(*percent.values()) > design["learned"]
    if design["compare"] == "loss":
        loss = {k: _last_loss(run) for k, run in runs.items()}
        lead = effects.minus(*(effects.points(loss[k]) for k in ("softmax", "gaussian")))
    else:
        lead = effects.minus(*(effects.points(percent[k]) for k in ("gaussian", "softmax")))
    return effects.where(met.tolist(), lead)


# ------------------------------------------------------------------------------- runs kept on disk


def kept_run(key: str, kernel: str, seed: int, *, full: bool) -> dict[str, np.ndarray]:
    """Curves of one run of a task, kept on disk when it is done."""
    from shoal.disk.cache import cached

    task = TASKS[key]
    values = task.values | ((task.full or {}) if full else {}) | {"kernel": kernel}

    def make() -> dict[str, np.ndarray]:
        run = task_run(values, task.first or {}, task.step, (seed,))
        rows = {name: run.probes[name][0] for name in PROBES}
        return rows | {"step": run.step, "risk": run.risk[0]}

    about = ["song2024.task", key, values, task.first, task.step, seed]
    return cached(about, make).arrays


def jobs(keys: tuple[str, ...], seeds: int) -> list[Callable[[], Any]]:
    """Every run of some tasks at full size, not yet done."""
    each = ((key, kernel, seed) for key in keys for seed in range(seeds) for kernel in KERNELS)
    return [functools.partial(kept_run, *one, full=True) for one in each]


def held_out_panels(key: str, seeds: int, *, full: bool) -> tuple[Panel, Panel]:
    """Held-out accuracy and loss of both kernels along training."""
    found = {k: [kept_run(key, k, seed, full=full) for seed in range(seeds)] for k in KERNELS}

    def panel(what: str, y_label: str, name: str) -> Panel:
        curves = [
            band(kernel, runs[0]["step"], np.stack([run[name] for run in runs]))
            for kernel, runs in found.items()
        ]
        return Panel(f"{TASKS[key].words}: {what}", "step", y_label, tuple(curves))

    return panel("accuracy", "held-out accuracy", PROBES[0]), panel("loss", "cross-entropy",
                                                                    PROBES[1])  # fmt: skip


def sizes_in_words(key: str, *, full: bool = False) -> str:
    """What a task's runs are, for a caption."""
    task = TASKS[key]
    values = task.values | ((task.full or {}) if full else {})
    method = values.get("method", "adam")
    shown = {k.replace("_", " "): v for k, v in values.items() if k not in ("method", "every")}
    words = ", ".join(f"{name} {value}" for name, value in shown.items())
    return f"{words}; {method} with step {task.step:g}"


# ----------------------------------------------------------------------------------------- claims


def _design(task: Task, compare: str) -> dict[str, Any]:
    return {
        "task": task.values, "first": task.first or {}, "steps": dict.fromkeys(KERNELS, task.step),
        "shuffled": [], "learned": task.learned, "compare": compare,
    }  # fmt: skip


def _claims(key: str, task: Task) -> None:
    """Register that a task is learnt, and how the kernels compare on it."""
    setting = f"{sizes_in_words(key)}; two layers of width 64, batches of "
    setting += f"{task.values.get('batch_size', 32)}"
    if task.first:
        first = ", ".join(f"{name} {value}" for name, value in task.first.items())
        setting += f"; weights from a first stage with {first}"
    large = task.first is not None
    shared: dict[str, Any] = {
        "assumptions": ("float32",),
        "seconds": task.seconds,
        "setting": setting,
        "waits": task.waits,
    }
    below = task.learned - (5 if task.learned - task.chance < 20 else 20)
    PAPER.claim(
        f"{key}_is_learnt",
        f"A classifier of two layers learns {task.words}: with the better kernel more than "
        f"{task.learned:g} % is right on held-out data.",
        one_by_one(learnt) if large else learnt,
        above(task.learned, "per cent right with the better kernel", against=below),
        design=_design(task, "accuracy"), source=OURS,
        why=f"clearly above the {task.chance:g} % that the classes alone give; "
        f"below {below:g} % it is not learnt",
        controls=[Control({"shuffled": list(KERNELS)}, why="shuffled training classes")],
        same_runs=(f"song2024.{key}_equal_step",), **shared,
    )  # fmt: skip
    by_loss = task.chance < 50
    PAPER.claim(
        f"{key}_equal_step",
        f"On {task.words} the Gaussian reaches a "
        f"{'lower held-out loss' if by_loss else 'higher held-out accuracy'} than softmax, at the "
        "same step.",
        one_by_one(ahead) if large else ahead,
        above(0.0, "held-out loss of softmax minus that of the Gaussian") if by_loss else
        above(0.0, "points of held-out accuracy by which the Gaussian is ahead", ties="abstain"),
        design=_design(task, "loss" if by_loss else "accuracy"), source=task.source,
        premise=f"the better side is above {task.learned:g} % on held-out data",
        why="the statement has no number",
        controls=[
            Control({"shuffled": ["gaussian"]}, why="the Gaussian learns shuffled classes"),
            Control({"shuffled": ["softmax"]}, "positive", why="softmax learns shuffled classes"),
        ],
        same_runs=(f"song2024.{key}_is_learnt",), **shared,
    )  # fmt: skip


for _key, _task in TASKS.items():
    _claims(_key, _task)

for _key in ("imdb", "pathfinder"):
    _task = TASKS[_key]
    PAPER.claim(
        f"{_key}_tuned",
        f"On {_task.words} the Gaussian reaches a higher held-out accuracy than softmax, each at "
        "its own best step.",
        ahead, above(0.0, "points of held-out accuracy by which the Gaussian is ahead",
                     ties="abstain"),
        design=_design(_task, "accuracy"), why="the statement has no number",
        premise=f"the better side is above {_task.learned:g} % on held-out data",
        setting=f"that of song2024.{_key}_equal_step", seconds=_task.seconds,
        waits="no step is tuned yet: three steps for each kernel cost three seeds of "
        f"song2024.{_key}_equal_step, {3 * _task.seconds / 60:.0f} minutes of one core",
        controls=[Control({"shuffled": ["gaussian"]}, why="the Gaussian learns shuffled classes")],
    )  # fmt: skip
