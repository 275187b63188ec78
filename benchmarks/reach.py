"""How far proofs reach: from which step of a run its fate is proved, by which bounds, how fast.

``python benchmarks/reach.py`` prints one line per model: weights, outputs, looseness of L (over the
largest second derivative that ascent finds at the last weights, or where a ReLU ends on its kink at
the proved ones) by plain jets, anchored at nodes and at the output; the first step from which the
run is proved with each; seconds of processor time per decision.
"""

# ruff: noqa: D103, T201

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import shoal as sh
from shoal.lab.proof import question_of
from shoal.verified.balls import Refusal
from shoal.verified.facts import facts, on_balls, second

rng = np.random.default_rng(0)
FRESH = rng.bit_generator.state  # every model draws from it, whichever others are asked for


def normal(*shape, scale=1.0):
    return scale * rng.standard_normal(shape)


def tanh_network(width, dim=4, samples=8, scale=1.0):
    def model(p, x):
        return jnp.tanh(x @ p["W"] + p["b"][None]) @ p["v"]

    start = {"W": normal(dim, width, scale=dim**-0.5), "b": normal(width, scale=0.1),
             "v": normal(width, scale=width**-0.5)}  # fmt: skip
    return sh.setup(model, start, normal(samples, dim), scale * normal(samples))


def attention(kernel):
    def model(p, x):
        q, k = x @ p["Q"], x @ p["K"]
        if kernel == "softmax":
            s = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 2, axis=-1)
        else:
            s = jnp.exp(-jnp.sum((q[:, :, None] - k[:, None]) ** 2, -1) / 2)
        return s @ (x @ p["V"])

    start = {name: normal(8, 4, scale=0.3) for name in "QK"} | {"V": normal(8, 2, scale=0.5)}
    x = normal(2, 3, 8)
    return sh.setup(model, start, x, np.asarray(model(start, x)) + 0.3 * normal(2, 3, 2))


def heads():
    def model(p, x):
        scores = jnp.einsum("hd,nmd->hnm", p["W"], x)
        seen = jnp.einsum("hnm,nmd->hnd", jax.nn.softmax(scores, axis=-1), x)
        return jnp.einsum("hnd,hd,h->n", jnp.tanh(seen), p["U"], p["c"])

    start = {"W": normal(16, 6), "U": normal(16, 6, scale=0.4), "c": normal(16, scale=0.25)}
    return sh.setup(model, start, normal(6, 4, 6), normal(6))


def encoder():
    def model(p, x):
        scores = (x @ p["Q"]) @ jnp.swapaxes(x @ p["K"], -1, -2) / 3
        h = jax.nn.relu((jax.nn.softmax(scores, axis=-1) @ x) @ p["V"])
        return jnp.mean(h, 1) @ p["w"]

    start = {name: normal(6, 10, scale=0.4) for name in "QKV"} | {"w": normal(10, scale=0.3)}
    return sh.setup(model, start, normal(5, 4, 6), normal(5))


def qin(**how):
    sizes = {"dim": 8, "key_dim": 8, "width": 12, "num_samples": 2, "num_tokens": 3}
    return sh.setup("qin2025", **(sizes | how))


def pre_norm():
    def norm(x):
        c = x - jnp.mean(x, -1, keepdims=True)
        return c / jnp.sqrt(jnp.mean(c**2, -1, keepdims=True) + 1e-5)

    def model(p, x):
        seen = norm(x)
        q, k, v = (jnp.einsum("nld,dhk->nhlk", seen, p[name]) for name in "QKV")
        s = jax.nn.softmax(jnp.einsum("nhik,nhjk->nhij", q, k) / 2, axis=-1)
        h = x + jnp.einsum("nhij,nhjk,hkd->nid", s, v, p["O"])
        h = h + jax.nn.gelu(norm(h) @ p["A"], approximate=False) @ p["B"]
        return jnp.mean(h, 1) @ p["u"]

    start = {name: normal(6, 2, 4, scale=0.4) for name in "QKV"}
    start |= {"O": normal(2, 4, 6, scale=0.4), "A": normal(6, 11, scale=0.4),
              "B": normal(11, 6, scale=0.3), "u": normal(6, scale=0.4)}  # fmt: skip
    return sh.setup(model, start, normal(4, 3, 6), normal(4))


def trap():
    def model(p, x):
        scores = (x @ p["Q"]) @ jnp.swapaxes(x @ p["K"], -1, -2)
        return (jax.nn.softmax(scores, axis=-1) @ (x @ p["V"]))[..., 0]

    K, V = np.array([[-2.0], [-1], [1], [2]]), np.array([[0.2], [2], [0.2], [0.5]])
    start = {"Q": np.full((4, 1), 1.0), "K": K, "V": V}
    return sh.setup(model, start, np.eye(4)[None], np.full((1, 4), 0.3), train="Q")


def torch_encoder():
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    x = rng.standard_normal((2, 3, 8))
    with torch.no_grad():
        y = module(torch.as_tensor(x)).numpy() + 0.1 * rng.standard_normal((2, 3, 8))
    return sh.setup(module, x, y)


