"""Theorems A and B against the worked numbers, random search, and runs that break them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import small, start_of
from shoal.certificates import Verdict, read_hypothesis, readings, verdict
from shoal.experiments import allowed_step, certify, prepare, simulate, theorem_of
from shoal.methods import gradient_descent, gradient_flow
from shoal.models import empirical_risk
from shoal.papers import wu2023
from shoal.papers.wu2023 import theorems
from shoal.papers.wu2023.encoder import Scales, Weights, attention, encoder, features
from shoal.papers.wu2023.theorems import Start
from shoal.problems import Problem
from shoal.training import run

ALL_MOVE = {"W_Q": 1.0, "W_K": 1.0, "W_V": 1.0, "w_O": 1.0}
EYE = jnp.eye(2)
EXAMPLE_1 = Start(
    Problem(EYE[None], jnp.array([0.01])),
    Weights(EYE, EYE, EYE, jnp.array([0.01, -0.01])),
    Scales(1.0, 1.0, 1.0),
    1.0,
)


def example_2(score):
    return Start(
        Problem(EYE[None], jnp.array([-0.0125])),
        Weights(1e-6 * EYE, 1e-6 * EYE, EYE, jnp.array([0.001, -0.001])),
        Scales(score, 1.0, 1.0),
        1.0,
    )


def worked(constants, expected):
    for name, value in expected.items():
        assert float(constants[name]) == pytest.approx(value, rel=2e-9), name


def descend(start, step_size, num_steps, method=gradient_descent):
    model = encoder(start.params0.W_Q.shape[1], start.params0.W_Q.shape[0], start.scales)
    risk = empirical_risk(model, start.problem, wu2023.PAPER.loss)
    speeds = dict.fromkeys(("W_Q", "W_K", "W_V"), start.ratio)
    probes = {
        "movement": wu2023.dynamics.movement(start.params0),
        "feature_sigma_min": wu2023.layers.feature_sigma_min(
            lambda p, x: features(p, x, start.scales), start.problem.X
        ),
        "feature_norm": wu2023.layers.feature_norm(
            lambda p, x: features(p, x, start.scales), start.problem.X
        ),
    }
    return run(method(step_size, speeds), risk, start.params0, num_steps=num_steps, probes=probes)


# --------------------------------------------------------------------------- worked numbers


def test_example_1_start():
    worked(
        theorems.start_constants(EXAMPLE_1),
        {"E_0": 0.01, "alpha": 1.414213562, "norm_F": 1.414213562, "R": 1, "c_X": 0.5, "rho": 2}
        | {"q_0": 1, "k_0": 1, "v_0": 1, "o_0": 0.01414213562},
    )
    B = attention(EXAMPLE_1.params0, EYE, EXAMPLE_1.scales)
    assert B[0].tolist() == pytest.approx([0.7310585786, 0.2689414214], rel=1e-9)
    model = encoder(2, 2, EXAMPLE_1.scales)
    gradient = jax.grad(empirical_risk(model, EXAMPLE_1.problem, wu2023.PAPER.loss))(
        EXAMPLE_1.params0
    )
    norms = [float(jnp.linalg.norm(g)) for g in gradient]
    assert norms == pytest.approx([7.86447733e-5, 7.86447733e-5, 2e-4, 0.01414213562], rel=1e-8)


def test_example_1_theorem_a():
    worked(
        theorems.descent_constants(EXAMPLE_1),
        {"b": 0.08, "lambda_O": 0.09474852619, "lambda_V": 1.007579882, "mu": 0.003818668354}
        | {"lambda_Q": 1.003833306, "lambda_K": 1.003833306, "zeta": 1.511507707}
        | {"D": 0.5728525103, "c_5": 0.03240543157, "c_6": 0.4342154486, "phi": 2.015159764}
        | {"gamma_basic": 0.01474272808, "chi": 0.3871689496, "gamma_max": 0.09534140636},
    )


def test_example_1_theorem_b():
    worked(
        theorems.flow_constants(EXAMPLE_1),
        {"b": 0.04, "lambda_O": 0.05422890187, "lambda_V": 1.002169156, "mu": 0.001086930656}
        | {"lambda_Q": 1.001088113, "zeta": 1.503264942, "D": 0.3260816281, "c_5": 0.009222981219},
    )


@pytest.mark.parametrize(
    ("step", "losses", "factor"),
    [
        (0.01474272808, (4.709417468e-5, 2.747522904e-5), 0.992628636),
        (0.09534140636, (3.274567466e-5, 7.256702564e-7), 0.9523292968),
    ],
)
def test_example_1_runs(step, losses, factor):
    out = descend(EXAMPLE_1, step, 10)
    assert float(out.risk[0]) == pytest.approx(5e-5, rel=1e-9)
    # the step itself is given to ten digits, which the tenth power of a contraction amplifies
    assert (float(out.risk[1]), float(out.risk[10])) == pytest.approx(losses, rel=1e-8)
    certificate = theorems.theorem_a(EXAMPLE_1, step * (1 - 1e-8), ALL_MOVE, out)
    assert 1 - float(certificate.predicted_rate) == pytest.approx(factor, rel=1e-8)
    assert verdict(certificate) == Verdict.HOLDS


def test_example_1_flow():
    out = descend(EXAMPLE_1, 0.1, 10, gradient_flow)
    certificate = theorems.theorem_b(EXAMPLE_1, 0.1, ALL_MOVE, out)
    assert verdict(certificate) == Verdict.HOLDS
    # frozen hidden layers would give the rate 2 alpha^2; the proved one is alpha^2 / 2
    ratio = float(certificate.measured_rate) / float(certificate.predicted_rate)
    assert ratio == pytest.approx(4, rel=0.01)


def test_example_2_at_190_has_radii():
    c = theorems.descent_constants(example_2(190.0))
    worked(
        c,
        {"E_0": 0.0125, "b": 0.1, "lambda_O": 0.1024385996, "lambda_V": 1.01024386}
        | {"mu": 0.9831356791, "lambda_Q": 5.929678453e-5, "zeta": 1.000064773}
        | {"c_5": 0.02897588809, "c_6": 0.3358190842, "gamma_basic": 0.01467916157}
        | {"chi": 0.4123317392, "gamma_max": 0.1010030144},
    )
    assert np.isfinite(float(theorems.largest_step(example_2(190.0))))


def test_example_2_at_194_has_none_although_iteration_would_find_some():
    start = example_2(194.0)
    c = theorems.descent_constants(start)
    worked(c, {"mu": 1.003833272})
    assert np.isnan(float(theorems.largest_step(start)))
    out = descend(start, 0.01, 5)
    assert verdict(theorems.theorem_a(start, 0.01, ALL_MOVE, out)) == Verdict.NOT_APPLICABLE
    # the trap: 400 fixed-point iterations from zero look certified
    r, E, a2 = 1.0, float(c["E_0"]), float(c["alpha"]) ** 2
    push = 8 * r * float(c["rho"]) * 194.0 * float(c["c_X"]) * E / a2
    push *= float(c["lambda_V"] * c["lambda_O"])
    delta_Q = delta_K = 0.0
    for _ in range(400):
        delta_Q, delta_K = push * (1e-6 + delta_K), push * (1e-6 + delta_Q)
    assert delta_Q < 2e-3
    b = theorems.flow_constants(start)
    worked(b, {"b": 0.05, "mu": 0.2506281424, "lambda_Q": 1.334450967e-6, "c_5": 0.007289291285})
    flow = descend(start, 0.05, 5, gradient_flow)
    assert verdict(theorems.theorem_b(start, 0.05, ALL_MOVE, flow)) == Verdict.HOLDS


def test_rescaling_the_output_leaves_the_certificate_unchanged():
    setting = small(width=64, tokens="unit", label_scale=0.1)
    problem, params, scales = start_of(setting)
    a = 3.0
    one = Start(problem, params, scales, 0.2)
    two = Start(
        problem,
        params._replace(w_O=params.w_O / a),
        scales._replace(output=a * scales.output),
        0.2 * a**2,
    )
    c, d = theorems.descent_constants(one), theorems.descent_constants(two)
    for name in ("mu", "c_5", "c_6"):
        assert float(c[name]) == pytest.approx(float(d[name]), rel=1e-10), name
    assert float(c["b"]) * 0.2**0.5 == pytest.approx(float(d["b"]) * 0.2**0.5 * a, rel=1e-10)
    np.testing.assert_allclose(
        descend(one, 0.01, 20).risk, descend(two, 0.01 / a**2, 20).risk, rtol=1e-10
    )


# ------------------------------------------------------------------- lemmas, by random search

seeds = st.integers(0, 100_000)


def random_start(seed):
    rng = np.random.default_rng(seed)
    N, n, d, m = 3, 3, 3, 4  # one shape: one compilation
    scale = lambda: 10 ** rng.uniform(-1, 1)  # noqa: E731
    draw = lambda *shape: jnp.asarray(scale() * rng.normal(size=shape))  # noqa: E731
    weights = Weights(draw(m, d), draw(m, d), draw(m, d), draw(m))
    scales = Scales(*(jnp.asarray(scale()) for _ in range(3)))
    return Start(Problem(draw(N, n, d), draw(N)), weights, scales, 1.0), rng


@jax.jit
def gradient_norms_and_bounds(start):
    """Norms of the gradients, and lemma 3's bounds."""
    c = theorems.start_constants(start)
    g = jax.grad(empirical_risk(encoder(3, 4, start.scales), start.problem, wu2023.PAPER.loss))(
        start.params0
    )
    common = c["rho"] * c["tau_0"] * c["c_X"] * c["v_0"] * c["o_0"] * c["E_0"]
    bounds = [common * c["k_0"], common * c["q_0"], c["rho"] * c["o_0"] * c["E_0"]]
    return [jnp.linalg.norm(x) for x in g], [*bounds, c["norm_F"] * c["E_0"]], c


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_gradients_obey_lemma_3_and_features_lemma_2(seed):
    norms, bounds, c = gradient_norms_and_bounds(random_start(seed)[0])
    for norm, bound in zip(norms, bounds, strict=True):
        assert norm <= (1 + 1e-9) * bound + 1e-12
    assert c["norm_F"] <= (1 + 1e-9) * c["rho"] * c["v_0"]


