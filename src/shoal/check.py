r"""Check a proof that `shoal prove --out` wrote, sharing no code with what wrote it.

Reads ``proof.json`` and ``proof.npz`` (weights, data, a plain list of operations), encloses
residual, Jacobian and second derivatives again, bounds derivatives on the stated ball again, and
decides the theorem's inequalities with fractions. NumPy and the standard library only. The theory
is in docs/theory/prove.md; rules have its numbers. ``python -m shoal.check proof.json`` works too.

The file holds few kinds of operations (`KINDS`). Branches are decided here: a comparison must have
one outcome on the whole ball.
"""

import hashlib
import json
import math
import sys
from fractions import Fraction as Q
from pathlib import Path

import numpy as np

# fmt: off
# mypy: disable-error-code="call-arg,operator,assignment,var-annotated"
# ruff: noqa: ARG001, ARG005, D102, D103, N805
U, TINY = 2.0**-53, 1e-140

class Fails(Exception):  # noqa: N818
    """What is wrong with a proof."""

def need(condition, why):
    """Fail unless a condition holds everywhere; nan does not."""
    if not np.all(condition):
        raise Fails(why)

def up(x):
    """Round outward a short sum or product of nonnegative floats (longer ones add gamma)."""
    return x * (1 + 1e-11) + TINY

# ------------------------------------------------------------------ 3.1: balls of arrays

class Ball:
    """Midpoints and radii."""

    def __init__(self, m, r=0.0):
        self.m, self.r = np.asarray(m, float), np.broadcast_to(np.asarray(r, float), np.shape(m))

    def __add__(a, b):
        m = a.m + b.m
        masked = np.isneginf(a.m) | np.isneginf(b.m)  # overflow is not a mask
        return Ball(m, np.where(masked, 0, up(a.r + b.r + U * abs(m))))

    def __neg__(a): return Ball(-a.m, a.r)

    def __mul__(a, b):
        m = a.m * b.m
        return Ball(m, up(abs(a.m) * b.r + a.r * (abs(b.m) + b.r) + U * abs(m)))

    def __matmul__(a, b):
        A, B = abs(a.m), abs(b.m)
        return Ball(a.m @ b.m, up(gamma(a) * (A @ B) + A @ b.r + a.r @ (B + b.r)))

    def __getitem__(a, k): return Ball(a.m[k], a.r[k])
    def sum(a): return Ball(a.m.sum(-1), up(a.r.sum(-1) + gamma(a) * abs(a.m).sum(-1)))
    def on(a, f): return Ball(f(a.m), f(a.r))  # a movement of entries
    def rows(a, *shape): return a.on(lambda x: x.reshape(*x.shape[:-1], *shape))

    T = property(lambda a: a.on(np.transpose))
    low = property(lambda a: np.nextafter(a.m - a.r - TINY, -np.inf))
    high = property(lambda a: np.nextafter(a.m + a.r + TINY, np.inf))

    def norm(a):
        top = abs(a.m) + a.r
        scale = max(float(top.max(initial=0)), TINY)
        return float(up(up(np.sqrt(((top / scale) ** 2).sum())) * scale * (1 + 4 * top.size * U)))

    def least(a):
        """Lower bound of the Euclidean norm."""
        low = np.maximum(abs(a.m) - a.r, 0)
        value = np.sqrt((low**2).sum()) * (1 - 1e-11 - 4 * low.size * U) - TINY
        return float(max(value, 0)) if value < np.inf else 0.0

def gamma(a):
    n = a.m.shape[-1]
    need(n < 30000, "a sum is too long for this checker")
    return (n + 4) * 1.001 * U

def floats(array):
    """A vector of floats: a long integer would be rounded, and its negative may not exist."""
    need(array.dtype == np.float64 and array.ndim == 1, "numbers that are not a vector of floats")
    return array

def full(like, x, r=0.0): return Ball(np.full(like.m.shape, x), r)

def joined(parts, axis=0):
    return Ball(*(np.concatenate([getattr(p, k) for p in parts], axis) for k in "mr"))

def power(x, p):
    """Entries to a whole power, or half of an odd one."""
    if p % 1:
        m = np.sqrt(x.m)
        return Ball(m, up(x.r / np.sqrt(positive(x.low)) + 2 * U * m)) * power(x, round(p - 0.5))
    found = full(x, 1)
    for _ in range(abs(int(p))):
        found = found * x
    return found if p >= 0 else reciprocal(found)

