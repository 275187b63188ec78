"""What slows or stops a run: one function for each cause, from a `Look` to what it found.

A cause has a number, the limit that it passed, why that limit, what to change, and, where the
change can be tried, one or more remedies: changed setups that `shoal.lab.diagnosis` trains to see
what they bring. `CHECKS` is the list, in the order in which causes explain each other: what stands
first may be the reason for what stands below, never the other way round.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal.diagnostics import inside
from shoal.lab.looking import HEALTHY, MEETINGS, Look, as_own
from shoal.lab.setup import Setup, paper_setup

BY_DEFAULT = "default"
"""The step that `shoal.train` chooses where none is given."""


class Remedy(NamedTuple):
    """A change in words, and the start (of one seed) that has it; the step, if that changes."""

    words: str
    start: Callable[[], Setup]
    step: float | str | None = None
    method: Any = None
    scale: float = 1.0  # What the targets were divided by.


class Trial(NamedTuple):
    """A remedy that was tried, and the risk along it and along the run as it is.

    Where the targets were divided, the risk is put back to their old scale. ``before`` is what the
    last risk is compared with: that of the run, or of the run with the new step alone if that is
    lower, or that of a constant output where the run diverges.
    """

    words: str
    steps: int
    step_size: float | None
    before: float
    changed: np.ndarray

    @property
    def change(self) -> str:
        """The change in words, with the step if that changes too."""
        if self.step_size is None or "step" in self.words:
            return self.words
        return f"{self.words}, with a step of {self.step_size:.2g}"

    @property
    def factor(self) -> float:
        """How many times lower the risk ended."""
        after = float(self.changed[-1])
        return self.before / max(after, 1e-25 * self.before) if np.isfinite(after) else 0.0


class Cause(NamedTuple):
    """Something that slows or stops a run."""

    key: str
    sentence: str
    value: float
    limit: float
    why: str  # Why this limit.
    advice: str
    remedies: tuple[Remedy, ...] = ()
    explains: tuple[str, ...] = ()  # Keys of causes that follow from this one.
    places: tuple[tuple[str, float], ...] = ()  # The number at every place, for a picture.
    trial: Trial | None = None

    def __repr__(self) -> str:
        return f"<{self.key}: {self.sentence}>"


STRUCTURAL = ("contradicting_samples", "out_of_reach", "dead_units", "saturated_attention",
              "masked_attention",
              "collapsed_tokens", "uniform_attention", "saturated_units",
              "no_gradient")  # fmt: skip
"""Faults that are said even if mending them alone does not help."""


Check = Callable[[Look, str], Iterator[Cause]]
EVERYTHING_BELOW = ("no_gradient", "block_scale", "dominant_block", "step_too_short", "label_scale",
                    "step_too_long", "too_narrow", "ill_conditioned", "local_minimum")  # fmt: skip


# ------------------------------------------------------------------------------------------- data


def groups_of_equal_inputs(start: Setup) -> list[np.ndarray]:
    """Rows of samples whose inputs are equal to nine digits, group by group."""
    leaves = jax.tree.leaves(start.inputs)
    flat = [np.reshape(leaf, (len(leaf), -1)).astype(float) for leaf in leaves]
    x = np.concatenate(flat, axis=1)
    scale = float(np.sqrt(np.mean(np.square(x)))) or 1.0
    _, group = np.unique(np.round(x / (1e-9 * scale)), axis=0, return_inverse=True)
    group = group.ravel()
    return [np.flatnonzero(group == g) for g in np.flatnonzero(np.bincount(group) > 1)]


def contradictions(start: Setup) -> tuple[list[np.ndarray], np.ndarray]:
    """Groups of equal inputs with different targets, and targets that are the mean of each."""
    y = np.array(start.targets, float)
    size = float(np.max(np.abs(y))) or 1.0
    found = []
    for rows in groups_of_equal_inputs(start):
        mean = y[rows].mean(0)
        if np.max(np.abs(y[rows] - mean)) > 1e-9 * size:
            found.append(rows)
            y[rows] = mean
    return found, y


def contradicting_samples(look: Look, word: str) -> Iterator[Cause]:
    """Samples with the same input and different targets cannot all be fitted."""
    if look.start.setting.coupled or word == "at the floor":
        return
    found, means = contradictions(look.start)
    if not found:
        return
    rows = [int(row) for some in found for row in some]
    named = " and ".join(map(str, found[0][:3]))
    floor = floor_of(look)
    share = floor / max(float(look.risk[-1]), 1e-300) if np.isfinite(look.risk[-1]) else 0.0
    if look.squares and share < 0.01:
        return  # they exist, but they are not what keeps the risk up
    remedies: tuple[Remedy, ...] = ()
    if look.squares:
        remedies = (
            Remedy("give equal inputs the mean of their targets", lambda: _data(look, y=means)),
        )
    more = f" and {len(rows) - len(found[0])} others" if len(found) > 1 else ""
    yield Cause(
        "contradicting_samples",
        f"samples {named}{more} have the same input and different targets",
        share if look.squares else float(len(rows)), 0.01 if look.squares else 0.0,
        "no weights fit two targets at one input; this share of the risk stays for ever",
        f"correct the targets of samples {', '.join(map(str, rows[:8]))}, or give each its "
        "group's mean",
        remedies, ("out_of_reach", *EVERYTHING_BELOW),
    )  # fmt: skip


def floor_of(look: Look) -> float:
    """A lower bound of the risk that no weights of this model can pass."""
    if not look.squares or look.start.setting.coupled:
        return 0.0
    weight, y = float(look.start.squares_weight or 0), np.asarray(look.targets, float)
    found, means = contradictions(look.start)
    lost = sum(float(np.sum((y[rows] - means[rows]) ** 2)) for rows in found)
    low, high, _ = inside.output_range(look.parts.program)
    apart = np.maximum(0, np.maximum(low - y, y - high))
    return weight * max(lost, float(np.sum(apart**2)))


def out_of_reach(look: Look, word: str) -> Iterator[Cause]:
    """Targets beyond what the last operation can put out."""
    low, high, name = inside.output_range(look.parts.program)
    if not look.squares or not name or word == "at the floor":
        return
    y = np.asarray(look.targets, float)
    beyond = float(np.mean((y < low) | (y > high)))
    if beyond > 0:
        fits = low < 0 < high
        divisor = float(np.max(np.abs(y))) / (0.9 * min(-low, high)) if fits else 1.0
        words = f"divide the targets by {divisor:.3g}" if fits else "scale the targets into it"
        yield Cause(
            "out_of_reach",
            f"{beyond:.0%} of the targets lie outside [{low:g}, {high:g}], where the last "
            f"operation ({name}) ends",
            beyond, 0.0, "the outputs never leave that range",
            f"remove the {name} at the end, or {words}",
            (Remedy(words, lambda: _data(look, y=y / divisor), scale=divisor),) if fits else (),
            ("label_scale", *EVERYTHING_BELOW),
        )  # fmt: skip


def label_scale(look: Look, word: str) -> Iterator[Cause]:
    """Targets of another size than what the model puts out at the start."""
    if not look.squares or word == "at the floor":
        return
    size = float(np.sqrt(np.mean(np.square(look.targets))))
    out = float(np.sqrt(np.mean(np.square(look.outputs[0]))))
    unit = max(out, 1.0)
    ratio = size / unit
    if ratio > 30:
        yield Cause(
            "label_scale",
            f"the targets (about {size:.2g}) are {ratio:.2g} times as large as the outputs at the "
            "start",
            ratio, 30.0,
            "the weights must grow by this factor before anything fits, and gradients grow with it",
            f"divide the targets by {size:.3g}",
            (Remedy(f"divide the targets by {size:.3g}",
                    lambda: _data(look, y=look.targets / size), scale=size),),
            ("step_too_long", "step_too_short", "dominant_block", "ill_conditioned",
             "saturated_units", "local_minimum", "block_scale", "too_narrow"),
        )  # fmt: skip


def _data(look: Look, x: Any = None, y: Any = None) -> Setup:
    """The start with other inputs or targets."""
    samples = look.start.problem
    inputs = look.start.inputs if x is None else x
    return look.start.replace(problem=type(samples)(inputs, look.targets if y is None else y))


# ---------------------------------------------------------------------------------------- weights


def frozen_blocks(look: Look, word: str) -> Iterator[Cause]:
    """Blocks that are not trained."""
    still = [name for name in trees.blocks(look.start.params0) if name not in look.start.trained]
    if still and word not in HEALTHY:
        count = trees.size(trees.selected(look.start.params0, still))
        share = count / trees.size(look.start.params0)
        named = ", ".join(still[:4]) + (f" and {len(still) - 4} more" if len(still) > 4 else "")
        yield Cause(
            "frozen_block", f"{named} ({share:.0%} of the weights) not trained", share, 0.0,
            "what does not move cannot help", "train these blocks as well",
            (Remedy("train all blocks", lambda: look.start.with_setting(train="all")),),
            ("too_narrow", "ill_conditioned", "no_gradient", "local_minimum", "step_too_short"),
        )  # fmt: skip


def no_gradient(look: Look, word: str) -> Iterator[Cause]:
    """Trained blocks that the risk does not feel, at the start and at the end."""
    if word == "at the floor":
        return
    start, end = look.gradients
    largest = max(start.values(), default=0.0)
    silent = [
        name for name in look.start.trained
        if start[name] <= 1e-13 * largest and end[name] <= 1e-13 * max(end.values())
        and not _shift_of_softmax(name)
    ]  # fmt: skip
    if silent:
        named = ", ".join(silent[:4]) + (f" and {len(silent) - 4} more" if len(silent) > 4 else "")
        yield Cause(
            "no_gradient", f"no gradient reaches {named}", start[silent[0]], 1e-13 * largest,
            "a block without gradient never moves",
            "look for a detach, a stop_gradient, a zero factor or rounding after this block",
            (), ("too_narrow", "ill_conditioned", "local_minimum"),
            tuple((name, value) for name, value in start.items()),
        )  # fmt: skip


def _shift_of_softmax(name: str) -> bool:
    """Biases of keys never matter to a softmax."""
    return name.endswith(("k_proj.bias", "key.bias", "b_K", "in_proj_bias"))


def block_scale(look: Look, word: str) -> Iterator[Cause]:
    """A block whose product is far larger or smaller than what it multiplies."""
    if word == "at the floor":
        return
    values = look.values[0]
    gains: dict[str, float] = {}
    added: dict[str, float] = {}
    for weight in inside.weights(look.parts.program, MEETINGS):
        if weight.given not in values:
            continue
        size = _size(values[weight.given])
        if not size:  # zero times anything says nothing about the weights
            continue
        if weight.kind == "add":  # such as positions: never too small, but maybe too large
            W = trees.blocks(look.start.params0)[weight.block]
            added[weight.block] = max(added.get(weight.block, 0.0), _size(W) / size)
        else:
            gain = _size(values[weight.product]) / size
            gains[weight.block] = max(gains.get(weight.block, 0.0), gain)
    found = [(name, gain, "makes what it multiplies {:.3g} times as large")
             for name, gain in gains.items() if not 1 / 20 < gain < 20]  # fmt: skip
    found += [(name, gain, "is {:.3g} times as large as what it is added to")
              for name, gain in added.items() if gain > 20 and name not in gains]  # fmt: skip
    for name, gain, said in sorted(found, key=lambda item: -abs(np.log(max(item[1], 1e-9)))):
        W = np.asarray(trees.blocks(look.start.params0)[name])
        words = f"scale {_block(name)} by {1 / gain:.2g}" if gain else f"draw {name} at random"
        yield Cause(
            "block_scale", f"{_block(name)} {said.format(gain)}" if gain
            else f"{_block(name)} is zero", gain, 20.0 if gain >= 20 else 0.05,
            "usual initial weights keep sizes within a factor of a few", words,
            (Remedy(words, functools.partial(_scaled, look, name, W, gain)),),
            ("dominant_block", "step_too_long", "step_too_short", "ill_conditioned", "no_gradient",
             "label_scale", "local_minimum"),
            tuple((gains | added).items()),
        )  # fmt: skip


def _size(array: Any) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(array)))))


def _block(name: str) -> str:
    """A block's name as a reader knows it: a bare number says that it is a block."""
    return f"block {name}" if name.isdigit() else name


