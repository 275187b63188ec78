r"""Linear attention learns linear regression in context: two papers about one model.

ZFB: Zhang, Frei, Bartlett (2024), arXiv 2306.09927. ZSLS: Zhang, Singh, Latham, Saxe (2025), arXiv
2501.16265. We know both abstracts and the public code of ZSLS, not the full texts. A prompt holds
$N$ pairs $(x_n,w^\top x_n)$ and a query $x_q$; with $\beta=\frac1N\sum_ny_nx_n$ every linear model
predicts $\beta^\top Ax_q$. Tokens are $N(0,\Lambda)$, tasks $N(0,I)$, so the risk
$\ell=\frac12E(y_q-\beta^\top Ax_q)^2$ is a quadratic in $A$; the papers plot $L=2\ell$.

$N$ is ``context``, $D$ ``dim``. Proofs: docs/theory/icl2025.md.
"""
# ruff: noqa: D102, D103 (a method that overrides one of Setting is described there)

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import shoal as sh
from shoal.lab.effects import drop_times, first_times, middle_times, share_near
from shoal.lab.paper import WidthPlan
from shoal.lab.setting import positive_numbers
from shoal.lab.visit import Visit, number
from shoal.runtime import in_float64
from shoal.theory import products, regression, staircase
from shoal.theory.regression import basis, gammas, levels


