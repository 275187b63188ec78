"""Each trap of docs/theory/prove.md, section 5: something that would produce a false proof."""

import ast
import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
from questions import product, program, question
from shoal import verified
from shoal.activations import centred_softplus
from shoal.errors import InputError
from shoal.verified import balls, decide, facts, fate, jets, spectra
from shoal.verified.balls import Ball, Refusal, exact
from shoal.verified.centre import evaluate
from shoal.verified.fate import Range

rng = np.random.default_rng(7)


def verdict(made):
    return decide.decide(made).verdict


def bounds(made, radius=1e-6, order=3):
    found = facts.facts(made)
    return facts.on_balls(made, found, np.array([radius]), order=order)


def kinds(made):
    return [op.kind for op in made.operations]


# 1 ------------------------------------------------------------------------ implicit broadcasting


def test_1_an_implicit_broadcast_counts_its_copies():
    made = question(
        lambda w, _, x: x * jax.lax.max(w[0], w[1]) ** 2, ([1.0], np.zeros(9)), [1.0],
        [np.zeros(9)], 0.1,
    )  # fmt: skip
    found = bounds(made)
    assert found.beta[0] >= 6
    assert found.L[0] >= 6


def test_1_softmax_shifted_by_a_column_is_softmax_of_the_broadcast():
    def rows(w, _, x):
        shifted = w[0] - jax.lax.stop_gradient(w[1])
        return jax.nn.softmax(x * shifted, axis=-1)

    with jax.numpy_rank_promotion("allow"):
        one = question(rows, ([[0.3, -0.2]], np.zeros((1, 1))), [1.0], [np.zeros(2)], 0.1)
        nine = question(rows, ([[0.3, -0.2]], np.zeros((9, 1))), [1.0], [np.zeros((9, 2))], 0.1)
    # x * (a - c) is no shift of a softmax: x is not known to be 1
    assert verdict(one) == verdict(nine) == "undecided"

    def plain(w, _, x):
        e = jnp.exp(w[0] - jax.lax.stop_gradient(w[1]))
        return x * (e / jnp.sum(e, axis=-1, keepdims=True))

    with jax.numpy_rank_promotion("allow"):
        one = question(plain, ([[0.3, -0.2]], np.zeros((1, 1))), [1.0], [np.zeros(2)], 0.1)
        nine = question(plain, ([[0.3, -0.2]], np.zeros((9, 1))), [1.0], [np.zeros((9, 2))], 0.1)
    assert "softmax" in kinds(nine.programs[0])
    small, large = bounds(one), bounds(nine)
    assert large.L[0] >= 3 * small.L[0] * (1 - 1e-9)
    seen = facts.facts(nine).jacobian_norm
    assert large.beta[0] >= 0.99 * seen
    assert seen >= 3 * facts.facts(one).jacobian_norm * (1 - 1e-9)


# 2 -------------------------------------------------------------------------------- opaque values


def test_2_a_maximum_is_not_constant():
    made = question(
        lambda w, f, x: x * jnp.max(jnp.concatenate([w[0], f[0]])), ([0.6],), [1.0], [0.4], 0.5,
        frozen=([0.5],),
    )  # fmt: skip
    assert verdict(made) == "undecided"  # nothing below 0.5 can be reached


def test_2_a_predicate_on_a_stopped_value_hides_a_jump():
    made = question(
        lambda w, _, x: x * jnp.where(jax.lax.stop_gradient(w[0]) > 0.4, w[0], 7.0), (0.5,), [1.0],
        [0.3], 0.5,
    )  # fmt: skip
    found = decide.decide(made)
    assert found.verdict == "undecided"
    assert "stop_gradient" in found.reason