def _scaled(look: Look, name: str, W: np.ndarray, gain: float) -> Setup:
    drawn = np.random.default_rng(0).normal(size=W.shape) / np.sqrt(max(W.shape[-2:], default=1))
    return _weights(look, {name: W / gain if gain else drawn})


def _weights(look: Look, blocks: dict[str, Any]) -> Setup:
    return look.start.replace(params0=trees.with_blocks(look.start.params0, blocks))


def dominant_block(look: Look, word: str) -> Iterator[Cause]:
    """A block that takes nearly all of the kernel, so that the step suits it and no other."""
    if word in HEALTHY or not look.plain or len(look.start.trained) < 2 or look.kernels is None:
        return
    traces = {name: float(np.trace(K)) for name, K in look.kernels.items()}
    traces = {name: trace for name, trace in traces.items() if trace > 0}
    if len(traces) < 2:
        return
    name = max(traces, key=lambda k: traces[k])
    share = traces[name] / sum(traces.values())
    if share > 0.999:
        ratio = float(np.clip(sum(v for k, v in traces.items() if k != name) / traces[name],
                              1e-6, 1))  # fmt: skip
        ratios = dict(look.start.setting.ratios) | {name: ratio}
        words = f"let {name} take steps {ratio:.2g} times as long as the others"
        yield Cause(
            "dominant_block", f"{name} makes {share:.3%} of the tangent kernel", share, 0.999,
            "the largest stable step is that of this block, and the others hardly move",
            f"give {name} a step {ratio:.2g} times that of the others, or scale it down",
            (Remedy(words, lambda: look.start.with_setting(ratios=tuple(ratios.items())),
                    BY_DEFAULT),),
            ("ill_conditioned", "step_too_short"), tuple(traces.items()),
        )  # fmt: skip


