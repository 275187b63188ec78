r"""In-context linear regression: the risk of $\beta^\top Ax_q$ as a quadratic in $A$.

A prompt has $N$ pairs $x_n\sim N(0,\Lambda)$, $y_n=w^\top x_n$ and a query $x_q$; $\beta$ is the
mean of $y_nx_n$. Proof: docs/theory/icl2025.md, lemma 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.theory.products import Quadratic, quadratic


class Law(NamedTuple):
    """The risk: its optimum plus half of |root (A - optimum)|^2. Softmax needs the prompts."""

    Lambda: Any
    context: Any
    root: Any  # root' root is the Hessian in A, row by row.
    optimum: Any
    best: Any
    X: Any = None  # (prompts, context + 1, dim): the query comes last.
    y: Any = None

    def numbers(self) -> Quadratic:
        """What the theorems need of the quadratic."""
        return quadratic(self.root, self.optimum.ravel())


def law(Lambda: Any, context: Any, H: Any, b: Any, square: Any) -> Law:
    r"""The law of the risk $\frac12a^\top Ha-b^\top a+\frac12c$, with $a$ the rows of A."""
    factor = jax.scipy.linalg.cho_factor(H)
    optimum = jax.scipy.linalg.cho_solve(factor, b)
    best = 0.5 * (square - b @ optimum)
    return Law(Lambda, jnp.asarray(context, float), jnp.triu(factor[0]),
               optimum.reshape(Lambda.shape), best)  # fmt: skip


def population(Lambda: Any, context: Any) -> Law:
    r"""The expectation over all prompts, $H:A\mapsto\Lambda\Gamma A\Lambda$ and $b=\Lambda^2$."""
    trace = jnp.trace(Lambda)
    Gamma = (1 + 1 / context) * Lambda + trace / context * jnp.eye(len(Lambda))
    H = jnp.kron(Lambda @ Gamma, Lambda)
    return law(Lambda, context, H, (Lambda @ Lambda).ravel(), trace)


def empirical(Lambda: Any, context: int, num_prompts: int, key: Any) -> Law:
    """The mean over prompts that are drawn."""
    keys = jax.random.split(key)
    P, D = num_prompts, len(Lambda)
    X = jax.random.normal(keys[0], (P, context + 1, D)) @ jnp.linalg.cholesky(Lambda).T
    y = jnp.einsum("pnd,pd->pn", X, jax.random.normal(keys[1], (P, D)))
    beta = jnp.einsum("pn,pnd->pd", y[:, :-1], X[:, :-1]) / context
    Z = jnp.einsum("pi,pj->pij", beta, X[:, -1]).reshape(P, D * D)
    found = law(Lambda, context, Z.T @ Z / P, y[:, -1] @ Z / P, jnp.mean(y[:, -1] ** 2))
    return found._replace(X=X, y=y)


def basis(law: Law) -> Any:
    """Eigenvectors of the tokens, the largest eigenvalue first; the largest entry positive."""
    E = jnp.linalg.eigh(law.Lambda)[1][:, ::-1]
    return E * jnp.sign(E[jnp.argmax(jnp.abs(E), axis=0), jnp.arange(len(E))])[None]


def gammas(law: Law) -> tuple[Any, Any]:
    """The tokens' eigenvalues, largest first, and gamma_d: the optimal A has 1 / gamma_d."""
    lam = jnp.linalg.eigvalsh(law.Lambda)[::-1]
    return lam, (1 + 1 / law.context) * lam + lam.sum() / law.context


def levels(law: Law) -> Any:
    """L = 2 risk of the best A of rank m, for m = 0 to D: where training rests."""
    lam, gamma = gammas(law)
    return lam.sum() - jnp.concatenate([jnp.zeros(1), jnp.cumsum(lam**2 / gamma)])
