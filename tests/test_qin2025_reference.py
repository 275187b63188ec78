"""The witness of qin2025 meets the worked numbers of its page, and finite differences."""

import math

import numpy as np
import pytest

import qin2025_reference as reference
from qin2025_reference import Choice, Model, Weights

DIGITS = 2e-9  # the page prints ten significant digits
HALF = Choice(0.5, 0.5)
MODEL = Model()


def close(ours, printed, rtol=DIGITS):
    np.testing.assert_allclose(ours, printed, rtol=rtol)


def example_1():
    block = {
        "W_Q": np.array([[1.0], [0.0]]),
        "W_K": np.array([[0.0], [1.0]]),
        "W_V": np.array([[0.0, 0.1], [0.1, 0.0]]),
        "W_1": np.array([[1.0, 0.0], [1.0, 1.0]]),
        "W_2": np.array([[0.5, 0.5], [0.0, -0.5]]),
    }
    return Weights([block], np.array([[1.0], [2.0]])), np.array([[[2.0, 0.0], [0.0, 1.0]]])


def example_2():
    e = np.eye(4)
    flip = e[::-1]
    first = {
        "W_Q": np.array([[1, 0], [0, 1], [1, 0], [0, 1]]) / 2,
        "W_K": np.array([[0, 1], [1, 0], [0, 1], [-1, 0]]) / 2,
        "W_V": e / 10,
        "W_1": e,
        "W_2": e / 10,
    }
    second = {
        "W_Q": np.array([[0, 1], [1, 0], [0, 1], [1, 0]]) / 2,
        "W_K": np.array([[1, 0], [0, 1], [-1, 0], [0, 1]]) / 2,
        "W_V": flip / 10,
        "W_1": e,
        "W_2": e / 10,
    }
    X = np.array([[e[0], e[1]], [e[2], e[2] + e[3]]])
    return Weights([first, second], e[:, :2]), X


def random_problem(rng, model, num_blocks=2, size=0.5):
    N, n, d, dk, m, c = 2, 3, 6, 2, 7, 2
    shapes = {"W_Q": (d, dk), "W_K": (d, dk), "W_V": (d, d), "W_1": (d, m), "W_2": (m, d)}
    blocks = [
        {name: size * rng.normal(size=shape) for name, shape in shapes.items()}
        for _ in range(num_blocks)
    ]
    rows = n * d if model.output == "vec" else d
    return Weights(blocks, size * rng.normal(size=(rows, c))), rng.normal(size=(N, n, d))


# ------------------------------------------------------------------------------------- gradient


@pytest.mark.parametrize("output", ["tokens", "mean", "vec"])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["relu", "leaky", "smooth_leaky", "gelu"])
def test_gradient_is_that_of_finite_differences(name, causal, layer_norm, output):
    model = Model(
        getattr(reference, name)(),
        residual_attention=0.7,
        branch_scale=0.6,
        score_exponent=1.0 if causal else 0.5,
        causal=causal,
        layer_norm=layer_norm,
        output=output,
    )
    rng = np.random.default_rng(0)
    weights, X = random_problem(rng, model)
    Y = rng.normal(size=reference.outputs(weights, X, model).shape)
    gradient = reference.loss_gradient(weights, X, Y, model)
    theta = reference.flatten(weights)
    for _ in range(3):
        direction = rng.normal(size=theta.size)
        up, down = (
            reference.loss(reference.unflatten(theta + t * direction, weights), X, Y, model)
            for t in (1e-6, -1e-6)
        )
        close((up - down) / 2e-6, gradient @ direction, rtol=1e-6)
    J = reference.jacobian(weights, X, model)
    close(J.T @ (reference.outputs(weights, X, model) - Y), gradient, rtol=1e-10)