# -------------------------------------------------------------------------------- inside the model


def dead_units(look: Look, word: str) -> Iterator[Cause]:
    """Layers of ReLU units most of which are zero on every sample."""
    found = look.at_each(look.parts.units, lambda v, _: inside.dead(v))
    limit = 0.5
    if word == "at the floor":
        return
    for at, start, end in found:
        if max(start, end) > limit:
            share, when = (start, "from the start") if start > limit else (end, "at the end")
            before = look.values[0].get(at.before)
            shift = None
            if before is not None:
                shift = -np.median(before, axis=tuple(range(before.ndim - 1)), keepdims=True)
            bias = _block(inside.bias_of(look.parts.program, at.before))
            where = f"{at.name}, after {bias}," if bias else at.name
            biases = bias or f"the biases of the layer at {at.name}"
            words = f"change {biases} so that the median input of every unit is 0"
            remedies: tuple[Remedy, ...] = ()
            if shift is not None and start > limit:
                remedies = (Remedy(words, functools.partial(
                    _edited, look, {at.before: lambda v, _, s=shift: v + s})),)  # fmt: skip
            yield Cause(
                "dead_units", f"{share:.0%} of the units at {where} are zero on every sample, "
                f"{when}", share, limit,
                "a unit that is zero on every sample has no gradient and does not come back",
                f"start {biases} so that half of the inputs are positive" if start > limit
                else "take shorter steps, or a leaky activation",
                remedies,
                ("saturated_units", *(k for k in EVERYTHING_BELOW if k != "step_too_long")),
                tuple((a.name, max(s, e)) for a, s, e in found),
            )  # fmt: skip
            return


