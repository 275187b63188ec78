"""icl2025: the worked numbers of the theory page, and every formula against another witness."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import shoal as sh
from shoal.cli import main
from shoal.lab.theorem import allowed_steps
from shoal.papers.icl2025 import PAPER
from shoal.papers.icl2025 import law as law_of
from shoal.runtime import in_float64
from shoal.theory import products, staircase

SPECTRUM = np.array([0.4, 0.3, 0.2, 0.1])
PRINTED = [1.0, 0.64057971, 0.37737216, 0.2098046, 0.13599507]  # by the authors' notebook


def with_law(setup, Lambda, context):
    """A setup with another covariance of the tokens."""
    law = in_float64(lambda: law_of(jnp.asarray(Lambda), context))()
    return setup.replace(problem=jax.tree.map(np.asarray, law))


def merged(Lambda, context, v, U, **values):
    """Merged heads with given weights."""
    values = {"dim": len(Lambda), "num_heads": len(v), "num_steps": 100} | values
    setup = with_law(sh.setup("icl2025", **values), Lambda, context)
    return setup.replace(params0={"v": np.array([v], float), "U": np.array([U], float)})


def risk_of(setup):
    return in_float64(lambda: setup.one().risk(jax.tree.map(jnp.asarray, setup.one().params0)))


# ------------------------------------------------------------------------------------- lemma 1

LAMBDA_1, A_1 = np.array([[0.8, 0.3], [0.3, 0.5]]), np.array([[0.7, -0.2], [0.4, 0.9]])


def test_the_population_risk_is_the_worked_one():
    setup = merged(LAMBDA_1, 2, [1.0], [A_1])
    assert float(risk_of(setup)()) == pytest.approx(0.5657875, rel=1e-12)
    law = setup.problem
    assert float(law.best) == pytest.approx(0.3777486910995, rel=1e-11)
    expected = [[0.586387434555, -0.188481675393], [-0.188481675393, 0.774869109948]]
    np.testing.assert_allclose(law.optimum, expected, rtol=1e-10)
    slope = in_float64(
        lambda: jax.grad(setup.one().risk)(jax.tree.map(jnp.asarray, setup.one().params0))["U"]
    )()
    np.testing.assert_allclose(slope[0], [[0.5377, 0.23225], [0.49265, 0.22175]], rtol=1e-10)


def test_the_population_risk_is_the_mean_over_prompts():
    rng = np.random.default_rng(0)
    draws, N = 400_000, 2
    x = rng.multivariate_normal(np.zeros(2), LAMBDA_1, size=(draws, N + 1))
    y = np.einsum("pnd,pd->pn", x, rng.standard_normal((draws, 2)))
    beta = np.einsum("pn,pnd->pd", y[:, :-1], x[:, :-1]) / N
    half = 0.5 * (y[:, -1] - np.einsum("pi,ij,pj->p", beta, A_1, x[:, -1])) ** 2
    assert abs(half.mean() - 0.5657875) < 4 * half.std() / np.sqrt(draws)


def test_an_empirical_law_is_the_mean_over_its_own_prompts():
    setup = sh.setup("icl2025", attention="softmax_merged", num_samples=50, dim=2, context=3)
    law, rng = setup.problem, np.random.default_rng(1)
    A = rng.standard_normal((2, 2))
    beta = np.mean(law.y[:, :-1, None] * law.X[:, :-1], axis=1)
    half = 0.5 * np.mean((law.y[:, -1] - np.einsum("pi,ij,pj->p", beta, A, law.X[:, -1])) ** 2)
    quadratic = law.best + 0.5 * np.sum((law.root @ (A - law.optimum).ravel()) ** 2)
    assert quadratic == pytest.approx(half, rel=1e-10)


def test_softmax_attention_is_the_sum_over_heads_and_pairs():
    setup = sh.setup("icl2025", attention="softmax_separate", num_samples=20, dim=2, context=3,
                     num_heads=2, scale=0.8)  # fmt: skip
    law, p, total = setup.problem, {k: x[0] for k, x in setup.params0.items()}, 0.0
    for X, y in zip(law.X, law.y, strict=True):
        found = 0.0
        for v, K, Q in zip(p["v"], p["K"], p["Q"], strict=True):
            weights = np.exp([x @ K.T @ Q @ X[-1] for x in X])
            found += v * sum(weights[:-1] * y[:-1]) / sum(weights)
        total += 0.5 * (y[-1] - found) ** 2 / 20
    assert float(risk_of(setup)()) == pytest.approx(total, rel=1e-12)


# --------------------------------------------------------------------- theorem A, theorem D

S_2 = np.full((4, 4), 1 / 8) + np.diag([0.4, 0.3, 0.2, 0.1])
S_2 /= np.linalg.norm(S_2)


def example_2(sigma, **values):
    return merged(np.diag([1, 0.7, 0.5, 0.3]), 20, [sigma], [sigma * S_2], **values)


def constants_at_40_digits(sigma):
    """Theorem A's constants for example 2, written from the theory page without JAX or float64."""
    with mpmath.workdps(40):
        lam, D = [mpmath.mpf(x) for x in ("1", "0.7", "0.5", "0.3")], range(4)
        gamma = [lam[d] * 21 / 20 + mpmath.fsum(lam) / 20 for d in D]
        S = mpmath.ones(4) / 8 + mpmath.diag([mpmath.mpf(4 - d) / 10 for d in D])
        A = mpmath.mpf(sigma) ** 2 * S / mpmath.norm(S, 2)
        kappa, slope = lam[3] ** 2 * gamma[3], mpmath.norm([x**2 for x in lam])
        gain = (
            sum(lam[d] ** 2 * A[d, d] for d in D)
            - sum(lam[i] * gamma[i] * lam[j] * A[i, j] ** 2 for i in D for j in D) / 2
        )
        excess = sum(lam[d] ** 2 / gamma[d] for d in D) / 2 - gain
        known = max(gain, 0)
        by_gain = 2 * known / (slope + mpmath.sqrt(slope**2 - 2 * kappa * known))
        most = mpmath.norm([1 / x for x in gamma]) + mpmath.sqrt(2 * excess / kappa)
        U = [A[d, d] / mpmath.mpf(sigma) for d in D]
        free = sum(min(U[d], 1 / (gamma[d] * mpmath.sqrt(most))) ** 2 for d in D)
        return {"delta_0": gain, "u_-^2 by delta_0": by_gain, "u_-^2 at any scale": free,
                "kappa": kappa, "mu": 2 * kappa * max(by_gain, free)}  # fmt: skip