@pytest.mark.parametrize("name", ["smooth_leaky", "gelu"])
def test_activation_stays_within_its_bounds(name):
    phi, x = getattr(reference, name)(), np.linspace(-9, 9, 3601)
    slopes = np.array([phi.slope(float(t)) for t in x])
    bends = np.abs(np.diff(slopes)) / np.diff(x)
    assert phi.value(0.0) == 0
    assert max(abs(slopes)) <= phi.top + 1e-12
    assert 0.999 < bends.max() / phi.curvature <= 1 + 1e-6
    assert phi.floor <= slopes.min() or name == "gelu"
    values = np.array([phi.value(float(t)) for t in x])
    errors = np.diff(values) / np.diff(x) - (slopes[1:] + slopes[:-1]) / 2
    assert abs(errors).max() < 1e-5


def test_masked_attention_looks_at_a_prefix():
    weights, X = random_problem(np.random.default_rng(1), MODEL)
    causal = MODEL._replace(causal=True)
    trace = reference.traces(weights, X[0], causal)[0]
    assert np.all(np.triu(trace["S"], 1) == 0)
    close(trace["S"].sum(axis=1), 1)
    short = reference.traces(weights, X[0, :2], causal)[-1]["H"]
    close(reference.traces(weights, X[0], causal)[-1]["H"][:2], short, rtol=1e-12)


# ------------------------------------------------------------------------------------- example 1


def test_example_1_forward():
    weights, X = example_1()
    trace = reference.traces(weights, X[0], MODEL)[0]
    close(trace["S"], [[0.119202922, 0.880797078], [0.5, 0.5]])
    close(trace["A"], [[2.088079708, 0.0238405844], [0.05, 1.1]])
    close(reference.singular_values(trace["A"]), [2.089511001, 1.098676029])
    close(reference.singular_values(trace["Phi"]), [1.953253069, 0.7061051603])
    close(reference.singular_values(trace["H"]), [3.173167073, 0.9077096475])
    close(reference.outputs(weights, X, MODEL), [4.680227902, 2.720098372])
    J = reference.jacobian(weights, X, MODEL)
    close(reference.singular_values(J), [7.47508319, 3.766408241])


@pytest.mark.parametrize(
    ("variant", "second_order", "rest"),
    [
        (
            "basic",
            [22.63910158, 43.77103412, 54.28749674, 82.60555729],
            [29.87762741, 209.2111506, 1.674296735],
        ),
        (
            "sharp",
            [14.40589067, 30.36708692, 40.88354954, 63.39428583],
            [26.78907507, 143.3651568, 2.332756673],
        ),
    ],
)
def test_example_1_constants(variant, second_order, rest):
    start = reference.start_numbers(*example_1(), MODEL)
    at = reference.ball_constants(start, 0.01, variant)
    [[row]] = at["blocks"]
    first_order = [row[name] for name in ("z_1", "z_2", "a_1", "A_bar", "p_1", "Phi_bar", "h_1")]
    close(
        first_order,
        [5.713422792, 4, 3.456903632, 2.124080037, 7.752036646, 2.030773435, 11.83672682],
    )
    close([row[name] for name in ("a_2", "p_2", "f_2", "h_2")], second_order)
    close(at["routes"], [0.7893423793, 1.399272481, 0.565751037])
    close(at["alpha_lay"], 1.703261314)
    close([at["beta"], at["L_J"], at["alpha_ntk"]], rest)


def test_example_1_largest_admissible_residual():
    start = reference.start_numbers(*example_1(), MODEL)
    printed = {
        ("basic", "lay"): (0.01031652159, 0.04239),
        ("sharp", "lay"): (0.01031652159, 0.04239),
        ("basic", "ntk"): (0.004263900842, 0.008836),
        ("sharp", "ntk"): (0.006112061562, 0.01266),
    }
    for (variant, route), (value, radius) in printed.items():
        found, rho = reference.r_max(start, variant, route)
        close(found, value)
        close(rho, radius, rtol=5e-4)
        close(reference.r_max(start, variant, route, HALF)[0], 2 * found, rtol=1e-12)