def saturated_units(look: Look, word: str) -> Iterator[Cause]:
    """Layers of tanh or logistic units that sit at their ends on every sample."""
    if word == "at the floor":
        return
    found = look.at_each(look.parts.saturating, lambda v, at: inside.saturated(v, at.kind))
    for at, start, end in found:
        if max(start, end) > 0.5:
            before = look.values[0].get(at.before)
            remedies: tuple[Remedy, ...] = ()
            if before is not None and start > 0.5:
                size = float(np.sqrt(np.mean(np.square(before)))) or 1.0
                words = f"divide what enters the units at {at.name} by {size:.2g}"
                remedies = (Remedy(words, functools.partial(
                    _edited, look, {at.before: lambda v, _, s=size: v / s})),)  # fmt: skip
            yield Cause(
                "saturated_units", f"{max(start, end):.0%} of the units at {at.name} are at an end "
                "of their range on every sample", max(start, end), 0.5,
                "there the slope is below 0.02 and the gradient stops",
                f"scale down the weights before {at.name}", remedies, EVERYTHING_BELOW,
                tuple((a.name, max(s, e)) for a, s, e in found),
            )  # fmt: skip
            return


def _edited(look: Look, edits: dict[int, Callable]) -> Setup:
    """The start with values of the model changed on the way."""
    function = look.parts.program.edited(edits)
    return look.start.with_setting(function=function, coupled=True)  # it knows the whole batch only