class InContext(sh.Setting):
    """Linear attention learns linear regression in context."""

    attention: Literal["merged", "separate", "softmax_merged", "softmax_separate"] = (
        "merged"  # Keys and queries as one matrix or two; softmax has an empirical risk. [paper]
    )
    risk: Literal["population", "empirical"] = "population"  # The expectation, or a mean. [paper]
    dim: int = 4  # Dimension of tokens and tasks. [paper]
    context: sh.Data[int] = 31  # Pairs in a prompt: the public code's seq_len minus 1. [paper]
    num_heads: int | None = None  # Heads; auto: 1 if merged, 5 if separate.
    rank: int = 1  # Rows of a head's keys, if separate. [paper]
    spectrum: sh.Data[str] = (
        "linear"  # Of tokens: linear (D..1, trace 1), white, white_trace, or numbers: 0.6,0.4.
    )
    num_samples: sh.Data[int] = 5000  # Prompts of an empirical risk. [paper]
    init: sh.Data[Literal["gaussian", "aligned", "zfb", "2024", "head"]] = (
        "gaussian"  # First weights; 2024 and head are two versions of the public code.
    )
    scale: float = 0.05  # Size of the first weights.
    balance: float = 1.0  # Aligned and merged: size of U over that of v.
    num_steps: sh.Traced[int] = 1000  # Number of training steps.

    default_probes = ("gradient_norm", "A_off", "plateau")
    probe_sentences = {  # noqa: RUF012
        "A": "The matrix A of the prediction, in the eigenbasis of the tokens.",
        "A_off": "Frobenius norm of A off the diagonal of that basis.",
        "imbalance": "What flow conserves: |vv' - WW'| (merged) or the largest |v^2 - |K|^2|.",
        "plateau": "The m whose rank-m optimum is nearest to the risk.",
    }

    def eigenvalues(self):
        """Eigenvalues of the tokens' covariance, decreasing."""
        D, words = self.dim, self.spectrum
        named = {"linear": 2 * np.arange(D, 0, -1) / (D * (D + 1)), "white": np.ones(D),
                 "white_trace": np.ones(D) / D}  # fmt: skip
        values = named[words] if words in named else positive_numbers("spectrum", words)
        if len(values) != D:
            raise sh.InputError(f"spectrum={words}: expected {', '.join(named)} or {D} numbers.")
        return np.sort(values)[::-1]

    def complete(self):
        merged, softmax = "merged" in self.attention, "softmax" in self.attention
        heads, rank = self.num_heads or (1 if merged else 5), 1 if merged else self.rank
        risk = "empirical" if softmax else self.risk
        self.eigenvalues()
        if risk == "empirical" and self.num_samples < 2 * self.dim**2:
            raise sh.InputError(f"num_samples={self.num_samples}: expected 2 dim^2 or more.")
        return self.replace(num_heads=heads, rank=rank, risk=risk)

    def data(self, key):
        Lambda = jnp.diag(jnp.asarray(self.eigenvalues()))
        if self.risk == "population":
            return regression.population(Lambda, self.context)
        law = regression.empirical(Lambda, self.context, self.num_samples, key)
        return law if "softmax" in self.attention else law._replace(X=None, y=None)

    def params(self):
        H, R, D = self.num_heads, self.rank, self.dim
        rows = {"K": (H, R, D), "Q": (H, R, D)}
        return {"v": (H,)} | ({"U": (H, D, D)} if "merged" in self.attention else rows)

    def weights(self, key):
        H: Any = self.num_heads
        D, s, merged = self.dim, self.scale, "merged" in self.attention
        if self.init in ("aligned", "zfb") and not merged:  # head d on eigenvector d; others zero
            rows = jnp.zeros((H, self.rank, D)).at[:, 0].set(s * jnp.eye(H, D))
            return {"v": s * (jnp.arange(H) < D), "K": rows, "Q": rows}
        if self.init in ("aligned", "zfb"):
            Theta = jax.random.normal(key, (D, D))
            S = jnp.eye(D) if self.init == "aligned" else Theta @ Theta.T
            U = s * self.balance * S / jnp.linalg.norm(S)
            return {"v": jnp.full(H, s), "U": jnp.broadcast_to(U, (H, D, D))}
        unit = 1.0 if self.init == "gaussian" else self.context ** (1 / 2 if merged else 1 / 3)
        rows = (H * self.rank * (D + 1)) ** -0.5
        small = {"v": H**-0.5 / (D + 1), "K": rows, "Q": rows} if self.init == "head" else {}
        spec = self.spec()
        keys = dict(zip(sorted(spec), jax.random.split(key, len(spec)), strict=True))
        return {name: s * unit * small.get(name, 1.0) * jax.random.normal(keys[name], leaf.shape)
                for name, leaf in spec.items()}  # fmt: skip

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

    def objective(self, params, law):
        return self.lowest(law) + 0.5 * jnp.sum(self.residuals(params, law) ** 2)

    def lowest(self, problem):
        return 0.0 if "softmax" in self.attention else problem.best

    def floor(self, setup):
        ranks = self.dim if "merged" in self.attention else (self.num_heads or 1) * self.rank
        low = levels(setup.problem)[min(ranks, self.dim)] / 2
        return (lambda _: low) if self.risk == "population" else None

    def default_step(self, setup):
        q = setup.problem.numbers()  # half of 1 / sharpness where one merged head is done
        return 0.25 / (q.h * q.optimum)

    def probes(self, setup):
        E, steps, off = basis(setup.problem), levels(setup.problem) / 2, 1 - jnp.eye(self.dim)

        def imbalance(params):
            if "U" in params:
                return products.imbalance(params["v"], params["U"].reshape(len(params["v"]), -1))
            return jnp.max(jnp.abs(params["v"] ** 2 - jnp.sum(params["K"] ** 2, axis=(1, 2))))

        return {"A": lambda params: E.T @ self.total(params) @ E, "imbalance": imbalance,
                "A_off": lambda params: jnp.linalg.norm(off * (E.T @ self.total(params) @ E)),
                "plateau": lambda params: jnp.argmin(jnp.abs(steps - setup.risk(params))),
                }  # fmt: skip