@pytest.mark.parametrize(
    ("sigma", "delta", "by_gain", "free"),
    [
        ("0.05", 0.00233133, 0.00203642, 0.00191406),
        ("0.5", 0.2146358264, 0.1880899591, 0.182182),
        ("1.2", 0.724035, 0.639496, 0.583635),
        ("2", -1.04996, 0.0, 0.587524),
    ],
)
def test_theorem_a_has_the_worked_constants(sigma, delta, by_gain, free):
    exact = {name: float(x) for name, x in constants_at_40_digits(sigma).items()}
    printed = {"delta_0": delta, "u_-^2 by delta_0": by_gain, "u_-^2 at any scale": free}
    assert {name: exact[name] for name in printed} == pytest.approx(printed, rel=3e-6)
    run = sh.train(example_2(float(sigma), method="flow"), steps=20, step_size=1.0, probes=[])
    found = sh.certify(run, "theorem_a")
    assert found.verdict == "holds"
    constants = {name: float(found[0].constants[name]) for name in exact}
    assert constants == pytest.approx(exact, rel=1e-10, abs=1e-300)
    if sigma == "0.5":
        expected = [1.035364173574, 0.582491575644, 0.294844984074, 0.259184517746, 0.245897747625]
        np.testing.assert_allclose(run.risk[0, [0, 1, 5, 10, 20]], expected, rtol=1e-8)


def test_theorem_d_has_the_worked_constants_and_its_steps_descend():
    setup = example_2(0.5)
    step = allowed_steps(setup, "theorem_d")[0]
    assert step == pytest.approx(0.0404348471645, rel=2e-9)
    run = sh.train(setup, step_size=step, probes=["gradient_norm", "imbalance"])
    found = sh.certify(run, "theorem_d")
    assert found.verdict == "holds"
    c = {name: float(x) for name, x in found[0].constants.items()}
    expected = {"c": 0.0639161901273, "s": 18.8356484595, "factor": 0.999745682200}
    assert {name: c[name] for name in expected} == pytest.approx(expected, rel=1e-8)
    expected = [1.019434781488, 0.849197123691, 0.312546144320]
    np.testing.assert_allclose(run.risk[0, [1, 10, 100]], expected, rtol=1e-9)