def saturated_attention(look: Look, word: str) -> Iterator[Cause]:
    """Attention that looks at one token only."""
    if word == "at the floor":
        return
    found = look.at_each(look.parts.attention, lambda v, at: inside.entropy(v, at.axis))
    masked = [
        (k, at) for k, (at, *_) in enumerate(found, start=1)
        if float(inside.alone(jnp.asarray(look.values[0][at.before]), at.axis)) > 0.99
    ]  # fmt: skip
    if masked:
        yield Cause(
            "masked_attention", f"the mask of {_named(masked, len(found))} leaves one token to "
            "each row", 1.0, 0.99, "with one token to look at, attention has nothing to learn",
            "look at the mask: it may be inverted, or cut too much", (),
            ("saturated_attention", "uniform_attention", "collapsed_tokens", *EVERYTHING_BELOW),
        )  # fmt: skip
    limit = 0.1
    from_start = [(k, at) for k, (at, start, _) in enumerate(found, start=1) if start < limit]
    places = from_start or [(k, at) for k, (at, _, end) in enumerate(found, 1) if end < limit]
    if places:
        lowest = min(min(start, end) for _, start, end in found)
        said = "from the start" if from_start else "at the end"
        yield Cause(
            "saturated_attention", f"{_named(places, len(found))} looks at one token only, {said}",
            lowest, limit, "where a softmax has one winner its gradient is almost zero (this is "
            "the entropy of the weights over the largest possible)",
            "scale its query and key weights down, so that scores of a row differ by about 1",
            tuple(_scores(look, places)),
            ("uniform_attention", "collapsed_tokens", *EVERYTHING_BELOW),
            tuple((a.name, s) for a, s, _ in found),
        )  # fmt: skip


def _named(places: list, count: int) -> str:
    """Attentions by number and place."""
    numbers = ", ".join(str(number) for number, _ in places)
    return f"attention {numbers} of {count} ({', '.join(at.name for _, at in places[:3])})"


def _spread(scores: np.ndarray, axis: int) -> float:
    """How far scores of a row differ: the usual standard deviation, masked ones left out."""
    kept = np.isfinite(scores) & (np.abs(scores) < 1e8)
    count = kept.sum(axis=axis, keepdims=True)
    if not count.any():  # all masked, or all too large
        return 0.0
    shown, shared = np.where(kept, scores, 0.0), np.maximum(count, 1)
    mean = shown.sum(axis=axis, keepdims=True) / shared
    square = np.where(kept, (shown - mean) ** 2, 0.0).sum(axis=axis, keepdims=True) / shared
    return float(np.sqrt(square)[count > 0].mean())


def uniform_attention(look: Look, word: str) -> Iterator[Cause]:
    """Attention that looks at all tokens alike."""
    if word == "at the floor":
        return
    found = look.at_each(look.parts.attention, lambda v, at: 1 - inside.entropy(v, at.axis))
    places = [
        (k, at) for k, (at, start, _) in enumerate(found, start=1)
        if start < 1e-4 and look.values[0][at.value].shape[at.axis] > 1
    ]  # fmt: skip
    if places:
        yield Cause(
            "uniform_attention", f"{_named(places, len(found))} weighs all tokens alike at the "
            "start", min(start for _, start, _ in found), 1e-4,
            "with equal scores the model cannot tell which token says what, and queries and keys "
            "get almost no gradient (this is 1 - the entropy over the largest possible)",
            "start its query and key weights larger, so that scores of a row differ by about 1",
            tuple(_scores(look, places)), ("collapsed_tokens", *EVERYTHING_BELOW),
            tuple((a.name, s) for a, s, _ in found),
        )  # fmt: skip