PAPER = sh.Paper(
    InContext, key="icl2025", year=2025, arxiv="2501.16265",
    title="Training Dynamics of In-Context Learning in Linear Attention",
    authors="Y. Zhang, A. K. Singh, P. E. Latham, A. Saxe; after R. Zhang, S. Frei, P. L. Bartlett "
    "(2024, arXiv:2306.09927)", about="linear attention learns linear regression in context",
    plan=WidthPlan(grow="num_heads", values=(("attention", "separate"), ("risk", "empirical"),
                   ("scale", 0.3), ("num_steps", 4000)), samples=(64, 256, 1024), octaves=(0, 3)),
)  # fmt: skip
SAID, ZSLS, BOTH = "paper, as summarised", "paper (ZSLS, abstract)", ("flow", "gd")
SOURCE = "ours; proof in docs/theory/icl2025.md"
MERGED, SEPARATE = (
    lambda setting, kind=kind: (setting.attention, setting.risk) == (kind, "population")
    for kind in ("merged", "separate")
)


def _product(setup):
    law, v = setup.problem, setup.params0["v"]
    W = setup.params0["U"].reshape(len(v), -1)
    return products.Product(law.root, law.optimum.ravel(), law.best, v, W)


def _triple(setup):
    law, E, p = setup.problem, basis(setup.problem), setup.params0
    return staircase.Triple(*gammas(law), law.best, p["v"], p["K"] @ E, p["Q"] @ E)


@PAPER.theorem(method="flow", source=f"{SAID} (ZFB); proof and constants ours", covers=MERGED)
def theorem_a(setup, run):
    """Gradient flow of merged attention: the risk falls to its optimum like exp(-mu t)."""
    start, gamma = _product(setup), gammas(setup.problem)[1]
    free = products.scale_free(start, basis(setup.problem), gamma)
    found = products.flows(start, run, setup.step_size, free)
    published = start.v[0] ** 2 * gamma[0] * jnp.sqrt(len(gamma))
    return found._replace(constants=found.constants | {"ZFB ask for less than 2 of": published})


@PAPER.theorem(method=BOTH, source=f"{SAID} (ZSLS: one case); the rest ours", covers=MERGED)
def theorem_b(setup, run):
    """White tokens: the whole curve of merged attention is known, for flow and for descent."""
    k = setup.problem.Lambda[0, 0] ** 2 * gammas(setup.problem)[1][0]
    how = setup.step_size, setup.setting.method == "flow", setup.setting.every
    return products.follows(_product(setup), run, k, *how)


@PAPER.theorem(method="any", source=f"ours; the levels: {SAID} (ZSLS)", covers=SEPARATE)
def theorem_c(setup, run):
    """Separate keys: with heads of total rank m no weights pass the best A of rank m."""
    (H, R, D), L = setup.params0["K"].shape, levels(setup.problem)
    m = min(H * R, D)
    return sh.Certificate(
        hypotheses={}, constants={f"L(M_{i})": L[i] for i in range(D + 1)},
        conclusions={"the risk stays above": sh.Inequality(L[m] / 2, run.risk, 1e-13 * L[0])},
        curves={f"rest {i}": jnp.full(len(run.step), L[i] / 2) for i in range(m + 1)},
    )  # fmt: skip


@PAPER.theorem(method=BOTH, source=SOURCE, covers=SEPARATE)
def theorem_s(setup, run):
    """One balanced head on every eigenvector: the whole staircase is known."""
    how = setup.step_size, setup.setting.method == "flow", setup.setting.every
    return staircase.staircase(_triple(setup), run, *how)


@PAPER.theorem(method="gd", probes=("gradient_norm", "imbalance"), source=SOURCE,
               largest_step=lambda setup: _product(setup).largest_step(),
               covers=lambda setting: setting.attention == "merged")  # fmt: skip
def theorem_d(setup, run):
    """Gradient descent of merged attention, any prompts: no step raises the risk."""
    return products.descends(_product(setup), run, setup.step_size, every=setup.setting.every)