@pytest.mark.parametrize(
    ("variant", "choice", "printed", "norms"),
    [
        (
            "basic",
            Choice(),
            [0.03493619185, 1.14494448, 32.63376601, 241.2788232, 0.0009390000374, 0.9996922667],
            [0.009534856084, 0.006355564432],
        ),
        (
            "basic",
            HALF,
            [0.01205809209, 1.658637192, 30.09518401, 211.7161107, 0.000552046929, 0.9992406381],
            [0.009726279414, 0.007631010784],
        ),
        (
            "sharp",
            HALF,
            [0.01205809209, 1.658637192, 26.98301675, 144.6020974, 0.0006867347093, 0.9990553699],
            [0.009659607716, 0.007154782311],
        ),
    ],
)
def test_example_1_run(variant, choice, printed, norms):
    weights, X = example_1()
    start = reference.start_numbers(weights, X, MODEL)
    found = reference.certificate(start, 0.01, variant, "lay", choice)
    close([found[name] for name in ("rho", "alpha", "beta", "L_J", "eta", "factor")], printed)
    Y = reference.outputs(weights, X, MODEL) - np.array([0.006, 0.008])
    r, iterates = reference.gradient_descent(weights, X, Y, MODEL, found["eta"], 10)
    close(r[[1, 10]], norms)
    assert np.all(r[1:] <= found["factor"] * r[:-1])
    path = np.diff([reference.flatten(w) for w in iterates], axis=0)
    assert np.linalg.norm(path, axis=1).sum() <= found["rho"]


def test_the_smallest_radius_is_left_of_a_dip():
    start = reference.start_numbers(*example_1(), MODEL)
    found = reference.certificate(start, 0.0061, "sharp", "best")
    close([found["rho"], found["alpha"]], [0.01210767361, 2.015250888])
    # feasible as well, larger, and what plain bisection up to the maximiser finds
    assert reference.admissible(start, 0.0148, "sharp", "best", Choice()) < 0.0061
    assert reference.admissible(start, 0.0154, "sharp", "best", Choice()) > 0.0061


def test_a_true_statement_may_be_too_small_for_float64():
    [block], W_U = example_1()[0]
    X, block = example_1()[1], block | {"W_2": 0.3 * block["W_2"]}
    weights = Weights([block] * 7, W_U)
    start = reference.start_numbers(weights, X, MODEL)
    r_0 = 0.999 * reference.r_max(start)[0]
    found = reference.certificate(start, r_0)
    size = start.output_norm
    assert found["lost"] > 1e-12  # both
    assert r_0 > 1e-8 * size  # look harmless
    assert not reference.resolved(found["lost"], r_0, size, size, steps=10_000)
    assert reference.resolved(found["lost"], r_0, size, size, steps=10**6)
    start = reference.start_numbers(*example_1(), MODEL)
    lost = reference.certificate(start, 0.01)["lost"]
    assert reference.resolved(lost, 0.01, start.output_norm, start.output_norm, steps=1)


def test_no_certificate_above_the_largest_residual():
    start = reference.start_numbers(*example_1(), MODEL)
    assert reference.certificate(start, 0.0104) is None
    assert reference.certificate(start, 0.0103) is not None


# ------------------------------------------------------------------------------------- example 2


def test_example_2_forward():
    weights, X = example_2()
    last = [reference.traces(weights, x, MODEL)[-1] for x in X]
    A, Phi, H = (np.concatenate([trace[name] for trace in last]) for name in ("A", "Phi", "H"))
    close(reference.singular_values(A), [1.929731196, 1.153109584, 1.064161146, 0.668747988])
    close([reference.sigma(Phi, 4), reference.sigma(H, 4)], [0.5009769667, 0.7188454358])
    J = reference.jacobian(weights, X, MODEL)
    assert J.shape == (8, 136)
    close([reference.norm(J), reference.sigma(J, 8)], [3.931990664, 1.078650069])