def _scores(look: Look, places: list) -> Iterator[Remedy]:
    """Make the scores of a row differ by about 1: by their weights where these can be told, or so.

    Weights that also make something else (one block for queries, keys and values) are changed in
    the rows that are far smaller than the others, if there are such.
    """
    listed, blocks = look.parts.program, trees.blocks(look.start.params0)
    used = inside.weights(listed)
    changed: dict[str, np.ndarray] = {}
    factors: dict[str, float] = {}
    edits: dict[int, Callable] = {}
    sizes = [_spread(look.values[0][at.before], at.axis) for _, at in places]
    for (_, at), size in zip(places, sizes, strict=True):
        near = [w for w in used if inside.feeds(listed, w.product, at.before)]
        alone = {w.block for w in near} - {w.block for w in used if w not in near}
        for name in sorted({w.block for w in near}):
            W = np.array(blocks[name], float)
            if size > 1 and name in alone and not _shared(look, name):
                changed[name] = W / np.sqrt(size)
            elif size <= 1 and (larger := _enlarged(W)) is not None:
                changed[name], factors[name] = larger
        if size > 1e-6:
            edits[at.before] = lambda v, _, s=size: v / s
    if changed:
        down = sizes[0] > 1
        how = f"divide {' and '.join(changed)} by {np.sqrt(sizes[0]):.3g}"
        up = " and ".join(
            f"scale {name} by {factor:.3g}" if factor else f"draw {name} at random"
            for name, factor in factors.items()
        )
        yield Remedy(how if down else up, functools.partial(_weights, look, changed))
    if edits:
        down = sizes[0] > 1
        how = f"divide the scores by {sizes[0]:.3g}"
        up = f"multiply the scores by {1 / sizes[0]:.3g}"
        numbers = ", ".join(str(number) for number, _ in places)
        yield Remedy(f"{how if down else up} (attention {numbers})",
                     functools.partial(_edited, look, edits))  # fmt: skip


def _shared(look: Look, name: str) -> bool:
    """Whether one block makes queries, keys and values together: three times as long as wide."""
    shape = np.shape(trees.blocks(look.start.params0)[name])
    return len(shape) == 2 and max(shape) == 3 * min(shape)


def _enlarged(W: np.ndarray) -> tuple[np.ndarray, float] | None:
    """The block with rows (or columns) that are far too small at the usual size, and the factor.

    Usual: entries of size one over the square root of the other side. Zeros are drawn at random
    (the factor is then 0). None if no row is too small.
    """
    if W.ndim < 2:
        return None
    usual = 1 / np.sqrt(W.shape[-1])
    for axis in (-1, -2):
        size = np.sqrt(np.mean(np.square(W), axis=axis, keepdims=True))
        small = np.broadcast_to(size < 0.05 * usual, W.shape)
        if small.any():
            typical = _size(W[small])
            if typical < 1e-12:
                drawn = np.random.default_rng(0).normal(size=W.shape) * usual
                return np.where(small, drawn, W), 0.0
            return np.where(small, W * (usual / typical), W), usual / typical
    return None


def collapsed_tokens(look: Look, word: str) -> Iterator[Cause]:
    """Tokens that have become alike, where everything passes and a later layer needs them apart."""
    if word == "at the floor":
        return
    listed = look.parts.program
    found = look.at_each(look.parts.stream, lambda v, _: inside.cosine(v))
    per_token = look.outputs[0].ndim >= 3
    later = [at.before for at in look.parts.attention]
    for number, (at, start, _) in enumerate(found):
        if start < 0.98 or not inside.needed(listed, at.value):
            continue
        if not per_token and not any(inside.feeds(listed, at.value, v, near=False) for v in later):
            continue
        edits = inside.residuals(listed, look.parts)
        remedies: tuple[Remedy, ...] = ()
        if edits:
            remedies = (Remedy("add a residual connection around every attention that has none",
                               functools.partial(_edited, look, edits)),)  # fmt: skip
        layer = sum(1 for a, *_ in found[: number + 1] if a.name.endswith("(attended)"))
        yield Cause(
            "collapsed_tokens",
            f"tokens are alike from attention {layer} on ({at.name}; cosine {start:.4f})",
            start, 0.98, "averaging makes tokens equal, and nothing later can tell them apart",
            "add residual connections around attention", remedies,
            ("uniform_attention", *EVERYTHING_BELOW), tuple((a.name, s) for a, s, _ in found),
        )  # fmt: skip
        return


# -------------------------------------------------------------------------------------- the steps