def test_theorem_d_says_nothing_about_a_long_step_and_notices_a_rise():
    long = sh.train(example_2(0.5), step_size=0.1, probes=[])
    found = sh.certify(long, "theorem_d")
    assert found.verdict == "not applicable"
    assert float(found[0].hypotheses[next(iter(found[0].hypotheses))].lhs) == pytest.approx(
        2.66144753969, rel=1e-8
    )
    run = sh.train(example_2(0.5), step_size=0.04, probes=[])
    run.risk[0, 50] *= 1.5
    assert sh.certify(run, "theorem_d").verdict == "violated"


def test_theorem_d_covers_several_heads():
    U = [[[0.2, 0.05], [0, 0.1]], [[-0.1, 0], [0.1, -0.15]], [[0.05, 0.1], [-0.05, 0.2]]]
    setup = merged([[0.7, 0.15], [0.15, 0.6]], 6, [0.3, -0.2, 0.1], U)
    run = sh.train(setup, step_size="theorem_d", probes=[])
    c = {name: float(x) for name, x in sh.certify(run, "theorem_d")[0].constants.items()}
    expected = {"epsilon_0": 0.363984704238, "delta_0": 0.0706618598958, "h": 0.757187136467,
                "kappa": 0.191271196866, "c": 0.159157968830, "s": 7.28392537065,
                "factor": 0.998593514442}  # fmt: skip
    assert {name: c[name] for name in expected} == pytest.approx(expected, rel=1e-8)
    expected = [0.579338140104, 0.565650868475, 0.380712216879, 0.215358175087]
    np.testing.assert_allclose(run.risk[0, [0, 1, 10, 100]], expected, rtol=1e-8)


# ------------------------------------------------------------------------------------ theorem B

V, P = np.array([0.1, -0.05, 0.02]), np.array([0.04, 0.03, 0.06])


def white(**values):
    U = P[:, None, None] * np.eye(4) / 2
    return merged(np.eye(4), 31, V, U, spectrum="white", **values)


@pytest.mark.parametrize(("method", "step"), [("flow", 0.1), ("gd", 0.05)])
def test_white_curves(method, step):
    run = sh.train(white(method=method, num_steps=60), step_size=step, probes=["A"])
    s = run.probes["A"][0, :, 0, 0]
    if method == "flow":
        expected = [0.00185, 0.149649977442, 0.792155587051, 0.859740467279, 0.861085968904]
        np.testing.assert_allclose(s[[0, 10, 20, 30, 40]], expected, rtol=1e-8)
    else:
        expected = [0.130219248917, 0.790713800055, 0.860214192379]
        np.testing.assert_allclose(s[[20, 40, 60]], expected, rtol=1e-11)
        assert run.risk[0, 20] == pytest.approx(1.518507126939, rel=1e-11)
    assert sh.certify(run, "theorem_b").verdict == "holds"
    run.risk[0, 30] *= 1.001
    assert sh.certify(run, "theorem_b").verdict == "violated"


def test_the_published_curve_is_the_worked_one():
    v = np.array([0.1])  # example 3 (a): one balanced head along the identity, r_0 = 0.01
    setup = merged(np.eye(4), 31, v, [0.1 * np.eye(4) / 2], spectrum="white", method="flow")
    run = sh.train(setup, steps=30, step_size=0.1, probes=["A"])
    found = run.probes["A"][0, [10, 20, 30]]
    expected = np.array([0.208196776801, 0.814336704752, 0.860206152138])
    np.testing.assert_allclose(found[:, 0, 0], expected, rtol=1e-8)
    np.testing.assert_allclose(found, expected[:, None, None] * np.eye(4), atol=1e-8)
    time, N, D = np.array([1.0, 2.0, 3.0]), 31, 4  # as ZSLS print it, with w_init = 0.1
    grown = np.exp(2 * D**0.5 * time)
    printed = grown / ((1 + (1 + D) / N) * (grown - 1) + D**0.5 / 0.1**2)
    np.testing.assert_allclose(printed, expected, rtol=1e-10)
    assert sh.certify(run, "theorem_b").verdict == "holds"


def test_balanced_heads_of_any_direction_are_known_too():
    n = np.zeros((4, 4))
    n[:2, :2], n[2, 2] = [[2, 1], [1, 2]], 1
    n /= np.linalg.norm(n)
    setup = merged(np.eye(4), 31, [0.1], [0.1 * n], spectrum="white", method="flow", num_steps=30)
    run = sh.train(setup, step_size=0.1, probes=[])
    assert sh.certify(run, "theorem_b").verdict == "holds"
    expected = [1.392036132764, 0.286557968292, 0.277787025996]
    np.testing.assert_allclose(run.risk[0, [10, 20, 30]], expected, rtol=1e-8)


