r"""Linear attention learns linear regression in context: two papers about one model.

ZFB: Zhang, Frei, Bartlett (2024), arXiv 2306.09927. ZSLS: Zhang, Singh, Latham, Saxe (2025), arXiv
2501.16265. We know both abstracts and the public code of ZSLS, not the full texts. A prompt holds
pairs $(x_n,w^\top x_n)$, $n=1..N$, and a query $x_q$; with $\beta=\frac1N\sum_ny_nx_n$ the model
predicts $\beta^\top Ax_q$. Tokens are $N(0,\Lambda)$, tasks $N(0,I)$, so that the risk
$\ell=\frac12E(y_q-\beta^\top Ax_q)^2$ is a quadratic in $A$; the papers plot $L=2\ell$.
Proofs: docs/theory/icl2025.md. What holds for any quadratic of a product is in shoal.theory.
"""
# ruff: noqa: D102, D103 (a method that overrides one of Setting is described there)

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import shoal as sh
from shoal import inits
from shoal.lab.effects import drop_times, first_times, middle_times, rests, share_near
from shoal.lab.paper import WidthPlan
from shoal.lab.setting import Count
from shoal.linalg import principal_axes
from shoal.theory import products, staircase


class Law(NamedTuple):
    """The risk: its optimum plus half of |root (A - optimum)|^2. Softmax needs the prompts."""

    Lambda: Any
    context: Any
    root: Any  # root' root is the Hessian in A, row by row.
    optimum: Any
    best: Any
    X: Any = None  # (prompts, context + 1, dim): the query comes last.
    y: Any = None

    @property
    def axes(self):
        """The tokens' eigenvalues, largest first, gamma_d (A* has 1 / gamma_d), and axes."""
        lam, E = principal_axes(self.Lambda)
        return lam, (1 + 1 / self.context) * lam + lam.sum() / self.context, E


def law(Lambda, N, X=None, y=None):
    r"""The expectation, with Hessian $A\mapsto\Lambda\Gamma A\Lambda$, or the mean over prompts."""
    D, trace = len(Lambda), jnp.trace(Lambda)
    if X is None:
        Gamma = (1 + 1 / N) * Lambda + trace / N * jnp.eye(D)
        terms = jnp.kron(Lambda @ Gamma, Lambda), (Lambda @ Lambda).ravel(), trace
    else:
        beta = jnp.einsum("pn,pnd->pd", y[:, :-1], X[:, :-1]) / N
        Z = jnp.einsum("pi,pj->pij", beta, X[:, -1]).reshape(-1, D * D)
        terms = Z.T @ Z / len(X), y[:, -1] @ Z / len(X), jnp.mean(y[:, -1] ** 2)
    root, optimum, best = products.square_form(*terms)
    return Law(Lambda, jnp.asarray(N, float), root, optimum.reshape(D, D), best, X, y)


Attention = Literal["merged", "separate", "softmax_merged", "softmax_separate"]
Init = Literal["gaussian", "aligned", "zfb", "2024", "head"]


