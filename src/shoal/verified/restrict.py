"""The part of a program that some entries of its output need.

A model is traced on the whole batch, exactly as it is trained. What one sample's outputs need is
cut out here, entry by entry, so that bounds see one sample's arrays and not the batch's. Nothing is
assumed about how the model treats samples: if it couples them, more is needed, that is all.
"""

from typing import Any

import numpy as np

from shoal.verified.program import Operation, Program

ROWS = ("softmax", "centre", "normalise")
REDUCED = ("sum", "max", "logsumexp")


def restrict(program: Program, entries: np.ndarray) -> tuple[Program, dict[int, int]]:
    """The program of some entries of the output, and new numbers of the values that it has."""
    needed = _needed(program, entries)
    numbers: dict[int, int] = {}
    places: dict[int, np.ndarray] = {}  # where an old entry stands in the new value
    operations: list[Operation] = []
    for number, op in enumerate(program.operations):
        mask = needed.get(number)
        if mask is None or not mask.any():
            continue
        if op.kind == "take" and not needed[op.inputs[0]].any():  # nothing but what it fills in
            values = np.full(int(mask.sum()), float(op.options["fill"]))
            operations.append(Operation("constant", (), len(values), {"value": values}, op.place))
            numbers[number], places[number] = len(operations) - 1, np.cumsum(mask) - 1
            continue
        given = []
        for i, part in zip(op.inputs, _wanted(program, op, mask), strict=True):
            if op.kind == "join" and not part.any():
                continue
            if op.kind == "take" or (part == needed[i]).all():
                given.append(numbers[i])
                continue
            index = places[i][np.flatnonzero(part)]  # other operations need more of it
            operations.append(_taken(numbers[i], index, op.place))
            given.append(len(operations) - 1)
        operations.append(_smaller(op, mask, tuple(given), [places.get(i) for i in op.inputs]))
        numbers[number] = len(operations) - 1
        if op.kind == "weight" and not mask.all():
            whole, index = len(operations) - 1, np.flatnonzero(mask)
            operations.append(_taken(whole, index, op.place))
            numbers[number] = len(operations) - 1
        places[number] = np.cumsum(mask) - 1
    found = numbers[program.output]
    index = places[program.output][entries]
    if len(index) != operations[found].size or (index != np.arange(len(index))).any():
        operations.append(_taken(found, index, ""))
        found = len(operations) - 1
    return Program(tuple(operations), found), numbers


def _taken(number: int, index: np.ndarray, place: str) -> Operation:
    return Operation("take", (number,), len(index), {"index": index, "fill": 0.0}, place)


def _needed(program: Program, entries: np.ndarray) -> dict[int, np.ndarray]:
    """Which entries of every value are needed; enlarged to what an operation computes at once."""
    masks: dict[int, np.ndarray] = {}

    def want(number: int, mask: np.ndarray) -> None:
        old = masks.get(number)
        masks[number] = mask if old is None else old | mask

    first = np.zeros(program.operations[program.output].size, bool)
    first[entries] = True
    want(program.output, first)
    for number in range(program.output, -1, -1):
        if (mask := masks.get(number)) is None:
            continue
        op = program.operations[number]
        masks[number] = mask = _enlarged(op, mask)
        for given, part in zip(op.inputs, _wanted(program, op, mask), strict=True):
            want(given, part)
    return masks


def _enlarged(op: Operation, mask: np.ndarray) -> np.ndarray:
    if op.kind in ROWS:
        rows = mask.reshape(op.options["rows"], -1)
        return np.repeat(rows.any(1), rows.shape[1])
    if op.kind == "dot":
        batch, m, _, n = op.options["sizes"]
        box = mask.reshape(batch, m, n)
        b, r, c = (np.asarray(box.any(axes)) for axes in ((1, 2), (0, 2), (0, 1)))
        return (b[:, None, None] & r[None, :, None] & c[None, None]).ravel()
    return mask


def _wanted(program: Program, op: Operation, mask: np.ndarray) -> list[np.ndarray]:
    sizes = [program.operations[i].size for i in op.inputs]
    if op.kind == "take":
        part = np.zeros(sizes[0], bool)
        index = op.options["index"][mask]
        part[index[index >= 0]] = True
        return [part]
    if op.kind == "join":
        return list(np.split(mask, np.cumsum(sizes)[:-1]))
    if op.kind == "dot":
        batch, m, k, n = op.options["sizes"]
        box = mask.reshape(batch, m, n)
        left = np.repeat(np.asarray(box.any(2))[:, :, None], k, 2)
        right = np.repeat(np.asarray(box.any(1))[:, None, :], k, 1)
        return [left.ravel(), right.ravel()]
    if op.kind in REDUCED or (op.kind == "logic" and op.options["name"] in ("all", "any")):
        return [np.repeat(mask, sizes[0] // len(mask))]
    return [mask] * len(sizes)


def _smaller(op: Operation, mask: np.ndarray, given: tuple, places: list[Any]) -> Operation:
    options: dict[str, Any] = dict(op.options)
    size = int(mask.sum())
    if op.kind == "weight":
        return op
    if op.kind == "constant":
        options["value"] = options["value"][mask]
    elif op.kind == "take":
        index = options["index"][mask]
        options["index"] = np.where(index < 0, -1, places[0][np.maximum(index, 0)])
    elif op.kind == "dot":
        batch, m, k, n = options["sizes"]
        box = mask.reshape(batch, m, n)
        counts = [int(box.any(axes).sum()) for axes in ((1, 2), (0, 2), (0, 1))]
        options["sizes"] = (counts[0], counts[1], k, counts[2])
    elif op.kind in ROWS:
        options["rows"] = size // (len(mask) // options["rows"])
    elif op.kind in REDUCED:
        options["rows"] = size
    return Operation(op.kind, given, size, options, op.place)