def test_lemma_3_is_nearly_attained_for_query_weights():
    # tokens R and -R, almost uniform attention, one hidden unit for each sign: by hand, the norm of
    # the gradient is half the bound, so a data constant c_X less than half of ours would be wrong
    start = Start(
        Problem(jnp.array([[[2.0], [-2.0]]]), jnp.array([1.0])),
        Weights(*[jnp.array([[0.5], [0.0]])] * 2, jnp.array([[3.0], [-3.0]]), jnp.ones(2)),
        Scales(1e-3, 1.0, 1.0),
        1.0,
    )
    c = theorems.start_constants(start)
    model = encoder(1, 2, start.scales)
    g = jax.grad(empirical_risk(model, start.problem, wu2023.PAPER.loss))(start.params0)
    bound = c["rho"] * c["tau_0"] * c["c_X"] * c["k_0"] * c["v_0"] * c["o_0"] * c["E_0"]
    assert float(jnp.linalg.norm(g.W_Q) / bound) == pytest.approx(0.5, rel=1e-3)


@jax.jit
def feature_change_and_bound(start, other):
    c = theorems.start_constants(start)
    p, q = start.params0, other
    F = lambda w: jax.vmap(lambda x: features(w, x, start.scales))(start.problem.X)  # noqa: E731
    norm = lambda W: jnp.linalg.norm(W, 2)  # noqa: E731
    most = lambda k: jnp.maximum(norm(getattr(p, k)), norm(getattr(q, k)))  # noqa: E731
    through_scores = most("W_K") * norm(q.W_Q - p.W_Q) + most("W_Q") * norm(q.W_K - p.W_K)
    bracket = norm(q.W_V - p.W_V) + c["tau_0"] * c["c_X"] * most("W_V") * through_scores
    return jnp.linalg.norm(F(q) - F(p)), c["rho"] * bracket


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_features_obey_lemma_4(seed):
    start, rng = random_start(seed)
    size = 10 ** rng.uniform(-3, 1)
    other = jax.tree.map(lambda W: W + size * jnp.asarray(rng.normal(size=W.shape)), start.params0)
    change, bound = feature_change_and_bound(start, other)
    assert change <= (1 + 1e-9) * bound + 1e-12