def reciprocal(x):
    floor = (abs(x.m) - x.r) * (1 - 1e-12)
    need(floor > 1e-150, "a denominator is not away from zero")
    m = 1 / x.m
    return Ball(m, up((abs(m) + TINY) * x.r / floor + 4 * U * abs(m)))

# ------------------------------------------------ functions of one number: R5, table of bounds

def positive(a):
    need(a > 1e-60, "an argument or a denominator may reach zero")
    return a * (1 - 1e-13)

def falling(a, p):
    """Bounds of three derivatives of x^p, where a is the end at which they are largest."""
    c = [abs(x) for x in (p, p * (p - 1), p * (p - 1) * (p - 2))]
    return [c[k] * a ** (p - k - 1) * (1 + 1e-12) if c[k] else 0.0 for k in range(3)]

def near_exp(a, b):
    need(b < 700, "an exponential overflows")
    return [math.exp(b) * (1 + 1e-13)] * 3

def near_tanh(a, b):
    mu = min(1.0, 1 - math.tanh(max(a, -b, 0.0)) ** 2 + 1e-15)
    return mu, min(0.76980036, 2 * mu), min(2.0, 4 * mu)

def bell(x):
    """Twice the Gaussian over the root of pi."""
    return full(x, 1.1283791670955126, 1e-15) * apply("exp", -(x * x))

FUNCTIONS = {  # value, absolute error beside 16 ulp, first and second derivative at x with value y,
    # bounds of three derivatives on [a, b]
    "exp": (np.exp, 0, lambda x, y: (y, y), near_exp),
    "log": (np.log, 0, lambda x, y: (power(x, -1), -power(x, -2)), lambda a, b: (
        1 / positive(a), 1 / positive(a) ** 2, 2 / positive(a) ** 3)),
    "tanh": (np.tanh, 0, lambda x, y: (
        (s := full(x, 1) + -(y * y)), full(x, -2) * y * s), near_tanh),
    "erf": (np.vectorize(math.erf, otypes=[float]), 0, lambda x, y: (
        (s := bell(x)), full(x, -2) * x * s), lambda a, b: (
        1.1283791671, 0.9678828981, 2.2567583342)),
    "sin": (np.sin, 32 * U, lambda x, y: (
        apply("sin", x + full(x, math.pi / 2, 1e-15)), -y), lambda a, b: (1, 1, 1)),
}
MADE = {  # functions of these, with sharper bounds than those of their parts
    "softplus": (lambda u, o: unary("log", shift(unary("exp", u, o), 1), o),
                 (1, 0.25, 0.09622504487)),
    "silu": (lambda u, o: mul(u, shift(times(unary("tanh", times(u, 0.5, o), o), 0.5, o), 0.5), o),
             (1.0998393202, 0.5, 0.3081815159)),
    "gelu": (lambda u, o: mul(u, shift(times(unary("erf", times(u, 0.5**0.5, o, 2e-16), o), 0.5, o),
                                       0.5), o), (1.1289041453, 0.7978845609, 0.7787696351)),
}

COMPARISONS = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
               "eq": np.equal, "ne": np.not_equal}

def apply(name, x):
    value, error, *_ = FUNCTIONS[name]
    m, fixed, slope = value(x.m), np.isneginf(x.m) & (x.r == 0), 1.13
    if name in ("exp", "log"):  # the others have bounded slopes
        slope = np.exp(x.high) if name == "exp" else 1 / positive(x.low)
    return Ball(m, np.where(fixed, 0, up(33 * U * abs(m) + error + x.r * slope * 1.0000001)))

# -- 3.1: a value with its derivatives by all weights is a list [v, J, H]; None is zero.

def plus(*parts):
    parts = [p for p in parts if p is not None]
    return sum(parts[1:], parts[0]) if parts else None

def linear(f, u): return [None if part is None else f(part) for part in u]
def moved(f, u): return linear(lambda part: part.on(f), u)
def alone(value): return [value, None, None]

def bilinear(f, u, w, order):
    def g(a, b): return None if a is None or b is None else f(a, b)

    cross = ()
    if order > 1 and u[1] is not None and w[1] is not None:
        cross = f(u[1][:, None], w[1][None]), f(u[1][None], w[1][:, None])
    second = plus(g(u[2], w[0]), g(u[0], w[2]), *cross)
    return [f(u[0], w[0]), plus(g(u[1], w[0]), g(u[0], w[1])), second]