def test_example_2_constants():
    start = reference.start_numbers(*example_2(), MODEL)
    tables = {v: reference.ball_constants(start, 1e-3, v) for v in ("basic", "sharp")}
    printed = {
        ("basic", 0, "z_1"): (0.7081067812, 1.853847621),
        ("basic", 0, "a_1"): (1.449972955, 2.439724829),
        ("basic", 0, "h_1"): (2.517221269, 4.178542274),
        ("basic", 0, "h_2"): (6.416491806, 13.6304115),
        ("sharp", 0, "h_2"): (6.352562518, 12.92142482),
        ("basic", 1, "x"): (1.183202749, 1.903863474),
        ("basic", 1, "z_1"): (3.103323245, 8.207892815),
        ("basic", 1, "a_1"): (4.735500338, 8.257005006),
        ("basic", 1, "f_1"): (5.931545609, 10.18233617),
        ("basic", 1, "h_1"): (6.216624349, 10.71830918),
        ("basic", 1, "z_2"): (22.79706045, 65.21239908),
        ("basic", 1, "h_2"): (37.66808389, 103.3517685),
        ("sharp", 1, "z_2"): (19.24909495, 54.92175373),
        ("sharp", 1, "h_2"): (35.90137393, 85.01701795),
    }
    for (variant, block, name), pair in printed.items():
        close([row[name] for row in tables[variant]["blocks"][block]], pair)
    for variant, rest in (
        ("basic", [14.48861514, 134.8934796, 0.9437565896]),
        ("sharp", [12.57717538, 94.0118839, 0.9846381852]),
    ):
        at = tables[variant]
        close(at["routes"], [0.7064547711, 0.4887037505, 0.01955913919])
        close(at["alpha_lay"], 0.8592393493)
        close([at["beta"], at["L_J"], at["alpha_ntk"]], rest)


def test_example_2_largest_admissible_residual():
    start = reference.start_numbers(*example_2(), MODEL)
    found, rho = reference.r_max(start, "basic", "lay")
    close(found, 0.002521245094)
    close(rho, 0.02197, rtol=5e-4)
    close(reference.r_max(start, "basic", "ntk")[0], 5.215557765e-4)
    close(reference.r_max(start, "sharp", "ntk")[0], 7.400291023e-4)


# ---------------------------------------------------------------------------- bounds and lemmas


def test_softmax_lemmas_hold_and_are_attained():
    rng = np.random.default_rng(3)
    for n in (2, 3, 5):
        for _ in range(300):
            s, v = rng.dirichlet(np.full(n, 0.7)), rng.normal(size=n)
            assert np.linalg.norm(reference.softmax_first(s, v)) <= 0.5 * (v @ v) ** 0.5 + 1e-15
            second = np.linalg.norm(reference.softmax_second(s, v))
            assert second <= math.sqrt(6) / 9 * (v @ v) + 1e-15
    v = np.array([1.0, -1.0]) / math.sqrt(2)
    close(np.linalg.norm(reference.softmax_first(np.array([0.5, 0.5]), v)), 0.5)
    s = np.array([1 + 1 / math.sqrt(3), 1 - 1 / math.sqrt(3)]) / 2
    close(np.linalg.norm(reference.softmax_second(s, v)), math.sqrt(6) / 9)


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        Model(branch_scale=0.5, score_exponent=1.0, causal=True),
        Model(output="mean", branch_scale=1 / math.sqrt(2)),
        Model(output="vec", causal=True, residual_attention=0.0),
        Model(reference.gelu(), residual_feedforward=0.0, output="mean"),
        Model(reference.gelu(), score_exponent=0.0),
    ],
    ids=["plain", "causal", "mean", "vec", "gelu-mean", "gelu"],
)
def test_constants_hold_on_the_ball(model):
    rng = np.random.default_rng(4)
    weights, X = random_problem(rng, model, size=0.3)
    start = reference.start_numbers(weights, X, model)
    theta = reference.flatten(weights)
    for variant in ("basic", "sharp"):
        rho = 0.1 * reference.dead_radius(start, variant, "best")
        at = reference.ball_constants(start, rho, variant)
        assert at["alpha_best"] > 0
        moves = rng.normal(size=(3, theta.size))
        points = theta + rho * moves / np.linalg.norm(moves, axis=1, keepdims=True)
        Js = [reference.jacobian(reference.unflatten(p, weights), X, model) for p in points]
        for J in Js:
            assert reference.norm(J) <= at["beta"]
            assert reference.sigma(J, len(J)) >= at["alpha_best"]
        distance = np.linalg.norm(points[0] - points[1])
        assert reference.norm(Js[0] - Js[1]) <= at["L_J"] * distance


