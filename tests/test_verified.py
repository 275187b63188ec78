"""Enclosures against values at 300 bits, and rules against tampering."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from questions import attention, network, program, question
from shoal.activations import centred_softplus
from shoal.verified import balls, facts, jets, spectra
from shoal.verified.balls import Ball, exact
from shoal.verified.blocks import in_pieces
from shoal.verified.centre import evaluate
from shoal.verified.restrict import restrict
from shoal.verified.translate import translate
from shoal.verified.values import Weight

flint = pytest.importorskip("flint")
arb = flint.arb
rng = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def _at_300_bits():
    flint.ctx.prec = 300


def lifted(array):
    """An array of floats as exact numbers of 300 bits."""
    flat = [arb(float(x)) for x in np.ravel(array)]
    found = np.empty(len(flat), object)
    found[:] = flat
    return found.reshape(np.shape(array))


def each(name):
    return np.vectorize(lambda x: getattr(x, name)(), otypes=[object])


class Referee:
    """The functions that models use, on arrays of 300-bit numbers."""

    exp, tanh, erf, log, sqrt = (each(n) for n in ("exp", "tanh", "erf", "log", "sqrt"))

    @staticmethod
    def softmax(z):
        e = Referee.exp(z)
        return e / e.sum(-1, keepdims=True)

    @staticmethod
    def gelu(x):
        return arb("0.5") * x * (1 + Referee.erf(x * arb(0.7071067811865476)))

    @staticmethod
    def mean(x, **how):
        return x.sum(**how) / x.shape[-1]

    @staticmethod
    def exp2(x):
        return Referee.exp(x * arb(2).log())

    @staticmethod
    def cumsum(x):
        return np.cumsum(x, axis=-1)

    @staticmethod
    def add_at(x, at, values):
        found = x.copy()
        for place, value in zip(at, values, strict=True):
            found[place] = found[place] + value
        return found

    @staticmethod
    def convolve(x, kernel):
        """Rows with rows, stride 2, one zero in front."""
        rows = np.concatenate([np.full((len(x), 1), arb(0)), x], axis=1)
        starts = range(0, rows.shape[1] - len(kernel) + 1, 2)
        return np.stack([(rows[:, i : i + len(kernel)] * kernel).sum(1) for i in starts], 1)


class Jax:
    exp2, cumsum = jnp.exp2, staticmethod(lambda x: jnp.cumsum(x, axis=-1))
    add_at = staticmethod(lambda x, at, values: x.at[np.array(at)].add(values))

    @staticmethod
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x[:, None], kernel[None, None], (2,), ((1, 0),))[:, 0]

    exp, tanh, erf, log, sqrt, mean = jnp.exp, jnp.tanh, jax.lax.erf, jnp.log, jnp.sqrt, jnp.mean
    softmax = staticmethod(lambda z: jax.nn.softmax(z, axis=-1))
    gelu = staticmethod(lambda x: jax.nn.gelu(x, approximate=False))


def tanh_network(on, w, x):
    return on.tanh(x @ w[0] + w[1]) @ w[2]


def attention_layer(on, w, x):
    return on.softmax((x @ w[0]) @ (x @ w[1]).T) @ (x @ w[2])


def gaussian_layer(on, w, x):
    q, k = x @ w[0], x @ w[1]
    squares = ((q[:, None] - k[None]) ** 2).sum(-1)
    return on.exp(-squares / 2) @ (x @ w[2])


def normed_block(on, w, x):
    c = x @ w[0] - on.mean(x @ w[0], axis=-1, keepdims=True)
    c = c / on.sqrt(on.mean(c * c, axis=-1, keepdims=True) + 1e-5)
    return on.gelu(c @ w[1]) @ w[2]


def roots_and_logs(on, w, x):
    return on.log(on.exp(x @ w[0]).sum(-1)) * on.sqrt(w[1] * w[1] + 1.0) / (2.0 + on.erf(w[2]))


def sums(on, w, x):
    rows = on.cumsum(on.exp2(x @ w[0]))
    return on.add_at(on.convolve(rows, w[1]), (0, 1, 0), on.tanh(w[2]))


def sizes(*shapes):
    return tuple(rng.standard_normal(s) for s in shapes)


MODELS = {
    "tanh network": (tanh_network, sizes((3, 4), (4,), (4,)), rng.standard_normal((2, 3))),
    "attention": (attention_layer, sizes((3, 2), (3, 2), (3, 2)), rng.standard_normal((4, 3))),
    "gaussian attention": (gaussian_layer, sizes((3, 2), (3, 2), (3, 1)), sizes((4, 3))[0]),
    "normed block": (normed_block, sizes((3, 4), (4, 3), (3, 1)), rng.standard_normal((2, 3))),
    "sums": (sums, sizes((3, 5), (3,), (3, 2)), rng.standard_normal((2, 3))),
    "roots and logs": (roots_and_logs, sizes((3, 4), (2,), (2,)), rng.standard_normal((2, 3))),
}


def inside(ball, true):
    """Largest error over radius."""
    worst = 0.0
    for m, r, t in zip(ball.mid.ravel(), ball.rad.ravel(), true.ravel(), strict=True):
        error = max(float(abs(arb(float(m)) - t).upper()) - 1e-25, 0.0)  # of the referee itself
        worst = max(worst, error / r if r > 0 else (0.0 if error < 1e-60 else np.inf))
    return worst


@pytest.mark.parametrize("name", MODELS)
def test_values_and_derivatives_lie_in_their_balls(name):
    model, weights, x = MODELS[name]
    with jax.numpy_rank_promotion("allow"):
        made = program(lambda w, _, x: model(Jax, w, x), weights, (), x)
    found = evaluate(made, list(weights), order=2).output
    exact_weights, exact_x = [lifted(w) for w in weights], lifted(x)

    def value(moved):
        return np.ravel(model(Referee, moved, exact_x))

    assert inside(found.value, value(exact_weights)) <= 1
    step = arb(10) ** -30
    for block, W in enumerate(weights):
        part = found.first[block]
        for k in range(W.size):
            both = []
            for sign in (1, -1):
                moved = [w.copy() for w in exact_weights]
                moved[block].reshape(-1)[k] += sign * step
                both.append(value(moved))
            slope = (both[0] - both[1]) / (2 * step)
            assert inside(Ball(part.mid[k], part.rad[k]), slope) <= 1
            bend = (both[0] + both[1] - 2 * value(exact_weights)) / (step * step)
            second = found.second.get((block, block))
            if second is not None:
                assert inside(Ball(second.mid[k, k], second.rad[k, k]), bend) <= 1


FUNCTIONS = {
    "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "tanh": "tanh", "erf": "erf",
    "exp2": "exp", "erfc": "erfc", "sin": "sin", "cos": "cos", "sqrt": "sqrt", "rsqrt": "rsqrt",
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_enclosed_at_every_scale(name):
    scales = 10.0 ** rng.uniform(-6, 1.3, 300)
    points = scales * rng.choice([-1.0, 1.0], 300)
    points = np.abs(points) if name in ("log", "sqrt", "rsqrt") else points
    points = np.maximum(points, -0.9) if name == "log1p" else points
    widths = np.abs(points) * 10.0 ** rng.uniform(-16, -2, 300)
    found = balls.apply(name, Ball(points, widths))
    for side in (-1, 0, 1):  # anywhere in the ball
        at = [arb(float(p)) + side * arb(float(w)) for p, w in zip(points, widths, strict=True)]
        at = [a * arb(2).log() for a in at] if name == "exp2" else at
        true = np.array([getattr(a, FUNCTIONS[name])() for a in at], object)
        assert inside(found, true) <= 1


def test_logistic_and_softplus_are_enclosed():
    points = rng.uniform(-40, 40, 400)
    lifted_points = lifted(points)
    e = each("exp")(-lifted_points)
    assert inside(balls.apply("logistic", exact(points)), 1 / (1 + e)) <= 1
    log = each("log")(1 + each("exp")(lifted_points))
    assert inside(balls.apply("softplus", exact(points)), log) <= 1


def test_softplus_that_is_0_at_0_is_enclosed_without_cancellation():
    points = rng.choice([-1.0, 1.0], 400) * 10.0 ** rng.uniform(-12, 3, 400)
    found = balls.apply("centred_softplus", exact(points))
    flint.ctx.prec = 2000  # at 1000 the exponential has 1,443 bits
    true = each("log")((1 + each("exp")(lifted(points))) / 2)
    assert inside(found, true) <= 1
    assert np.all(found.rad <= 1e-13 * np.abs(found.mid) + 1e-130)
    by_jax = np.asarray(centred_softplus(jnp.asarray(points)))
    assert by_jax == pytest.approx(found.mid, rel=1e-15)
    wide = balls.apply("centred_softplus", Ball(points, 0.1 * np.abs(points)))
    for side in (-1, 1):
        ends = lifted(points) + side * lifted(0.1 * np.abs(points))
        assert inside(wide, each("log")((1 + each("exp")(ends)) / 2)) <= 1
    slope, bend = (f(0.0) for f in (jax.grad(centred_softplus), jax.hessian(centred_softplus)))
    assert (slope, bend) == (0.5, 0.25)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_arithmetic_is_enclosed(name):
    a, b = (rng.standard_normal(500) * 10.0 ** rng.uniform(-9, 9, 500) for _ in range(2))
    ra, rb = (np.abs(x) * 10.0 ** rng.uniform(-17, -3, 500) for x in (a, b))
    found = getattr(balls, name)(Ball(a, ra), Ball(b, rb))
    operation = {"add": "__add__", "sub": "__sub__", "mul": "__mul__", "div": "__truediv__"}[name]
    for s in (-1, 1):
        for t in (-1, 1):
            x, y = lifted(a) + s * lifted(ra), lifted(b) + t * lifted(rb)
            true = np.array([getattr(p, operation)(q) for p, q in zip(x, y, strict=True)], object)
            assert inside(found, true) <= 1


def test_products_of_matrices_and_sums_are_enclosed():
    A, B = rng.standard_normal((4, 60)) * 1e3, rng.standard_normal((60, 3))
    assert inside(balls.dot(exact(A), exact(B)), lifted(A) @ lifted(B)) <= 1
    assert inside(balls.total(exact(A)), lifted(A).sum(-1)) <= 1


def test_a_long_sum_has_the_general_bound():
    long = rng.standard_normal(200_000)
    found = balls.total(exact(long))
    true = sum((arb(float(x)) for x in long), arb(0))
    assert inside(Ball(found.mid[None], found.rad[None]), np.array([true], object)) <= 1
    assert balls.up(1.0, 10**9) - 1 > balls.gamma(10**9)


# -------------------------------------------------------------------------------------- spectra


def eigenvalues(S):
    n = len(S)
    matrix = flint.arb_mat(n, n, [arb(float(x)) for x in S.ravel()])
    return sorted(float(v.real) for v in flint.acb_mat(matrix).eig())


def test_extremes_of_symmetric_matrices_at_300_bits():
    for size in (2, 5, 9):
        B = rng.standard_normal((size, size))
        S = (B + B.T) / 2
        low, *_, high = eigenvalues(S)
        assert spectra.lambda_min(exact(S)) <= low <= high <= spectra.lambda_max(exact(S))
        assert spectra.lambda_max(exact(S)) - high < 1e-11 * max(abs(low), abs(high))


def test_singular_values_at_300_bits():
    for rows, columns in ((2, 5), (4, 4), (5, 9)):
        J = rng.standard_normal((rows, columns)) @ np.diag(10.0 ** rng.uniform(-4, 0, columns))
        squares = lifted(J) @ lifted(J).T
        matrix = flint.arb_mat(rows, rows, list(squares.ravel()))
        found = sorted(float(v.real) for v in flint.acb_mat(matrix).eig())
        low, high = np.sqrt(found[0]), np.sqrt(found[-1])
        assert low * (1 - 1e-9) <= spectra.sigma_min(exact(J)) <= low * (1 + 1e-14)
        assert high * (1 - 1e-14) <= spectra.spectral_norm(exact(J)) <= high * (1 + 1e-9)


def test_perron_bounds_the_largest_eigenvalue():
    for _ in range(50):
        S = np.abs(rng.standard_normal((4, 4))) * (rng.uniform(size=(4, 4)) < 0.6)
        S = S + S.T
        top = np.linalg.eigvalsh(S)[-1]
        found = float(spectra.perron(S))
        assert top <= found <= top * (1 + 1e-6) + 1e-12
    assert np.allclose(spectra.perron(np.diag([1.0, 2.0])[None]), [2.0])
    assert spectra.perron(np.array([[np.inf]])) == np.inf


# --------------------------------------------------------------------------- parts of a program


def batch_model(w, x):
    q, k, v = (x @ each for each in w[:3])
    h = x + jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2), axis=-1) @ v
    c = h - jnp.mean(h, -1, keepdims=True)
    h = c / jnp.sqrt(jnp.mean(c**2, -1, keepdims=True) + 1e-5)
    return jnp.tanh(h).mean(1) @ w[3]


def test_a_sample_is_cut_out_of_the_batch():
    weights, x = sizes((3, 3), (3, 3), (3, 3), (3, 2)), rng.standard_normal((3, 4, 3))
    closed = jax.make_jaxpr(batch_model)(weights, x)
    whole = translate(closed, [*map(Weight, range(4)), x])[0]
    expected, J = batch_model(weights, x), jax.jacrev(batch_model)(weights, x)
    for i in range(3):
        part, _ = restrict(whole, np.arange(2 * i, 2 * i + 2))
        found = evaluate(part, list(weights)).output
        assert np.allclose(found.value.mid, expected[i], atol=1e-13)
        for b, W in enumerate(weights):
            assert np.allclose(found.first[b].mid.T.reshape(2, *W.shape), J[b][i], atol=1e-12)
        dot = [op.options["sizes"] for op in part.operations if op.kind == "dot"]
        assert max(m for _, m, _, _ in dot) == 4  # tokens of one sample, not of three


def test_samples_that_are_coupled_stay_coupled():
    weights, x = sizes((3,)), rng.standard_normal((4, 3))
    closed = jax.make_jaxpr(lambda w, x: (x - jnp.mean(x @ w[0])) @ w[0])(weights, x)
    whole = translate(closed, [Weight(0), x])[0]
    part, _ = restrict(whole, np.array([1]))
    expected = (x - np.mean(x @ weights[0])) @ weights[0]
    assert np.allclose(evaluate(part, list(weights)).output.value.mid, expected[1], atol=1e-13)


def test_stacked_layers_are_separate_blocks():
    W = rng.standard_normal((3, 2, 2))

    def deep(w, x):
        return jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), x, w)[0]

    x = rng.standard_normal(2)
    whole = translate(jax.make_jaxpr(deep)(W, x), [Weight(0), x])[0]
    finer = in_pieces(whole, 1)
    assert finer.block == (0, 0, 0)
    pieces = [W.ravel()[at] for at in finer.entries]
    assert np.allclose(np.concatenate(pieces), W.ravel())
    found = evaluate(finer.program, pieces).output
    assert np.allclose(found.value.mid, deep(W, x), atol=1e-14)
    alone = evaluate(whole, [W]).output
    joined = np.concatenate([found.first[k].mid for k in range(3)])
    assert np.allclose(joined, alone.first[0].mid, atol=1e-14)


# ------------------------------------------------------------------------------------- tampering

ATTAINED = [  # function, where its derivative of some order is largest
    ("tanh", jnp.tanh, 0.6584789, 2), ("tanh", jnp.tanh, 0.0, 3),
    ("logistic", jax.nn.sigmoid, 1.3169579, 2), ("logistic", jax.nn.sigmoid, 0.0, 3),
    ("softplus", jax.nn.softplus, 0.0, 2), ("softplus", jax.nn.softplus, 1.3169579, 3),
    ("centred_softplus", centred_softplus, 0.0, 2),
    ("centred_softplus", centred_softplus, 1.3169579, 3),
    ("erf", jax.lax.erf, 0.7071068, 2), ("erf", jax.lax.erf, 0.0, 3),
    ("erfc", jax.lax.erfc, 0.7071068, 2), ("erfc", jax.lax.erfc, 0.0, 3),
    ("gelu", lambda x: jax.nn.gelu(x, approximate=False), 1.4142136, 1),
    ("gelu", lambda x: jax.nn.gelu(x, approximate=False), 0.0, 2),
    ("gelu", lambda x: jax.nn.gelu(x, approximate=False), 0.79229, 3),
    ("silu", jax.nn.silu, 2.3993573, 1), ("silu", jax.nn.silu, 0.0, 2),
    ("silu", jax.nn.silu, 1.03196, 3), ("sin", jnp.sin, 0.0, 3), ("cos", jnp.cos, 0.0, 2),
]  # fmt: skip


def ratio(function, x, order, radius=1e-9):
    """The true derivative over its bound."""
    made = program(lambda w, _, one: one * function(w[0]), (x,), (), 1.0)
    found = evaluate(made, [np.array(x)])
    jet = jets.bounds(made, found.values, np.array([radius]), np.ones(1), order=3).jet
    derivative = function
    for _ in range(order):
        derivative = jax.grad(derivative)
    return abs(float(derivative(x))) / float(jet[order - 1].ravel()[0])


@pytest.mark.parametrize(("name", "function", "x", "order"), ATTAINED)
def test_a_bound_times_nine_tenths_is_refuted(name, function, x, order, monkeypatch):
    assert 0.999 <= ratio(function, x, order) <= 1 + 1e-12
    right = jets.SLOPES[name]

    def wrong(*given):
        return tuple(M * (0.9 if k + 1 == order else 1.0) for k, M in enumerate(right(*given)))

    monkeypatch.setitem(jets.SLOPES, name, wrong)
    assert ratio(function, x, order) > 1.05


def test_a_dropped_root_is_refuted(monkeypatch):
    made = question(
        lambda w, _, x: jnp.broadcast_to(w[0] * x, (4,)), (1.0,), [1.0], [np.ones(4)], 0.1
    )
    facts.on_balls(made, facts.facts(made), np.array([1e-3]))
    monkeypatch.setattr(jets, "_root", lambda _: 1.0)
    with pytest.raises(AssertionError, match="wrong rule"):
        facts.on_balls(made, facts.facts(made), np.array([1e-3]))


@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_a_halved_radius_is_refuted(name):
    a, b = rng.standard_normal(400), rng.standard_normal(400)
    width = np.abs(a) * 1e-9
    found = getattr(balls, name)(Ball(a, width), exact(b))
    x, y = lifted(a) + lifted(width), lifted(b)
    true = {"add": x + y, "mul": x * y, "div": x / y}[name]
    assert inside(found, true) <= 1
    assert inside(Ball(found.mid, found.rad / 2), true) > 1


def smallest_of_two(J):
    """The smaller singular value of two rows, at 300 bits."""
    (a, b), (_, d) = lifted(J) @ lifted(J).T
    trace, det = a + d, a * d - b * b
    return float(((trace - (trace * trace - 4 * det).sqrt()) / 2).sqrt())


def test_sigma_by_svd_would_be_refuted():
    shares = {"svd": [], "ours": []}
    for k in range(1, 20):
        J = np.array([[1.0, 1, 1], [1, 1, 1 + k * 2.0**-40]]) * rng.choice([1 / 3, 0.7, 1.3])
        true = smallest_of_two(J)
        shares["ours"].append(spectra.sigma_min(exact(J)) / true)
        shares["svd"].append(np.linalg.svd(J, compute_uv=False)[-1] / true)
    assert 0.9 < min(shares["ours"]) <= max(shares["ours"]) <= 1
    assert max(shares["svd"]) > 1 + 1e-6  # what a guess may say


def test_a_singular_matrix_needs_the_shift(monkeypatch):
    """Whole numbers: the products are exact, and the smallest eigenvalue is 0."""
    singular = []
    for _ in range(20):
        B = rng.integers(-9, 10, (8, 7)).astype(float)
        singular.append(exact(B @ B.T))
    assert max(spectra.lambda_min(S) for S in singular) <= 0
    monkeypatch.setattr(spectra, "lambda_max", lambda S: np.linalg.eigvalsh(S.mid)[-1])
    assert max(spectra.lambda_min(S) for S in singular) > 0  # no shift, no residual: a guess


def test_rounding_outward_is_needed(monkeypatch):
    draws = rng.standard_normal((200, 7))
    true = [sum((x * x for x in lifted(row)), arb(0)).sqrt() for row in draws]

    def too_small():
        return sum(bool(balls.norm(exact(row)) < t) for row, t in zip(draws, true, strict=True))

    assert too_small() == 0
    for made in (network((1.34, -0.03)), attention()):
        found = facts.facts(made)
        assert found.sigma < found.jacobian_norm
    monkeypatch.setattr(balls, "up", lambda value, terms=0: value)
    assert too_small() > 20


def test_samples_that_need_none_of_a_part_are_cut_out_too():
    """A sample behind one part of a join, and one behind padding only."""

    def model(w, _, x):
        joined = jnp.concatenate([jnp.tanh(x[:2] * w[0]), jnp.sin(x[2:] * w[1])])
        return joined + jnp.pad(w[0], (0, 2))

    weights = (np.array([0.3]), np.array([0.2]))
    with jax.numpy_rank_promotion("allow"):
        made = program(model, weights, (), np.array([1.0, 2.0, 3.0]))
    whole = evaluate(made, list(weights)).output.value.mid
    for k in range(3):
        part, _ = restrict(made, np.array([k]))
        assert evaluate(part, list(weights)).output.value.mid == pytest.approx(whole[k], rel=1e-15)
