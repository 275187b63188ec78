"""The model, kernels and limits of wu2023 against loops, autodiff and Monte Carlo."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import numpy_descent, numpy_forward, numpy_gradient, small, start_of
from shoal import fits, inits
from shoal.diagnostics.kernels import tangent_kernels as autodiff_kernels
from shoal.errors import InputError
from shoal.experiments import Experiment, prepare, simulate
from shoal.methods import gradient_descent
from shoal.models import empirical_risk, predict
from shoal.papers import wu2023
from shoal.papers.wu2023 import limits
from shoal.papers.wu2023.encoder import Scales, encoder, fused_squares, tangent_kernels
from shoal.training import run

EVERYTHING = list(itertools.product(wu2023.INITS, ("mean", "sum"), (0.0, 0.5, 1.0)))


@pytest.mark.parametrize(("init", "pooling", "p"), EVERYTHING)
def test_the_closed_kernel_is_autodiff_s(init, pooling, p):
    setting = small(init=init, pooling=pooling, score_exponent=p)
    problem, params, scales = start_of(setting)
    closed = tangent_kernels(problem.X, scales)(params)
    dense = autodiff_kernels(wu2023.model(setting), problem.X)(params)
    total = np.linalg.norm(sum(np.asarray(K) for K in dense.values()))
    for name in dense:
        np.testing.assert_allclose(
            closed[name], dense[name], rtol=1e-12, atol=1e-13 * total, err_msg=name
        )


@pytest.mark.parametrize(("init", "pooling", "p"), EVERYTHING[::4])
def test_the_model_and_its_gradient_match_numpy_loops(init, pooling, p):
    setting = small(init=init, pooling=pooling, score_exponent=p)
    problem, params, scales = start_of(setting)
    weights = {k: np.asarray(v) for k, v in params._asdict().items()}
    f, _ = numpy_forward(weights, np.asarray(problem.X), scales)
    np.testing.assert_allclose(predict(wu2023.model(setting), params, problem.X), f, rtol=1e-12)
    gradient = jax.grad(empirical_risk(wu2023.model(setting), problem, wu2023.PAPER.loss))(params)
    expected = numpy_gradient(weights, np.asarray(problem.X), np.asarray(problem.y), scales)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(gradient, name), value, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("held", [10**9, 2 * 3 * 16, 1])
@pytest.mark.parametrize(("init", "pooling", "p"), EVERYTHING[1::7])
def test_the_fused_gradient_is_that_of_numpy_loops_and_of_autodiff(init, pooling, p, held):
    setting = small(init=init, pooling=pooling, score_exponent=p, num_samples=5)
    problem, params, scales = start_of(setting)
    X, y = problem.X, problem.y
    value, gradient = jax.value_and_grad(fused_squares(scales, held))(params, X, y)

    def plain(params):
        return jnp.sum((predict(wu2023.model(setting), params, X) - y) ** 2)

    total, slopes = jax.value_and_grad(plain)(params)
    np.testing.assert_allclose(value, total, rtol=1e-13)
    weights = {k: np.asarray(v) for k, v in params._asdict().items()}
    expected = numpy_gradient(weights, np.asarray(X), np.asarray(y), scales)
    for name, slope in slopes._asdict().items():
        size = float(jnp.abs(slope).max())
        np.testing.assert_allclose(getattr(gradient, name), slope, rtol=1e-12, atol=1e-13 * size)
        np.testing.assert_allclose(getattr(gradient, name), 2 * expected[name], rtol=1e-9)


def test_training_descends_the_fused_gradient_and_records_the_plain_risk():
    setting = small(step_size=0.05, num_steps=30)
    experiment = prepare(wu2023.PAPER, {k: v for k, v in setting._asdict().items() if v}, seeds=[1])
    found = simulate(experiment, ("pl_ratio", "gradient_norm"))
    start = jax.tree.map(lambda x: x[0], experiment.params0)
    risk = empirical_risk(wu2023.model(setting), experiment.problem, wu2023.PAPER.loss)
    plain = run(gradient_descent(0.05), risk, start, num_steps=30)
    np.testing.assert_allclose(found.risk[0], plain.risk, rtol=1e-11)
    slopes = jax.grad(risk)(start)
    ratio = sum(float(jnp.sum(g**2)) for g in slopes) / (2 * float(plain.risk[0]))
    assert float(found.probes["pl_ratio"][0, 0]) == pytest.approx(ratio, rel=1e-11)


@pytest.mark.parametrize("tile", [1, 40, 10**7])
@pytest.mark.parametrize(("num_tokens", "dim"), [(2, 9), (5, 2)])
def test_kernels_in_tiles_by_pairs_and_by_rows_are_autodiff_s(num_tokens, dim, tile):
    setting = small(num_tokens=num_tokens, dim=dim, width=13)
    problem, params, scales = start_of(setting)
    closed = tangent_kernels(problem.X, scales, tile)(params)
    dense = autodiff_kernels(wu2023.model(setting), problem.X)(params)
    for name, K in dense.items():
        np.testing.assert_allclose(closed[name], K, rtol=1e-12, atol=1e-14, err_msg=name)


def test_scales_follow_the_tables():
    ntk = wu2023.scales(wu2023.Setting(width=100, init="ntk", score_exponent=1.0, num_tokens=4))
    assert ntk == pytest.approx((0.01, 0.1, 0.25))
    he = wu2023.scales(wu2023.Setting(width=100, init="he", score_exponent=0.5, pooling="sum"))
    assert he == pytest.approx((0.1, 1.0, 1.0))


def test_variances_agree_with_the_initialisations():
    setting = wu2023.Setting(dim=40, width=500)
    for name in ("lecun", "he", "ntk", "xavier"):
        chosen = setting._replace(init=name)
        params = wu2023.INITS[name](jax.random.key(0), wu2023.model(chosen).spec)
        for W, variance in zip(params, wu2023.variances(chosen), strict=True):
            assert float(jnp.mean(W**2)) == pytest.approx(variance, rel=5 * (2 / W.size) ** 0.5)
    with pytest.raises(InputError, match="no independent entries"):
        wu2023.variances(setting._replace(init="orthogonal"))


def test_ntk_parametrisation_is_lecun_with_other_step_ratios():
    # f depends on tau_1 w_O only: (w_O, tau_1) -> (w_O / a, a tau_1) scales the step of w_O by a^2
    setting = small(init="ntk")
    problem, params, scales = start_of(setting)
    a, step = scales.output, 0.01
    other = Scales(scales.score, 1.0, scales.pool)
    first = run(
        gradient_descent(step),
        empirical_risk(encoder(6, 16, scales), problem, wu2023.PAPER.loss),
        params,
        num_steps=50,
    )
    second = run(
        gradient_descent(step, {"w_O": a**2}),
        empirical_risk(encoder(6, 16, other), problem, wu2023.PAPER.loss),
        params._replace(w_O=a * params.w_O),
        num_steps=50,
    )
    np.testing.assert_allclose(first.risk, second.risk, rtol=1e-11)


def test_zero_query_and_key_weights_are_a_saddle():
    setting = small()
    problem, params, _ = start_of(setting)
    params = params._replace(W_Q=0 * params.W_Q, W_K=0 * params.W_K)
    gradient = jax.grad(empirical_risk(wu2023.model(setting), problem, wu2023.PAPER.loss))(params)
    assert float(jnp.abs(gradient.W_Q).max()) == float(jnp.abs(gradient.W_K).max()) == 0


def test_a_run_can_be_followed_in_numpy():
    setting = small(step_size=0.02, hidden_step_ratio=0.3, init="he", pooling="sum", width=12)
    experiment = prepare(wu2023.PAPER, setting._asdict(), seeds=(5,))
    out = simulate(experiment)
    start = {k: np.asarray(v[0]) for k, v in experiment.params0._asdict().items()}
    X, y = (np.asarray(a) for a in experiment.problem[:2])
    speeds = {"W_Q": 0.3, "W_K": 0.3, "W_V": 0.3}
    risks, last = numpy_descent(start, X, y, wu2023.scales(setting), 0.02, 10, speeds)
    np.testing.assert_allclose(out.risk[0], risks, rtol=1e-11)
    for name, W in last.items():
        np.testing.assert_allclose(getattr(out.params, name)[0], W, rtol=1e-10, atol=1e-13)


def test_frozen_blocks_stay_and_the_others_move():
    setting = small(step_size=0.02, train="W_V,w_O")
    experiment = prepare(wu2023.PAPER, setting._asdict())
    out = simulate(experiment)
    np.testing.assert_array_equal(out.params.W_Q, experiment.params0.W_Q)
    assert not np.allclose(out.params.W_V, experiment.params0.W_V)


def test_a_float32_run_is_near_the_float64_run():
    values = small(step_size=0.01)._asdict()
    double = simulate(prepare(wu2023.PAPER, values))
    single = simulate(prepare(wu2023.PAPER, values, precision="float32"))
    assert single.risk.dtype == jnp.float32
    np.testing.assert_allclose(single.risk, double.risk, rtol=1e-4)


# ---------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("init", ["lecun", "he"])
def test_the_kernel_approaches_its_limit_like_one_over_root_width(init):
    setting = wu2023.Setting(num_samples=6, num_tokens=4, dim=8, init=init, score_exponent=1.0)
    problem = wu2023.problem(setting)
    widths, seeds = (64, 256, 1024, 4096, 16384), tuple(range(10))
    distance = np.array(
        [wu2023.distance_to_limit(setting._replace(width=w), problem, seeds) for w in widths]
    )
    fit = fits.power_law(np.repeat(widths, len(seeds)), distance)
    assert fit.low < -0.5 < fit.high
    assert fit.high - fit.low < 0.15


def test_the_output_and_value_limits_are_right_block_by_block():
    setting = wu2023.Setting(
        num_samples=5,
        num_tokens=3,
        dim=7,
        init="ntk",
        score_exponent=1.0,
        tokens="unit",
        width=40000,
    )
    problem, params, scales = start_of(setting)
    limit = limits.uniform_limit(problem.X, wu2023.variances(setting), scales, setting.width)
    found = tangent_kernels(problem.X, scales)(params)
    for name in ("w_O", "W_V"):
        gap = np.linalg.norm(found[name] - limit[name]) / np.linalg.norm(limit[name])
        assert gap < 0.05, name
    assert float(jnp.trace(found["W_Q"])) < 1e-3 * float(jnp.trace(found["w_O"]))


def test_given_the_scores_the_half_exponent_limit_is_right():
    # hold G fixed by construction: W_K = G-matched to W_Q, everything else random and wide
    d, width = 4, 60000
    setting = wu2023.Setting(num_samples=3, num_tokens=3, dim=d, init="ntk", width=width)
    problem, params, scales = start_of(setting)
    G = scales.score * params.W_Q.T @ params.W_K
    limit = limits.kernel_given_scores(problem.X, G, wu2023.variances(setting), scales, width)
    found = tangent_kernels(problem.X, scales)(params)
    for name in ("w_O", "W_V"):
        gap = np.linalg.norm(found[name] - limit[name]) / np.linalg.norm(limit[name])
        assert gap < 0.03, name


def test_the_query_key_limit_is_the_mean_over_the_remaining_randomness():
    d, width, draws = 4, 1500, 300
    setting = wu2023.Setting(num_samples=3, num_tokens=3, dim=d, init="ntk", width=width)
    problem, params, scales = start_of(setting)
    G = scales.score * params.W_Q.T @ params.W_K
    limit = limits.kernel_given_scores(problem.X, G, wu2023.variances(setting), scales, width)

    def blocks(key):
        fresh = inits.ntk(key, wu2023.model(setting).spec)  # new values and outputs, same scores
        return tangent_kernels(problem.X, scales)(params._replace(W_V=fresh.W_V, w_O=fresh.w_O))

    many = jax.lax.map(blocks, jax.random.split(jax.random.key(7), draws))
    for name in ("W_Q", "W_K"):
        mean = np.asarray(many[name]).mean(axis=0)
        error = np.asarray(many[name]).std(axis=0, ddof=1) / draws**0.5
        # the Gram matrix of W_K is the identity only up to sqrt(d / width), about 5%
        assert np.all(np.abs(mean - limit[name]) < 5 * error + 0.1 * np.abs(limit[name]).max())


def test_at_exponent_one_half_the_kernel_does_not_concentrate():
    setting = wu2023.Setting(num_samples=4, num_tokens=4, dim=8, init="ntk", tokens="raw")
    problem = wu2023.problem(setting)
    key = jax.random.key(0)
    limit = limits.random_limit(
        key, problem.X, wu2023.variances(setting), wu2023.scales(setting), setting.width
    )
    relative = float(limit.spread["w_O"][0, 0] / limit.mean["w_O"][0, 0])
    seen = []
    for width in (256, 4096):
        wide = setting._replace(width=width)
        scales = wu2023.scales(wide)
        kernel = tangent_kernels(problem.X, scales)
        keys = jax.random.split(jax.random.key(1), 60)
        spec = wu2023.model(wide).spec
        values = jax.lax.map(lambda k: kernel(inits.ntk(k, spec))["w_O"][0, 0], keys)  # noqa: B023
        seen.append(float(jnp.std(values, ddof=1) / jnp.mean(values)))
    assert relative > 0.1
    for spread in seen:  # the same spread at sixteen times the width, that of the limit
        assert spread == pytest.approx(relative, rel=0.35)


def test_no_fixed_limit_is_claimed_at_one_half():
    setting = small(score_exponent=0.5)
    with pytest.raises(InputError, match="fixed limit"):
        wu2023.distance_to_limit(setting, wu2023.problem(setting), (0,))


def test_experiments_are_plain_tuples_that_can_be_made_by_hand():
    setting = small(step_size=0.01)
    problem, params, _ = start_of(setting)
    stacked = jax.tree.map(lambda W: W[None], params)
    made = Experiment(wu2023.PAPER, setting, (), problem, stacked, (0,), "float64")
    assert simulate(made).risk.shape == (1, 11)