def test_2_a_shift_stopped_in_one_place_only_does_not_cancel():
    def wrong(w, _, x):
        top = jnp.max(w[0])
        return x * (jnp.log(jnp.sum(jnp.exp(w[0] - top))) + jax.lax.stop_gradient(top))

    def right(w, _, x):
        top = jax.lax.stop_gradient(jnp.max(w[0]))
        return x * (jnp.log(jnp.sum(jnp.exp(w[0] - top))) + top)

    start, frozen = (np.array([0.3, 0.1]),), ()
    assert "logsumexp" in kinds(program(right, start, frozen, 1.0))
    assert "stop" in kinds(program(wrong, start, frozen, 1.0))
    assert verdict(question(wrong, start, [1.0], [0.9], 0.1)) == "undecided"
    assert verdict(question(right, start, [1.0], [0.9], 0.1)) == "converges"


def test_2_a_distance_that_is_cut_at_zero_is_itself_where_it_is_away_from_zero():
    def layer(w, _, x):  # by products; derivatives pass as if nothing were cut
        q, k = x[0] * w[0], x[1] * w[1]
        squares = (q**2).sum(-1)[:, None] + (k**2).sum(-1)[None]
        scores = (q @ k.T - squares / 2) / 0.7
        cut = scores + jax.lax.stop_gradient(jnp.minimum(scores, 0) - scores)
        return jnp.exp(cut)[0]

    x = (np.array([[1.0, 0.3]]), np.array([[-0.5, 0.2]]))
    made = program(layer, (1.0, 1.0), (), x)
    assert "negative" in kinds(made)
    assert "stop" not in kinds(made)
    apart = question(layer, (1.0, 1.0), [x], [[0.1985]], 0.1)
    assert verdict(apart) == "converges"
    same = (x[0], x[0])  # query and key coincide: the cut is reached
    assert verdict(question(layer, (1.0, 1.0), [same], [[0.9]], 0.1)) == "undecided"


def test_2_a_stopped_output_is_refused():
    made = question(lambda w, _, x: x * jax.lax.stop_gradient(w[0]), (0.5,), [1.0], [0.5], 0.5)
    assert verdict(made) == "undecided"


# 3 ----------------------------------------------------------------------------- derivative rules


@jax.custom_jvp
def relu(x):
    return jnp.maximum(x, 0)


relu.defjvps(lambda tangent, _, x: 5 * tangent + 0 * x)


@jax.custom_jvp
def identity(x):
    return x * 1.0


identity.defjvps(lambda tangent, _, x: tangent + 0 * x)


@pytest.mark.parametrize("function", [relu, identity])
def test_3_a_derivative_rule_of_the_users_is_refused(function):
    with pytest.raises(Refusal, match="derivative rule"):
        program(lambda w, _, x: x * function(w[0]), (0.5,), (), 1.0)


def test_3_jaxs_own_rules_are_known_also_under_vmap():
    for f in (jax.nn.relu, jax.nn.softplus, lambda x: jnp.logaddexp(x, 2 * x), centred_softplus):
        program(lambda w, _, x, f=f: x * f(w[0]), (0.5,), (), 1.0)
        twice = jax.vmap(jax.vmap(f))
        program(lambda w, _, x, f=twice: f(x * w[0]), (np.ones((2, 3)),), (), 1.0)


def test_3_a_custom_vjp_is_refused():
    @jax.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, g: (g * x,))
    with pytest.raises(Refusal, match="custom_vjp"):
        program(lambda w, _, x: x * cube(w[0]), (0.5,), (), 1.0)


def test_3_a_false_weight_of_squares_is_noticed():
    def loss(outputs, y):
        return jnp.sum((outputs - y) ** 2)

    loss.squares_weight = lambda count: 0.5
    setup = sh.setup(lambda w, x: x * w, np.array([0.5]), [1.0], [0.6], loss=loss)
    with pytest.raises(InputError, match="squares_weight"):
        sh.prove(setup, 0.5)


# 4 ------------------------------------------------------------------------------- step functions