def step_too_long(look: Look, word: str) -> Iterator[Cause]:
    """Gradient descent is unstable beyond 2 / sharpness."""
    if not look.plain or look.step is None or word not in ("diverging", "unstable", "stuck"):
        return
    sharpness = max(look.sharpness, look.ends[1] if look.finite and word == "unstable" else 0.0)
    ratio = look.step * sharpness / 2
    if ratio > 1.02:
        yield Cause(
            "step_too_long", f"the step {look.step:.3g} is {ratio:.3g} times the largest stable "
            f"one, 2 / sharpness = {2 / sharpness:.3g}", ratio, 1.0,
            "beyond 2 / sharpness every step makes the steepest direction larger",
            f"use a step of {0.5 / sharpness:.2g}",
            (Remedy(f"use a step of {0.5 / sharpness:.2g}", lambda: look.start,
                    float(f"{0.5 / sharpness:.2g}")),),
            ("ill_conditioned", "local_minimum"),
        )  # fmt: skip


def step_too_short(look: Look, word: str) -> Iterator[Cause]:
    """A step far below 2 / sharpness wastes steps in every direction."""
    if not look.plain or look.step is None or word in HEALTHY or not look.finite:
        return
    sharpness = max(look.sharpness, look.ends[1])
    ratio = look.step * sharpness / 2
    if 0 < ratio < 0.05:
        step = float(f"{0.5 / sharpness:.2g}")
        yield Cause(
            "step_too_short", f"the step {look.step:.3g} is {ratio:.2g} of the largest stable one, "
            f"2 / sharpness = {2 / sharpness:.3g}", ratio, 0.05,
            "a twentieth of the stable step takes twenty times as many steps",
            f"use a step of {step:g}",
            (Remedy(f"use a step of {step:g}", lambda: look.start, step),),
            ("ill_conditioned", "local_minimum"),
        )  # fmt: skip


# ------------------------------------------------------------------------------ what cannot be fit


def too_narrow(look: Look, word: str) -> Iterator[Cause]:
    """Fewer weights, or fewer features before the last layer, than targets."""
    if not look.squares or not look.finite or word in (*HEALTHY, "unstable"):
        return
    moving, rows = trees.size(look.start.moving(look.start.params0)), look.targets.size
    rank, left = _last_layer(look)
    if look.convex and word == "at the floor":
        return
    if moving < rows:
        said = f"{moving} trained weights for {rows} targets"
    elif left > 0.5 and rank < rows // max(look.outputs[0].shape[-1], 1):
        said = (f"the last layer sees features of rank {rank} for {rows} targets, and the best "
                f"last layer leaves {left:.0%} of the risk")  # fmt: skip
    else:
        return
    remedies: tuple[Remedy, ...] = ()
    for name in ("width", "num_heads", "hidden"):
        wide = getattr(look.given.setting, name, None)
        if look.given.paper is not None and look.given.from_init and isinstance(wide, int):
            more = wide * int(np.ceil(4 * rows / max(moving, 1)))
            wider = functools.partial(_wider, look, {name: more})
            remedies = (Remedy(f"set {name} to {more}", wider, BY_DEFAULT),)
            break
    yield Cause(
        "too_narrow", said, moving / rows if moving < rows else rank / rows, 1.0,
        "with fewer weights than targets most targets cannot be fitted",
        "make the model wider, or train more blocks", remedies,
        ("ill_conditioned", "local_minimum"),
    )  # fmt: skip


def _last_layer(look: Look) -> tuple[int, float]:
    """Rank of the last features, and the share of the risk that the best last layer leaves."""
    features = inside.last_features(look.parts.program)
    values = look.values[1]
    if features is None or features not in values or not look.outputs[0].ndim:
        return look.targets.size, 0.0
    phi = values[features].reshape(-1, values[features].shape[-1])
    y = np.asarray(look.targets, float).reshape(len(phi), -1) if (
        look.targets.size % len(phi) == 0) else None  # fmt: skip
    if y is None or phi.size > 10**7:
        return look.targets.size, 0.0
    with_bias = np.concatenate([phi, np.ones((len(phi), 1))], axis=1)
    best, _, rank, _ = np.linalg.lstsq(with_bias, y, rcond=None)
    left = float(np.sum(np.square(with_bias @ best - y)))
    now = float(np.sum(np.square(look.outputs[1].reshape(y.shape) - y)))
    return int(rank), left / max(now, 1e-300)


