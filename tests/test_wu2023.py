"""The model, kernels, limits and studies of wu2023 against loops, autodiff and Monte Carlo."""

import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import (
    SMALL,
    as_seen,
    handmade,
    numbers,
    numpy_descent,
    numpy_forward,
    numpy_gradient,
    small,
    start,
    weights_of,
)
from helpers import (
    run as plain_run,
)
from shoal import fits, inits
from shoal.diagnostics.kernels import tangent_kernels as autodiff_kernels
from shoal.errors import InputError
from shoal.lab.engine import per_start
from shoal.lab.run import train
from shoal.lab.setup import paper_setup
from shoal.lab.study import decades
from shoal.methods import gradient_descent
from shoal.models import predict
from shoal.papers.wu2023 import limits, studies
from shoal.papers.wu2023.model import PAPER, Init, Wu, tangent_kernels

INITS = get_args(Init)
EVERYTHING = list(itertools.product(INITS, ("mean", "sum")))
EXPONENTS = (0.0, 0.5, 1.0)


def both_kernels(setup):
    closed = setup.setting.block_kernels(setup)(setup.params0)
    return closed, autodiff_kernels(setup.network, setup.inputs)(setup.params0)


@pytest.mark.parametrize(("init", "pooling"), EVERYTHING)
def test_the_closed_kernel_is_autodiff_s(init, pooling):
    for p in EXPONENTS:
        made = small(init=init, pooling=pooling, score_exponent=p)
        closed, dense = numbers(made, both_kernels)
        total = np.linalg.norm(sum(dense.values()))
        for name, K in dense.items():
            np.testing.assert_allclose(
                closed[name], K, rtol=1e-12, atol=1e-13 * total, err_msg=name
            )


def outputs_and_gradients(setup):
    fast = jax.value_and_grad(setup.fast_risk)(setup.params0)
    plain = jax.value_and_grad(setup.risk)(setup.params0)
    return predict(setup.network, setup.params0, setup.inputs), fast, plain


@pytest.mark.parametrize("held", [None, 2 * 3 * 16, 1])  # all hidden units, some, one sample
@pytest.mark.parametrize(("init", "pooling"), EVERYTHING[::4])
def test_outputs_and_fused_gradients_are_those_of_numpy_loops_and_of_autodiff(init, pooling, held):
    memory = None if held is None else held / 2**26
    for p in EXPONENTS:
        made = small(init=init, pooling=pooling, score_exponent=p, num_samples=5, memory=memory)
        f, (fast, fused), (plain, slopes) = numbers(made, outputs_and_gradients)
        X, y, scales, weights = *made.problem[:2], made.setting.scales(), weights_of(made)
        np.testing.assert_allclose(f, numpy_forward(weights, X, scales)[0], rtol=1e-12)
        np.testing.assert_allclose(fast, plain, rtol=1e-13)
        for name, expected in numpy_gradient(weights, X, y, scales).items():
            one, other = getattr(fused, name), getattr(slopes, name)
            size = np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13 * size)
            np.testing.assert_allclose(one, expected, rtol=1e-9, atol=1e-13 * size)


def test_training_descends_the_fused_gradient_and_records_the_plain_risk():
    made = small((1,))
    found = train(made, step_size=0.05, steps=30, probes=["pl_ratio", "gradient_norm"])
    one = as_seen(made)
    plain = plain_run(gradient_descent(0.05), one.risk, one.params0, num_steps=30)
    np.testing.assert_allclose(found.risk[0], plain.risk, rtol=1e-11)
    slopes = jax.grad(one.risk)(one.params0)
    ratio = sum(float(jnp.sum(g**2)) for g in slopes) / (2 * float(plain.risk[0]))
    assert float(found.probes["pl_ratio"][0, 0]) == pytest.approx(ratio, rel=1e-11)


@pytest.mark.parametrize("tile", [1, 40, 10**7])
@pytest.mark.parametrize(("num_tokens", "dim"), [(2, 9), (5, 2)])
def test_kernels_in_tiles_by_pairs_and_by_rows_are_autodiff_s(num_tokens, dim, tile):
    one = start(num_tokens=num_tokens, dim=dim, width=13)
    closed = jax.jit(tangent_kernels(one.inputs, one.setting.scales(), tile))(one.params0)
    _, dense = numbers(small(num_tokens=num_tokens, dim=dim, width=13), both_kernels)
    for name, K in dense.items():
        np.testing.assert_allclose(closed[name], K, rtol=1e-12, atol=1e-14, err_msg=name)