STEPS = {
    "astype": lambda w: w + jnp.astype((10 * w).astype(int), float),
    "floor": lambda w: w + jnp.floor(10 * w),
    "round": lambda w: w + jnp.round(10 * w),
    "argmax": lambda w: w + jnp.argmax(jnp.stack([w, 0.1 * w])),
    "sort": lambda w: jnp.sort(jnp.stack([w, 0.1 * w]))[0],
}


@pytest.mark.parametrize("name", STEPS)
def test_4_step_functions_are_refused_by_name(name):
    with pytest.raises(Refusal):
        program(lambda w, _, x: x * STEPS[name](w[0]), (0.6,), (), 1.0)


def test_4_the_refusal_names_primitive_and_line():
    with pytest.raises(Refusal, match=r"'floor' has no rule \(test_prove_traps.py:\d+\)"):
        program(lambda w, _, x: x * jnp.floor(w[0]), (0.6,), (), 1.0)


# 5 -------------------------------------------------------------------------------------- float32


def test_5_a_change_of_float_type_is_the_identity():
    third = 1 / 3
    made = program(lambda w, _, x: (w[0] * x.astype(jnp.float32)).astype(float), (1.0,), (), third)
    found = evaluate(made, [np.array(1.0)]).output.value
    assert found.mid[0] == third  # not rounded to float32


def test_5_a_trace_without_64_bits_is_refused():
    with jax.enable_x64(False), pytest.raises(Refusal, match="64-bit"):
        program(lambda w, _, x: w[0] * x, (np.float32(1.0),), (), np.float32(2.0))


# 6 ------------------------------------------------------------------------------------------ XLA


TRACED = {"translate", "primitives", "linear", "enclose"}
"""What reads a trace of JAX, and asks it where entries go; the numbers come from the others."""
ENCLOSING = sorted({m.name for m in pkgutil.iter_modules(verified.__path__)} - TRACED)


@pytest.mark.parametrize("name", ENCLOSING)
def test_6_enclosures_use_numpy_only(name):
    tree = ast.parse(inspect.getsource(importlib.import_module(f"shoal.verified.{name}")))
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert not any(str(name).startswith("jax") for name in names)


def test_6_deciding_calls_nothing_of_jax(monkeypatch):
    made = product()

    def never(*_, **__):
        raise AssertionError("XLA was used")

    for name in ("jit", "vjp", "jvp", "make_jaxpr"):
        monkeypatch.setattr(jax, name, never)
    monkeypatch.setattr(jnp, "asarray", never)
    assert verdict(made) == "converges"


# 7 --------------------------------------------------------------------- constants of derivatives


def test_7_the_slope_of_erf_is_enclosed():
    flint = pytest.importorskip("flint")
    flint.ctx.prec = 300
    made = program(lambda w, _, x: x * jax.lax.erf(w[0]), (0.3,), (), 1.0)
    found = evaluate(made, [np.array(0.3)], order=2).output
    x = flint.arb(0.3)
    slope = 2 / flint.arb.pi().sqrt() * (-x * x).exp()
    for part, true in ((found.first[0], slope), (found.second[0, 0], -2 * x * slope)):
        error = abs(flint.arb(float(part.mid.ravel()[0])) - true)
        assert float(error) <= float(part.rad.ravel()[0])
        assert float(part.rad.ravel()[0]) < 1e-13


# 8 ---------------------------------------------------------------------- frozen weights, folding


def test_8_frozen_weights_are_arguments():
    c, d = 1 + 2.0**-30, 1 - 2.0**-30
    made = question(
        lambda w, f, x: w[0] * x + 2.0**40 * (f[0] * f[1] - 1), (0.5,), [1.0], [0.5], 0.5,
        frozen=(c, d),
    )  # fmt: skip
    found = facts.facts(made).residual
    assert abs(found.mid[0] - -(2.0**-20)) <= found.rad[0]  # not 0, as rounding c d would give