CASES = {
    "MLP, tanh": (lambda: tanh_network(16), 6000, 0.05),
    "attention, softmax": (lambda: attention("softmax"), 20000, None),
    "attention, Gaussian": (lambda: attention("gaussian"), 20000, None),
    "16 heads, tanh": (heads, 2000, None),
    "encoder, ReLU": (encoder, 2000, None),
    "residual block, smooth leaky": (qin, 2000, None),
    "residual block, GELU": (lambda: qin(activation="gelu"), 2000, None),
    "pre-norm, 2 heads, GELU": (pre_norm, 4000, None),
    "two residual blocks": (lambda: qin(num_layers=2), 4000, None),
    "trap, softmax": (trap, 4000, 0.5),
    "wu2023": (
        lambda: sh.setup("wu2023", num_samples=6, num_tokens=2, dim=8, width=64, seeds=[1]),
        1500, None),
    "song2024": (lambda: sh.setup("song2024"), 5000, None),
    "arda2026": (
        lambda: sh.setup("arda2026", radius=None, num_samples=6, num_tokens=4, num_heads=16),
        5000, 0.05),
    "qin2025": (lambda: sh.setup("qin2025"), 500, None),
    "PyTorch encoder, 2 layers": (torch_encoder, 3000, None),
    "MLP, tanh, 2000 weights": (lambda: tanh_network(333), 3000, None),
}  # fmt: skip


def visited(paper, **values):
    """A run of `shoal tour`, with the steps that its visit takes."""
    from importlib import import_module

    where, name = {
        "wu2023": ("figures", "SMALL"), "arda2026": ("studies", "SEQUENCES"),
        "qin2025": ("studies", "NEAR"), "song2024": ("studies", "_TRAP"),
    }[paper]  # fmt: skip
    module = import_module(f"shoal.papers.{paper}.{where}")
    return sh.setup(paper, **(getattr(module, name) | values))


CASES |= {
    "tour, wu2023, width 100": (lambda: visited("wu2023", width=100), None, "theorem_a"),
    "tour, wu2023, width 400": (lambda: visited("wu2023", width=400), None, "theorem_a"),
    "tour, song2024, softmax": (lambda: visited("song2024", kernel="softmax"), None, 0.5),
    "tour, song2024, Gaussian": (lambda: visited("song2024", kernel="gaussian"), None, 0.5),
    "tour, arda2026, no radius": (lambda: visited("arda2026", radius=None), None, None),
    "tour, qin2025, residuals": (lambda: visited("qin2025", residual="both"), None, None),
    "tour, qin2025, none": (lambda: visited("qin2025", residual="none"), None, None),
}


def bend(setup, params):
    """Largest second derivative along a direction that ascent finds at some weights."""
    from jax.flatten_util import ravel_pytree

    from shoal.models import predict

    with jax.enable_x64(True):
        flat, back = ravel_pytree(setup.moving(params))

        def along(d):
            d = d / jnp.linalg.norm(d)

            def f(t):
                moved = {**back(flat + t * d)}
                from shoal import trees

                return predict(
                    setup.network, trees.with_blocks(params, moved), setup.inputs
                ).ravel()

            return jnp.linalg.norm(
                jax.jvp(lambda t: jax.jvp(f, (t,), (1.0,))[1], (0.0,), (1.0,))[1]
            )

        climb = jax.jit(jax.vmap(jax.value_and_grad(along)))
        d = jax.random.normal(jax.random.key(0), (6, flat.size))
        best = 0.0
        for _ in range(40):
            value, slope = climb(d)
            best = max(best, float(value.max()))
            d = d / jnp.linalg.norm(d, axis=1, keepdims=True)
            d = d + 0.5 * slope / (jnp.linalg.norm(slope, axis=1, keepdims=True) + 1e-300)
        return best


def looseness(setup, run):
    """L on a small ball around the last weights over the largest second derivative found."""
    one = setup.one()
    ends = jax.tree.map(lambda W: W[0], run.params)
    with jax.enable_x64(True):
        question = question_of(one, ends, 1.0).question
    try:
        facts(question)
    except Refusal:
        return []  # the end lies on a kink
    seen, radius = bend(one, ends), np.array([1e-9])
    plain = on_balls(question, facts(question), radius)
    if plain.reasons[0]:
        return []  # a kink within the radius
    found = facts(question, nodes=True)
    nodes = on_balls(question, found, radius, nodes=True).L[0]
    curve = second(question, found)
    return [plain.L[0] / seen, nodes / seen, curve.squares / seen if curve else float("nan")]


def main(names):
    for name in names:
        make, steps, step = CASES[name]
        rng.bit_generator.state = FRESH
        try:
            setup = make()
            run = sh.train(setup, steps=steps, step_size=step, probes=[])
            parts = []
            for levels in (("jets",), ("jets", "nodes"), ("jets", "nodes", "output")):
                begun = time.process_time()
                proof = sh.prove(run, levels=levels)
                each = (time.process_time() - begun) / proof.decisions
                at = proof.step if proof.verdict != "undecided" else "-"
                parts.append(f"{at} ({each:.2f} s)")
            found = looseness(setup, run)
            if not found and proof.verdict != "undecided":
                at = sh.train(setup, steps=proof.step, step_size=step, probes=[])
                found = looseness(setup, at)
            loose = "; ".join(f"{x:.3g}" for x in found)
            size = f"{proof.num_weights}, {proof.num_outputs}"
            line = name, size, loose, *parts, str(run.step[-1]), proof.verdict, proof.reason
            print(f"| {' | '.join(line)} |", flush=True)
        except Exception as error:  # a line for every model, whatever happens
            print(f"| {name} | {type(error).__name__}: {str(error)[:300]} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
