"""The engine: what a run is does not depend on how, with whom, or in how many pieces it is run."""

import re
import threading
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal as sh
import toy_paper
from helpers import run as plain_run
from shoal import methods
from shoal.errors import InputError
from shoal.lab import engine
from shoal.lab.run import train
from shoal.lab.setup import BATCHES, key_of, paper_setup
from shoal.lab.study import fresh_setup, program_key, stack
from shoal.lab.theorem import Theorem, allowed_steps, certify


class Weights(NamedTuple):
    W: jax.Array
    a: jax.Array


class Net(sh.Setting):
    """A small network that is not linear, with everything that a setting can bring."""

    num_tokens: int = 1  # Tokens.
    dim: int = 3  # Numbers per token.
    width: int = 5  # Hidden units.
    gain: float = 1.0  # Scale of the output.
    ratio: float = 0.5  # Step of the output weights over that of the others.
    labels: sh.Data[str] = "normal"  # What the labels are.
    num_samples: int = 6  # Samples.
    num_steps: sh.Traced[int] = 12  # Steps.

    def data(self, key):
        key_x, key_y = jax.random.split(key)
        X = jax.random.normal(key_x, (self.num_samples, self.num_tokens, self.dim))
        y = jax.random.normal(key_y, (self.num_samples,))
        return sh.Problem(X, jnp.sign(y) if self.labels == "signs" else y)

    def test_data(self, key):
        return self.data(jax.random.fold_in(key, 1))

    def params(self):
        return Weights(W=(self.width, self.dim), a=(self.width,))

    def apply(self, params, x):
        return self.gain * params.a @ jnp.tanh(params.W @ x[0])

    def step_ratios(self):
        return {"a": self.ratio}

    def floor(self, setup):
        return lambda params: 0.0


PAPER = sh.Paper(Net, key="net")


class Averaged(Net):
    """The same, and the mean of the iterates is kept."""

    averages: ClassVar[bool] = True


class Ball(Net):
    """The same, and weights stay near their start."""

    radius: float = 0.01  # Of the balls.

    def rule(self, method):
        return methods.projected(method, {"W": self.radius, "a": self.radius})


sh.Paper(Averaged, key="averaged")
sh.Paper(Ball, key="ball")


def made(kind=Net, seeds=(0, 1, 2, 3), **values):
    return paper_setup(kind.paper, values, seeds=seeds)


def close(one, other, rtol=1e-12):
    np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-14)


# ------------------------------------------------------------------------- with or without others


def test_a_seed_s_run_and_default_step_do_not_depend_on_its_companions():
    probes = ("movement", "kernel_lambda_min")
    many, one = train(made(), probes=probes), train(made(seeds=(3,)), probes=probes)
    assert many.step_size[3] == one.step_size[0]
    assert len(set(many.step_size.tolist())) == 4  # each has its own
    close(many.risk[3], one.risk[0])
    close(many.params.W[3], one.params.W[0])
    for name in one.probes:
        close(many.probes[name][3], one.probes[name][0], rtol=1e-10)


def test_the_default_step_is_half_of_one_over_the_kernel_s_top():
    setup = made(seeds=(0, 5))
    steps = engine.default_steps(setup)
    for row in (0, 1):
        one = jax.tree.map(jnp.asarray, setup.one(row))
        J = [jax.grad(one.setting.apply)(one.params0, x) for x in one.problem.X]
        K = sum(
            r * np.array([[jnp.sum(getattr(p, k) * getattr(q, k)) for p in J] for q in J])
            for k, r in (("W", 1.0), ("a", 0.5))
        )
        assert steps[row] == pytest.approx(0.5 / np.linalg.eigvalsh(K)[-1], rel=1e-10)


def test_a_stack_of_settings_is_each_of_them():
    values = [
        {"gain": 1.0, "data_seed": 0, "step_size": 0.1},
        {"gain": 2.0, "data_seed": 7, "step_size": 0.05},
        {"gain": 0.5, "ratio": 1.0, "data_seed": 1, "labels": "signs", "step_size": 0.2},
    ]
    single = [made(seeds=(k,), **v) for k, v in enumerate(values)]
    assert len({program_key(s) for s in single}) == 1
    together = train(stack(single), probes=("movement", "test_risk"))
    assert together.seeds == (0, 1, 2)
    for k, setup in enumerate(single):
        alone = train(setup, probes=("movement", "test_risk"))
        close(together.risk[k], alone.risk[0])
        close(together.probes["movement_a"][k], alone.probes["movement_a"][0], rtol=1e-10)
        close(together.probes["test_risk"][k], alone.probes["test_risk"][0])
        close(together.step_size[k], alone.step_size[0])


