"""Proofs on disk: ``proof.json`` and, beside it, ``proof.npz`` with all arrays.

The files hold everything that a proof rests on: the model as its jaxpr in text and as a plain list
of operations for every sample, weights, targets and constants by hash, the ball and the constants.
`shoal.check` reads them and shares no code with this package.
"""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from shoal.disk.runs import versions, write_whole
from shoal.errors import InputError
from shoal.files import write_npz
from shoal.jsons import plain
from shoal.lab.proof import Proof
from shoal.verified.centre import evaluate
from shoal.verified.facts import Question, anchor_numbers
from shoal.verified.lower import Lowered
from shoal.verified.program import Program, cut

FORMAT = "shoal proof 3"
DERIVED = ("largest_residual", "path", "distance", "delta")
"""Constants that the theorem does not need; a file holds only what its checker computes again."""
STATEMENT = (
    "Gradient descent in real arithmetic, started at these floats taken as exact numbers, on the "
    "real function that the operations denote. Assumes IEEE binary64; sums of products within the "
    "usual bound; exp, log, tanh, logistic and erf within 16 ulp; sin, cos and erfc within "
    "32u(1 + |value|)."
)


class _Arrays:
    """Arrays by name; equal ones are kept once."""

    def __init__(self) -> None:
        self.found: dict[str, np.ndarray] = {}
        self.names: dict[str, str] = {}

    def name(self, array: np.ndarray) -> str:
        array = np.ascontiguousarray(array)
        key = digest(array)
        if key not in self.names:
            self.names[key] = f"a{len(self.names)}"
            self.found[self.names[key]] = array
        return self.names[key]


def digest(array: np.ndarray) -> str:
    """SHA-256 of an array: its type, shape and bytes."""
    head = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


def _operations(program: Program, arrays: _Arrays) -> dict[str, Any]:
    """A program as a plain list; its options that are arrays, by name."""
    made, found = Lowered(program), []
    for op in made.operations:
        named = {k: arrays.name(v) for k, v in op.options.items() if isinstance(v, np.ndarray)}
        rest = {k: v for k, v in op.options.items() if k not in named}
        head = {"kind": op.kind, "inputs": list(op.inputs), "size": op.size, "place": op.place}
        found.append(head | rest | {"arrays": named})
    anchors = [made.numbers[n] for n in anchor_numbers(program)]
    return {"operations": found, "output": made.numbers[program.output], "anchors": anchors}


class _Programs:
    """Plain lists of operations; equal ones are kept once."""

    def __init__(self, arrays: _Arrays) -> None:
        self.arrays, self.found = arrays, []  # type: ignore[var-annotated]
        self.known: dict[str, int] = {}

    def number(self, program: Program) -> int:
        made = plain(_operations(program, self.arrays))
        text = json.dumps(made)
        if text not in self.known:
            self.known[text] = len(self.found)
            self.found.append(made)
        return self.known[text]


def _programs(proof: Proof, question: Question, arrays: _Arrays) -> dict[str, Any]:
    """The programs of all samples; with P3 those of u, and the outputs as functions of u."""
    made = _Programs(arrays)
    inner, outer, blank = [], [], []
    for k, program in enumerate(question.programs):
        first, rest = cut(program, proof.at[k]) if proof.through else (program, None)
        inner.append(made.number(first))
        if rest is not None:
            u = evaluate(first, list(question.weights), order=0).output.value.mid
            outer.append(made.number(rest))
            blank.append(np.zeros(u.size))
    targets = [arrays.name(y) for y in question.targets]
    return {
        "programs": made.found, "inner": inner, "outer": outer,
        "inner_targets": [arrays.name(y) for y in blank] if outer else targets,
        "outer_targets": targets if outer else [],
        "level": "jets" if outer else proof.level,
    }  # fmt: skip


def write_proof(path: Path, proof: Proof) -> None:
    """Write a proof and its arrays."""
    if proof.verdict == "undecided" or proof.question is None:
        raise InputError(f"there is no proof to write: {proof.reason}")
    question: Question = proof.question
    arrays = _Arrays()
    body = plain(proof.to_json()) | {
        "format": FORMAT, "statement": STATEMENT, "blocks": proof.names,
        "step_size": question.step_size, "scale": list(question.scale),
        "ratios": question.ratios.tolist(),
        "weights": [arrays.name(W) for W in question.weights],
        "through": proof.through, "jaxpr": proof.jaxpr, "versions": versions(), "checked": None,
    }  # fmt: skip
    body["constants"] = {k: v for k, v in body["constants"].items() if k not in DERIVED}
    body |= _programs(proof, question, arrays)
    body["arrays"] = {name: digest(array) for name, array in arrays.found.items()}
    body = json.loads(json.dumps(body))
    body["sha256"] = seal(body)
    write_npz(packed := io.BytesIO(), arrays.found)
    write_whole(path, (json.dumps(body, indent=1) + "\n").encode(), npz=packed.getvalue())


def seal(body: dict[str, Any]) -> str:
    """SHA-256 of everything in the file but itself."""
    rest = {k: v for k, v in body.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
