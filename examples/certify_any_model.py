"""Certify any model: theorem D0 needs three numbers of a model, here of yours and of three papers.

From the Jacobian of all outputs at the start and a bound L_J of their second derivative, D0 proves
that gradient descent converges, and how fast (docs/theory/qin2025.md, sections 2 and 14). A theorem
is a function ``(setup, run) -> Certificate``, and may say which steps it allows.
"""

import jax
import jax.numpy as jnp

import shoal as sh
from shoal.diagnostics.kernels import jacobian
from shoal.models import predict
from shoal.theory import descent


def theorem_d0(second_derivative):
    """Theorem D0, given ``second_derivative(setup)``: a bound L_J as a function of the radius."""

    def known(setup):
        residual = predict(setup.network, setup.params0, setup.inputs) - setup.targets
        J = jacobian(setup.network, setup.inputs, train=setup.trained)(setup.params0)
        return descent.around(J, second_derivative(setup)), jnp.linalg.norm(residual.ravel())

    # D0 is about half the sum of squares. A step on c times the sum counts 2 c times.
    def largest_step(setup):
        return descent.allowed_step(*known(setup)) / (2 * setup.squares_weight)

    def certificate(setup, run):
        ball_at, r0 = known(setup)
        half_sum = run._replace(risk=run.risk * 0.5 / setup.squares_weight)
        step = setup.step_size * 2 * setup.squares_weight
        size = jnp.linalg.norm(setup.targets.ravel()) + r0
        return descent.ball_descent(ball_at, r0, step, half_sum, output_size=size)

    return sh.Theorem(
        "theorem_d0", "Gradient descent converges in a ball.", "ours; docs/theory/qin2025.md",
        certificate, method="gd", probes=("distance",), largest_step=largest_step,
    )  # fmt: skip


# ------------------------------------------------------------------------------- a model of yours


def network(params, x):
    """One hidden layer of m tanh units: x has the shape (samples, dim)."""
    return jnp.tanh(x @ params["W"].T) @ params["a"] / len(params["a"]) ** 0.5


def of_network(setup):
    """For |x| <= B a unit's second derivative is at most 2 B |a'| |W'| + c |a| B^2 |W'|^2.

    The second derivative of tanh is at most c = 4 / 27^(1/2); the Frobenius norm bounds the form.
    """
    B, a = jnp.max(jnp.linalg.norm(setup.inputs, axis=1)), jnp.abs(setup.params0["a"])
    share = (len(setup.inputs) / len(a)) ** 0.5

    def at(radius):
        curved = 4 / 27**0.5 * (a + radius) * B**2
        return share * jnp.max(jnp.sqrt(2 * B**2 + curved**2))

    return at


def initial(key, units=2048, dim=6):
    """Twins with opposite output weights, so that all outputs are 0."""
    W = jax.random.normal(key, (units // 2, dim))
    signs = jnp.ones(units // 2)
    return {"W": jnp.concatenate([W, W]), "a": jnp.concatenate([signs, -signs])}


# ------------------------------------------------------------------------------- models of papers


def linear(_setup):
    """A model that is linear in what is trained."""
    return lambda _: 0.0


def heads(setup):
    """All weights of arda2026's heads (section 14 of the theory page derives it)."""
    s1, s2 = setup.setting.sigma.s1, setup.setting.sigma.s2
    X, params = setup.inputs, setup.params0
    B, k = (jnp.max(jnp.linalg.norm(a, axis=-1)) for a in (X, X[:, -1]))

    def at(radius):
        c = jnp.abs(params.c) + radius
        U = jnp.linalg.norm(params.U, axis=1) + radius
        gamma = B**2 * k * U
        UU = c * s2 * B**2
        UW = c * (s2 * B * gamma + s1 * B**2 * k)
        WW = c * (s2 * gamma**2 + s1 * U * B**3 * k**2)
        form = UU**2 + WW**2 + 2 * ((s1 * B) ** 2 + (s1 * gamma) ** 2 + UW**2)
        return (len(X) / len(params.c)) ** 0.5 * jnp.max(jnp.sqrt(form))

    return at


if __name__ == "__main__":
    key_x, key_y = jax.random.split(jax.random.key(1))
    x = jax.random.normal(key_x, (4, 6)) / 6**0.5
    y = 0.2 * jax.random.normal(key_y, (4,))
    small = {"num_samples": 5, "num_tokens": 3, "dim": 8, "width": 64, "train": "w_O"}
    layer = {"num_samples": 2, "num_tokens": 2, "dim": 8, "train": "W_V"}
    wide = {"num_samples": 4, "num_heads": 4096, "labels": "gaussian", "label_scale": 0.001}
    cases = {
        "your network": (sh.setup(network, initial, x, y), of_network),
        "wu2023, output weights": (sh.setup("wu2023", **small), linear),
        "song2024, value weights": (sh.setup("song2024", **layer), linear),
        "arda2026, all weights": (sh.setup("arda2026", radius="none", **wide), heads),
    }
    for name, (setup, bound) in cases.items():
        theorem = theorem_d0(bound)
        run = sh.train(setup, steps=50, step_size=theorem, probes=["distance"])
        found = sh.certify(run, theorem)
        print(f"\n{name}: {found.verdict}")
        for key in ("|r_0|", "r_max", "alpha", "beta", "L_J", "factor", "worst measured factor"):
            print(f"  {key:22s} {float(found[0].constants[key]):.4g}")