def test_a_stack_of_stacks_and_of_default_steps():
    parts = [made(seeds=(0, 1), gain=1.0), made(seeds=(2,), gain=2.0)]
    whole = stack([stack(parts), stack([made(seeds=(3,), gain=3.0)])])
    assert whole.seeds == (0, 1, 2, 3)
    found = train(whole)
    for k, gain in enumerate((1.0, 1.0, 2.0, 3.0)):
        alone = train(made(seeds=(k,), gain=gain))
        close(found.step_size[k], alone.step_size[0])
        close(found.risk[k], alone.risk[0])


def test_settings_of_another_shape_or_rule_cannot_be_stacked():
    keys = {
        program_key(made(seeds=(0,), **v))
        for v in ({}, {"width": 6}, {"num_steps": 6}, {"method": "adam"}, {"train": "a"},
                  {"step_size": 0.1})
    }  # fmt: skip
    assert len(keys) == 6


def test_fresh_data_are_those_of_the_seed():
    fresh = train(fresh_setup(PAPER, {"labels": "signs"}, seeds=(2, 5)), probes=("test_risk",))
    for row, seed in enumerate((2, 5)):
        own = train(made(seeds=(seed,), data_seed=seed, labels="signs"), probes=("test_risk",))
        np.testing.assert_array_equal(fresh.setup.problem.X[row], own.setup.problem.X)
        close(fresh.step_size[row], own.step_size[0])
        close(fresh.risk[row], own.risk[0])
        close(fresh.probes["test_risk"][row], own.probes["test_risk"][0])


# ------------------------------------------------------------------------------ in how many pieces


def by_hand(setup, row, **options):
    one = jax.tree.map(jnp.asarray, setup.one(row))
    method = methods.gradient_descent(one.step_size, one.step_ratios)
    walk = jax.jit(lambda p: plain_run(method, one.risk, p, num_steps=12, **options))
    return walk(one.params0)


def test_a_run_in_segments_on_all_cores_is_the_plain_run():
    found = train(made(step_size=0.1))
    for row in (0, 3):
        expected = by_hand(found.setup, row)
        close(found.risk[row], expected.risk)
        close(found.params.a[row], expected.params.a)
    assert found.step.tolist() == list(range(13))


@pytest.mark.parametrize(
    ("cores", "cached"), [(1, 2**17), (3, 2**17), (2, 1), (1, 300), (16, 2**17)]
)
def test_cores_and_batches_change_nothing(monkeypatch, cores, cached):
    usual = train(made(seeds=range(5), step_size=0.1), probes=("distance",))
    monkeypatch.setattr(engine, "cores", lambda: cores)
    monkeypatch.setattr(engine, "CACHED", cached)
    other = train(made(seeds=range(5), step_size=0.1), probes=("distance",))
    assert other.risk.shape == (5, 13)
    close(other.risk, usual.risk)
    close(other.params.W, usual.params.W)
    close(other.probes["distance"], usual.probes["distance"], rtol=1e-10)


def test_records_can_be_fewer_than_steps():
    every, rare = train(made(step_size=0.1)), train(made(step_size=0.1, every=4))
    assert rare.step.tolist() == [0, 4, 8, 12]
    close(rare.risk, every.risk[:, ::4])
    close(train(made(step_size=0.1), every=6).risk, every.risk[:, ::6])
    with pytest.raises(InputError, match="every=5 does not divide num_steps=12"):
        train(made(), every=5)


def test_another_number_of_steps_needs_no_matching_every():
    assert train(made(every=4), steps=6).step.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_zero_steps_look_at_the_start():
    setup = made()
    found = train(setup, steps=0, probes=("movement", "kernel_eigenvalues"))
    assert found.step.tolist() == [0]
    assert found.risk.shape == (4, 1)
    assert found.probes["kernel_eigenvalues"].shape == (4, 1, 6)
    assert found.probes["movement_W"].max() == 0
    np.testing.assert_array_equal(found.params.W, setup.params0.W)
    close(found.risk[:, 0], train(setup, steps=1).risk[:, 0])


