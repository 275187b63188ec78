"""Pictures that the site draws itself: models as boxes, and verdicts as bars. Inline SVG, so that
they follow the colours of the page.
"""

from collections.abc import Mapping, Sequence
from html import escape

WIDE, HIGH, GAP, TOP = 132, 54, 26, 40

MODELS: dict[str, tuple[tuple[tuple[str, str], ...], tuple[tuple[int, int], ...]]] = {
    "wu2023": (
        (("tokens", "X"), ("attention", "W_Q, W_K"), ("ReLU units", "W_V"), ("pooling", "sum or mean"),
         ("output", "w_O"), ("f", "one number")),
        (),
    ),
    "song2024": (
        (("tokens", "X"), ("queries, keys", "W_Q, W_K"), ("softmax or Gaussian", "kernel"),
         ("values", "W_V"), ("heads", "W_O, fixed"), ("M", "a row per token")),
        (),
    ),
    "arda2026": (
        (("tokens", "X, query q"), ("attention", "W, per head"), ("neuron", "U, per head"),
         ("sum of heads", "c"), ("f", "one number"), ("projection", "radius")),
        (),
    ),
    "qin2025": (
        (("tokens", "X"), ("attention", "W_Q, W_K, W_V"), ("+", "residual"), ("feed forward", "W_1, W_2"),
         ("+", "residual"), ("output", "W_U")),
        ((0, 2), (2, 4)),
    ),
    "icl2025": (
        (("prompt", "(x, y) pairs"), ("mean", "beta = mean of y x"), ("heads", "v, U or v, K, Q"),
         ("query", "x_q"), ("prediction", "beta' A x_q")),
        (),
    ),
}  # fmt: skip
"""Boxes from left to right (name, weights), and connections that skip boxes."""


def model_picture(key: str) -> str:
    """A model as a row of boxes."""
    boxes, skips = MODELS[key]
    width = len(boxes) * (WIDE + GAP) - GAP + 4
    parts = []
    for k, (name, weights) in enumerate(boxes):
        x = 2 + k * (WIDE + GAP)
        middle = x + WIDE / 2
        parts.append(f'<rect x="{x}" y="{TOP}" width="{WIDE}" height="{HIGH}" rx="6"/>')
        parts.append(f'<text x="{middle}" y="{TOP + 23}">{escape(name)}</text>')
        parts.append(f'<text x="{middle}" y="{TOP + 42}" class="small">{escape(weights)}</text>')
        if k:
            y = TOP + HIGH / 2
            parts.append(f'<path d="M{x - GAP + 2} {y}H{x - 4}m-5 -4l5 4l-5 4"/>')
    for first, last in skips:
        a, b = (2 + k * (WIDE + GAP) + WIDE / 2 for k in (first, last))
        parts.append(f'<path d="M{a + 8} {TOP - 2}V14H{b - 8}V{TOP - 4}m-4 -5l4 5l4 -5"/>')
    label = " → ".join(f"{name} ({weights})" for name, weights in boxes)
    return (
        f'<div class="model"><svg viewBox="0 0 {width} {TOP + HIGH + 4}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg></div>'
    )


def verdict_bar(counts: Mapping[str, int], words: Sequence[str]) -> str:
    """How many claims have which verdict, as one bar."""
    shown = [(word, counts[word]) for word in words if counts.get(word)]
    cells = "".join(
        f'<span class="{word.replace(" ", "-")}" style="flex:{count}">{count} {word}</span>'
        for word, count in shown
    )
    return f'<div class="verdicts">{cells}</div>'