# -------------------------------------------------------------------------- edges and verdicts


def test_nothing_moves_from_a_perfect_start():
    start = EXAMPLE_1._replace(problem=Problem(EYE[None], jnp.array([0.0])))
    out = descend(start, 0.1, 3)
    assert verdict(theorems.theorem_a(start, 0.1, ALL_MOVE, out)) == Verdict.HOLDS


def test_a_width_below_the_number_of_samples_is_not_applicable():
    setting = small(width=3)
    problem, params, scales = start_of(setting)
    start = Start(problem, params, scales, 1.0)
    assert float(theorems.start_constants(start)["alpha"]) == 0
    out = descend(start, 1e-3, 3)
    certificate = theorems.theorem_a(start, 1e-3, ALL_MOVE, out)
    assert verdict(certificate) == Verdict.NOT_APPLICABLE
    assert readings(certificate)[0][1].holds is False


def test_duplicate_samples_make_the_features_dependent():
    setting = small(num_samples=3, width=64)
    problem, params, scales = start_of(setting)
    twins = Problem(problem.X.at[1].set(problem.X[0]), problem.y)
    out = descend(Start(twins, params, scales, 1.0), 1e-3, 3)
    certificate = theorems.theorem_a(Start(twins, params, scales, 1.0), 1e-3, ALL_MOVE, out)
    assert verdict(certificate) == Verdict.NOT_APPLICABLE