def test_a_rare_probe_is_recorded_at_its_stride_and_at_the_end():
    often = train(made(every=2), probes=("kernel_eigenvalues", "movement"))
    rare = train(made(every=2), probes=("kernel_eigenvalues@6", "movement"))
    assert rare.step.tolist() == [0, 2, 4, 6, 8, 10, 12]
    mask = np.array([0, 3, 6])
    between = np.array([1, 2, 4, 5])
    close(
        rare.probes["kernel_eigenvalues"][:, mask],
        often.probes["kernel_eigenvalues"][:, mask],
        rtol=1e-8,
    )
    assert np.isnan(rare.probes["kernel_eigenvalues"][:, between]).all()
    close(rare.risk, often.risk)
    close(rare.probes["movement_W"], often.probes["movement_W"], rtol=1e-9)


@pytest.mark.parametrize(
    "names", [("movement@5",), ("movement@3", "pl_ratio@6"), ("movement@x",), ("movement@0",)]
)
def test_strides_that_do_not_fit_are_refused(names):
    with pytest.raises(InputError, match="probe"):
        train(made(), probes=names)


def test_progress_is_reported_up_to_the_end():
    seen = []
    train(made(seeds=(0,)), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k, 12) for k in range(1, 13)]
    seen.clear()
    train(made(seeds=range(4)), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (12, 12)
    assert seen == sorted(seen)


def test_an_interruption_stops_every_thread(monkeypatch):
    monkeypatch.setattr(engine, "cores", lambda: 2)

    def interrupt(done, total):
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        train(made(), progress=interrupt)
    assert threading.active_count() == before


def test_two_threads_of_the_user_s_train_at_once():
    expected = train(made(step_size=0.1)).risk
    found = {}

    def work(name):
        found[name] = train(made(step_size=0.1)).risk

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], expected)


# ------------------------------------------------------------------------------ what is compiled


def programs():
    return engine._advance._cache_size(), engine._begin._cache_size(), engine._look._cache_size()


def test_another_float_seed_or_data_set_compiles_nothing():
    train(made(step_size=0.1), probes=("pl_ratio",))
    before = programs()
    changes = {"gain": 2.0, "ratio": 0.1, "data_seed": 5, "labels": "signs", "step_size": 0.3}
    for name, value in changes.items():
        train(
            made(seeds=(9, 8, 7, 6), **({"step_size": 0.1} | {name: value})), probes=("pl_ratio",)
        )
    assert programs() == before
    train(made(step_size=0.1, width=6), probes=("pl_ratio",))
    assert programs() != before


def test_a_hundred_seeds_are_one_program():
    traces = []

    class Counted(Net):
        """A model that counts how often it is traced."""

        def apply(self, params, x):
            traces.append(1)
            return Net.apply(self, params, x)

    paper = sh.Paper(Counted, key="counted")
    train(paper_setup(paper, {"step_size": 0.1}, seeds=range(100)), probes=("pl_ratio",))
    first = len(traces)
    traces.clear()
    train(
        paper_setup(paper, {"step_size": 0.2, "gain": 3.0}, seeds=range(100, 200)),
        probes=("pl_ratio",),
    )
    assert first < 40
    assert len(traces) < 15  # shapes and names only: nothing is traced again to be compiled


# ------------------------------------------------------------------------------ training rules


def test_the_average_is_that_of_all_iterates():
    setup = made(Averaged, step_size=0.1)
    found = train(setup, probes=("params",))
    close(found.average.W, found.probes["params_W"][:, :-1].mean(axis=1), rtol=1e-11)
    close(found.average.a, found.probes["params_a"][:, :-1].mean(axis=1), rtol=1e-11)
    close(found.risk, train(made(step_size=0.1)).risk)
    assert train(made()).average is None
    some = train(made(Averaged, step_size=0.1, train="a"))
    close(some.average.W, some.params.W)  # what is frozen is its own mean