@PAPER.theorem(method="flow", probes=("distance",), source=SOURCE, covers=SEPARATE)
def theorem_e(setup, run):
    """Separate keys, once the risk is below the last plateau: flow converges at a rate."""
    law, size = setup.problem, setup.step_size
    excess = 0.5 * jnp.sum(setup.setting.residuals(setup.params0, law) ** 2)
    return staircase.after_last(_triple(setup), law.numbers(), excess, run, size)


DROP: Any = {"init": "2024", "num_heads": 8, "scale": 1e-6, "step_size": 0.062}
SADDLES: Any = {"init": "2024", "attention": "separate", "scale": 0.01, "step_size": 0.39473}


@in_float64
def rests(run):
    return np.asarray(levels(jax.tree.map(jnp.asarray, run.setup.one().problem))) / 2


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


def _claim(key, said, rule, statistic, why, control, because, *parts, source="ours", grid=None,
           how=sh.measured, probes=(), **more):  # fmt: skip
    values = {"every": 10} | {k: v for part in parts for k, v in part.items()} | more
    measure = how(sh.Study(InContext, grid=grid, probes=probes, **values), statistic)
    known = sh.Control(measure.changes(control), why=because)
    PAPER.claim(key, said, measure, rule, why=why, controls=[known], source=source, seconds=0.5,
                assumptions=("float64",), setting=f"dim 4, context 31, spectrum linear; {values}",
                fixed_problem="num_samples" not in values)  # fmt: skip


# fmt: off
_claim("one_drop", "Merged attention learns in one abrupt drop: it takes less time than the wait.",
       sh.below(1.0, "duration of the drop over the wait"), lambda run: drop_times(run, 0.9)
       / drop_times(run, 0.1) - 1, "the number is ours", SADDLES | {"num_heads": 5, "num_steps":
       20000}, "separate keys learn in several drops", DROP, num_steps=6000, source=ZSLS)
_claim("staircase", "Separate attention rests at the losses of the best predictors of rank m: for "
       "most of its fall L is within 1 % of one.", sh.above(0.5, "share of the fall near a level"),
       lambda run: share_near(run, rests(run)), "most means more than half", DROP |
       {"attention": "merged", "num_steps": 6000}, "merged keys do not rest", SADDLES,
       num_steps=20000, source=ZSLS)
_claim("components_in_order", "Components are learnt in the order of their eigenvalues.",
       sh.above(0.0, "least log10 ratio of the half times of neighbouring components"), in_order,
       "the statement has no number", {"spectrum": "white_trace"}, "equal eigenvalues: no order",
       SADDLES, num_steps=20000, probes=("A",), source=ZSLS)
_claim("separate_wait", "The first rest of separate attention lasts in proportion to 1 / scale.",
       sh.exponent(-1.1, -0.9, "exponent of the wait against the scale"), first_wait, "the rival "
       "is a logarithm, about -0.25 here", {"attention": "merged"}, "the logarithm",
       how=sh.power_law, attention="separate", num_steps=16000, step_size=0.4,
       grid={"scale": (0.1, 0.04, 0.016, 0.00625)})
_claim("merged_wait", "The wait of merged attention grows like log(1 / scale) over |Lambda^2|.",
       sh.between(0.98, 1.02, "wait per factor e of 1 / scale, times |Lambda^2|"), lambda run:
       -(0.0354**0.5) / np.log(2) * first_wait(run), "2 % is our margin", {"spectrum":
       "white_trace"}, "another |Lambda^2|", how=sh.per_doubling, num_steps=8000, step_size=0.05,
       every=8, grid={"scale": (1e-2, 1e-3, 1e-4, 1e-5)})
_claim("escape", "The first weights of separate attention tell when it first drops, to 3 %.",
       sh.below(0.03, "relative error of the escape integral"), escape_error, "in the statement",
       {"scale": 0.2}, "weights that are not small", SADDLES, scale=0.003, num_steps=10000)