def test_routes_without_enough_columns_are_zero():
    rng = np.random.default_rng(5)
    weights, X = random_problem(rng, MODEL)
    many = np.concatenate([X, X + 1])  # 12 rows, width 6, feed-forward width 7
    start = reference.start_numbers(weights, many, MODEL)
    assert start.sigma_H == start.sigma_Phi == start.sigma_A == 0
    assert start.sigma_J > 0
    assert reference.r_max(start, "sharp", "lay") == (0, 0)
    assert reference.r_max(start, "sharp", "best")[0] > 0


def test_singular_values_that_are_rounding_count_as_zero():
    none = Model(residual_attention=0.0, residual_feedforward=0.0)
    weights, X = random_problem(np.random.default_rng(6), none, num_blocks=4, size=0.2)
    H = np.concatenate([reference.traces(weights, x, none)[-1]["H"] for x in X])
    assert 0 < reference.sigma(H, len(H)) < 1e-15 * reference.norm(H)
    start = reference.start_numbers(weights, X, none)
    assert start.sigma_H == start.sigma_J == 0
    assert reference.r_max(start, "sharp", "best") == (0, 0)


def test_kinks_and_layer_norm_have_no_constants():
    weights, X = example_1()
    for model in (
        Model(reference.relu()),
        Model(reference.leaky()),
        Model(layer_norm=True),
    ):
        with pytest.raises(ValueError, match="neither"):
            reference.start_numbers(weights, X, model)


# --------------------------------------------------------------------------------- conditioning


def test_conditioning_by_hand():
    found = reference.conditioning(np.array([[3.0, 0.0], [0.0, 1.0]]), num_tokens=2)
    close([found["sigma_max"], found["sigma_min"], found["kappa"]], [3, 1, 3])
    close(found["stable_rank"], 10 / 9)
    close(found["centred_share"], math.sqrt((2 * 1.5**2 + 2 * 0.5**2) / 10))
    tall = reference.conditioning(np.ones((4, 2)), num_tokens=2)
    assert tall["sigma_min"] == 0
    assert math.isinf(tall["kappa"])
    assert tall["centred_share"] == 0


def test_weyl_bounds_the_residual_sum():
    weights, X = example_1()
    trace = reference.traces(weights, X[0], MODEL)[0]
    low, high = reference.weyl(X[0], trace["A"] - X[0])
    found = reference.conditioning(trace["A"], num_tokens=2)
    assert 0 < low <= found["sigma_min"]
    assert found["kappa"] <= high


def test_small_logits_collapse_plain_attention_but_not_masked():
    for n in (4, 16):
        plain = reference.attention_weights(np.zeros((n, n)), MODEL)
        masked = reference.attention_weights(np.zeros((n, n)), MODEL._replace(causal=True))
        assert reference.sigma(plain, 2) < 1e-15
        assert reference.norm(masked) < 2
        assert 1 / reference.sigma(masked, n) <= 2 * n - 1