def test_a_projected_run_stays_in_its_balls():
    found = train(made(Ball, step_size=0.3, radius=0.02))
    moved = np.linalg.norm(found.params.W - found.setup.params0.W, axis=-1)
    assert moved.max() <= 0.02 * (1 + 1e-12)
    assert moved.max() == pytest.approx(0.02)
    free = train(made(Ball, step_size=0.3, radius=100.0))
    close(free.risk, train(made(step_size=0.3)).risk)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_minibatches_are_drawn_from_the_seed_s_own_key(rule):
    setup = made(seeds=(0, 4), method=rule, batch_size=2, step_size=0.1, num_steps=3)
    found = train(setup)
    for row, seed in enumerate((0, 4)):
        one = jax.tree.map(jnp.asarray, setup.one(row))
        key = key_of(seed, BATCHES)
        rule_of = methods.METHODS[rule](0.1, one.step_ratios)
        blocks = {"W": one.params0.W, "a": one.params0.a}
        state = rule_of.init(blocks)
        for step in range(3):
            assert float(one.risk(Weights(**blocks))) == pytest.approx(found.risk[row, step])
            key, now = jax.random.split(key)
            rows = methods.subset(now, 6, 2)
            blocks, state = rule_of.step(
                lambda b, rows=rows, one=one: one.risk(Weights(**b), rows), blocks, state
            )
        close(found.params.W[row], blocks["W"], rtol=1e-10)
    alone = train(made(seeds=(4,), method=rule, batch_size=2, step_size=0.1, num_steps=3))
    close(alone.risk[0], found.risk[1])


def test_a_batch_is_at_most_all_samples():
    whole = train(made(method="sgd", step_size=0.1))  # auto: 32, but there are six
    close(whole.risk, train(made(step_size=0.1)).risk, rtol=1e-9)
    with pytest.raises(InputError, match="batch_size=7: expected between 1 and num_samples=6"):
        train(made(method="sgd", batch_size=7))


def test_gradient_flow_of_a_linear_model_is_its_closed_form():
    setup = paper_setup(toy_paper.PAPER, {"method": "flow", "num_steps": 5, "step_size": 0.1})
    found = train(setup)
    one = setup.one()
    X, y = one.problem.X[:, 0], one.problem.y
    e0, (values, V) = X @ one.params0.w - y, np.linalg.eigh(X @ X.T)
    expected = [0.5 * np.sum((np.exp(-0.1 * t * values) * (V.T @ e0)) ** 2) for t in range(6)]
    close(found.risk[0], expected, rtol=1e-6)
    assert found.frame()["time"].to_list() == pytest.approx([0.1 * t for t in range(6)])


def test_an_optax_transformation_trains():
    import optax

    found = train(made(), method=optax.sgd(0.1), steps=12)
    close(found.risk, train(made(step_size=0.1)).risk)
    assert found.step_size is None
    assert found.notes["step_size_source"] == "the method's own"


def test_only_the_selected_blocks_move():
    found = train(made(train="a", step_size=0.1), probes=("params", "movement"))
    np.testing.assert_array_equal(found.params.W, found.setup.params0.W)
    assert "params_W" not in found.probes
    assert found.probes["movement_a"][:, -1].min() > 0


def test_an_unknown_method_is_refused():
    with pytest.raises(InputError, match="no method is called 'gdd'; did you mean 'gd'"):
        train(made(), method="gdd")


# ------------------------------------------------------------------------------------ step sizes


def test_steps_are_given_per_seed_for_all_or_by_a_theorem():
    setup = made()
    found = train(setup, step_size=[0.1, 0.2, 0.3, 0.4])
    close(found.risk[2], train(made(seeds=(2,)), step_size=0.3).risk[0])
    assert found.notes["step_size_source"] == "given"
    toy = paper_setup(toy_paper.PAPER, {}, seeds=(0, 1))
    steps = allowed_steps(toy, "theorem_1")
    largest = train(toy, step_size="theorem_1")
    assert largest.step_size.tolist() == steps.tolist()
    assert largest.notes["step_size_source"] == "largest that theorem_1 allows"
    own = train(toy.with_steps(0.001), step_size="theorem_1")  # what was chosen before stays
    assert own.step_size.tolist() == [0.001, 0.001]


def test_where_a_theorem_allows_no_step_the_default_is_taken():
    twins = paper_setup(toy_paper.PAPER, {"labels": "twins"}, seeds=(0, 1))
    assert np.isnan(allowed_steps(twins, "theorem_1")).all()
    found = train(twins, step_size="theorem_1")
    assert found.step_size.tolist() == engine.default_steps(twins).tolist()
    assert found.notes["step_size_source"] == "default: theorem_1 allows no step here"
    with pytest.raises(InputError, match="kernel_regime does not say which steps it allows"):
        allowed_steps(twins, "kernel_regime")