def test_8_frozen_blocks_of_a_setup_are_too():
    params = {"w": 0.5, "c": 1 + 2.0**-30, "d": 1 - 2.0**-30}
    setup = sh.setup(
        lambda p, x: x * p["w"] + 2.0**40 * (p["c"] * p["d"] - 1), params, [1.0], [0.5], train="w"
    )
    proof = sh.prove(setup, 0.5)
    assert proof.num_weights == 1
    assert proof.constants["residual"] >= 2.0**-20


def test_8_a_literal_is_the_double_that_it_is():
    made = program(lambda w, _, x: 0.1 * w[0] * x, (1.0,), (), 1.0)
    found = evaluate(made, [np.array(1.0)]).output.value
    assert (found.mid[0], found.rad[0]) == (0.1, 0.0)


# 9 ------------------------------------------------------------------------------- ties and kinks


@pytest.mark.parametrize("function", [jax.nn.relu, jnp.abs, lambda w: jnp.maximum(w, 0.0)])
def test_9_a_kink_at_the_weights_is_undecided(function):
    made = question(lambda w, _, x: x * function(w[0]) + w[1], (0.0, 0.3), [1.0], [0.3], 0.1)
    found = decide.decide(made)
    assert found.verdict == "undecided"
    assert "kink" in found.reason


def test_9_two_equal_largest_entries_are_undecided():
    made = question(lambda w, _, x: x * jnp.max(w[0]), ([0.5, 0.5],), [1.0], [0.4], 0.1)
    assert verdict(made) == "undecided"


# 10 ------------------------------------------------------------------ symmetric-looking matrices


def test_10_a_matrix_that_is_not_symmetric_is_charged_for_it():
    A = np.array([[1.0, 3.0], [0.0, 1.0]])  # every symmetric matrix within the ball of radius 3
    ball = Ball(A, np.full((2, 2), 3.0))
    assert spectra.lambda_max(ball) >= 1 + 3  # [[4, 3], [3, 4]] has 7, [[1, 3], [3, 1]] has 4
    assert spectra.lambda_max(ball) >= 7


def test_10_eigenvalues_are_bounded_not_guessed():
    for _ in range(20):
        B = rng.standard_normal((6, 3))
        S = B @ B.T  # singular
        assert spectra.lambda_min(exact(S)) <= 0
        top = np.linalg.eigvalsh(S)[-1]
        assert top * (1 - 1e-15) <= spectra.lambda_max(exact(S)) <= top * (1 + 1e-9)


# 11 -------------------------------------------------------------------------------- wrong shapes


def test_11_more_rows_than_columns_have_no_sigma():
    assert spectra.sigma_min(exact(rng.standard_normal((5, 3)))) == 0
    made = question(lambda w, _, x: x * w[0], (0.5,), [np.ones(2)], [[0.5, 0.6]], 0.1)
    found = decide.decide(made, minimum=False)
    assert found.verdict == "undecided"
    assert "more outputs" in found.reason


def test_11_dependent_rows_have_no_sigma():
    B = rng.standard_normal((4, 7))
    B[3] = B[0] + B[1]
    assert spectra.sigma_min(exact(B)) < 1e-12


def test_11_a_wrong_rule_raises(monkeypatch):
    rules = dict(jets.RULES)
    rules["dot"] = lambda *a: jets._scaled(jets.RULES["mul"](*a), 0.0)
    made = question(lambda w, _, x: x @ w[0], ([1.0, 2.0],), [np.ones(2)], [3.1], 0.1)
    monkeypatch.setattr(jets, "RULES", rules)
    with pytest.raises(AssertionError, match="wrong rule"):
        decide.decide(made)


# 12 ----------------------------------------------------------------------------- infinite slopes


