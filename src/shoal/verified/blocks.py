"""Finer blocks: a trained array that is used in separate pieces is several blocks.

Weights of all layers are often stacked in one array, of which every layer takes its slice. Bounds
by block are sharper for each slice alone, and a ball of weights is the same set either way.
"""

from typing import NamedTuple

import numpy as np

from shoal.verified.program import Operation, Program


class Pieces(NamedTuple):
    """A program over finer blocks; piece k is ``entries[k]`` of the old block ``block[k]``."""

    program: Program
    block: tuple[int, ...]
    entries: tuple[np.ndarray, ...]
    numbers: dict[int, int]  # new numbers of the old program's values


def in_pieces(program: Program, count: int) -> Pieces:
    """Split each block of a program whose uses fall into separate sets of entries."""
    users: dict[int, list[Operation]] = {}
    for op in program.operations:
        for i in op.inputs:
            users.setdefault(i, []).append(op)
    groups: dict[int, list[np.ndarray]] = {}
    sizes: dict[int, int] = {}
    for number, op in enumerate(program.operations):
        if op.kind == "weight":
            sizes[op.options["block"]] = op.size
            groups[op.options["block"]] = _groups(op.size, users.get(number, []))
    block: list[int] = []
    entries: list[np.ndarray] = []
    first: dict[int, int] = {}
    for b in range(count):
        first[b] = len(block)
        for group in groups.get(b, []):
            block.append(b)
            entries.append(group)
        if b not in groups:  # it does not occur
            block.append(b)
            entries.append(np.arange(0))
    made, numbers = _rewritten(program, groups, first)
    return Pieces(made, tuple(block), tuple(entries), numbers)


def _groups(size: int, users: list[Operation]) -> list[np.ndarray]:
    """Sets of entries that are used apart from each other; one set if any use is of the whole."""
    whole = [np.arange(size)]
    if not users or any(op.kind != "take" for op in users):
        return whole
    label = np.full(size, -1)
    for k, op in enumerate(users):
        index = op.options["index"][op.options["index"] >= 0]
        for old in np.unique(label[index]):
            if old >= 0:
                label[label == old] = k
        label[index] = k
    if (label < 0).any():  # an entry that nothing uses stays with the first
        label[label < 0] = label[label >= 0][0] if (label >= 0).any() else 0
    found = [np.flatnonzero(label == k) for k in np.unique(label)]
    return found if len(found) > 1 else whole


def _rewritten(
    program: Program, groups: dict[int, list[np.ndarray]], first: dict[int, int]
) -> tuple[Program, dict[int, int]]:
    operations: list[Operation] = []
    numbers: dict[int, int] = {}
    parts: dict[int, list[tuple[int, np.ndarray]]] = {}
    for number, op in enumerate(program.operations):
        if op.kind == "weight":
            b = op.options["block"]
            parts[number] = []
            for k, group in enumerate(groups[b]):
                piece = Operation("weight", (), len(group), {"block": first[b] + k}, op.place)
                operations.append(piece)
                parts[number].append((len(operations) - 1, group))
            numbers[number] = len(operations) - 1
            continue
        given = tuple(numbers[i] for i in op.inputs)
        if op.kind == "take" and len(parts.get(op.inputs[0], ())) > 1:
            index = op.options["index"]
            leaf, group = next(
                (leaf, group) for leaf, group in parts[op.inputs[0]]
                if np.isin(index[index >= 0], group).all()
            )  # fmt: skip
            inside = np.where(index < 0, -1, np.searchsorted(group, np.maximum(index, 0)))
            op = op._replace(options=op.options | {"index": inside})
            given = (leaf,)
        operations.append(op._replace(inputs=given))
        numbers[number] = len(operations) - 1
    return Program(tuple(operations), numbers[program.output]), numbers