def test_scales_follow_the_tables():
    ntk = Wu(width=100, init="ntk", score_exponent=1.0, num_tokens=4).scales()
    assert ntk == pytest.approx((0.01, 0.1, 0.25))
    he = Wu(width=100, init="he", score_exponent=0.5, pooling="sum").scales()
    assert he == pytest.approx((0.1, 1.0, 1.0))


def test_variances_agree_with_the_initialisations():
    for name in ("lecun", "he", "ntk", "xavier"):
        chosen = Wu(dim=40, width=500, init=name)
        params = chosen.weights(jax.random.key(0))
        for W, variance in zip(params, chosen.variances(), strict=True):
            assert float(jnp.mean(W**2)) == pytest.approx(variance, rel=5 * (2 / W.size) ** 0.5)
    with pytest.raises(InputError, match="no independent entries"):
        Wu(init="orthogonal").variances()


def test_ntk_parametrisation_is_lecun_with_other_step_ratios():
    # f depends on tau_1 w_O only: (w_O, tau_1) -> (w_O / a, a tau_1) scales the step of w_O by a^2
    made = small(init="ntk")
    score, a, pool = made.setting.scales()
    params = jax.tree.map(lambda W: W[0], made.params0)
    other = handmade(
        made.problem,
        params._replace(w_O=a * params.w_O),
        (score, 1.0, pool),
        hidden_step_ratio=a**-2,
    )
    first = train(made, step_size=0.01, steps=50, probes=())
    second = train(other, step_size=0.01 * a**2, steps=50, probes=())
    np.testing.assert_allclose(first.risk, second.risk, rtol=1e-11)


def test_zero_query_and_key_weights_are_a_saddle():
    one = start()
    params = one.params0._replace(W_Q=0 * one.params0.W_Q, W_K=0 * one.params0.W_K)
    gradient = jax.grad(one.risk)(params)
    assert float(jnp.abs(gradient.W_Q).max()) == float(jnp.abs(gradient.W_K).max()) == 0


def test_a_run_can_be_followed_in_numpy():
    made = small((5,), step_size=0.02, hidden_step_ratio=0.3, init="he", pooling="sum", width=12)
    out = train(made, probes=())
    X, y = made.problem[:2]
    ratios = {"W_Q": 0.3, "W_K": 0.3, "W_V": 0.3}
    scales = made.setting.scales()
    risks, last = numpy_descent(weights_of(made), X, y, scales, 0.02, 10, ratios)
    np.testing.assert_allclose(out.risk[0], risks, rtol=1e-11)
    for name, W in last.items():
        np.testing.assert_allclose(getattr(out.params, name)[0], W, rtol=1e-10, atol=1e-13)


def test_frozen_blocks_stay_and_the_others_move():
    made = small(step_size=0.02, train="W_V,w_O")
    out = train(made, probes=())
    np.testing.assert_array_equal(out.params.W_Q, made.params0.W_Q)
    assert not np.allclose(out.params.W_V, made.params0.W_V)


def test_a_float32_run_is_near_the_float64_run():
    double = train(small(step_size=0.01), probes=())
    single = train(paper_setup(PAPER, SMALL | {"step_size": 0.01}, precision="float32"), probes=())
    assert single.risk.dtype == np.float32
    np.testing.assert_allclose(single.risk, double.risk, rtol=1e-4)


# ------------------------------------------------------------------------------- data and settings