class InContext(sh.Setting):
    """Linear attention learns linear regression in context."""

    attention: Attention = "merged"  # Keys and queries as one matrix or two. [paper]
    risk: Literal["population", "empirical"] = "population"  # The expectation, or a mean. [paper]
    dim: Count = 4  # Dimension of tokens and tasks. [paper]
    context: sh.Data[Count] = 31  # Pairs in a prompt: the public code's seq_len minus 1. [paper]
    num_heads: Count | None = None  # Heads; auto: 1 if merged, 5 if separate.
    rank: Count = 1  # Rows of a head's keys, if separate. [paper]
    spectrum: sh.Data[str] = "linear"  # linear (D..1, trace 1), white, white_trace, or 0.6,0.4.
    num_samples: sh.Data[Count] = 5000  # Prompts of an empirical risk. [paper]
    init: sh.Data[Init] = "gaussian"  # First weights; 2024, head: versions of the public code.
    scale: float = 0.05  # Size of the first weights.
    balance: float = 1.0  # Aligned and merged: size of U over that of v.
    num_steps: sh.Traced[Count] = 1000  # Number of training steps.

    default_probes = ("gradient_norm", "A_off", "plateau")
    probe_sentences = {  # noqa: RUF012
        "A": "The matrix A of the prediction, in the eigenbasis of the tokens.",
        "A_off": "Frobenius norm of A off the diagonal of that basis.",
        "imbalance": "What flow conserves: |vv' - WW'| (merged) or the largest |v^2 - |K|^2|.",
    }

    def eigenvalues(self):
        """Eigenvalues of the tokens' covariance, decreasing."""
        D = self.dim
        named = {"linear": 2 * np.arange(D, 0, -1) / (D * (D + 1)), "white": np.ones(D)}
        named["white_trace"] = named["white"] / D
        return np.sort(self.numbers("spectrum", D, named))[::-1]

    def complete(self):
        self.eigenvalues()
        heads, rank = (1, 1) if "merged" in self.attention else (5, self.rank)
        risk = "empirical" if "softmax" in self.attention else self.risk  # no quadratic in A
        if risk == "empirical" and self.num_samples < 2 * self.dim**2:
            raise sh.InputError(f"num_samples={self.num_samples}: expected 2 dim^2 or more.")
        return self.replace(num_heads=self.num_heads or heads, rank=rank, risk=risk)

    def data(self, key):
        Lambda, keys, D = jnp.diag(jnp.asarray(self.eigenvalues())), jax.random.split(key), self.dim
        if self.risk == "population":
            return law(Lambda, self.context)
        X = jax.random.normal(keys[0], (self.num_samples, self.context + 1, D))
        X = X @ jnp.linalg.cholesky(Lambda).T
        y = jnp.einsum("pnd,pd->pn", X, jax.random.normal(keys[1], (self.num_samples, D)))
        made = law(Lambda, self.context, X, y)
        return made if "softmax" in self.attention else made._replace(X=None, y=None)

    def params(self):
        H, R, D = self.num_heads, self.rank, self.dim
        rows = {"K": (H, R, D), "Q": (H, R, D)}
        return {"v": (H,)} | ({"U": (H, D, D)} if "merged" in self.attention else rows)

    def weights(self, key):
        (H, *_), D, s = self.params()["v"], self.dim, self.scale
        merged = "merged" in self.attention
        if self.init in ("aligned", "zfb") and not merged:  # head d on eigenvector d; others zero
            rows = jnp.zeros((H, self.rank, D)).at[:, 0].set(s * jnp.eye(H, D))
            return {"v": s * (jnp.arange(H) < D), "K": rows, "Q": rows}
        if self.init in ("aligned", "zfb"):
            Theta = jax.random.normal(key, (D, D))
            S = jnp.eye(D) if self.init == "aligned" else Theta @ Theta.T
            U = s * self.balance * S / jnp.linalg.norm(S)
            return {"v": jnp.full(H, s), "U": jnp.broadcast_to(U, (H, D, D))}
        size = s if self.init == "gaussian" else s * self.context ** (1 / 2 if merged else 1 / 3)
        rows = (H * self.rank * (D + 1)) ** -0.5
        small = {"v": H**-0.5 / (D + 1), "K": rows, "Q": rows} if self.init == "head" else {}
        return {n: size * small.get(n, 1.0) * x for n, x in inits.ntk(key, self.spec()).items()}

    def heads(self, params):
        U = params.get("U")
        return jnp.einsum("hri,hrj->hij", params["K"], params["Q"]) if U is None else U

    def total(self, params):
        """The matrix A, all that the risk of a linear model sees."""
        return jnp.einsum("h,hij->ij", params["v"], self.heads(params))

    def residuals(self, params, law):
        if "softmax" not in self.attention:
            return law.root @ (self.total(params) - law.optimum).ravel()
        scores = jnp.einsum("pni,hij,pj->phn", law.X, self.heads(params), law.X[:, -1])
        share = jax.nn.softmax(scores, axis=-1)[..., :-1]  # the query takes part, with y = 0
        found = jnp.einsum("h,phn,pn->p", params["v"], share, law.y[:, :-1])
        return (found - law.y[:, -1]) / jnp.sqrt(len(found))

    def lowest(self, problem):
        return 0.0 if "softmax" in self.attention else problem.best

    def rests(self, problem):  # the best A of rank m, for m = 0 to D
        lam, gamma, _ = problem.axes
        return (lam.sum() - jnp.concatenate([jnp.zeros(1), jnp.cumsum(lam**2 / gamma)])) / 2

    def floor(self, setup):
        ranks = self.dim if "merged" in self.attention else (self.num_heads or 1) * self.rank
        low = self.rests(setup.problem)[min(ranks, self.dim)]
        return (lambda _: low) if self.risk == "population" else None

    def default_step(self, setup):
        q = products.quadratic(setup.problem.root, setup.problem.optimum)
        return 0.25 / (q.h * q.optimum)  # half of 1 / sharpness where one merged head is done

    def probes(self, setup):
        E, off = setup.problem.axes[2], 1 - jnp.eye(self.dim)

        def imbalance(p):
            apart: Any = None if "U" in p else p["v"] ** 2 - jnp.sum(p["K"] ** 2, axis=(1, 2))
            return products.imbalance(p["v"], p["U"]) if "U" in p else jnp.max(jnp.abs(apart))

        return {"A": lambda p: E.T @ self.total(p) @ E, "imbalance": imbalance,
                "A_off": lambda p: jnp.linalg.norm(off * (E.T @ self.total(p) @ E))}  # fmt: skip