def test_a_frozen_output_is_not_applicable():
    out = descend(EXAMPLE_1, 0.01, 3)
    frozen = ALL_MOVE | {"w_O": 0.0}
    assert verdict(theorems.theorem_a(EXAMPLE_1, 0.01, frozen, out)) == Verdict.NOT_APPLICABLE


def test_a_larger_step_is_a_failed_hypothesis_shown_as_such():
    step = 0.0954
    certificate = theorems.theorem_a(EXAMPLE_1, step, ALL_MOVE, descend(EXAMPLE_1, step, 3))
    assert verdict(certificate) == Verdict.NOT_APPLICABLE
    failed = [h.name for h in readings(certificate)[0] if h.holds is False]
    assert failed == ["(7+) step size: gamma < chi / phi^2"]


def test_the_largest_step_is_resolved_as_allowed():
    step = float(theorems.largest_step(EXAMPLE_1))
    assert step == pytest.approx(0.09534140636, rel=1e-8)
    certificate = theorems.theorem_a(EXAMPLE_1, step, ALL_MOVE, descend(EXAMPLE_1, step, 3))
    name = "(7+) step size: gamma < chi / phi^2"
    assert read_hypothesis(name, certificate.hypotheses[name]).holds is True


@pytest.mark.parametrize("step", [1, 5, 10])
def test_a_tampered_risk_is_violated(step):
    out = descend(EXAMPLE_1, 0.09, 10)
    for factor in (100.0, np.nan):
        bad = out._replace(risk=out.risk.at[step].multiply(factor))
        assert verdict(theorems.theorem_a(EXAMPLE_1, 0.09, ALL_MOVE, bad)) == Verdict.VIOLATED


def test_a_run_from_other_weights_is_violated():
    out = descend(EXAMPLE_1, 0.09, 10)
    other = EXAMPLE_1._replace(problem=Problem(EYE[None], jnp.array([0.011])))
    assert verdict(theorems.theorem_a(other, 0.09, ALL_MOVE, out)) == Verdict.VIOLATED


@pytest.mark.parametrize("probe", ["movement_W_V", "movement_w_O", "feature_norm"])
def test_a_tampered_probe_is_violated(probe):
    out = descend(EXAMPLE_1, 0.09, 10)
    bad = out._replace(probes=out.probes | {probe: out.probes[probe].at[7].set(100.0)})
    assert verdict(theorems.theorem_a(EXAMPLE_1, 0.09, ALL_MOVE, bad)) == Verdict.VIOLATED