def test_divergence_is_data_and_one_seed_s_own():
    found = train(made(), step_size=[0.1, 1e6, 0.1, 0.1], steps=40, probes=("movement",))
    assert found.diverged_at[0] is None
    assert found.diverged_at[1] > 0
    assert not np.isfinite(found.risk[1, -1])
    close(found.risk[2], train(made(seeds=(2,)), step_size=0.1, steps=40).risk[0])


# ------------------------------------------------------------------------------------- precision


def test_float32_stays_float32_and_bounds_are_computed_in_float64():
    single = train(paper_setup(PAPER, {"step_size": 0.1}, seeds=(0, 1), precision="float32"))
    double = train(made(seeds=(0, 1), step_size=0.1))
    assert single.risk.dtype == single.params.W.dtype == np.float32
    np.testing.assert_allclose(single.risk, double.risk, rtol=1e-4)
    toy = paper_setup(toy_paper.PAPER, {"step_size": 0.01}, precision="float32")
    found = certify(train(toy), "theorem_1")[0]
    assert found.constants["lambda_min"].dtype == np.float64
    steps = engine.default_steps(paper_setup(PAPER, {}, seeds=(0,), precision="float32"))
    assert steps.dtype == np.float64
    assert steps == pytest.approx(engine.default_steps(made(seeds=(0,))), rel=1e-5)


def test_precision_is_ours_alone():
    with jax.enable_x64(False):
        found = train(made(step_size=0.1))
        assert found.risk.dtype == np.float64
        assert jnp.ones(1).dtype == jnp.float32
    np.testing.assert_array_equal(found.risk, train(made(step_size=0.1)).risk)


# ------------------------------------------------------------------------------- around training


def top(start, power):
    return jnp.linalg.norm(start.params0.W) ** power


def test_anything_can_be_measured_at_every_start():
    setup = made(seeds=(0, 1, 2))
    expected = np.linalg.norm(setup.params0.W, axis=(1, 2)) ** 3
    close(engine.per_start(setup, top, 3), expected)


def test_snapshots_are_the_iterates():
    found = engine.snapshots(made(step_size=0.1, train="a"), most=4)
    assert set(found) == {"a"}
    assert found["a"].shape == (4, 5, 5)  # seeds, records 0, 3, ..., 12, entries
    run = train(made(step_size=0.1, train="a"), probes=("params",))
    close(found["a"], run.probes["params_a"][:, ::3], rtol=1e-11)


def test_the_kernel_predicts_a_linear_model_exactly():
    toy = train(paper_setup(toy_paper.PAPER, {}, seeds=(0, 1)))
    close(engine.kernel_predictions(toy.setup, toy.step), toy.risk, rtol=1e-8)
    assert engine.kernel_predictions(train(made(train="a")).setup, toy.step) is not None


def test_final_states_say_where_each_seed_came_to_rest():
    states = [end["state"] for end in train(made(step_size=0.1)).final_states()]
    assert set(states) == {"slow"}
    assert train(paper_setup(toy_paper.PAPER, {})).final_states() is None  # no floor is known


def test_every_theorem_is_told_of_every_seed_in_its_own_order():
    toy = train(paper_setup(toy_paper.PAPER, {}, seeds=(0, 1, 2)), step_size="theorem_1")
    found = certify(toy, "theorem_1")
    assert found.verdicts == ["holds"] * 3
    assert found.verdict == "holds"
    assert next(iter(found[0].hypotheses)) == "step: eta lambda_max <= 1"
    assert certify(toy, "theorem_false").verdicts == ["violated"] * 3
    assert len(found) == 3
    slow = certify(train(toy.setup.rows([0, 1]), step_size=[1e-4, 10.0]), "theorem_1")
    assert slow.verdicts == ["holds", "not applicable"]
    assert slow.verdict == "mixed"


def test_a_theorem_of_the_user_s_is_a_function():
    def falls(setup, run):
        """The risk falls."""
        conclusions = {"falls": sh.Inequality(run.risk[1:], run.risk[:-1])}
        return sh.Certificate(hypotheses={}, conclusions=conclusions)

    found = certify(train(made()), falls)
    assert found.theorem.key == "falls"
    assert found.verdicts == ["holds"] * 4
    named = Theorem("mine", "It falls.", "ours", falls, method="adam")
    with pytest.raises(InputError, match="mine is about method=adam, and this run used method=gd"):
        certify(train(made()), named)
    never = Theorem("mine", "It falls.", "ours", falls, covers=lambda setting: False)
    with pytest.raises(InputError, match="mine does not cover this model"):
        certify(train(made()), never)


