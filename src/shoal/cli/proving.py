"""What ``shoal prove`` and ``shoal check`` do."""

import dataclasses
from pathlib import Path
from typing import Any

import shoal as sh
from shoal import check as checker
from shoal import console
from shoal.cli import Start
from shoal.cli.commands import _setup, answer, own_setup_of
from shoal.disk import runs as disk
from shoal.errors import InputError
from shoal.lab.proof import Proof, prove_until
from shoal.papers import target_of


def prove(
    target: str, *, start: Start, run: Path | None, until_proved: bool, most_steps: int,
    through: str | None, out: Path | None, json: bool,
) -> None:  # fmt: skip
    """``shoal prove``."""
    if out is not None:
        if out.suffix != ".json":
            raise InputError(f"--out {out}: expected a name that ends in .json.")
        disk.require_file(out)
    proof = _proof(target, start, run, most_steps if until_proved else None, through)
    if out is not None and proof.verdict != "undecided":
        proof.save(out)
        proof = dataclasses.replace(proof, checked=_checked(out) == "")
        console.note(f"wrote {out} and {out.with_suffix('.npz').name}")
    elif out is not None:
        console.note("nothing is proved, so nothing was written")
    answer(proof.to_json(), [console.escape(repr(proof))], json=json)


def _proof(
    target: str, start: Start, run: Path | None, most_steps: int | None, through: str | None
) -> Proof:
    if run is not None:
        if start != Start() or most_steps is not None:
            raise InputError("--run proves a finished run: leave out --set, --seeds, --steps, ...")
        return sh.prove(disk.load_run(run, own_setup_of(target, run)), through=through)
    if not target:
        raise InputError("expected a TARGET such as wu2023 or my.py:setup, or --run DIR.")
    at_once = start.steps == "0"
    setup = _setup(target_of(target), dataclasses.replace(start, steps=None) if at_once else start)
    if len(setup.seeds) > 1:
        raise InputError(f"prove looks at one seed, and --seeds names {len(setup.seeds)}.")
    if at_once:
        return sh.prove(setup, through=through)
    if most_steps is not None:
        return prove_until(setup, most_steps, through=through)
    with console.progress(f"{setup.name}: training") as tell:
        made = sh.train(setup, probes=[], progress=tell)
    return sh.prove(made, through=through)


def _checked(path: Path) -> str:
    """What is wrong with a proof; nothing if it is checked."""
    try:
        checker.check(path)
    except checker.Fails as problem:
        return str(problem)
    return ""


def check(proof: Path, *, json: bool) -> None:
    """``shoal check``."""
    if not proof.is_file():
        raise InputError(f"{str(proof)!r} is not a file; expected what 'shoal prove --out' wrote.")
    found: dict[str, Any] = {"checked": True, "verdict": None, "reason": ""}
    try:
        found["verdict"] = checker.check(proof)
    except checker.Fails as problem:
        found |= {"checked": False, "reason": str(problem)}
    text = f"checked: {found['verdict']}" if found["checked"] else f"not checked: {found['reason']}"
    answer(found, [console.escape(text)], json=json)
    if not found["checked"]:
        raise SystemExit(1)