def test_theorem_b_says_nothing_about_a_spectrum():
    run = sh.train(sh.setup("icl2025", init="aligned", num_steps=10), step_size=0.1, probes=[])
    assert sh.certify(run, "theorem_b").verdict == "not applicable"


# --------------------------------------------------------------------------- separate keys


def test_the_levels_are_those_that_the_authors_print():
    setup = sh.setup("icl2025")
    found = in_float64(lambda: 2 * setup.setting.rests(jax.tree.map(jnp.asarray, setup.problem)))()
    np.testing.assert_allclose(found, PRINTED, rtol=3e-8)
    expected = [1, 0.640579710145, 0.377372162975, 0.209804595408, 0.135995071598]
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("heads", [1, 2, 3, 5])
def test_training_ends_at_the_level_of_its_rank(heads):
    setup = sh.setup("icl2025", attention="separate", num_heads=heads, scale=0.1, num_steps=20000,
                     every=1000, step_size=0.4)  # fmt: skip
    run = sh.train(setup, probes=[])
    assert 2 * run.risk[0, -1] == pytest.approx(PRINTED[min(heads, 4)], rel=4e-8)
    # the run ends on the level itself, where rounding decides on which side of it a record lies
    assert sh.certify(run, "theorem_c").verdict in ("holds", "unresolved")
    run.risk[0, -1] *= 0.999
    assert sh.certify(run, "theorem_c").verdict == "violated"


def test_no_run_passes_the_level_of_its_rank():
    setup = sh.setup("icl2025", attention="separate", num_heads=2, scale=0.1, num_steps=200,
                     every=20, step_size=0.4)  # fmt: skip
    run = sh.train(setup, probes=[])
    assert 2 * run.risk[0, -1] > 1.001 * PRINTED[2]
    assert sh.certify(run, "theorem_c").verdict == "holds"


def test_the_whole_staircase_is_known():
    values = {"attention": "separate", "num_heads": 4, "init": "aligned", "scale": 0.05}
    run = sh.train(sh.setup("icl2025", method="flow", num_steps=220, **values), step_size=10.0)
    expected = [0.9780416585, 0.640244683, 0.61979298, 0.3773120211, 0.3761262619, 0.2097992166,
                0.1366157008, 0.1359950716]  # fmt: skip
    at = [11, 13, 20, 23, 40, 52, 200, 220]
    np.testing.assert_allclose(2 * run.risk[0, at], expected, rtol=2e-8)
    assert sh.certify(run, "theorem_s").verdict == "holds"
    descent = sh.train(sh.setup("icl2025", num_steps=600, **values), step_size=0.4)
    assert sh.certify(descent, "theorem_s").verdict == "holds"
    descent.risk[0, 400] *= 1.0001
    assert sh.certify(descent, "theorem_s").verdict == "violated"


GAMMA = np.array([0.445161290323, 0.341935483871, 0.238709677419, 0.135483870968])


def hessian_at(directions):
    """Eigenvalues of the Hessian where balanced heads rest; the last of five heads are zero.

    Heads that share a direction share its optimal value.
    """
    directions = np.array(directions, int)
    shared = np.array([np.sum(directions == d) for d in directions])
    v, rows = np.zeros(5), np.zeros((5, 1, 4))
    v[: len(directions)] = (GAMMA[directions] * shared) ** (-1 / 3)
    rows[np.arange(len(directions)), 0, directions] = v[: len(directions)]
    setup = sh.setup("icl2025", attention="separate").replace(
        params0={"v": v[None], "K": rows[None], "Q": rows[None]}
    )

    def values():
        params = jax.tree.map(jnp.asarray, setup.one().params0)
        flat, back = jax.flatten_util.ravel_pytree(params)
        risk = lambda x: setup.one().risk(back(x))  # noqa: E731
        assert float(jnp.linalg.norm(jax.grad(risk)(flat))) < 1e-11
        return jnp.linalg.eigvalsh(jax.hessian(risk)(flat))

    return np.asarray(in_float64(values)())


