"""Kernels in C against the formulas that they hasten, and what happens where they cannot be had."""

import os
import shutil
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import native
from shoal.papers.wu2023.hidden_units import (
    SOURCE,
    by_formula,
    hidden_rows,
    hidden_units,
    rows_by_formula,
)

HELD = 2**24
needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def drawn(N, n, d, m, precision="float64", seed=0):
    keys = jax.random.split(jax.random.key(seed), 5)
    shapes = ((N, n, d), (N, n, n), (m, d), (m, d), (N,))
    X, scores, *rest = (
        jax.random.normal(k, s, precision) for k, s in zip(keys, shapes, strict=True)
    )
    return [X, jax.nn.softmax(scores), *rest]


def loops(X, B, W, A, y):
    """Sample by sample, token by token, in float64."""
    X, B, W, A, y = (np.asarray(x, float) for x in (X, B, W, A, y))
    P, e, R = np.zeros_like(W), np.zeros_like(y), np.zeros((X.shape[2],) * 2)
    for s, (tokens, weights) in enumerate(zip(X, B, strict=True)):
        attended = [sum(b * x for b, x in zip(row, tokens, strict=True)) for row in weights]
        on = [(W @ u > 0).astype(float) for u in attended]
        g = [A.T @ m for m in on]
        e[s] = sum(a @ u for a, u in zip(g, attended, strict=True)) - y[s]
        for i, (u, m) in enumerate(zip(attended, on, strict=True)):
            P += e[s] * np.outer(m, u)
            jacobian = np.diag(weights[i]) - np.outer(weights[i], weights[i])  # of softmax
            for j, pulled in enumerate(jacobian @ [2 * e[s] * g[i] @ x for x in tokens]):
                R += pulled * np.outer(tokens[i], tokens[j])
    return P, e, R


# one of everything; not a multiple of anything; several vectors; several blocks and shares
SIZES = [(1, 1, 1, 1), (7, 3, 5, 11), (3, 50, 33, 20), (50, 9, 21, 2000)]


@needs_a_compiler
def test_the_source_compiles():
    for precision in native.REAL:
        assert native.kernel(SOURCE, "hidden_units", precision) is not None


@needs_a_compiler
@pytest.mark.parametrize(("precision", "rtol"), [("float64", 1e-12), ("float32", 2e-4)])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_kernel_and_the_formula_are_loops_over_tokens(sizes, precision, rtol):
    given = drawn(*sizes, precision)
    exact = loops(*given)
    for way in (hidden_units, by_formula):
        for found, expected in zip(
            jax.jit(way, static_argnums=5)(*given, HELD), exact, strict=True
        ):
            scale = np.abs(expected).max() + 1e-300
            np.testing.assert_allclose(found / scale, expected / scale, atol=rtol)