@pytest.mark.parametrize(
    "function",
    [
        lambda w: jnp.sqrt(jnp.sum(w * w)),
        jnp.linalg.norm,
        lambda w: jnp.sum(jnp.where(w > 1, jnp.sqrt(w), 0.0)),
        lambda w: jnp.sum(1 / w),
        lambda w: jnp.sum(jnp.log(w)),
        lambda w: jnp.sum(w / jnp.sqrt(jnp.mean(w**2))),
    ],
)
def test_12_infinite_slopes_are_undecided(function):
    made = question(lambda w, _, x: x * function(w[0]), (np.zeros(2),), [1.0], [0.1], 0.1)
    assert verdict(made) == "undecided"


def test_12_zero_to_the_power_zero_is_one():
    made = program(lambda w, _, x: x * w[0] ** 0 + w[0], (0.0,), (), 1.0)
    assert evaluate(made, [np.array(0.0)]).output.value.mid[0] == 1.0


# 13 ------------------------------------------------------------------------- underflow, infinity


def test_13_squares_that_vanish_are_counted():
    tiny = exact(np.full(4, 1e-200))
    assert balls.norm(tiny) >= 2e-200
    assert balls.mul(tiny, tiny).rad[0] >= 1e-400
    assert balls.dot(exact(np.full((1, 4), 1e-200)), exact(np.full((4, 1), 1e-200))).rad[0, 0] > 0


def test_13_overflow_is_not_a_mask():
    huge = exact(np.array([-1e308]))
    assert balls.add(huge, huge).rad[0] == np.inf
    mask = exact(np.array([-np.inf]))
    found = balls.add(mask, exact(np.array([1.0])))
    assert (found.mid[0], found.rad[0]) == (-np.inf, 0.0)
    made = question(lambda w, _, x: x * jnp.exp(w[0]), (800.0,), [1.0], [0.1], 0.1)
    assert verdict(made) == "undecided"


def test_13_the_process_follows_ieee():
    balls.require_ieee()


# 14 --------------------------------------------------------------------------------- step ratios


def test_14_a_ratio_scales_columns_by_its_root():
    plain, scaled = facts.facts(product()), facts.facts(product(0.1, (4.0, 1.0)))
    ratio = scaled.jacobian.mid / plain.jacobian.mid
    assert np.allclose(ratio, [[2.0, 1.0]], atol=1e-15)
    assert facts.facts(product(0.1, (3.0, 1.0))).jacobian.rad[0, 0] > 0


# 15 ------------------------------------------------------------------------- sum, mean, factor 2


def test_15_mean_and_sum_agree_when_the_step_does():
    x, y = rng.standard_normal((3, 4)), np.zeros(3)
    start = {"w": 0.01 * rng.standard_normal(4)}

    def line(p, x):
        return x @ p["w"]

    total = sh.prove(sh.setup(line, start, x, y), 0.02)
    mean = sh.prove(sh.setup(line, start, x, y, loss="mean_squares"), 0.02 * 3 / 2)
    assert total.verdict == mean.verdict == "converges"
    assert total.rate == pytest.approx(mean.rate, rel=1e-12)
    assert mean.constants["step_low"] <= 0.02 <= mean.constants["step_high"]


# 16 ------------------------------------------------------------------------ empty, scalar, signs


def test_16_signs_and_shapes_are_demanded():
    made = product()
    for bad in (
        made._replace(step_size=-0.5), made._replace(step_size=0.0),
        made._replace(scale=Range(-1.0, -1.0)), made._replace(ratios=np.array([1.0, -1.0])),
        made._replace(targets=(np.array([1.0, 1.0]),)), made._replace(step_size=float("nan")),
    ):  # fmt: skip
        assert verdict(bad) == "undecided"
    with pytest.raises(InputError, match="above 0"):
        sh.prove(sh.setup(lambda w, x: x * w, np.array([0.5]), [1.0], [0.6]), -1.0)