PAPER = sh.Paper(
    InContext, key="icl2025", year=2025, arxiv="2501.16265",
    title="Training Dynamics of In-Context Learning in Linear Attention",
    authors="Y. Zhang, A. K. Singh, P. E. Latham, A. Saxe; after R. Zhang, S. Frei, P. L. Bartlett "
            "(2024, arXiv:2306.09927)",
    about="how linear attention learns linear regression in context",
    plan=WidthPlan(grow="num_heads", samples=(64, 256, 1024), octaves=(0, 3), values=(
        ("attention", "separate"), ("risk", "empirical"), ("scale", 0.3), ("num_steps", 4000))),
)  # fmt: skip

SAID, ZSLS, BOTH = "paper, as summarised", "paper (ZSLS, abstract)", ("flow", "gd")
OURS = "ours; proof in docs/theory/icl2025.md"
MERGED, SEPARATE = ({"attention": kind, "risk": "population"} for kind in ("merged", "separate"))


def two(setup):
    """The start of merged heads, as a product of two."""
    law, p = setup.problem, setup.params0
    return products.product(law.root, law.optimum, law.best, p["v"], p["U"])


def three(setup):
    """The start of separate heads, as a product of three."""
    law, p = setup.problem, setup.params0
    lam, gamma, E = law.axes
    return staircase.Triple(lam * gamma, lam, gamma, law.best, p["v"], p["K"] @ E, p["Q"] @ E)


@PAPER.theorem(method="flow", source=f"{SAID} (ZFB); proof and constants ours", covers=MERGED)
def theorem_a(setup, run):
    """Gradient flow of merged attention: the risk falls to its optimum like exp(-mu t)."""
    start, (_, gamma, E) = two(setup), setup.problem.axes
    found = products.flows(start, setup, run, products.scale_free(start, E, gamma))
    published = {"ZFB ask for less than 2 of": start.v[0] ** 2 * gamma[0] * jnp.sqrt(len(gamma))}
    return found._replace(constants=found.constants | published)


PAPER.theorem_about(two, "theorem_b",
    "White tokens: the whole curve of merged attention is known, for flow and for descent.",
    products.follows, method=BOTH, source=f"{SAID} (ZSLS: one case); the rest ours",
    covers=MERGED)  # fmt: skip


@PAPER.theorem(method="any", source=f"ours; the levels: {SAID} (ZSLS)", covers=SEPARATE)
def theorem_c(setup, run):
    """Separate keys: with heads of total rank m no weights pass the best A of rank m."""
    (H, R, D), rests = setup.params0["K"].shape, setup.setting.rests(setup.problem)
    above = sh.Inequality(rests[min(H * R, D)], run.risk, 2e-13 * rests[0])
    curves = {f"rest {i}": jnp.full(len(run.step), rests[i]) for i in range(min(H * R, D) + 1)}
    constants = {f"L(M_{i})": 2 * rests[i] for i in range(D + 1)}
    return sh.Certificate({}, {"the risk stays above": above}, constants, curves=curves)


PAPER.theorem_about(three, "theorem_s",
    "One balanced head on every eigenvector: the whole staircase is known.",
    staircase.staircase, method=BOTH, source=OURS, covers=SEPARATE)  # fmt: skip