@pytest.mark.parametrize(
    ("directions", "negative"),
    [
        ([1], [-0.0327607899]),
        ([0, 0], [-0.0935535, -0.0415793, -0.0103948]),  # theory 5.3 (a): one for each direction
        ([], []), ([0], []), ([0, 1], []), ([0, 1, 2], []), ([0, 1, 2, 3], []),
    ],
)  # fmt: skip
def test_only_the_best_predictors_of_a_rank_have_no_way_down_of_second_order(directions, negative):
    found = hessian_at(directions)
    below = found[found < -1e-9 * max(found[-1], 1.0)]
    np.testing.assert_allclose(below, negative, rtol=0, atol=5e-8)  # as many digits as are given
    if directions == [1]:
        assert found[-1] == pytest.approx(0.427779, rel=2e-6)


@pytest.mark.parametrize("chosen", [(2,), (3,), (0, 2), (1, 3), (2, 3), (1, 2, 3)])
def test_the_index_of_a_saddle_counts_larger_eigenvalues_that_are_not_learnt(chosen):
    found = hessian_at(list(chosen))
    pairs = [(i, d) for i in chosen for d in range(4) if d not in chosen and d < i]
    assert np.sum(found < -1e-9 * found[-1]) == len(pairs)


def test_the_half_times_of_the_staircase_are_the_worked_ones():
    times = np.array([120.938950965, 215.611260500, 486.806623019, 1956.313768165])
    half = (2 * GAMMA) ** (-1 / 3)

    def at_times():
        return jax.vmap(lambda d: staircase.cubic_flow(
            jnp.array(0.05), jnp.asarray(GAMMA)[d], (jnp.asarray(SPECTRUM) ** 2 * times)[d]
        ))(jnp.arange(4))  # fmt: skip

    np.testing.assert_allclose(in_float64(at_times)(), half, rtol=1e-8)
    first_order = 1 / (SPECTRUM**2 * 0.05) - 0.8502506921 * GAMMA ** (1 / 3) / SPECTRUM**2
    np.testing.assert_allclose(first_order, times, rtol=1e-3)


K, Q = np.array([0.02, 0.01, -0.01, 0.005]), np.array([0.01, -0.02, 0.015, 0.01])


@pytest.mark.parametrize(
    ("v", "k", "q", "time"),
    [
        (0.01, K, Q, 515.13344284),
        (-0.01, K, Q, 748.3663243),
        (0.01, [0.02, 0, 0, 0], [-0.02, 0.004, 0, 0], 756.1767055),
    ],
)
def test_the_escape_integral_is_the_worked_one_and_that_of_the_equations(v, k, q, time):
    k, q, mu = np.array(k, float), np.array(q, float), SPECTRUM**2
    found = staircase.escape_time(v, k, q, mu)
    assert found == pytest.approx(time, rel=1e-8)

    def slope(_, x):
        v, k, q = x[0], x[1:5], x[5:]
        return np.concatenate([[k @ (mu * q)], v * mu * q, v * mu * k])

    def large(_, x):
        return abs(x[0]) - 1e3

    large.terminal = True
    start = np.concatenate([[v], k, q])
    path = solve_ivp(slope, (0, 2 * time), start, events=large, rtol=1e-10, atol=1e-14)
    # from v = 1000 on it takes 1 / (mu v) more, or less
    assert path.t_events[0][0] == pytest.approx(time, abs=0.02)


def test_theorem_e_has_the_worked_constants():
    gamma = np.array([0.76, 0.54])
    v = gamma ** (-1 / 3) * [1.02, 0.98]
    setup = with_law(sh.setup("icl2025", attention="separate", dim=2, num_heads=2, method="flow",
                              spectrum="0.6,0.4", context=10), np.diag([0.6, 0.4]), 10)  # fmt: skip
    rows = (v[:, None] * np.eye(2))[None, :, None]
    run = sh.train(setup.replace(params0={"v": v[None], "K": rows, "Q": rows}), steps=50,
                   step_size=0.1, probes=["distance"])  # fmt: skip
    found = sh.certify(run, "theorem_e")
    expected = {"epsilon_0": 0.00139966254628, "sigma_A": 0.939500264776, "B": 1.203450289556,
                "q": 0.135474604755, "rho": 0.188585498144, "m": 0.0787112393254}  # fmt: skip
    constants = {name: float(found[0].constants[name]) for name in expected}
    assert constants == pytest.approx(expected, rel=1e-8)
    assert found.verdict == "holds"
    assert run.risk[0, -1] - float(setup.problem.best) == pytest.approx(1.6511e-6, rel=1e-4)
    run.risk[0, 30] += 0.01
    assert sh.certify(run, "theorem_e").verdict == "violated"


