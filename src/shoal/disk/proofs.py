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
from shoal.jsons import plain
from shoal.lab.proof import Proof
from shoal.verified.facts import Question, anchor_numbers
from shoal.verified.program import Program

FORMAT = "shoal proof 1"
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
    found = []
    for op in program.operations:
        options = {
            k: arrays.name(v) if isinstance(v, np.ndarray) else v for k, v in op.options.items()
        }
        found.append(
            {"kind": op.kind, "inputs": list(op.inputs), "size": op.size, "place": op.place}
            | options
        )
    anchors = list(anchor_numbers(program))
    return {"operations": found, "output": program.output, "anchors": anchors}


def write_proof(path: Path, proof: Proof) -> None:
    """Write a proof and its arrays."""
    if proof.verdict == "undecided" or proof.question is None:
        raise InputError(f"there is no proof to write: {proof.reason}")
    question: Question = proof.question
    arrays = _Arrays()
    programs: list[dict[str, Any]] = []
    samples: list[int] = []
    known: dict[str, int] = {}
    for program in question.programs:
        made = plain(_operations(program, arrays))
        text = json.dumps(made)
        if text not in known:
            known[text] = len(programs)
            programs.append(made)
        samples.append(known[text])
    body = plain(proof.to_json()) | {
        "format": FORMAT, "statement": STATEMENT, "level": proof.level, "blocks": proof.names,
        "step_size": question.step_size, "scale": list(question.scale),
        "ratios": question.ratios.tolist(), "programs": programs, "samples": samples,
        "weights": [arrays.name(W) for W in question.weights],
        "targets": [arrays.name(y) for y in question.targets],
        "jaxpr": proof.jaxpr, "versions": versions(), "checked": None,
    }  # fmt: skip
    body["arrays"] = {name: digest(array) for name, array in arrays.found.items()}
    body = json.loads(json.dumps(body))
    body["sha256"] = seal(body)
    np.savez(packed := io.BytesIO(), **arrays.found)  # type: ignore[arg-type]
    write_whole(path.with_suffix(".npz"), packed.getvalue())
    write_whole(path, (json.dumps(body, indent=1) + "\n").encode())


def seal(body: dict[str, Any]) -> str:
    """SHA-256 of everything in the file but itself."""
    rest = {k: v for k, v in body.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