def compose(u, value, slope, bend, order):
    if u[1] is None:
        return alone(value)
    cross = u[1][:, None] * u[1][None] * bend if order > 1 else None
    return [value, u[1] * slope, plus(None if u[2] is None else u[2] * slope, cross)]

def add(u, w): return [plus(a, b) for a, b in zip(u, w, strict=True)]
def mul(u, w, order): return bilinear(lambda a, b: a * b, u, w, order)
def times(u, x, order, r=0.0): return mul(u, alone(full(u[0], x, r)), order)
def shift(u, x): return add(u, alone(full(u[0], x)))

def raised(u, p, order):
    need(abs(p) in (0.5, *range(100)), "an exponent is neither a small whole number nor 1/2, -1/2")
    slope, bend = (full(u[0], c) * power(u[0], p - k) for k, c in ((1, p), (2, p * (p - 1))))
    return compose(u, power(u[0], p), slope, bend, order)

def unary(name, u, order):
    if name in MADE:
        return MADE[name][0](u, order)
    y = apply(name, u[0])
    derivatives = (None, None) if u[1] is None else FUNCTIONS[name][2](u[0], y)
    return compose(u, y, *derivatives, order)

def weight(op, weights):
    sizes, n = [w.m.size for w in weights], op["size"]
    J = np.zeros((sum(sizes), n))
    J[sum(sizes[: op["block"]]) + np.arange(n), np.arange(n)] = 1
    return [weights[op["block"]], Ball(J), None]

def take(op, u):
    at = op["index"]
    v, *rest = moved(lambda x: np.where(at < 0, 0.0, x[..., at]), u)
    return [Ball(np.where(at < 0, op["fill"], v.m), v.r), *rest]

def join(us):
    def part(k):
        lead = next((u[k].m.shape[:-1] for u in us if u[k] is not None), None)
        zeros = None if lead is None else [Ball(np.zeros((*lead, u[0].m.size))) for u in us]
        return zeros and joined([u[k] or z for u, z in zip(us, zeros, strict=True)], -1)

    return [part(k) for k in range(3)]

def compare(op, u, w):
    """A truth value, 1 or 0; `At.compare` demands that it is decided on the whole ball."""
    order = (u[0].m > w[0].m) * 1.0 - (u[0].m < w[0].m)
    return alone(Ball(COMPARISONS[op["name"]](order, 0)))

def select(which, u, w):
    """The second where the first is 1, the third where it is 0."""
    need(abs(abs(which[0].m - 0.5) - 0.5) + which[0].r < 1e-9, "a truth value is not 1 or 0")
    index = np.arange(u[0].m.size) + np.where(which[0].m > 0.5, 0, u[0].m.size)
    return moved(lambda x: x[..., index], join([u, w]))

def largest(op, u):
    rows = u[0].m.reshape(op["rows"], -1)
    at = rows.argmax(1) + np.arange(len(rows)) * rows.shape[1]
    return moved(lambda x: x[..., at], u)

def dot(op, u, w, order):
    b, m, k, n = op["sizes"]
    return bilinear(lambda x, y: (x.rows(b, m, k) @ y.rows(b, k, n)).on(
        lambda z: z.reshape(*z.shape[:-3], b * m * n)), u, w, order)

def total(u, rows): return linear(lambda part: part.rows(rows, -1).sum(), u)
def spread(u, count): return moved(lambda x: np.repeat(x, count, -1), u)

