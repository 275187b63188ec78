"""The trap of song2024 and its cure, as proofs: what `shoal tour` shows of them.

Softmax with only the queries moving is *stuck*: P2 encloses the limiting risk. The Gaussian
*converges* from the same start (P1). Both are decided at the weights after 5,000 steps.
"""

from shoal.lab.proof import Proof, prove
from shoal.lab.run import train
from shoal.lab.setup import paper_setup
from shoal.lab.visit import Visit
from shoal.papers.song2024 import studies
from shoal.papers.song2024.model import PAPER


def fates() -> dict[str, Proof]:
    """For each kernel what is certain about the run that starts in the trap."""
    found = {}
    for values, step in studies._VISITED:
        if values.get("problem") == "trap":
            run = train(paper_setup(PAPER, values), step_size=step, probes=())
            found[values["kernel"]] = prove(run.setup.replace(params0=run.params))
    return found


def visit() -> Visit:
    """The paper's visit, with a proof beside each run in the trap."""
    usual, proofs = studies.visit(), fates()
    at_trap = [proofs.get(row["kernel"]) if row["train"] == "W_Q" else None for row in usual.rows]
    rows = [
        row | {"proof": None if proof is None else proof.to_json()}
        for row, proof in zip(usual.rows, at_trap, strict=True)
    ]
    cells = [
        (*cell, "" if proof is None else proof.verdict)
        for cell, proof in zip(usual.cells, at_trap, strict=True)
    ]
    verdicts = tuple((f"proof, {kernel}", proof.verdict) for kernel, proof in proofs.items())
    return usual._replace(
        rows=rows, cells=cells, head=(*usual.head, "proved"),
        words=f"{usual.words}\n{_words(proofs)}", verdicts=(*usual.verdicts, *verdicts),
    )  # fmt: skip


def _words(proofs: dict[str, Proof]) -> str:
    said = []
    for kernel, proof in proofs.items():
        if proof.verdict == "stuck":
            low, high = proof.risk
            said.append(
                f"{kernel} is stuck for ever at a risk in [{low:.15f}, {high:.15f}], "
                f"{high - low:.0e} wide"
            )
        elif proof.verdict == "converges":
            said.append(
                f"{kernel} goes to zero risk: every step multiplies its residual by at most "
                f"{proof.rate[0]:.4f}"
            )
        else:
            said.append(f"{kernel} is undecided")
    return f"Proved (shoal prove, docs/prove.md): {'; '.join(said)}."


PAPER.visit = visit