PAPER.theorem_about(two, "theorem_d",
    "Gradient descent of merged attention, any prompts: no step raises the risk.",
    products.descends, method="gd", probes=("gradient_norm", "imbalance"), source=OURS,
    largest_step=lambda s: two(s).largest_step(), covers={"attention": "merged"})  # fmt: skip
PAPER.theorem_about(three, "theorem_e",
    "Separate keys, once the risk is below the last plateau: flow converges at a rate.",
    staircase.after_last, method="flow", probes=("distance",), source=OURS,
    covers=SEPARATE)  # fmt: skip

DROP: Any = {"init": "2024", "num_heads": 8, "scale": 1e-6, "step_size": 0.062}
SADDLES: Any = {"init": "2024", "attention": "separate", "scale": 0.01, "step_size": 0.39473}


def first_wait(run):
    return middle_times(run, rests(run))[:, 0]


def in_order(run):
    lam, A = run.setup.setting.eigenvalues(), np.diagonal(run.probes["A"], axis1=2, axis2=3)
    half = -np.diff(rests(run)) / lam**2  # a level of L = 2 risk falls by lambda^2 / gamma
    t = [first_times(run.step, -A[..., d], -half[d]) for d in range(len(lam))]
    return np.min(np.diff(np.log10(t), axis=0), axis=0)


def escape_error(run):
    mu, p = run.setup.setting.eigenvalues() ** 2, run.setup.params0
    times = [staircase.first_escape(*seed, mu) for seed in zip(p["v"], p["K"], p["Q"], strict=True)]
    return np.abs(np.array(times) / first_wait(run) - 1)


def above_linear(run):
    return np.log10(np.maximum(run.risk[:, -1] / run.setup.problem.best - 1, 1e-12))


def claim(key, said, source, limit, why, statistic, values, control, because, **how):
    """A statement and its source; a limit, and why; what is measured, of which runs; a control."""
    PAPER.study_claim(key, said, statistic, limit, {"every": 10} | values, why=why, source=source,
                      control=control, control_why=because, assumptions=("float64",), seconds=0.5,
                      setting="dim 4, context 31, spectrum linear",
                      fixed_problem="num_samples" not in values, **how)  # fmt: skip


claim("one_drop", "Merged attention learns in one abrupt drop: it takes less time than the wait.",
      ZSLS, sh.below(1.0, "duration of the drop over the wait"), "the number is ours",
      lambda run: drop_times(run, 0.9) / drop_times(run, 0.1) - 1, DROP | {"num_steps": 6000},
      SADDLES | {"num_heads": 5, "num_steps": 20000},
      "separate keys learn in several drops")  # fmt: skip
claim("staircase", "Separate attention rests at the losses of the best predictors of rank m: for "
      "most of its fall L is within 1 % of one.",
      ZSLS, sh.above(0.5, "share of the fall near a level"), "most means more than half",
      lambda run: share_near(run, rests(run)), SADDLES | {"num_steps": 20000},
      DROP | {"attention": "merged", "num_steps": 6000}, "merged keys do not rest")  # fmt: skip
claim("components_in_order", "Components are learnt in the order of their eigenvalues.",
      ZSLS, sh.above(0.0, "least log10 ratio of the half times of neighbouring components"),
      "the statement has no number", in_order, SADDLES | {"num_steps": 20000},
      {"spectrum": "white_trace"}, "equal eigenvalues: no order", probes=("A",))  # fmt: skip
claim("separate_wait", "The first rest of separate attention lasts in proportion to 1 / scale.",
      "ours", sh.exponent(-1.1, -0.9, "exponent of the wait against the scale"),
      "the rival is a logarithm, about -0.25 here", first_wait,
      {"attention": "separate", "num_steps": 16000, "step_size": 0.4}, {"attention": "merged"},
      "the logarithm", how=sh.power_law, grid={"scale": (0.1, 0.04, 0.016, 0.00625)})  # fmt: skip
claim("merged_wait", "The wait of merged attention grows like log(1 / scale) over |Lambda^2|.",
      "ours", sh.between(0.98, 1.02, "wait per factor e of 1 / scale, times |Lambda^2|"),
      "2 % is our margin", lambda run: -(0.0354**0.5) / np.log(2) * first_wait(run),
      {"num_steps": 8000, "step_size": 0.05, "every": 8},
      {"spectrum": "white_trace"}, "another |Lambda^2|",
      how=sh.per_doubling, grid={"scale": (1e-2, 1e-3, 1e-4, 1e-5)})  # fmt: skip
