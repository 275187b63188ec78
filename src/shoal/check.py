r"""Check a proof that `shoal prove --out` wrote, sharing no code with what wrote it.

Reads ``proof.json`` and ``proof.npz`` (weights, data, a plain list of operations), encloses
residual, Jacobian and second derivatives again, bounds derivatives on the stated ball again, and
decides the theorem's inequalities with fractions. NumPy and the standard library only. The theory
is in docs/theory/prove.md; rules have its numbers. ``python -m shoal.check proof.json`` works too.
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
# ruff: noqa: ARG005, D102, D103, N805, RUF007
U, TINY, NEVER = 2.0**-53, 1e-140, -np.inf

class Fails(Exception):  # noqa: N818
    """What is wrong with a proof."""

def need(condition, why):
    """Fail unless a condition holds everywhere; nan does not."""
    if not np.all(condition):
        raise Fails(why)

def up(x):
    """Round outward a short sum or product of nonnegative floats (longer ones add gamma)."""
    return x * (1 + 1e-11) + TINY

class Ball:
    """Midpoints and radii (3.1)."""

    def __init__(self, m, r=0.0):
        self.m, self.r = np.asarray(m, float), np.broadcast_to(np.asarray(r, float), np.shape(m))

    def __add__(a, b):
        m = a.m + b.m
        masked = np.isneginf(a.m) | np.isneginf(b.m)  # overflow is not a mask
        return Ball(m, np.where(masked, 0, up(a.r + b.r + U * abs(m))))

    def __neg__(a): return Ball(-a.m, a.r)
    def __sub__(a, b): return a + -b

    def __mul__(a, b):
        m = a.m * b.m
        return Ball(m, up(abs(a.m) * b.r + a.r * (abs(b.m) + b.r) + U * abs(m)))

    def __truediv__(a, b):
        floor = (abs(b.m) - b.r) * (1 - 1e-12)
        need(floor > 1e-150, "a denominator is not away from zero")
        m = a.m / b.m
        return Ball(m, up((a.r + (abs(m) + TINY) * b.r) / floor + 4 * U * abs(m)))

    def __matmul__(a, b):
        A, B, gamma = abs(a.m), abs(b.m), a.gamma()
        return Ball(a.m @ b.m, up(gamma * (A @ B) + A @ b.r + a.r @ (B + b.r)))

    def __getitem__(a, k): return Ball(a.m[k], a.r[k])

    def gamma(a):
        n = a.m.shape[-1]
        need(n < 30000, "a sum is too long for this checker")
        return (n + 4) * 1.001 * U

    def sum(a): return Ball(a.m.sum(-1), up(a.r.sum(-1) + a.gamma() * abs(a.m).sum(-1)))
    def on(a, f): return Ball(f(a.m), f(a.r))  # a movement of entries
    def as_rows(a, *shape): return a.on(lambda x: x.reshape(*x.shape[:-1], *shape))

    T = property(lambda a: a.on(np.transpose))

    def ends(a):
        return np.nextafter(a.m - a.r - TINY, NEVER), np.nextafter(a.m + a.r + TINY, -NEVER)

    def norm(a):
        top = abs(a.m) + a.r
        scale = max(float(top.max(initial=0)), TINY)
        return float(up(up(np.sqrt(((top / scale) ** 2).sum())) * scale * (1 + 4 * top.size * U)))

    def least(a):
        """Lower bound of the Euclidean norm."""
        low = np.maximum(abs(a.m) - a.r, 0)
        value = np.sqrt((low**2).sum()) * (1 - 1e-11 - 4 * low.size * U) - TINY
        return float(max(value, 0)) if value < np.inf else 0.0

def full(like, x): return Ball(np.full(like.m.shape, x))

def joined(parts, axis=0):
    return Ball(*(np.concatenate([getattr(p, k) for p in parts], axis) for k in "mr"))

# ------------------------------------------------ functions of one number: R5, table of bounds

def positive(a):
    need(a > 1e-60, "an argument or a denominator may reach zero")
    return a * (1 - 1e-13)

def falling(a, p):
    """Bounds of three derivatives of x^p, where a is the end at which they are largest."""
    c = [abs(x) for x in (p, p * (p - 1), p * (p - 1) * (p - 2))]
    return [c[k] * a ** (p - k - 1) * (1 + 1e-12) if c[k] else 0.0 for k in range(3)]

def near_tanh(z):
    mu = min(1.0, 1 - math.tanh(max(z, 0.0)) ** 2 + 1e-15)
    return mu, min(0.76980036, 2 * mu), min(2.0, 4 * mu)

def near_log(a): return 1 / positive(a), 1 / positive(a) ** 2, 2 / positive(a) ** 3

def gauss(x):
    s = Ball(np.full(x.m.shape, 1.1283791670955126), 1e-15) * apply("exp", -(x * x))
    return s, full(x, -2) * x * s

BASE = {  # value, absolute error beside 16 ulp, largest slope on [a, b], derivatives at x, y = f(x)
    "exp": (np.exp, 0, lambda a, b: np.exp(b), lambda x, y: (y, y)),
    "log": (np.log, 0, lambda a, b: 1 / positive(a), lambda x, y: (power(x, -1), -power(x, -2))),
    "tanh": (np.tanh, 0, lambda a, b: 1, lambda x, y: ((s := full(x, 1) - y * y),
                                                       full(x, -2) * y * s)),
    "erf": (np.vectorize(math.erf, otypes=[float]), 0, lambda a, b: 1.13, lambda x, y: gauss(x)),
    "sin": (np.sin, 32 * U, lambda a, b: 1, lambda x, y: (
        apply("sin", x + Ball(np.full(x.m.shape, math.pi / 2), 1e-15)), -y)),
    "sqrt": (np.sqrt, 0, lambda a, b: 0.5 / np.sqrt(positive(a)), lambda x, y: (
        (s := full(x, 0.5) / y), full(x, -0.5) * s / x)),
}
DERIVED = {  # the others are made of these
    "exp2": lambda u, o: unary("exp", times(u, math.log(2), o, 2e-16), o),
    "expm1": lambda u, o: shift(unary("exp", u, o), -1),
    "log1p": lambda u, o: unary("log", shift(u, 1), o),
    "logistic": lambda u, o: shift(times(unary("tanh", times(u, 0.5, o), o), 0.5, o), 0.5),
    "softplus": lambda u, o: unary("log", shift(unary("exp", u, o), 1), o),
    "erfc": lambda u, o: shift(times(unary("erf", u, o), -1, o), 1),
    "cos": lambda u, o: unary("sin", shift(u, math.pi / 2, 1e-15), o),
    "rsqrt": lambda u, o: raised(unary("sqrt", u, o), -1, o),
    "silu": lambda u, o: mul(u, unary("logistic", u, o), o),
    "gelu": lambda u, o: times(mul(u, unary("erfc", times(u, -0.5**0.5, o), o), o), 0.5, o),
}
BOUNDS = {  # of three derivatives on [a, b]
    "exp": lambda a, b: [math.exp(b) * (1 + 1e-13)] * 3, "log": lambda a, b: near_log(a),
    "exp2": lambda a, b: [c * 2.0**b for c in (0.6931471806, 0.480453014, 0.333024652)],
    "log1p": lambda a, b: near_log(math.nextafter(1 + a, NEVER)),
    "tanh": lambda a, b: near_tanh(max(a, -b)), "sin": lambda a, b: (1, 1, 1),
    "logistic": lambda a, b: (0.25, 0.09622504487, 0.125),
    "softplus": lambda a, b: (1, 0.25, 0.09622504487),
    "erf": lambda a, b: (1.1283791671, 0.9678828981, 2.2567583342),
    "sqrt": lambda a, b: falling(positive(a), 0.5),
    "rsqrt": lambda a, b: falling(positive(a), -0.5),
    "gelu": lambda a, b: (1.1289041453, 0.7978845609, 0.7787696351),
    "silu": lambda a, b: (1.0998393202, 0.5, 0.3081815159),
}
BOUNDS |= {"expm1": BOUNDS["exp"], "erfc": BOUNDS["erf"], "cos": BOUNDS["sin"]}

def apply(name, x):
    value, error, slope, _ = BASE[name]
    m, fixed = value(x.m), np.isneginf(x.m) & (x.r == 0)
    r = up(33 * U * abs(m) + error + x.r * slope(*x.ends()) * 1.0000001)
    return Ball(m, np.where(fixed, 0, r))

# -- 3.1: a value with its derivatives by all weights is a list [v, J, H]; None is zero.

def plus(*parts):
    parts = [p for p in parts if p is not None]
    return sum(parts[1:], parts[0]) if parts else None

def linear(f, u): return [None if part is None else part.on(f) for part in u]
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
def times(u, x, order, r=0.0):
    return mul(u, alone(Ball(np.full(u[0].m.shape, x), r)), order)

def shift(u, x, r=0.0): return add(u, alone(Ball(np.full(u[0].m.shape, x), r)))

def power(x, n):
    found = full(x, 1)
    for _ in range(abs(n)):
        found = found * x
    return found if n >= 0 else full(x, 1) / found

def raised(u, n, order):
    slope, bend = (full(u[0], c) * power(u[0], n - k) for k, c in ((1, n), (2, n * (n - 1))))
    return compose(u, power(u[0], n), slope, bend, order)

def unary(name, u, order):
    if name in DERIVED:
        return DERIVED[name](u, order)
    y = apply(name, u[0])
    derivatives = BASE[name][3](u[0], y) if u[1] is not None else (None, None)
    return compose(u, y, *derivatives, order)

def total(u, rows): return [None if p is None else p.as_rows(rows, -1).sum() for p in u]
def spread(u, count): return linear(lambda x: np.repeat(x, count, -1), u)

def gap(a, b):
    """Lower bound of |a - b|, entry by entry."""
    apart = np.where(a.m == b.m, 0.0, abs(a.m - b.m))
    return np.where(np.isinf(apart), np.inf, apart * (1 - 1e-12) - up(a.r + b.r))

def compare(name, a, b):
    need((gap(a, b) > 0) | ((a.r == 0) & (b.r == 0)), "a comparison is not decided")
    return getattr(np, {"gt": "greater", "lt": "less", "ge": "greater_equal", "le": "less_equal",
                        "eq": "equal", "ne": "not_equal"}[name])(a.m, b.m)

def logic(op, *given):
    if op["name"] in ("all", "any"):
        return getattr(given[0].reshape(op["size"], -1), op["name"])(1)
    return {"not": np.logical_not, "and": np.logical_and, "or": np.logical_or}[op["name"]](*given)

def lead(x, rows):
    """Lower bound of how far each row's largest entry is ahead."""
    ordered = np.sort(x.m.reshape(rows, -1), 1)
    ahead = ordered[:, -1] - ordered[:, -2] if ordered.shape[1] > 1 else np.full(rows, np.inf)
    return ahead * (1 - 1e-12) - up(2 * x.r.reshape(rows, -1).max(1))