@pytest.mark.parametrize("at_once", [1, 3, 7])  # alone, with one too few in the last piece, all
def test_the_formula_in_pieces_is_loops_over_tokens(at_once):
    given = drawn(7, 3, 5, 11)
    for found, expected in zip(by_formula(*given, at_once * 3 * 11), loops(*given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@needs_a_compiler
@pytest.mark.parametrize(("precision", "rtol"), [("float64", 1e-12), ("float32", 2e-4)])
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_of_a_tangent_kernel_are_loops_over_tokens(sizes, precision, rtol):
    U, _, W, A, _ = drawn(*sizes, precision)
    w = A[:, 0]
    plain = [np.asarray(x, float) for x in (U, W, w)]
    exact = [np.zeros((len(U), *W.shape)), np.zeros((len(U), len(W))), np.zeros(U.shape)]
    for s, tokens in enumerate(plain[0]):
        for i, u in enumerate(tokens):
            on = plain[1] @ u > 0
            exact[0][s] += np.outer(on * plain[2], u)
            exact[1][s] += on * (plain[1] @ u)
            exact[2][s, i] = (on * plain[2]) @ plain[1]
    for way in (lambda *given: hidden_rows(*given, HELD), rows_by_formula):
        for found, expected in zip(jax.jit(way)(U, W, w), exact, strict=True):
            scale = np.abs(expected).max() + 1e-300
            np.testing.assert_allclose(found / scale, expected / scale, atol=rtol)


@needs_a_compiler
def test_numbers_of_another_kind_are_converted():
    X, B, W, A, y = drawn(4, 3, 5, 8)
    single = "float32"
    for given in ((X, B, W.astype(single), A, y), (X, B.astype(single), W, A, y.astype(single))):
        for found, expected in zip(
            hidden_units(*given, HELD), by_formula(*given, HELD), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-10)


@needs_a_compiler
def test_a_compiled_step_calls_the_kernel_and_less_room_the_formula():
    given = drawn(7, 3, 5, 11)
    calls = [
        "custom-call" in jax.jit(hidden_units, static_argnums=5).lower(*given, h).as_text("hlo")
        for h in (HELD, 100)
    ]
    assert calls == [True, False]


@needs_a_compiler
def test_a_batch_of_weights_is_each_of_them_alone():
    X, B, W, A, y = drawn(5, 4, 3, 9)
    several = jnp.stack([W, 2 * W, -W])
    found = jax.vmap(lambda W: hidden_units(X, B, W, A, y, HELD))(several)
    for k, one in enumerate(several):
        for together, alone in zip(found, hidden_units(X, B, one, A, y, HELD), strict=True):
            np.testing.assert_array_equal(together[k], alone)


@needs_a_compiler
def test_threads_do_not_change_a_bit():
    given = drawn(64, 10, 20, 600)
    step = jax.jit(lambda *a: hidden_units(*a, HELD))
    first = step(*given)
    found = []

    def work():
        found.extend(step(*given) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for answer in found:
        for one, other in zip(answer, first, strict=True):
            np.testing.assert_array_equal(one, other)


@needs_a_compiler
def test_what_is_not_a_number_is_not_hidden():
    X, B, W, A, y = drawn(4, 3, 5, 8)
    P, e, R = hidden_units(X, B, W.at[2, 1].set(jnp.nan), A.at[2, 1].set(jnp.nan), y, HELD)
    assert np.isnan(e).all()
    assert np.isnan(P).any()
    assert np.isnan(R).any()


@pytest.mark.parametrize(
    "env",
    [{"SHOAL_NATIVE": "0"}, {"CC": "no-such-compiler"}, {"CC": "false"}, {"CC": ""}, {"CC": '"'}],
)
def test_without_a_compiler_the_formula_is_used(env, tmp_path):
    program = """
import jax
from shoal import native
from shoal.papers.wu2023.hidden_units import SOURCE
assert native.kernel(SOURCE, "hidden_units", "float32") is None
"""
    quiet = os.environ | env | {"SHOAL_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=quiet)
    assert not (tmp_path / "native").exists()


@needs_a_compiler
@pytest.mark.slow
def test_what_was_compiled_is_found_again_and_a_broken_file_is_mended(tmp_path):
    program = """
from shoal import native
from shoal.papers.wu2023.hidden_units import SOURCE
print(native.kernel(SOURCE, "hidden_units", "float32"))
"""

    def ask():
        quiet = os.environ | {"SHOAL_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, env=quiet, capture_output=True, text=True
        )
        return done.stdout.strip()

    assert "hidden_units" in ask()
    (made,) = (tmp_path / "native").glob("*.so")
    before, content = made.stat().st_mtime_ns, made.read_bytes()
    assert "hidden_units" in ask()
    assert made.stat().st_mtime_ns == before
    for harm in (b"not a library", content[: len(content) // 2], b""):  # some would kill a process
        made.write_bytes(harm)
        assert "hidden_units" in ask()
        assert len(made.read_bytes()) > 1000
    made.with_suffix(".sha256").unlink()
    assert "hidden_units" in ask()