claim("escape", "The first weights of separate attention tell when it first drops, to 3 %.",
      "ours", sh.below(0.03, "relative error of the escape integral"), "in the statement",
      escape_error, SADDLES | {"scale": 0.003, "num_steps": 10000},
      {"scale": 0.2}, "weights that are not small")  # fmt: skip
claim("rank_floor", "Two heads of rank one end at the loss of the best predictor of rank two.",
      "ours", sh.below(-6.0, "log10 of the last L over that loss, minus 1,"),
      "six digits are our margin",
      lambda run: np.log10(np.maximum(abs(run.risk[:, -1] / rests(run)[2] - 1), 1e-12)),
      {"attention": "separate", "num_heads": 2, "scale": 0.1, "step_size": 0.4, "num_steps": 10000},
      {"num_heads": 5}, "five heads pass it")  # fmt: skip
claim("condition_needed", "Where ZFB's condition on the scale fails by a factor of four, gradient "
      "flow does not come within 1 % of the optimum.",
      "ours", sh.above(-2.0, "log10 of the last risk over the optimum, minus 1,"),
      "the number in the statement", above_linear,
      {"every": 1, "init": "zfb", "scale": 3.0, "method": "flow", "step_size": 4.0,
       "num_steps": 200},
      {"scale": 0.5}, "where the condition holds ZFB prove convergence")  # fmt: skip
claim("figure_of_head", "The public command (code of December 2025) shows all four drops in 10000 "
      "steps.", "ours", sh.above(0.5, "1 if all four are seen, else 0,"), "yes or no",
      lambda run: 1.0 * (run.risk[:, -1] < rests(run)[-2:].mean()),
      SADDLES | {"init": "head", "num_steps": 10000},
      {"num_heads": 3}, "three heads never learn four")  # fmt: skip
claim("one_softmax_head", "One softmax head ends more than 50 % above the best linear predictor "
      "of the same prompts.",
      "ours", sh.above(-0.301, "log10 of the last risk over the best linear one, minus 1,"),
      "the number in the statement, log10 of 0.5", above_linear,
      {"attention": "softmax_merged", "num_heads": 1, "num_samples": 500, "step_size": 1.0,
       "num_steps": 800}, {"num_heads": 2}, "two heads of opposite sign can do better")  # fmt: skip
PAPER.check("closed_form", "On white data the loss of merged attention is the published curve.",
    test="tests/test_icl2025.py::test_white_curves", tolerance="1e-8", source=SAID)  # fmt: skip

PAPER.figure("curves", "White tokens: the run and the exact curve",
    sh.Study(InContext, seeds=1, init="aligned", spectrum="white", step_size=0.05, num_steps=100,
             grid={"scale": (0.01, 0.1)}), theorem="theorem_b")  # fmt: skip
PAPER.figure("plateaus", "Separate keys: rests at the predicted levels",
    sh.Study(InContext, seeds=1, every=20, num_steps=12000, **SADDLES),
    theorem="theorem_c", source=SAID)  # fmt: skip
PAPER.figure("ranks", "Rank and number of heads",
    sh.Study(InContext, attention="separate", seeds=4, step_size=0.4, num_steps=8000, every=20,
             grid={"rank": (1, 2), "num_heads": (1, 2, 5)}), ("risk", "plateau"))  # fmt: skip
PAPER.figure("softmax", "Softmax against linear attention",
    sh.Study(InContext, every=10, seeds=4, step_size=1.0, num_steps=600, num_heads=2,
             risk="empirical", num_samples=500,
             grid={"attention": ("merged", "softmax_merged")}))  # fmt: skip
PAPER.visit_by_theorems(
    "a curve that is known exactly",
    {"init": "aligned", "scale": 0.1, "step_size": 0.05, "num_steps": 120},
    [({"spectrum": "white"}, "theorem_b"), ({"spectrum": "linear"}, "theorem_b"),
     ({"spectrum": "linear", "attention": "separate"}, "theorem_s")],
    "White tokens, whose risk has a known curve: theorem_b {0}. Tokens with a spectrum: theorem_b "
    "is {1}; with separate keys theorem_s is compared, and the verdict is: {2}.",
    about="linear attention learns to regress in context.")  # fmt: skip