def largest(op, u):
    need((lead(u[0], op["rows"]) > 0) | (u[0].r == 0).all(), "a largest entry is not decided")
    m = u[0].m.reshape(op["rows"], -1)
    at = np.arange(len(m)) * m.shape[1] + m.argmax(1)
    return linear(lambda x: x[..., at], u)

def below_zero(u, moves):
    need(u[0].ends()[1] + up(moves) < 0, "a number that is cut at zero may reach zero")
    return u

def weight(op, weights):
    P, start = sum(w.size for w in weights), sum(w.size for w in weights[: op["block"]])
    J = np.zeros((P, op["size"]))
    J[start + np.arange(op["size"]), np.arange(op["size"])] = 1
    return [Ball(weights[op["block"]].ravel()), Ball(J), None]

def take(op, u):
    at = op["index"]
    if not isinstance(u[0], Ball):
        return alone(u[0][at])
    found = linear(lambda x: np.where(at < 0, 0.0, x[..., at]), u)
    return [Ball(np.where(at < 0, op["fill"], found[0].m), found[0].r), *found[1:]]

def join(given, P):
    parts = []
    for k, lead_axes in enumerate(((), (P,), (P, P))):
        each = [Ball(np.zeros((*lead_axes, u[0].m.size))) if u[k] is None else u[k] for u in given]
        parts.append(joined(each, -1) if any(u[k] is not None for u in given) else None)
    return parts