def exponentials(op, u, order):
    top = u[0].m.reshape(op["rows"], -1).max(1)
    e = unary("exp", add(u, alone(Ball(-np.repeat(top, u[0].m.size // op["rows"])))), order)
    return e, total(e, op["rows"]), top

def softmax(op, u, order):
    e, sums, _ = exponentials(op, u, order)
    return mul(e, spread(raised(sums, -1, order), op["size"] // op["rows"]), order)

def logsumexp(op, u, order):
    _, sums, top = exponentials(op, u, order)
    return add(unary("log", sums, order), alone(Ball(top)))

def normalised(op, u, order):
    share = op["num"] / op["den"]
    need(share > 0 and op["offset"] >= 0, "a normalisation with a negative number")
    level = times(total(mul(u, u, order), op["rows"]), share, order, 2 * U * share)
    level = raised(shift(level, op["offset"]), -0.5, order)
    return mul(u, spread(level, op["size"] // op["rows"]), order)

# ----------------------------------------------------------------------- 3.2: eigenvalues, norms

def eigen_above(A):
    """Upper bound of the largest eigenvalue of all symmetric matrices in a ball.

    For any R and t it is at most t + |tI - S - RR'|; approximate eigenvectors give a good R.
    """
    S = (A.m + A.m.T) / 2
    extra = Ball(A.r + 4 * U * abs(A.m) + abs(A.m - A.m.T)).norm()
    values, vectors = np.linalg.eigh(S)
    R = Ball(vectors * np.sqrt(np.maximum(values[-1] - values, 0)))
    rest = Ball(np.diag(np.full(len(S), values[-1]))) + -Ball(S) + -(R @ R.T)
    found = np.nextafter(values[-1] + up(rest.norm() + extra), np.inf)
    need(np.isfinite(found), "an eigenvalue could not be bounded")
    return float(found)

def spectral(A):
    """Upper bound of the spectral norm of all matrices in a ball."""
    short = Ball(A.m if A.m.shape[0] <= A.m.shape[1] else A.m.T)
    if len(short.m) <= 1 or not A.m.any():
        return A.norm()
    top = eigen_above(short @ short.T)
    return min(A.norm(), float(up(up(np.sqrt(max(top, 0))) + Ball(A.r).norm())))

def sigma(J):
    """B2: lower bound of the smallest singular value of all wide matrices in a ball."""
    need(0 < J.m.shape[0] <= J.m.shape[1], "more outputs than weights")
    if len(J.m) == 1:
        return J.least()
    X = Ball(np.linalg.pinv(J.m))
    error = (Ball(np.eye(len(J.m))) + -(J @ X)).norm()
    need(error < 1, "the smallest singular value is lost in rounding")
    return float((1 - error) / spectral(X) * (1 - 1e-11) - TINY)

def perron(S):
    """Upper bound of the largest eigenvalue of a nonnegative symmetric matrix."""
    x = abs(np.linalg.eigh(S)[1][:, -1])
    x = np.maximum(x, 1e-13 * x.max())
    return float(up(up((S @ x / x).max())))

# ------------------------------------------------- 3.3: jets [d1, d2, d3] on one ball; None is zero

def root(x):
    r = float(np.sqrt(x))
    return r if Q(r) ** 2 == Q(float(x)) else float(up(r))

def length(x): return up(up(np.sqrt((x**2).sum(-1))))
def scaled(d, t): return None if d is None else [x * t for x in d]

def hypotenuse(xs): return np.sqrt(sum(x**2 for x in xs))

def both(ds, how=hypotenuse):
    """R2 and R3: jets of parts that are joined; with how=sum of a sum."""
    ds = [d for d in ds if d is not None]
    return [how(xs) for xs in zip(*ds, strict=True)] if ds else None

def symmetric(d2, d1):
    found = d2[:, :, None] * d1
    return found + found.transpose(0, 2, 1) + found.transpose(2, 0, 1)

def product(a, b, A, B):
    """R4; A and B bound the factors on the ball."""
    if a is None or b is None:
        return scaled(a, B) if b is None else scaled(b, A)
    cross = np.outer(a[0], b[0])
    return [a[0] * B + A * b[0], a[1] * B + A * b[1] + cross + cross.T,
            a[2] * B + A * b[2] + symmetric(a[1], b[0]) + symmetric(b[1], a[0])]

def composed(d, M1, M2, M3):
    """R5; the M bound the outer function's derivatives."""
    pair = np.outer(d[0], d[0])
    return [M1 * d[0], M1 * d[1] + M2 * pair,
            M1 * d[2] + M2 * symmetric(d[1], d[0]) + M3 * pair[:, :, None] * d[0]]

class At:
    """One operation on the ball: operands' values v and jets g, their movement and size."""

    def __init__(at, op, g, v, own, rho):
        at.op, at.g, at.v, at.own = op, g, v, own
        at.mov = [0.0 if d is None else float(up(length(d[0]) * rho)) for d in g]
        at.top = [float(up((abs(x.m) + x.r).max(initial=0) + y))
                  for x, y in zip(v, at.mov, strict=True)]

    def unary(at):
        if at.op["name"] in MADE:
            return composed(at.g[0], *MADE[at.op["name"]][1])
        low = np.nextafter(at.v[0].low.min() - up(at.mov[0]), -np.inf)
        high = np.nextafter(at.v[0].high.max() + up(at.mov[0]), np.inf)
        return composed(at.g[0], *FUNCTIONS[at.op["name"]][3](float(low), float(high)))

    def power(at):
        p, end = at.op["exponent"], at.top[0]
        if p < 0 or p % 1:
            least = float((abs(at.v[0].m) - at.v[0].r).min())
            end = positive(least * (1 - 1e-12) - at.mov[0] * (1 + 1e-12))
        return composed(at.g[0], *falling(end, p))

    def dot(at):
        b, m, k, n = at.op["sizes"]
        sides = at.v[0].rows(b, m, k), at.v[1].rows(b, k, n)
        top = [max(spectral(x[i]) for i in range(b)) for x in sides]
        return product(*at.g, *(up(x + y) for x, y in zip(top, at.mov, strict=True)))

    def softmax(at):
        most = min(0.5, up((at.own.m + at.own.r).max() + 0.5 * at.mov[0]))
        return composed(at.g[0], most, 0.27216552697590873, 0.5)

    def normalise(at):
        rows, share = at.v[0].rows(at.op["rows"], -1), at.op["num"] / at.op["den"]
        short = min(rows[i].least() for i in range(at.op["rows"])) - at.mov[0] * (1 + 1e-12)
        low = max(short, 0.0) ** 2 * share + at.op["offset"]
        s = math.sqrt(positive(low * (1 - 1e-12))) * (1 - 1e-12)
        bend = 1.1547005384 * math.sqrt(up(share)) / s**2
        return composed(at.g[0], up(1 / s), up(bend), up(3 * share / s**3))

    def compare(at):
        """R6: what was compared stays apart; exact constants may be equal, masks are exact."""
        one, other = at.v
        masks = np.isneginf(one.m) | np.isneginf(other.m)
        exact = (one.r == 0) & (other.r == 0) & (at.g[0] is None and at.g[1] is None)
        apart = abs(one.m - other.m) * (1 - 1e-12) - up(one.r + other.r)
        need(masks | exact | (apart > up(at.mov[0] + at.mov[1])), "a kink is within reach")

    def largest(at):
        """R6: the largest of each row stays the largest; exact constants may share the lead."""
        rows = at.v[0].rows(at.op["rows"], -1)
        top, here = rows.m.argmax(1)[:, None], np.arange(rows.m.shape[1])[None]
        m, r = (np.take_along_axis(x, top, 1) for x in (rows.m, rows.r))
        apart = (m - rows.m) * (1 - 1e-12) - up(r + rows.r) > up(1.4142135624 * at.mov[0])
        exact = (r == 0) & (rows.r == 0) & (at.g[0] is None)
        need(apart | exact | (here == top), "the largest of several entries may change")
        return at.g[0]

    def select(at):
        need(at.g[0] is None, "a truth value that moves with the weights")
        chosen = at.v[0].m > 0.5
        return both([d for d, used in zip(at.g[1:], (chosen, ~chosen), strict=True) if used.any()])

def copies(index): return root(np.bincount(index[index >= 0]).max(initial=0))

KINDS = {  # operation: its value with derivatives (op, operands, order), its jet on the ball
    "constant": (lambda op, g, o: alone(Ball(floats(op["value"]), op["radius"])), lambda at: None),
    "take": (lambda op, g, o: take(op, *g), lambda at: scaled(at.g[0], copies(at.op["index"]))),
    "join": (lambda op, g, o: join(g), lambda at: both(at.g)),
    "add": (lambda op, g, o: add(*g), lambda at: both(at.g, sum)),
    "mul": (lambda op, g, o: mul(*g, o), lambda at: product(*at.g, *at.top)),
    "dot": (lambda op, g, o: dot(op, *g, o), At.dot),
    "unary": (lambda op, g, o: unary(op["name"], *g, o), At.unary),
    "power": (lambda op, g, o: raised(*g, op["exponent"], o), At.power),
    "softmax": (lambda op, g, o: softmax(op, *g, o), At.softmax),
    "logsumexp": (lambda op, g, o: logsumexp(op, *g, o),
                  lambda at: composed(at.g[0], 1.0, 0.5, 0.27216552697590873)),
    "normalise": (lambda op, g, o: normalised(op, *g, o), At.normalise),
    "compare": (lambda op, g, o: compare(op, *g), At.compare),
    "select": (lambda op, g, o: select(*g), At.select),
    "largest": (lambda op, g, o: largest(op, *g), At.largest),
}
BRANCHES = "compare", "largest"  # decided on the ball, whether or not the operands move

PAIRED = "add", "mul", "compare", "select"  # nothing is broadcast: a bound would lose its root
MASKED = "constant", "take", "join", "add", "select", "largest"

def evaluate(program, weights, order):
    """Every value of a program, with derivatives; only what was compared decides a choice."""
    found, truths = [], set()
    for op in program["operations"]:
        kind = op["kind"]
        need(kind in KINDS or kind == "weight", f"the operation {kind!r} is not known")
        need([0 <= i < len(found) for i in op["inputs"]], "an operation uses a later one")
        if kind == "compare" or truths & set(op["inputs"]):
            truths.add(len(found))
        need(kind != "select" or op["inputs"][0] in truths, "a choice that no comparison makes")
        g = [found[i] for i in op["inputs"]]
        need(kind not in PAIRED or len({u[0].m.size for u in g}) == 1, f"{kind} of unequal sizes")
        new = weight(op, weights) if kind == "weight" else KINDS[kind][0](op, g, order)
        masks = np.isneginf(new[0].m) & (kind in MASKED)
        need((np.isfinite(new[0].m) | masks) & np.isfinite(new[0].r), f"overflow in {kind}")
        need(new[0].r >= 0, f"{kind} has a negative radius")
        need(new[0].m.shape == (op["size"],), f"{kind} has another size than stated")
        found.append(new)
    return found

def jets(program, values, rho, roots, norms):
    """The jet of a program's output on the ball of radius rho."""
    B, found = len(roots), []
    for number, op in enumerate(program["operations"]):
        g, d = [found[i] for i in op["inputs"]], None
        if op["kind"] == "weight":  # R0
            d = [roots[op["block"]] * np.eye(B)[op["block"]], np.zeros((B, B)), np.zeros((B, B, B))]
        elif op["kind"] in BRANCHES or any(x is not None for x in g):
            v = [values[i][0] for i in op["inputs"]]
            d = KINDS[op["kind"]][1](At(op, g, v, values[number][0], rho))
        if d is not None:
            d = [up(x) for x in d]
            if number in norms:  # 3.5: the first derivative at the centre, and what the second adds
                d[0] = np.minimum(d[0], up(up(norms[number] * roots) + up(rho * length(d[1]))))
            need([np.isfinite(x).all() for x in d], f"overflow on the ball in {op['kind']}")
        found.append(d)
    need(found[program["output"]] is not None, "the outputs do not depend on the weights")
    return found[program["output"]]

def together(parts, largest_of):
    """3.4: from samples to one constant."""
    joint = largest_of(hypotenuse(parts) * (1 + 1e-12))
    return min(joint, float(up(math.sqrt(sum(largest_of(x) ** 2 for x in parts)))))

# -------------------------------------------------------------------------------- the theorems

class Case:
    """Gradient descent near some weights, and what holds there and on a ball (3.4, 3.5)."""

    def __init__(self, programs, weights, targets, ratios, scale, radius, level):
        order, roots = 2 if "output" in level else 1, np.array([root(a) for a in ratios])
        self.scale, self.values, self.curve = scale, [], None
        residuals, rows, jet, gram = [], [], [], None
        sizes = [w.m.size for w in weights]
        factor = Ball(f := np.repeat(np.sqrt(ratios), sizes), up(4 * U * f))
        P, ends = f.size, np.cumsum(sizes)
        for program, y in zip(programs, targets, strict=True):
            values = evaluate(program, weights, order)
            out = values[program["output"]]
            need(out[0].m.size == y.size and out[1] is not None, "outputs and targets do not fit")
            norms = {n: np.array([0.0 if values[n][1] is None else spectral(values[n][1][b - a:b])
                                  for a, b in zip(sizes, ends, strict=True)])
                     for n in (program["anchors"] if "nodes" in level else ())}
            jet.append(jets(program, values, radius, roots, norms))
            self.values.append(out[0])
            residuals.append(out[0] + Ball(-y))
            rows.append((out[1] * factor[:, None]).T)
            if order > 1:
                H = Ball(np.zeros((P, P, y.size))) if out[2] is None else out[2]
                H = H * factor[:, None, None] * factor[None, :, None]
                flat = H.on(lambda z: z.reshape(P, -1))
                gram = plus(gram, flat @ flat.T)
                self.curve = plus(self.curve, (H @ residuals[-1][:, None])[..., 0])
        self.r, self.J = joined(residuals), joined(rows)
        self.residual, self.norm = self.r.norm(), spectral(self.J)
        d1 = np.array([d[0] for d in jet])
        self.L = together([d[1] for d in jet], perron)
        self.K = together([d[2] for d in jet],
                          lambda d: float(length(np.array([perron(x) for x in d]))))
        if order > 1:
            flat = up(math.sqrt(max(eigen_above(gram), 0)))
            self.L = float(min(self.L, up(flat + up(radius * self.K))))
        beta = up(math.sqrt(perron(up(d1.T @ d1))))
        self.beta = float(min(beta, up(self.norm + up(self.L * radius))))

    def curvature(self, radius):
        """Gradient, ends of the Hessian's spectrum, bound of the third derivative (2.3)."""
        need(self.curve is not None, "this theorem needs second derivatives")
        low, high = self.scale
        s = Ball(np.array((low + high) / 2), up(high - low))
        hessian = (self.J.T @ self.J + self.curve) * s
        reach = self.residual + self.beta * radius
        M = up(high * up(3 * self.beta * self.L + reach * self.K))
        slope = ((self.r[None] @ self.J)[0] * s).norm()
        return map(Q, (slope, -eigen_above(-hessian), eigen_above(hessian), float(M)))

    def risk(self):
        return [Q(x) * Q(y) ** 2 / 2 for x, y in zip(self.scale, (self.r.least(), self.residual),
                                                     strict=True)]

def limit(risk, slope, m):
    least = risk[0] - slope**2 / (2 * m)
    need(least > 0, "the limiting risk may be zero")
    return least, risk[1]

def contraction(proof, case):
    """P1."""
    low, high = (Q(proof["step_size"]) * Q(x) for x in proof["scale"])
    s, r, beta, L, rho = map(Q, (sigma(case.J), case.residual, case.beta, case.L, proof["radius"]))
    alpha, c = s - L * rho, 1 - high * beta**2 / 2 - high * L * r / 2
    psi = s * rho - L * rho**2 / 2
    need(alpha > 0, "sigma - L radius is not positive")
    need(c > 0, "the step is too long: c is not positive")
    need(r < c * psi, f"the residual {float(r):.6g} is not below c Psi = {float(c * psi):.6g}")
    later = max(abs(1 - h * x**2) for h in (low, high) for x in (alpha, beta))
    found = {"residual": r, "jacobian_norm": Q(case.norm), "sigma": s, "beta": beta, "L": L,
             "alpha": alpha, "c": c, "reach": c * psi, "step_low": low, "step_high": high}
    return found, (1 - c * low * alpha**2, later), (Q(0), Q(0))

def minimum(proof, case):
    """P2."""
    rho, eta = Q(proof["radius"]), Q(proof["step_size"])
    g, low, high, M = case.curvature(proof["radius"])
    m, top = low - M * rho, high + M * rho
    need(m > 0, "the Hessian is not positive on the ball")
    need(g <= rho * (low / 2 - M * rho / 8), "the gradient is too large")
    need(0 < eta * top < 2, "the step is too long for the minimum")
    q = max(abs(1 - eta * m), abs(1 - eta * top))
    found = {"beta": Q(case.beta), "L": Q(case.L), "K": Q(case.K), "residual": Q(case.residual),
             "gradient": g, "lambda_min": low, "lambda_max": high, "M": M, "m": m, "Lambda": top}
    return found, (q, q), limit(case.risk(), g, m)

def valley(proof, inner):
    """P3: the programs give an array u, of which the outer programs are functions."""
    reach, parts, G2, risk = float(up(inner.beta * proof["radius"])), [], Q(0), [Q(0), Q(0)]
    for F, u, y in zip(proof["outer"], inner.values, proof["outer_targets"], strict=True):
        outer = Case([F], [u], [y], [1.0], proof["scale"], reach, "output")
        g, least, most, M = outer.curvature(reach)
        parts.append((least - M * Q(reach), most + M * Q(reach)))
        G2, risk = G2 + g**2, [x + y for x, y in zip(risk, outer.risk(), strict=True)]
    m, top = min(x for x, _ in parts), max(x for _, x in parts)
    G, rho, eta = Q(float(up(math.sqrt(G2)))), Q(proof["radius"]), Q(proof["step_size"])
    a, b, L = Q(sigma(inner.J)) - Q(inner.L) * rho, Q(inner.beta), Q(inner.L)
    large = b * b * top + (G + top * b * rho) * L
    kappa = 1 - eta * large / 2
    need(m > 0 and a > 0, "the risk is not convex in u, or u does not follow the weights")
    need(kappa > 0, "the step is too long for the minimum")
    need(G / m < min(kappa * a, b) * rho, "the gradient is too large")
    found = {"gradient": G, "m": m, "m_bar": top, "a_u": a, "b_u": b, "L_u": L, "kappa": kappa,
             "Lambda": large, "needed": G / m, "reach": min(kappa * a, b) * rho}
    return found, (1 - 2 * kappa * eta * a * a * m,) * 2, limit(risk, G, m)

THEOREMS = {("converges", "P1"): contraction, ("stuck", "P2"): minimum, ("stuck", "P3"): valley}

# ---------------------------------------------------------------------------- the file, the verdict

def digest(array):
    return hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).hexdigest()

def read(path):
    """A proof with its arrays in place, if all hashes fit."""
    path, packed = Path(path), Path(path).with_suffix(".npz")
    for file in (path, packed):  # reading a pipe or a device may never end
        need(file.is_file(), f"{file.name} is not a regular file")
    proof = json.loads(path.read_text())
    need(proof.get("format") == "shoal proof 3", "this is not a proof of shoal")
    body = json.dumps({k: v for k, v in proof.items() if k != "sha256"}, sort_keys=True)
    seal = hashlib.sha256(body.encode()).hexdigest()
    need(seal == proof.get("sha256"), "the hash of the file differs")
    with np.load(packed, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    need(set(arrays) == set(proof["arrays"]), "arrays are missing")
    for name, array in arrays.items():
        need(digest(array) == proof["arrays"][name], f"the hash of the array {name} differs")
        need(array.dtype in (np.float64, np.int64), f"the array {name} has another type")
    for program in proof["programs"]:
        for op in program["operations"]:
            op |= {k: arrays[name] for k, name in op["arrays"].items()}
    for name in ("inner", "outer"):
        proof[name] = [proof["programs"][k] for k in proof[name]]
    return proof | {k: [floats(arrays[n]) for n in proof[k]]
                    for k in ("weights", "inner_targets", "outer_targets")}

def close(claimed, found, what, slack, above=0):
    """A claimed number must be what was found here, up to what rounding may change."""
    need(isinstance(claimed, (int, float)), f"{what} is missing")
    need(math.isfinite(claimed) and -slack <= Q(claimed) - found <= slack + above,
         f"{what} is stated as {claimed:.9g}, and is {float(found):.9g}")

def decided(proof):
    positive_numbers = [proof["step_size"], *proof["scale"], *proof["ratios"], proof["radius"]]
    need(all(0 < x < math.inf for x in positive_numbers) and proof["scale"][0] <= proof["scale"][1],
         "the step, the radius, the scale or a ratio is not positive")
    need(len(proof["ratios"]) == len(proof["weights"]) > 0, "blocks and ratios do not fit")
    need(len(proof["inner"]) == len(proof["inner_targets"]) > 0, "samples and targets do not fit")
    kind = proof["verdict"], proof["theorem"]
    need(kind in THEOREMS, f"{kind} is not checked by this program")
    case = Case(proof["inner"], [Ball(w) for w in proof["weights"]], proof["inner_targets"],
                proof["ratios"], proof["scale"], proof["radius"], proof["level"])
    found, rate, risk = THEOREMS[kind](proof, case)
    need(set(proof["constants"]) <= set(found), "a constant that is not known")
    blur = {"residual": 8 * Q(Ball(case.r.r).norm())}  # two enclosures differ by their widths
    for name, value in found.items():
        slack = abs(value) / 10**6 + Q(1, 10**12) + blur.get(name, 0)
        close(proof["constants"].get(name), value, name, slack)
    for one, value in zip(proof["rate"], rate, strict=True):  # how far it is from 1 counts
        close(one, value, "rate", abs(1 - value) / 10**6, Q(2) ** -51)  # it is rounded up
    for one, value in zip(proof["risk"], risk, strict=True):
        close(one, value, "risk", value / 10**10)
    return proof["verdict"]

def check(path):
    """The verdict that was checked; `Fails` says what is wrong."""
    try:
        with np.errstate(all="ignore"):
            return decided(read(path))
    except Fails:
        raise
    except Exception as error:  # whatever a hostile file breaks
        said = ascii(str(error)[:200])[1:-1]
        raise Fails(f"the file is malformed ({type(error).__name__}: {said})") from None

if __name__ == "__main__":
    try:
        sys.stdout.write(f"checked: {check(sys.argv[1])}\n")
    except Fails as problem:
        sys.exit(f"not checked: {problem}")