def test_16_nothing_to_prove():
    made = product()
    empty = made._replace(programs=(), targets=())
    assert verdict(empty) == "undecided"
    assert spectra.sigma_min(exact(np.zeros((0, 3)))) == 0
    assert spectra.lambda_max(exact(np.zeros((0, 0)))) == -np.inf
    assert balls.norm(exact(np.zeros(0))) == 0
    frozen = question(lambda w, f, x: x * f[0] + 0 * x, (1.0,), [1.0], [0.6], 0.1, frozen=(0.5,))
    assert verdict(frozen) == "undecided"


# 17 ---------------------------------------------------------------------- nested calls, patterns


def test_17_the_same_inner_jaxpr_with_other_arguments():
    inner = jax.jit(lambda a: a * a + 1)
    made = program(lambda w, _, x: inner(w[0]) * inner(2 * w[0]) * inner(x), (0.5,), (), 3.0)
    found = evaluate(made, [np.array(0.5)]).output.value
    assert abs(found.mid[0] - 1.25 * 2 * 10) <= found.rad[0] + 1e-14


def normed(mean_axis, square_axis, ddof=0, other=1.0):
    def f(w, _, x):
        c = w[0] - jnp.mean(w[0], axis=mean_axis, keepdims=True)
        n = c.shape[square_axis] - ddof
        return (
            x * c / jnp.sqrt(jnp.sum((other * c) ** 2, axis=square_axis, keepdims=True) / n + 1e-5)
        )

    return program(f, (rng.standard_normal((4, 4)),), (), 1.0)


def test_17_patterns_hold_the_wiring():
    assert {"centre", "normalise"} <= set(kinds(normed(1, 1)))
    assert {"centre", "normalise"} <= set(kinds(normed(0, 0)))
    assert "normalise" in kinds(normed(1, 0))  # rows of the squares, whatever was subtracted
    assert "normalise" not in kinds(normed(1, 1, other=2.0))  # squares of another array
    unbiased = normed(1, 1, ddof=1)
    found = next(op for op in unbiased.operations if op.kind == "normalise")
    assert (found.options["num"], found.options["den"]) == (1.0, 3.0)

    def crossed(w, _, x):  # exponentials over sums along the other axis
        e = jnp.exp(w[0])
        return x * (e / jnp.sum(e, axis=0, keepdims=True).T)

    assert "softmax" not in kinds(program(crossed, (rng.standard_normal((3, 3)),), (), 1.0))

    def another(w, _, x):
        return x * (jnp.exp(w[0]) / jnp.sum(jnp.exp(2 * w[0]), axis=1, keepdims=True))

    assert "softmax" not in kinds(program(another, (rng.standard_normal((3, 3)),), (), 1.0))

    def mixed(w, _, x):
        return x * (w[0] - jnp.mean(w[0], axis=0, keepdims=True).T)

    assert "centre" not in kinds(program(mixed, (rng.standard_normal((3, 3)),), (), 1.0))


# 18 --------------------------------------------------------------------------- strict inequality


def test_18_equality_proves_nothing():
    # sigma = beta = 1, L = 0, h = 1: c = 1/2, c Psi = radius / 2
    one = Range(1.0, 1.0)
    assert not fate.contraction(0.5, 1.0, 1.0, 0.0, one, 1.0).holds
    assert fate.contraction(np.nextafter(0.5, 0), 1.0, 1.0, 0.0, one, 1.0).holds
    assert fate.contraction(1e-20, 1.0, 1e-8, 0.0, one, 1.0).factor < 1
    slow = fate.contraction(1e-20, 1e-12, 1e-12, 0.0, one, 1.0)
    assert slow.factor == np.nextafter(1.0, 2) or slow.factor == 1.0  # rounded up, never below
    assert fate.contraction(0.5, 1.0, float("nan"), 0.0, one, 1.0) is None
    huge = fate.contraction(1e300, 1e300, 1e300, 1e300, Range(1e300, 1e300), 1e300)
    assert not huge.holds  # beyond the floats, and no error