def test_features_that_lose_rank_are_violated():
    out = descend(EXAMPLE_1, 0.09, 10)
    low = out.probes["feature_sigma_min"].at[4].set(0.1)
    bad = out._replace(probes=out.probes | {"feature_sigma_min": low})
    assert verdict(theorems.theorem_a(EXAMPLE_1, 0.09, ALL_MOVE, bad)) == Verdict.VIOLATED


def test_a_run_to_the_floor_of_float64_is_not_called_violated():
    out = descend(EXAMPLE_1, 0.09, 4000)
    assert verdict(theorems.theorem_a(EXAMPLE_1, 0.09, ALL_MOVE, out)) in (
        Verdict.HOLDS,
        Verdict.UNRESOLVED,
    )


def test_a_risk_that_rises_imperceptibly_does_not_hold():
    # a rate of 1e-11 per step: a rise by 5e-10 is within what bounds are compared with, yet no fall
    out = descend(EXAMPLE_1, 1e-11, 5)
    risen = out._replace(risk=out.risk.at[1:].set(out.risk[0] * (1 + 5e-10)))
    found = verdict(theorems.theorem_a(EXAMPLE_1, 1e-11, ALL_MOVE, risen))
    assert found in (Verdict.UNRESOLVED, Verdict.VIOLATED)


def symmetric_start(labels):
    """Large output weights that cancel: outputs are sums of terms far larger than the residual."""
    key = jax.random.key(0)
    half = jax.random.normal(key, (500, 4))
    W = jnp.concatenate([half, half])
    w_O = jnp.concatenate([jnp.ones(500), -jnp.ones(500)])
    X = jax.random.normal(jax.random.key(1), (2, 2, 4))
    scales = Scales(1e-3, 1.0, 0.5)
    return Start(Problem(X, labels * jnp.array([1.0, -1.0])), Weights(W, W, W, w_O), scales, 0.0)


def test_rounding_of_large_terms_is_not_called_violated():
    start = symmetric_start(0.01)
    step = float(theorems.largest_step(start))
    model = encoder(4, 1000, start.scales)
    risk = empirical_risk(model, start.problem, wu2023.PAPER.loss)
    method = gradient_descent(step)
    out = run(method, risk, start.params0, num_steps=3000, every=100, train=["w_O"])
    assert float(out.risk[-1]) < 1e-25  # at the floor of float64
    speeds = dict.fromkeys(ALL_MOVE, 0.0) | {"w_O": 1.0}
    assert verdict(theorems.theorem_a(start, step, speeds, out)) == Verdict.UNRESOLVED


def test_the_integrator_s_own_error_is_not_called_violated():
    out = descend(EXAMPLE_1, 20.0, 3, gradient_flow)
    assert verdict(theorems.theorem_b(EXAMPLE_1, 20.0, ALL_MOVE, out)) == Verdict.UNRESOLVED
    worse = out._replace(risk=out.risk.at[-1].set(1e-9))
    assert verdict(theorems.theorem_b(EXAMPLE_1, 20.0, ALL_MOVE, worse)) == Verdict.VIOLATED


def test_a_failed_integration_is_unresolved():
    out = descend(EXAMPLE_1, 0.1, 3, gradient_flow)
    failed = out._replace(risk=out.risk.at[-1].set(jnp.nan))
    assert verdict(theorems.theorem_b(EXAMPLE_1, 0.1, ALL_MOVE, failed)) == Verdict.UNRESOLVED


WIDE = {"num_samples": 3, "num_tokens": 2, "dim": 16, "tokens": "unit", "label_scale": 0.3} | {
    "pooling": "sum",
    "width": 40000,
    "num_steps": 20,
}