# ------------------------------------------------------------------------ formulas and the core


def test_exact_curves_agree_with_an_integrator():
    rng = np.random.default_rng(3)
    v, p, a, k = rng.standard_normal(3), rng.standard_normal(3), 1.3, 0.7

    def slope(_, x):
        return k * (a - x[:3] @ x[3:]) * np.concatenate([x[3:], x[:3]])

    path = solve_ivp(slope, (0, 3), np.concatenate([v, p]), rtol=1e-11, atol=1e-13).y[:, -1]
    start = products.Isotropic(k, a, np.sum((v + p) ** 2) / 4, np.sum((v - p) ** 2) / 4)
    found = in_float64(lambda: products.aligned_flow(start, jnp.array([3.0])))()
    assert float(found[0]) == pytest.approx(path[:3] @ path[3:], rel=1e-9)
    cubic = solve_ivp(lambda _, x: x**2 * (1 - 2 * x**3), (0, 4), [0.2], rtol=1e-11, atol=1e-13)
    found = in_float64(lambda: staircase.cubic_flow(jnp.array(0.2), jnp.array(2.0), 4.0))()
    assert float(found) == pytest.approx(cubic.y[0, -1], rel=1e-9)


def test_a_fate_is_proved_without_samples():
    near = {"attention": "merged", "init": "aligned", "spectrum": "white", "dim": 2, "scale": 1.1}
    setup = sh.setup("icl2025", num_steps=400, **near)
    proof = sh.prove(sh.train(setup, step_size=0.1, probes=[]))
    assert proof.verdict == "converges"
    assert proof.num_outputs == 4


def test_settings_that_do_not_fit_are_refused():
    for wrong in (
        {"spectrum": "1,2"},
        {"spectrum": "1,2,x,3"},
        {"risk": "empirical", "num_samples": 8},
    ):
        with pytest.raises(sh.InputError, match="expected"):
            sh.setup("icl2025", **wrong)


def test_theorems_about_products_are_about_every_two_layer_linear_network():
    rng = np.random.default_rng(5)
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, 8).T
    X, y = signs * [1.0, 0.7, 0.5], rng.standard_normal(8)  # X'X is diagonal, so A* is a quotient
    start = {"v": 0.3 * rng.standard_normal(4), "W": 0.3 * rng.standard_normal((4, 3))}
    setup = sh.setup(lambda p, x: x @ p["W"].T @ p["v"], start, X, y, loss="mean_squares")

    def descends(setup, run):
        x, t = jnp.asarray(X), jnp.asarray(y)
        optimum = x.T @ t / jnp.sum(x**2, axis=0)
        best = jnp.mean((t - x @ optimum) ** 2)
        root = jnp.sqrt(2 / len(x)) * x
        begun = products.Product(root, optimum, best, setup.params0["v"], setup.params0["W"])
        return products.descends(begun, setup, run)

    run = sh.train(setup, steps=60, step_size=0.01, probes=["gradient_norm"])
    assert sh.certify(run, descends).verdict == "holds"
    run.risk[0, 30] *= 1.01
    assert sh.certify(run, descends).verdict == "violated"
    long = sh.train(setup, steps=60, step_size=0.3, probes=[])
    assert sh.certify(long, descends).verdict == "not applicable"


def test_training_names_no_theorem_that_needs_samples(capsys):
    assert main(["train", "icl2025", "--set", "dim=2", "--steps", "2"]) == 0
    assert "kernel_regime" not in capsys.readouterr().out


def test_the_visit_says_what_its_runs_say():
    visit = PAPER.visit()
    assert visit.head == ("spectrum", "attention", "theorem", "last risk", "verdict")
    assert [row[-1] for row in visit.cells] == ["holds", "not applicable", "holds"]
    assert "theorem_b holds. Tokens with a spectrum: theorem_b is not applicable" in visit.words
    assert [curve.label for curve in visit.panels[0].curves] == [
        what.split(", ", 1)[1] for what, _ in visit.verdicts
    ]
    assert all(len(row) == len(visit.head) for row in visit.cells)


@pytest.mark.parametrize("word", ["dim=-1", "context=0", "num_heads=0", "rank=0", "num_steps=-2"])
def test_sizes_below_one_are_refused(word):
    name, _, value = word.partition("=")
    with pytest.raises(sh.InputError, match=f"{word}: expected a number greater"):
        sh.setup("icl2025", **{name: int(value)})