def test_shapes_change_the_data_as_they_say():
    X, y = small().problem[:2]
    twins = small(shape="twins").problem
    np.testing.assert_array_equal(twins.X[1], X[0])
    np.testing.assert_array_equal(twins.X[[0, 2, 3]], X[[0, 2, 3]])
    assert twins.y.tolist() == [1.0, -1.0, *y[2:]]
    level = small(shape="equal_means").problem.X
    assert np.ptp(level.mean(axis=1), axis=0).max() < 1e-14
    np.testing.assert_allclose(level[:, 0] - level[:, 1], X[:, 0] - X[:, 1], atol=1e-14)
    doubled = small(shape="doubled_tokens").problem.X
    assert all(np.linalg.matrix_rank(x) == 2 for x in doubled)
    np.testing.assert_array_equal(small(overlap=0.0).problem.X, X)
    np.testing.assert_allclose(small(overlap=1.0).problem.X, np.broadcast_to(X[:1], X.shape))
    mixed = small(overlap=0.36).problem.X
    np.testing.assert_allclose(mixed, 0.8 * X + 0.6 * X[:1], rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"shape": "twins", "num_samples": 1}, "num_samples=2 or more"),
        ({"shape": "doubled_tokens", "num_tokens": 1}, "num_tokens=2 or more"),
        ({"active": 20}, "raise the width"),
        ({"active": 3, "init": "orthogonal"}, "lecun, he or ntk"),
        ({"overlap": 1.5}, "less than or equal to 1"),
        ({"problem": "idx"}, "images=FILE"),
    ],
)
def test_what_does_not_fit_together_is_refused(values, said):
    with pytest.raises(InputError, match=said):
        small(**values)


@pytest.mark.parametrize("init", ["lecun", "he", "ntk"])
def test_units_that_are_not_in_use_are_not_there(init):
    made = small(init=init, active=5)
    assert np.count_nonzero(made.params0.W_V[0].any(axis=1)) == 5
    params = jax.tree.map(lambda W: W[0, :5], made.params0)
    narrow = Wu(**SMALL | {"width": 5, "init": init})
    for W, variance in zip(params, narrow.variances(), strict=True):
        assert np.mean(W**2) == pytest.approx(variance, rel=5 * (2 / W.size) ** 0.5)
    alone = handmade(made.problem, params, narrow.scales())
    padded, single = (train(s, steps=10, step_size=0.01, probes=()) for s in (made, alone))
    np.testing.assert_allclose(padded.risk, single.risk, rtol=1e-12)
    assert not padded.params.W_V[0, 5:].any()


def test_every_setting_and_probe_has_a_sentence():
    assert all(Wu.sentences().values())
    one = start()
    assert set(Wu.probe_sentences) == set(one.setting.probes(one))


# ------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize("init", ["lecun", pytest.param("he", marks=pytest.mark.slow)])
def test_the_kernel_approaches_its_limit_like_one_over_root_width(init):
    values = {"num_samples": 6, "num_tokens": 4, "dim": 8, "init": init, "score_exponent": 1.0}
    widths, seeds = (64, 512, 4096), range(16)
    distance = [
        limits.distances_to_limit(paper_setup(PAPER, values | {"width": w}, seeds=seeds))
        for w in widths
    ]
    fit = fits.power_law(np.repeat(widths, len(seeds)), np.array(distance))
    assert fit.low < -0.5 < fit.high
    assert fit.high - fit.low < 0.15


def kernels_and_uniform_limit(setup):
    setting, X = setup.setting, setup.inputs
    limit = limits.uniform_limit(X, setting.variances(), setting.scales(), setting.width)
    return setting.block_kernels(setup)(setup.params0), limit


def test_the_output_and_value_limits_are_right_block_by_block():
    wide = {"num_samples": 5, "num_tokens": 3, "dim": 7, "init": "ntk", "score_exponent": 1.0}
    found, limit = numbers(small(**wide, tokens="unit", width=40000), kernels_and_uniform_limit)
    for name in ("w_O", "W_V"):
        gap = np.linalg.norm(found[name] - limit[name]) / np.linalg.norm(limit[name])
        assert gap < 0.05, name
    assert np.trace(found["W_Q"]) < 1e-3 * np.trace(found["w_O"])


HALF = {"num_samples": 3, "num_tokens": 3, "dim": 4, "init": "ntk"}


def kernels_and_limit_given_scores(setup):
    setting, params0 = setup.setting, setup.params0
    variances, scales = setting.variances(), setting.scales()
    G = scales.score * params0.W_Q.T @ params0.W_K
    limit = limits.kernel_given_scores(setup.inputs, G, variances, scales, setting.width)
    return setting.block_kernels(setup)(params0), limit