def test_what_has_no_enclosure_stays_unresolved_and_is_named():
    def largest(setup, run):
        """One line by a sort, one without."""
        weights = jnp.sort(jnp.abs(setup.params0.w).ravel())
        return sh.Certificate(
            hypotheses={
                "by a sort": sh.Inequality(weights[-1], 1e6),
                "without": sh.Inequality(jnp.sum(setup.params0.w**2), 1e6),
            },
            conclusions={},
        )

    found = certify(train(paper_setup(toy_paper.PAPER, {})), largest)
    assert found.verdict == "unresolved"
    lines = {line["name"]: line["holds"] for line in found.to_json()["results"][0]["hypotheses"]}
    assert lines == {"by a sort": None, "without": True}
    (where,) = found.to_json()["results"][0]["without_rule"]
    assert re.fullmatch(r"'sort' \(test_engine\.py:\d+\)", where)
    assert f"Cannot enclose {where}" in " ".join(repr(found).split())


def test_an_index_that_is_not_known_leaves_every_line_open():
    def by_place(setup, run):
        """A weight at the place of the largest one."""
        w = setup.params0.w.ravel()
        at = jnp.argmax(w)
        lines = {"there": sh.Inequality(w[at], 1e6), "elsewhere": sh.Inequality(0.0, 1.0)}
        return sh.Certificate(hypotheses=lines, conclusions={})

    found = certify(train(paper_setup(toy_paper.PAPER, {})), by_place)
    assert found.verdict == "unresolved"
    assert "'argmax'" in found.to_json()["results"][0]["without_rule"][0]


def test_a_tampered_run_is_noticed():
    import dataclasses

    toy = train(paper_setup(toy_paper.PAPER, {}), step_size="theorem_1")
    risk = toy.risk.copy()
    risk[0, 5] *= 1e6
    assert certify(dataclasses.replace(toy, risk=risk), "theorem_1").verdict == "violated"


def test_the_kernel_regime_speaks_of_every_model():
    found = train(made(step_size=0.01, gain=0.1), probes=("kernel_distance",))
    assert set(certify(found, "kernel_regime").verdicts) <= {
        "holds",
        "not applicable",
        "unresolved",
    }
    linear = train(paper_setup(toy_paper.PAPER, {}), probes=("kernel_distance",))
    assert certify(linear, "kernel_regime").verdict == "holds"


def test_a_theorem_does_not_judge_by_what_was_not_recorded_or_only_rarely():
    for probes in (("movement",), ("kernel_distance@6",)):
        with pytest.raises(InputError, match="kernel_regime needs kernel_distance"):
            certify(train(made(step_size=0.01), probes=probes), "kernel_regime")


def test_unknown_theorems_and_probes_name_the_nearest():
    toy = train(paper_setup(toy_paper.PAPER, {}))
    with pytest.raises(InputError, match="doe2024 has no theorem 'theorem_2'; did you mean"):
        certify(toy, "theorem_2")
    with pytest.raises(InputError, match="has no probe 'movment'; did you mean 'movement'"):
        train(toy.setup, probes=["movment"])


def test_probes_are_chosen_by_name_added_or_all():
    setup = made(seeds=(0,), num_steps=2)
    assert set(train(setup).parts) == {"movement", "gradient_norm", "pl_ratio"}
    assert set(train(setup, probes="+distance").parts) == {
        "movement", "gradient_norm", "pl_ratio", "distance",
    }  # fmt: skip
    assert set(train(setup, probes="distance,pl_ratio").parts) == {"distance", "pl_ratio"}
    assert train(setup, probes=()).probes == {}
    everything = train(setup, probes="all")
    assert {"test_risk", "stationarity", "kernel_share", "edge_of_stability"} <= set(
        everything.parts
    )
    assert everything.parts["movement"] == ("W", "a")
    leaves = jax.tree.leaves((everything.risk, everything.probes, everything.params))
    assert all(type(leaf) is np.ndarray for leaf in leaves)
    assert everything.probes["movement_W"].shape == (1, 3)