@pytest.mark.parametrize(
    ("init", "p", "ratio", "expected"),
    [
        ("lecun", 1.0, 1.0, Verdict.HOLDS),
        ("he", 1.0, 1.0, Verdict.HOLDS),
        ("lecun", 0.5, 1.0, Verdict.NOT_APPLICABLE),
        ("lecun", 0.5, 0.01, Verdict.HOLDS),
        ("ntk", 1.0, 1.0, Verdict.NOT_APPLICABLE),
    ],
)
def test_theorem_a_at_width_40000(init, p, ratio, expected):
    values = WIDE | {"init": init, "score_exponent": p, "hidden_step_ratio": ratio}
    experiment = prepare(wu2023.PAPER, values, seeds=(0, 1))
    theorem = theorem_of(wu2023.PAPER, "theorem_a")
    step = allowed_step(experiment, theorem)
    assert (step is not None) == (expected == Verdict.HOLDS)
    experiment = experiment._replace(setting=experiment.setting._replace(step_size=step or 1e-6))
    out = simulate(experiment, theorem.probes)
    for certificate in certify(experiment, theorem, out):
        assert verdict(certificate) == expected
        if expected == Verdict.HOLDS:
            assert float(certificate.measured_rate) > float(certificate.predicted_rate)


# --------------------------------------------------------------------------------- theorem C


def test_theorem_c_by_hand_for_one_token():
    # N = n = 1, u = (1, 0): phi^2 averages 1/2, T = 1, so lambda = 1/2 and T / lambda = 2
    start = Start(
        Problem(jnp.array([[[1.0, 0.0]]]), jnp.array([1.0])),
        Weights(*[jnp.ones((5, 2))] * 3, jnp.ones(5)),
        Scales(1.0, 1.0, 1.0),
        1.0,
    )
    c = theorems.width_constants(start, 1.0)
    assert float(c["lambda"]) == pytest.approx(0.5)
    assert float(c["T"]) == pytest.approx(1.0)
    b = float(c["b"])
    assert 16 * 2**0.5 * (1 + b) * np.exp(-b) == pytest.approx(1, rel=1e-9)
    needed = 8 * b / ((0.5 - 0.5 * np.log(2)) * 0.5) * np.log(1 / 0.01)
    assert float(c["width needed"]) == pytest.approx(needed, rel=1e-9)
    assert float(c["bound"]) == pytest.approx(5 * 0.5 / 4)


@pytest.mark.parametrize(
    ("width", "init", "expected"),
    [
        (40000, "lecun", Verdict.HOLDS),
        (40000, "ntk", Verdict.HOLDS),
        (400, "lecun", Verdict.NOT_APPLICABLE),
        (40000, "orthogonal", Verdict.NOT_APPLICABLE),
    ],
)
def test_theorem_c_needs_a_width(width, init, expected):
    values = {"num_samples": 2, "num_tokens": 1, "dim": 8, "tokens": "unit", "width": width}
    experiment = prepare(wu2023.PAPER, values | {"init": init, "step_size": 1e-6, "num_steps": 1})
    theorem = theorem_of(wu2023.PAPER, "theorem_c")
    (certificate,) = certify(experiment, theorem, simulate(experiment))
    assert verdict(certificate) == expected


def test_theorem_c_notices_weights_that_were_not_drawn_as_said():
    setting = wu2023.Setting(num_samples=2, num_tokens=1, dim=8, tokens="unit", width=40000)
    problem, params, scales = start_of(setting)
    weak = params._replace(W_V=0.1 * params.W_V)
    certificate = theorems.theorem_c(Start(problem, weak, scales, 1.0), 1 / 8)
    assert verdict(certificate) == Verdict.VIOLATED


def test_theorem_c_says_nothing_of_weights_that_a_user_brings():
    values = {"num_samples": 2, "num_tokens": 1, "dim": 8, "tokens": "unit", "width": 40000}
    experiment = prepare(wu2023.PAPER, values | {"step_size": 1e-6, "num_steps": 1})
    theorem = theorem_of(wu2023.PAPER, "theorem_c")
    given_weights = experiment._replace(drawn=False)
    (certificate,) = certify(given_weights, theorem, simulate(experiment))
    assert verdict(certificate) == Verdict.NOT_APPLICABLE