_claim("rank_floor", "Two heads of rank one end at the loss of the best predictor of rank two.",
       sh.below(-6.0, "log10 of the last L over that loss, minus 1,"), lambda run: np.log10(
       np.maximum(abs(run.risk[:, -1] / rests(run)[2] - 1), 1e-12)), "six digits are our margin",
       {"num_heads": 5}, "five heads pass it", attention="separate", num_heads=2, scale=0.1,
       step_size=0.4, num_steps=10000)
_claim("condition_needed", "Where ZFB's condition on the scale fails by a factor of four, gradient "
       "flow does not come within 1 % of the optimum.", sh.above(-2.0, "log10 of the last risk "
       "over the optimum, minus 1,"), above_linear, "the number in the statement", {"scale": 0.5},
       "where the condition holds ZFB prove convergence", every=1, init="zfb", scale=3.0,
       method="flow", step_size=4.0, num_steps=200)
_claim("figure_of_head", "The public command (code of December 2025) shows all four drops in 10000 "
       "steps.", sh.above(0.5, "1 if all four are seen, else 0,"), lambda run: 1.0 * (
       run.risk[:, -1] < rests(run)[-2:].mean()), "yes or no", {"num_heads": 3}, "three heads "
       "never learn four", SADDLES, init="head", num_steps=10000)
_claim("one_softmax_head", "One softmax head ends more than 50 % above the best linear predictor "
       "of the same prompts.", sh.above(-0.301, "log10 of the last risk over the best linear one, "
       "minus 1,"), above_linear, "the number in the statement, log10 of 0.5", {"num_heads": 2},
       "two heads of opposite sign can do better", attention="softmax_merged", num_heads=1,
       num_samples=500, step_size=1.0, num_steps=800)
PAPER.check("closed_form", "On white data the loss of merged attention is the published curve.",
            test="tests/test_icl2025.py::test_white_curves", tolerance="1e-8", source=SAID)
PAPER.figure("curves", "White tokens: the run and the exact curve", sh.Study(InContext, seeds=1,
             init="aligned", spectrum="white", step_size=0.05, num_steps=100,
             grid={"scale": (0.01, 0.1)}), theorem="theorem_b")
PAPER.figure("plateaus", "Separate keys: rests at the predicted levels", sh.Study(InContext,
             seeds=1, every=20, num_steps=12000, **SADDLES), theorem="theorem_c", source=SAID)
PAPER.figure("ranks", "Rank and number of heads", sh.Study(InContext, attention="separate", seeds=4,
             step_size=0.4, num_steps=8000, every=20, grid={"rank": (1, 2), "num_heads": (1, 2, 5)}
             ), ("risk", "plateau"))
PAPER.figure("softmax", "Softmax against linear attention", sh.Study(InContext, every=10, seeds=4,
             step_size=1.0, num_steps=600, num_heads=2, risk="empirical", num_samples=500,
             grid={"attention": ("merged", "softmax_merged")}))


def visit():
    rows = []
    for tokens, keys, theorem in (("white", "merged", "theorem_b"), ("linear", "merged",
                                  "theorem_b"), ("linear", "separate", "theorem_s")):  # fmt: skip
        run = sh.train(PAPER.setup({"init": "aligned", "scale": 0.1, "step_size": 0.05, "num_steps":
                                    120, "spectrum": tokens, "attention": keys}))  # fmt: skip
        rows.append({"tokens": tokens, "keys": keys, "theorem": theorem, "last L": number(
            2 * float(run.risk[0, -1])), "verdict": sh.certify(run, theorem).verdict})  # fmt: skip
    words = f"The exact curve {rows[0]['verdict']}; with a spectrum it is {rows[1]['verdict']}."
    return Visit("a curve that is known exactly", rows, tuple(rows[0]), [tuple(r.values()) for r in
                 rows], words, about="linear attention learns to regress in context.", verdicts=
                 tuple((f"{r['theorem']}, {r['tokens']}", r["verdict"]) for r in rows))  # fmt: skip


PAPER.visit = visit
