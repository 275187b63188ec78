"""Settings as controls of a page, from their types: what each takes, does, and whether it compiles.

A field's type decides the control: a few words become a menu, a yes or no a switch, a number a
slider (logarithmic, since settings span decades) with a box for exact values, anything else a box.
"""

import dataclasses
import math
from typing import Any

from shoal.console import shapes_weights
from shoal.lab.own import TRAINING, OwnModel
from shoal.lab.paper import Paper
from shoal.lab.setting import Mark, Setting, _choices, _parts, provenance

FIRST = (
    "num_samples", "num_tokens", "dim", "width", "num_heads", "num_layers", "kernel", "residual",
    "radius", "score_exponent", "label_scale", "labels", "problem", "init", "train", "num_steps",
)  # fmt: skip
"""Settings that are shown first; the others are folded away."""
NOT_HERE = ("images", "image_labels", "memory", "comparator", "pool")
"""Settings that a page does not offer: paths of files, and what only bounds memory."""
WITH_STEP = "step_size"
"""The step size has a control of its own."""


def _bounds(hint: Any) -> tuple[float, float]:
    """The least and the largest value of a number."""
    limits = [x for part in _parts(hint) for x in (part, *getattr(part, "metadata", ()))]

    def known(*names: str) -> list[float]:
        found = [getattr(limit, name, None) for limit in limits for name in names]
        return [float(x) for x in found if isinstance(x, int | float)]

    return max(known("ge", "gt"), default=-math.inf), min(known("le", "lt"), default=math.inf)


def _kind(hint: Any) -> str:
    parts = tuple(_parts(hint))
    if _choices(hint):
        return "choice"
    for kind, name in ((bool, "switch"), (int, "whole"), (float, "number")):
        if kind in parts and tuple not in parts and not any(_is_tuple(p) for p in parts):
            return name
    return "text"


def _is_tuple(part: Any) -> bool:
    return getattr(part, "__origin__", None) is tuple


def _range(kind: str, value: Any, low: float, high: float) -> tuple[float, float]:
    """Ends of a slider: from a sixteenth to sixteen times the default, within what is allowed."""
    middle = abs(float(value)) if isinstance(value, int | float) and value else 1.0
    if high <= 1:  # a share
        return max(low, 0.0), high
    ends = max(middle / 16, low), min(16 * middle, high)
    return (max(1.0, math.floor(ends[0])), math.ceil(ends[1])) if kind == "whole" else ends


def _first(setting: Setting, name: str) -> bool:
    """Whether a setting is shown first: in some papers only one of several models has a size."""
    if name in ("width", "num_heads", "num_layers") and not shapes_weights(setting, name):
        return False
    return name in FIRST


def paper_controls(setting: Setting) -> list[dict[str, Any]]:
    """Controls of a complete setting; ``setting`` holds what *auto* became."""
    kind_of, defaults = type(setting), {f.name: f.default for f in dataclasses.fields(setting)}
    hints, marks, said = kind_of._hints(), kind_of.marks(), kind_of.sentences()
    where = provenance(kind_of)
    found = []
    for name, hint in hints.items():
        if name in (*NOT_HERE, WITH_STEP):
            continue
        value, kind, choices = getattr(setting, name), _kind(hint), _choices(hint)
        sentence = said[name].removeprefix(" | ".join(choices)).removeprefix("; ")
        for mark in ("[paper]", "[summary]", "[ours]"):
            sentence = sentence.removesuffix(mark).strip()
        one: dict[str, Any] = {
            "name": name, "kind": kind, "value": _shown(value), "default": _shown(defaults[name]),
            "sentence": sentence, "source": where[name], "choices": list(choices),
            "compiles": marks[name] is not Mark.TRACED or name == "num_steps",
            "auto": type(None) in tuple(_parts(hint)), "first": _first(setting, name),
        }  # fmt: skip
        if kind in ("whole", "number"):
            usual = defaults[name] if defaults[name] is not None else value
            low, high = _range(kind, usual, *_bounds(hint))
            if isinstance(value, int | float) and value > 0:
                low, high = min(low, value), max(high, 4 * value) if value > high else high
            one |= {"low": low, "high": high, "linear": high <= 1}
        found.append(one)
    order = {name: k for k, name in enumerate(FIRST)}
    return sorted(found, key=lambda one: order.get(one["name"], len(order)))


def own_controls(model: OwnModel, setting: Setting) -> list[dict[str, Any]]:
    """Controls of a user's own model: keywords of its function, and how it is trained."""
    found = []
    for name, default in model.defaults().items():
        value = dict(setting.arguments).get(name, default)  # type: ignore[attr-defined]
        kind = "switch" if isinstance(default, bool) else "text"
        if not isinstance(default, bool | str):
            kind = "whole" if isinstance(default, int) else "number"
        one: dict[str, Any] = {
            "name": name, "kind": kind, "value": str(value), "default": str(default),
            "sentence": f"Keyword of {model.key}.", "source": "yours", "choices": [],
            "compiles": True, "auto": False, "first": True,
        }  # fmt: skip
        if kind in ("whole", "number"):
            low, high = _range(kind, default, -math.inf, math.inf)
            one |= {"low": low, "high": high, "linear": False}
        found.append(one)
    training = [c for c in paper_controls(setting) if c["name"] in TRAINING]
    return found + training


def _shown(value: Any) -> str:
    """A value as a word that the setting takes back."""
    if value is None or value is dataclasses.MISSING:
        return "auto"
    if isinstance(value, tuple):
        return ",".join(f"{x:g}" if isinstance(x, float) else str(x) for x in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def controls(source: Paper | OwnModel, setting: Setting) -> list[dict[str, Any]]:
    """What can be set, as a page shows it."""
    if isinstance(source, OwnModel):
        return own_controls(source, setting)
    return paper_controls(setting)