def test_given_the_scores_the_half_exponent_limit_is_right():
    found, limit = numbers(small(**HALF | {"width": 60000}), kernels_and_limit_given_scores)
    for name in ("w_O", "W_V"):
        gap = np.linalg.norm(found[name] - limit[name]) / np.linalg.norm(limit[name])
        assert gap < 0.03, name


def many_kernels(setup, keys):
    """Kernels for new values and outputs, with the same scores."""
    kernels, spec = setup.setting.block_kernels(setup), setup.setting.spec()

    def blocks(key):
        fresh = inits.ntk(key, spec)
        return kernels(setup.params0._replace(W_V=fresh.W_V, w_O=fresh.w_O))

    return jax.lax.map(blocks, keys)


def test_the_query_key_limit_is_the_mean_over_the_remaining_randomness():
    made, draws = small(**HALF | {"width": 1500}), 300
    _, limit = numbers(made, kernels_and_limit_given_scores)
    many = numbers(made, many_kernels, jax.random.split(jax.random.key(7), draws))
    for name in ("W_Q", "W_K"):
        mean, error = many[name].mean(axis=0), many[name].std(axis=0, ddof=1) / draws**0.5
        # the Gram matrix of W_K is the identity only up to sqrt(d / width), about 5%
        assert np.all(np.abs(mean - limit[name]) < 5 * error + 0.1 * np.abs(limit[name]).max())


def drawn_limit(setup):
    setting = setup.setting
    key, variances, scales = jax.random.key(0), setting.variances(), setting.scales()
    return limits.random_limit(key, setup.inputs, variances, scales, setting.width)


def output_entry(setup):
    return setup.setting.block_kernels(setup)(setup.params0)["w_O"][0, 0]


def test_at_exponent_one_half_the_kernel_does_not_concentrate():
    values = {"num_samples": 4, "num_tokens": 4, "dim": 8, "init": "ntk", "width": 256}
    limit = numbers(small(**values), drawn_limit)
    relative = float(limit.spread["w_O"][0, 0] / limit.mean["w_O"][0, 0])
    assert relative > 0.1
    for width in (256, 4096):  # the same spread at sixteen times the width, that of the limit
        made = paper_setup(PAPER, values | {"width": width}, seeds=range(60))
        seen = per_start(made, output_entry)
        assert np.std(seen, ddof=1) / np.mean(seen) == pytest.approx(relative, rel=0.35)


def test_no_fixed_limit_is_claimed_at_one_half():
    with pytest.raises(InputError, match="fixed limit"):
        limits.distances_to_limit(small(score_exponent=0.5))


# ----------------------------------------------------------------------------------------- studies


def test_claims_and_figures_are_all_there():
    assert len(PAPER.claims) == 40
    assert len(PAPER.figures) == 12


@pytest.mark.slow
def test_the_registered_steps_are_the_best_on_the_tuning_seeds():
    settings = {
        "scaling_large_width_tuned": ({"score_exponent": 0.5}, {"score_exponent": 1.0}),
        "lecun_beats_ntk_tuned": ({"init": "lecun"}, {"init": "ntk"}),
    }
    for key, sides in settings.items():
        for values, step in zip(sides, studies.TUNED[key], strict=True):
            plan = studies.QUICK._replace(seeds=tuple(range(9000, 9016)))
            speed = [
                decades(studies.run_of(plan, step=f * step, width=512, **values).risk).mean()
                for f in (0.5, 1.0, 2.0)
            ]
            assert np.argmax(speed) == 1, (key, values, speed)


@pytest.mark.slow
@pytest.mark.parametrize("figure", PAPER.figures, ids=lambda figure: figure.key)
def test_figures_hold_numbers(figure):
    made = figure.make(False)
    assert made.key == figure.key
    for panel in made.panels:
        assert panel.curves or panel.images
        assert all(np.isfinite(curve.y).all() for curve in panel.curves)


@pytest.mark.slow
def test_the_visit_certifies_the_wide_network_only():
    visit = PAPER.visit()
    assert [row["verdict"] for row in visit.rows] == ["not applicable", "holds", "not applicable"]
    assert all(len(cells) == len(visit.head) for cells in visit.cells)
