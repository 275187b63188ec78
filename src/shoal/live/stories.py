"""Five guided stories. A step sets the page up, plays if it should, and says what to look at.

``state`` is what the address would hold; ``pin`` keeps the curve of the step before as a ghost.
What a text says about numbers is checked by the tests, in a browser.
"""

from pathlib import Path
from typing import Any

from shoal.live.desk import EXAMPLE

_WIDTH = {
    "num_samples": "3", "num_tokens": "2", "dim": "16", "tokens": "unit", "label_scale": "0.3",
    "pooling": "sum", "score_exponent": "1", "num_steps": "40",
}  # fmt: skip
_TRAP = {
    "problem": "trap", "init": "trap", "train": "W_Q", "num_steps": "2000", "every": "10",
    "step_size": "0.5",
}  # fmt: skip
_LENGTH = {
    "num_samples": "20",
    "num_tokens": "8",
    "dim": "4",
    "num_heads": "16",
    "num_steps": "100",
}
_RESIDUAL = {
    "num_samples": "3", "num_tokens": "4", "width": "32", "token_scale": "0.1768",
    "scale_qk": "0.5", "scale_v": "0.3", "scale_1": "0.5", "scale_2": "0.3", "labels": "near",
    "near_error": "1e-4", "num_steps": "200",
}  # fmt: skip


def _state(target: str, theorem: str, *parts: dict[str, str], **more: Any) -> dict[str, Any]:
    values: dict[str, str] = {}
    for part in parts:
        values |= part
    return {"target": target, "theorem": theorem, "values": values} | more


def _step(text: str, state: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"text": text, "state": state, "play": state is not None} | more


_WU = "wu2023", "theorem_a"
_SONG = "song2024", "theorem_3"
_ARDA = "arda2026", "theorem_b"
_QIN = "qin2025", "theorem_d"

STORIES: list[dict[str, Any]] = [
    {
        "title": "Width and the certificate",
        "steps": [
            _step(
                "A small Transformer with 64 hidden units learns three sequences. The blue curve "
                "falls: training works. But look to the right. Theorem A promises such a fall, and "
                "four of its hypotheses are red: at this width it says nothing. That a run "
                "converges and that a theorem covers it are two different things.",
                _state(*_WU, _WIDTH, {"width": "64"}), unpin=True,
            ),
            _step(
                "With 4000 hidden units most hypotheses turn green. What is left is the condition "
                "on ReLU units that may switch, (6): its left side shrinks as the width grows. "
                "The earlier run stays as a dashed ghost.",
                _state(*_WU, _WIDTH, {"width": "4000"}), pin=True,
            ),
            _step(
                "At 40000 every gauge is green. The green dashed curve is the proved bound, and "
                "the run, with the largest step that the theorem allows, stays below it: holds. "
                "The price is the step size: it is a thousand times smaller than before.",
                _state(*_WU, _WIDTH, {"width": "40000"}), pin=True,
            ),
            _step(
                "Now the scores are divided by the square root of the width instead of the width "
                "(score exponent 0.5). The run is as good as before, and the theorem is silent "
                "again. Move the slider of score exponent yourself: the gauges follow at once.",
                _state(*_WU, _WIDTH, {"width": "40000", "score_exponent": "0.5"}), pin=True,
            ),
        ],
    },
    {
        "title": "The trap",
        "steps": [
            _step(
                "Softmax attention, and only the queries move. The curve falls a little and then "
                "stays at 0.05 for ever, although zero can be reached. When the run ends, shoal "
                "looks for a proof: the shaded region says from which step it is certain that "
                "gradient descent is stuck.",
                _state(*_SONG, _TRAP, {"kernel": "softmax"}), unpin=True,
            ),
            _step(
                "The same data, the same start, the same step, but a Gaussian kernel instead of "
                "softmax. The risk goes to zero, and this is proved too. The ghost is the softmax "
                "run.",
                _state(*_SONG, _TRAP, {"kernel": "gaussian"}), pin=True,
            ),
            _step(
                "With softmax again, but all weights move, not only the queries. The trap was a "
                "trap of one block: the other weights lead out of it.",
                _state("song2024", "theorem_2", _TRAP, {"kernel": "softmax", "train": "all"}),
                pin=True,
            ),
        ],
    },
    {
        "title": "Length and projection",
        "steps": [
            _step(
                "Sixteen softmax heads, sequences of eight tokens, projected gradient descent. "
                "Theorem B bounds the mean loss; every hypothesis is green, and the run obeys.",
                _state(*_ARDA, _LENGTH), unpin=True,
            ),
            _step(
                "Sixty-four tokens instead of eight. The bound does not know the length of a "
                "sequence, and the gauges barely move: that is what the paper is about.",
                _state(*_ARDA, _LENGTH, {"num_tokens": "64"}), pin=True,
            ),
            _step(
                "Back to eight tokens, but the weights are kept within a radius of 1 of their "
                "start. The teacher now lies outside of the ball, so the theorem promises nothing "
                "(two red gauges). The run itself hardly notices.",
                _state(*_ARDA, _LENGTH, {"radius": "1"}), pin=True,
            ),
        ],
    },
    {
        "title": "Residual connections",
        "steps": [
            _step(
                "One Transformer block with residual connections, started near a solution. With "
                "the largest step that theorem D allows, everything is green; and the curve "
                "falls, but slowly. Certified steps are cautious steps.",
                _state(*_QIN, _RESIDUAL, {"residual": "both"}), unpin=True,
            ),
            _step(
                "The same block without residual connections. The attention output is now badly "
                "conditioned, and no ball around the start is wide enough: no step at all is "
                "allowed.",
                _state(*_QIN, _RESIDUAL, {"residual": "none", "step_size": "0.0046"}), pin=True,
            ),
            _step(
                "Residual connections again, and a step of 0.1, far beyond the theorem's. The run "
                "is fast, and nothing is promised: the theorem is sufficient, not necessary.",
                _state(*_QIN, _RESIDUAL, {"residual": "both", "step_size": "0.1"}), pin=True,
            ),
        ],
    },
    {
        "title": "Your own model",
        "steps": [
            _step(
                "Any function of weights and a batch can be opened here. This one ships with "
                "shoal; copy it, change it, and open it with: shoal lab my.py:model. Keywords of "
                "the function become sliders on the left.",
                _state(EXAMPLE, "kernel_regime", {"num_steps": "400"}), unpin=True,
                code=Path(__file__).with_name("example.py").read_text(encoding="utf-8"),
            ),
            _step(
                "About any model there is one theorem: the tangent kernel at the start predicts "
                "the curve (dotted) as long as the kernel hardly moves. Here it moves: the gauge "
                "'kernel moves little' turned red on the way, though the run converges.",
            ),
            _step(
                "And there are proofs. The shaded region says from which step on it is certain "
                "that this run converges to zero risk, rounding included. Try more samples, or "
                "another seed, and press Prove.",
            ),
        ],
    },
]  # fmt: skip