def select(op, which, a, b, P):
    at = np.arange(op["size"]) + np.where(which[0], 0, op["size"])
    return linear(lambda x: x[..., at], join([a, b], P))

def dot(op, u, w, order):
    b, m, k, n = op["sizes"]
    return bilinear(lambda x, y: (x.as_rows(b, m, k) @ y.as_rows(b, k, n)).on(
        lambda z: z.reshape(*z.shape[:-3], b * m * n)), u, w, order)

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

def row_mean(op, u, share, order):
    share = alone(Ball(np.full(op["rows"], share), 2 * U * abs(share)))
    return mul(total(u, op["rows"]), share, order)

def centred(op, u, order):
    k = op["size"] // op["rows"]
    return add(u, spread(row_mean(op, u, -1 / k, order), k))

def normalised(op, u, order):
    level = row_mean(op, mul(u, u, order), op["num"] / op["den"], order)
    level = add(level, alone(Ball(np.full(op["rows"], op["offset"]))))
    return mul(u, spread(unary("rsqrt", level, order), op["size"] // op["rows"]), order)

CENTRE = {  # operation, operands, order of derivatives, weights, number of weights
    "weight": lambda op, g, o, w, P: weight(op, w),
    "constant": lambda op, g, o, w, P: alone(Ball(op["value"])),
    "take": lambda op, g, o, w, P: take(op, g[0]),
    "join": lambda op, g, o, w, P: join(g, P),
    "add": lambda op, g, o, w, P: add(*g),
    "sub": lambda op, g, o, w, P: add(g[0], times(g[1], -1.0, o)),
    "neg": lambda op, g, o, w, P: times(g[0], -1.0, o),
    "mul": lambda op, g, o, w, P: mul(*g, o),
    "div": lambda op, g, o, w, P: mul(g[0], raised(g[1], -1, o), o),
    "dot": lambda op, g, o, w, P: dot(op, *g, o),
    "sum": lambda op, g, o, w, P: total(g[0], op["rows"]),
    "max": lambda op, g, o, w, P: largest(op, g[0]),
    "unary": lambda op, g, o, w, P: unary(op["name"], g[0], o),
    "power": lambda op, g, o, w, P: raised(g[0], op["exponent"], o),
    "softmax": lambda op, g, o, w, P: softmax(op, g[0], o),
    "logsumexp": lambda op, g, o, w, P: logsumexp(op, g[0], o),
    "centre": lambda op, g, o, w, P: centred(op, g[0], o),
    "normalise": lambda op, g, o, w, P: normalised(op, g[0], o),
    "compare": lambda op, g, o, w, P: alone(compare(op["name"], g[0][0], g[1][0])),
    "logic": lambda op, g, o, w, P: alone(logic(op, *(u[0] for u in g))),
    "finite": lambda op, g, o, w, P: alone(np.isfinite(g[0][0].m)),
    "select": lambda op, g, o, w, P: select(op, *g, P),
    "negative": lambda op, g, o, w, P: below_zero(g[0], 0.0),
}

def evaluate(program, weights, order):
    """Every value of a program, with derivatives."""
    found, P = [], sum(w.size for w in weights)
    for op in program["operations"]:
        kind = op["kind"]
        need(kind in CENTRE, f"the operation {kind!r} is not known")
        need([i < len(found) for i in op["inputs"]], "an operation uses a later one")
        new = CENTRE[kind](op, [found[i] for i in op["inputs"]], order, weights, P)
        if isinstance(new[0], Ball):
            masks = np.isneginf(new[0].m) & (kind in ("constant", "take", "join", "select", "add"))
            need((np.isfinite(new[0].m) | masks) & np.isfinite(new[0].r), f"overflow in {kind}")
        size = (new[0].m if isinstance(new[0], Ball) else new[0]).size
        need(size == op["size"], f"{kind} has another size than stated")
        found.append(new)
    return found

# ----------------------------------------------------------------------- 3.2: eigenvalues, norms

def eigen_above(A):
    """Upper bound of the largest eigenvalue of all symmetric matrices in a ball."""
    S, n = (A.m + A.m.T) / 2, len(A.m)
    extra = Ball(A.r + 4 * U * abs(A.m) + abs(A.m - A.m.T)).norm()
    guess = np.linalg.eigvalsh(S)
    for k in range(-14, 2):
        t = guess[-1] + 10.0**k * abs(guess).max() + TINY
        try:
            R = Ball(np.linalg.cholesky(t * np.eye(n) - S))
        except np.linalg.LinAlgError:
            continue
        rest = Ball(np.full(n, t)).on(np.diag) - Ball(S) - R @ R.T
        if np.isfinite(rest.m).all():
            return float(np.nextafter(t + up(rest.norm() + extra), np.inf))
    raise Fails("an eigenvalue could not be bounded")

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
    error = (Ball(np.eye(len(J.m))) - J @ X).norm()
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

def both(how, *ds):  # R2 and R3
    ds = [d for d in ds if d is not None]
    return [how(xs) for xs in zip(*ds, strict=True)] if ds else None

def stacked(*ds): return both(lambda xs: np.sqrt(sum(x**2 for x in xs)), *ds)

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
    if d is None:
        return None
    pair = np.outer(d[0], d[0])
    return [M1 * d[0], M1 * d[1] + M2 * pair,
            M1 * d[2] + M2 * symmetric(d[1], d[0]) + M3 * pair[:, :, None] * d[0]]

class At:
    """One operation on the ball: operands' values v and jets g, their movement and size."""

    def __init__(at, op, g, v, own, rho):
        at.op, at.g, at.v, at.own = op, g, v, own
        at.mov = [0.0 if d is None else float(up(length(d[0]) * rho)) for d in g]
        at.top = [float(up((abs(x.m) + x.r).max(initial=0) + y)) if isinstance(x, Ball) else 0.0
                  for x, y in zip(v, at.mov, strict=True)]

    def floor(at, k):
        """Positive lower bound of the absolute values of an operand."""
        least = float((abs(at.v[k].m) - at.v[k].r).min())
        return positive(least * (1 - 1e-12) - at.mov[k] * (1 + 1e-12))

    def unary(at):
        low, high = at.v[0].ends()
        low = np.nextafter(low.min() - up(at.mov[0]), NEVER)
        high = np.nextafter(high.max() + up(at.mov[0]), np.inf)
        need(not at.op["name"].startswith("exp") or high < 700, "an exponential overflows")
        return composed(at.g[0], *BOUNDS[at.op["name"]](float(low), float(high)))

    def power(at):
        n = at.op["exponent"]
        return composed(at.g[0], *falling(at.top[0] if n > 0 else at.floor(0), n))

    def dot(at):
        b, m, k, n = at.op["sizes"]
        sides = at.v[0].as_rows(b, m, k), at.v[1].as_rows(b, k, n)
        top = [max(spectral(x[i]) for i in range(b)) for x in sides]
        return product(*at.g, *(up(x + y) for x, y in zip(top, at.mov, strict=True)))

    def softmax(at):
        most = min(0.5, up((at.own.m + at.own.r).max() + 0.5 * at.mov[0]))
        return composed(at.g[0], most, 0.27216552697590873, 0.5)

    def normalise(at):
        rows, share = at.v[0].as_rows(at.op["rows"], -1), at.op["num"] / at.op["den"]
        short = min(rows[i].least() for i in range(at.op["rows"])) - at.mov[0] * (1 + 1e-12)
        low = max(short, 0.0) ** 2 * share + at.op["offset"]
        s = math.sqrt(positive(low * (1 - 1e-12))) * (1 - 1e-12)
        bend = 1.1547005384 * math.sqrt(up(share)) / s**2
        return composed(at.g[0], up(1 / s), up(bend), up(3 * share / s**3))

    def select(at):
        which = at.v[0]
        return at.g[1] if which.all() else at.g[2] if not which.any() else stacked(*at.g[1:])

    def compare(at):
        need(gap(*at.v).min(initial=np.inf) > up(at.mov[0] + at.mov[1]), "a kink is within reach")

    def max(at):
        ahead = lead(at.v[0], at.op["rows"]).min(initial=np.inf)
        need(ahead > up(1.4142135624 * at.mov[0]), "the largest of several entries may change")
        return at.g[0]

def copies(index): return root(np.bincount(index[index >= 0]).max(initial=0))

ON_BALL = {
    "constant": lambda at: None, "logic": lambda at: None, "finite": lambda at: None,
    "take": lambda at: scaled(at.g[0], copies(at.op["index"])),  # R1
    "sum": lambda at: scaled(at.g[0], root(at.v[0].m.size // at.op["rows"])),
    "neg": lambda at: at.g[0], "centre": lambda at: at.g[0],
    "negative": lambda at: below_zero([at.v[0]], at.mov[0]) and at.g[0],
    "add": lambda at: both(sum, *at.g), "sub": lambda at: both(sum, *at.g),
    "join": lambda at: stacked(*at.g), "select": At.select,
    "mul": lambda at: product(*at.g, *at.top), "dot": At.dot,
    "div": lambda at: product(at.g[0], composed(at.g[1], *falling(a := at.floor(1), -1)),
                              at.top[0], up(1 / a)),
    "unary": At.unary, "power": At.power, "softmax": At.softmax, "normalise": At.normalise,
    "logsumexp": lambda at: composed(at.g[0], 1.0, 0.5, 0.27216552697590873),
    "compare": At.compare, "max": At.max,  # R6
}

def jets(program, values, rho, roots, norms):
    """The jet of a program's output on the ball of radius rho."""
    B, found = len(roots), []
    for number, op in enumerate(program["operations"]):
        g, d = [found[i] for i in op["inputs"]], None
        if op["kind"] == "weight":  # R0
            d = [roots[op["block"]] * np.eye(B)[op["block"]], np.zeros((B, B)), np.zeros((B, B, B))]
        elif any(x is not None for x in g):
            need(op["kind"] in ON_BALL, f"the operation {op['kind']!r} has no rule on balls")
            v = [values[i][0] for i in op["inputs"]]
            d = ON_BALL[op["kind"]](At(op, g, v, values[number][0], rho))
        if d is not None:
            d = [np.where(x == 0, 0.0, up(x)) for x in d]
            if number in norms:  # 3.5: the first derivative at the centre, and what the second adds
                d[0] = np.minimum(d[0], up(up(norms[number] * roots) + up(rho * length(d[1]))))
            need([np.isfinite(x).all() for x in d], f"overflow on the ball in {op['kind']}")
        found.append(d)
    need(found[program["output"]] is not None, "the outputs do not depend on the weights")
    return found[program["output"]]

def together(parts, largest_of):
    joint = largest_of(np.sqrt(sum(x**2 for x in parts)) * (1 + 1e-12))
    return min(joint, float(up(math.sqrt(sum(largest_of(x) ** 2 for x in parts)))))

# -------------------------------------------------------------------------------- the theorems

class Case:
    """Gradient descent near some weights, and what holds there and on a ball (3.4, 3.5)."""

    def __init__(self, programs, weights, targets, ratios, scale, radius, level):
        order, roots = 2 if "output" in level else 1, np.array([root(a) for a in ratios])
        self.scale, self.values, self.curve = scale, [], None
        residuals, rows, jet, gram = [], [], [], None
        sizes = [w.size for w in weights]
        factor = Ball(f := np.repeat(np.sqrt(ratios), sizes), up(4 * U * f))
        P, starts = f.size, np.cumsum([0, *sizes])
        for program, y in zip(programs, targets, strict=True):
            values = evaluate(program, weights, order)
            out = values[program["output"]]
            need(out[0].m.size == y.size and out[1] is not None, "outputs and targets do not fit")
            norms = {n: np.array([0.0 if values[n][1] is None else spectral(values[n][1][a:b])
                                  for a, b in zip(starts[:-1], starts[1:], strict=True)])
                     for n in (program["anchors"] if "nodes" in level else ())}
            jet.append(jets(program, values, radius, roots, norms))
            self.values.append(out[0])
            residuals.append(out[0] - Ball(y))
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
        return slope, -eigen_above(-hessian), eigen_above(hessian), float(M)

    def risk(self):
        sides = zip(self.scale, (self.r.least(), self.r.norm()), strict=True)
        return [Q(0.5) * Q(x) * Q(y) ** 2 for x, y in sides]

def limit(risk, slope, m):
    least = risk[0] - Q(slope) ** 2 / (2 * m)
    need(least > 0, "the limiting risk may be zero")
    return least, risk[1]

def contraction(proof, arrays):
    """P1."""
    case = whole(proof, arrays)
    low, high = (Q(proof["step_size"]) * Q(x) for x in proof["scale"])
    numbers = sigma(case.J), case.residual, case.beta, case.L, proof["radius"]
    s, r, beta, L, rho = map(Q, numbers)
    alpha, c = s - L * rho, 1 - high * beta**2 / 2 - high * L * r / 2
    psi = s * rho - L * rho**2 / 2
    need(alpha > 0, "sigma - L radius is not positive")
    need(c > 0, "the step is too long: c is not positive")
    need(r < c * psi, f"the residual {float(r):.6g} is not below c Psi = {float(c * psi):.6g}")
    later = max(abs(1 - h * x**2) for h in (low, high) for x in (alpha, beta))
    found = {"residual": r, "jacobian_norm": Q(case.norm), "sigma": s, "beta": beta, "L": L,
             "alpha": alpha, "c": c, "reach": c * psi, "step_low": low, "step_high": high}
    return found, (1 - c * low * alpha**2, later), (Q(0), Q(0))

def minimum(proof, arrays):
    """P2."""
    case, rho, eta = whole(proof, arrays), Q(proof["radius"]), Q(proof["step_size"])
    g, low, high, M = map(Q, case.curvature(proof["radius"]))
    m, top = low - M * rho, high + M * rho
    need(m > 0, "the Hessian is not positive on the ball")
    need(g <= rho * (low / 2 - M * rho / 8), "the gradient is too large")
    need(0 < eta * top < 2, "the step is too long for the minimum")
    q = max(abs(1 - eta * m), abs(1 - eta * top))
    found = {"beta": Q(case.beta), "L": Q(case.L), "K": Q(case.K), "residual": Q(case.residual),
             "gradient": g, "lambda_min": low, "lambda_max": high, "M": M, "m": m, "Lambda": top}
    return found, (q, q), limit(case.risk(), g, m)

def cut(program, at):
    """The program of the array u, and the outputs as a function of it."""
    kept, ops = {program["output"]}, list(program["operations"])
    ops[at] = {"kind": "weight", "inputs": [], "block": 0, "size": ops[at]["size"]}
    for n in range(len(ops) - 1, -1, -1):
        kept |= set(ops[n]["inputs"]) if n in kept else set()
    order = {n: k for k, n in enumerate(sorted(kept))}
    rest = [ops[n] | {"inputs": [order[i] for i in ops[n]["inputs"]]} for n in sorted(kept)]
    need(sum(op["kind"] == "weight" for op in rest) == 1, "a weight does not act through u alone")
    return ({"operations": program["operations"][: at + 1], "output": at, "anchors": []},
            {"operations": rest, "output": order[program["output"]], "anchors": []})

def valley(proof, arrays):
    """P3, through the array that is value number ``at`` of each program."""
    rho, scale = proof["radius"], proof["scale"]
    parts = [cut(p, at) for p, at in zip(arrays["programs"], proof["at"], strict=True)]
    blank = [np.zeros(p["operations"][at]["size"])
             for p, at in zip(arrays["programs"], proof["at"], strict=True)]
    inner = Case([u for u, _ in parts], arrays["weights"], blank, proof["ratios"], scale, rho, "")
    delta = Ball(joined(inner.values).r).norm()
    low, b = Q(sigma(inner.J)) - Q(inner.L) * Q(rho), inner.beta
    reach = float(up(up(b * rho) + delta))
    ends, slopes, risk = [], [], []
    for (_, F), u, y in zip(parts, inner.values, arrays["targets"], strict=True):
        outer = Case([F], [u.m], [y], [1.0], scale, reach, "output")
        g, least, most, M = outer.curvature(reach)
        ends.append((Q(least) - Q(M) * Q(reach), Q(most) + Q(M) * Q(reach)))
        slopes.append(g)
    m, top = min(x for x, _ in ends), max(x for _, x in ends)
    G = Q(float(up(Ball(np.array(slopes)).norm() + up(float(top) * delta))))
    risk = whole(proof | {"level": ""}, arrays).risk()
    a, b, L, r, eta = low, Q(b), Q(inner.L), Q(rho), Q(proof["step_size"])
    large = b * b * top + (G + top * b * r) * L
    kappa = 1 - eta * large / 2
    need(m > 0 and a > 0, "the risk is not convex in u, or u does not follow the weights")
    need(kappa > 0, "the step is too long for the minimum")
    need(G / m < min(kappa * a, b) * r, "the gradient is too large")
    found = {"gradient": G, "m": m, "m_bar": top, "a_u": a, "b_u": b, "L_u": L, "kappa": kappa,
             "Lambda": large, "needed": G / m, "reach": min(kappa * a, b) * r}
    return found, (1 - 2 * kappa * eta * a * a * m,) * 2, limit(risk, G, m)

def whole(proof, arrays):
    return Case(arrays["programs"], arrays["weights"], arrays["targets"], proof["ratios"],
                proof["scale"], proof["radius"], proof["level"])

THEOREMS = {("converges", "P1"): contraction, ("stuck", "P2"): minimum, ("stuck", "P3"): valley}

# ---------------------------------------------------------------------------- the file, the verdict

def digest(array):
    return hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).hexdigest()

def read(path):
    """A proof and its arrays, if all hashes fit."""
    proof = json.loads(Path(path).read_text())
    need(proof.get("format") == "shoal proof 1", "this is not a proof of shoal")
    body = json.dumps({k: v for k, v in proof.items() if k != "sha256"}, sort_keys=True)
    seal = hashlib.sha256(body.encode()).hexdigest()
    need(seal == proof.get("sha256"), "the hash of the file differs")
    with np.load(Path(path).with_suffix(".npz"), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    need(set(arrays) == set(proof["arrays"]), "arrays are missing")
    for name, array in arrays.items():
        need(digest(array) == proof["arrays"][name], f"the hash of the array {name} differs")
    programs = [text | {"operations": [
        op | {k: arrays[op[k]] for k in ("value", "index") if k in op} for op in text["operations"]
    ]} for text in proof["programs"]]
    made = {name: [arrays[n] for n in proof[name]] for name in ("weights", "targets")}
    return proof, made | {"programs": [programs[k] for k in proof["samples"]]}

def close(claimed, found, what):
    """A claimed number must be what was found here, to six digits."""
    need(isinstance(claimed, (int, float)), f"{what} is missing")
    need(math.isfinite(claimed) and abs(Q(claimed) - found) <= abs(found) / 10**6 + Q(1, 10**9),
         f"{what} is stated as {claimed:.9g}, and is {float(found):.9g}")

def decided(proof, arrays):
    positive_numbers = [proof["step_size"], *proof["scale"], *proof["ratios"], proof["radius"]]
    need(all(0 < x < math.inf for x in positive_numbers) and proof["scale"][0] <= proof["scale"][1],
         "the step, the radius, the scale or a ratio is not positive")
    need(len(proof["ratios"]) == len(arrays["weights"]) > 0, "blocks and ratios do not fit")
    need(len(arrays["programs"]) == len(arrays["targets"]) > 0, "samples and targets do not fit")
    kind = proof["verdict"], proof["theorem"]
    need(kind in THEOREMS, f"{kind} is not checked by this program")
    with np.errstate(all="ignore"):
        found, rate, risk = THEOREMS[kind](proof, arrays)
    for name, value in found.items():
        close(proof["constants"].get(name), value, name)
    for name, values in (("rate", rate), ("risk", risk)):
        for one, value in zip(proof[name], values, strict=True):
            close(one, value, name)
    return proof["verdict"]

def check(path):
    """The verdict that was checked; `Fails` says what is wrong."""
    try:
        return decided(*read(path))
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        raise Fails(f"the file is malformed ({error!r})") from None

if __name__ == "__main__":
    try:
        sys.stdout.write(f"checked: {check(sys.argv[1])}\n")
    except Fails as problem:
        sys.exit(f"not checked: {problem}")