def _wider(look: Look, changes: dict[str, int]) -> Setup:
    setting, paper = look.given.setting, look.given.paper
    assert paper is not None
    values = {k: getattr(setting, k) for k in look.run.setup.overrides} | changes
    values.pop("step_size", None)
    return as_own(paper_setup(paper, values, seeds=[look.run.seeds[look.row]]).one())


def ill_conditioned(look: Look, word: str) -> Iterator[Cause]:
    """Most of the residual lies in directions that the kernel hardly moves."""
    if not look.finite or word in (*HEALTHY, "unstable") or look.spectrum is None:
        return
    values, vectors, along = look.spectrum
    top = max(values[-1], 1e-300)
    limit = max(look.steps, 1000)
    weak = values < top / limit
    share = float(np.sum(along[weak] ** 2) / max(np.sum(along**2), 1e-300))
    if share <= 0.5:
        return
    condition = float(top / max(values[0], 1e-16 * top))
    worst = vectors[:, weak][:, int(np.argmax(np.abs(along[weak])))]
    count = look.outputs[1].size // len(look.targets)
    samples = list(dict.fromkeys(int(k) // count for k in np.argsort(-np.abs(worst))[:4]))
    named = ", ".join(map(str, samples[:3]))
    yield Cause(
        "ill_conditioned",
        f"{share:.0%} of the residual lies where the tangent kernel is below 1/{limit:.0e} of its "
        f"largest eigenvalue (condition {condition:.1e}); above all of samples {named}",
        condition, float(limit), "at any stable step such directions have hardly moved by the end "
        "of this run",
        "standardise or whiten the inputs, tell similar samples apart, or use a method that "
        "rescales directions, such as Adam",
        tuple(_conditioned(look)), ("local_minimum",),
    )  # fmt: skip


def _conditioned(look: Look) -> Iterator[Remedy]:
    """Standardised inputs, whitened inputs, and Adam."""
    found = jax.tree.leaves(look.start.inputs)
    x = np.asarray(found[0])
    if len(found) == 1 and x.dtype.kind == "f" and x.ndim >= 2:
        rows = x.reshape(-1, x.shape[-1])
        spread = rows.std(0)
        scaled = (x - rows.mean(0)) / np.where(spread > 1e-12 * spread.max(initial=0), spread, 1)
        yield Remedy("standardise the inputs (each feature minus its mean, over its deviation)",
                     lambda: _data(look, x=scaled), BY_DEFAULT)  # fmt: skip
        _, sizes, axes = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
        kept = sizes > 1e-10 * sizes.max(initial=0)
        turn = axes[kept].T / sizes[kept] * np.sqrt(len(rows)) @ axes[kept]
        yield Remedy("whiten the inputs (features uncorrelated, each of variance 1)",
                     lambda: _data(look, x=(x - rows.mean(0)) @ turn), BY_DEFAULT)  # fmt: skip
    for rate in (1e-2, 1e-3):
        yield Remedy(f"use Adam with a step of {rate:g}", lambda: look.start, rate, "adam")


def local_minimum(look: Look, word: str) -> Iterator[Cause]:
    """A minimum or a saddle with no better explanation."""
    if word not in ("stuck", "at a saddle"):
        return
    low, high = look.ends
    kind = "a saddle" if word == "at a saddle" else "a local minimum"
    generator = np.random.default_rng(0)
    blocks = {
        name: W + 0.1 * generator.normal(size=W.shape) * (np.sqrt(np.mean(W**2)) or 1.0)
        for name, W in look.start.moving(look.start.params0).items()
    }
    yield Cause(
        "local_minimum", f"the run rests at {kind}: the gradient is {look.slope:.1e}, the Hessian "
        f"goes from {low:.1e} to {high:.1e}", look.slope, 0.0,
        "gradient descent leaves neither by itself",
        "start from other weights (10% noise on these), or change the model",
        (Remedy("add 10% noise to the initial weights", lambda: _weights(look, blocks)),),
    )  # fmt: skip


CHECKS: tuple[Check, ...] = (
    contradicting_samples, out_of_reach, frozen_blocks, dead_units, saturated_attention,
    collapsed_tokens, uniform_attention, saturated_units, no_gradient, label_scale, block_scale,
    step_too_long, dominant_block, step_too_short, too_narrow, ill_conditioned, local_minimum,
)  # fmt: skip
