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
U, TINY = 2.0**-53, 1e-140
NEVER = -np.inf

class Fails(Exception):  # noqa: N818
    """What is wrong with a proof."""

def need(condition, why):
    """Fail unless a condition holds; nan does not."""
    if not condition:
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

    def __neg__(a):
        return Ball(-a.m, a.r)

    def __sub__(a, b):
        return a + -b

    def __mul__(a, b):
        m = a.m * b.m
        return Ball(m, up(abs(a.m) * b.r + a.r * (abs(b.m) + b.r) + U * abs(m)))

    def __truediv__(a, b):
        floor = (abs(b.m) - b.r) * (1 - 1e-12)
        need(np.all(floor > 1e-150), "a denominator is not away from zero")
        m = a.m / b.m
        return Ball(m, up((a.r + (abs(m) + TINY) * b.r) / floor + 4 * U * abs(m)))

    def __matmul__(a, b):
        n = a.m.shape[-1]
        need(n < 30000, "a sum is too long for this checker")
        A, B = abs(a.m), abs(b.m)
        return Ball(a.m @ b.m, up((n + 4) * 1.001 * U * (A @ B) + A @ b.r + a.r @ (B + b.r)))

    def __getitem__(a, k):
        return Ball(a.m[k], a.r[k])

    def sum(a):
        n = a.m.shape[-1]
        need(n < 30000, "a sum is too long for this checker")
        return Ball(a.m.sum(-1), up(a.r.sum(-1) + n * 1.001 * U * abs(a.m).sum(-1)))

    def on(a, f):
        """A movement of entries."""
        return Ball(f(a.m), f(a.r))

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

erf, erfc = np.vectorize(math.erf, otypes=[float]), np.vectorize(math.erfc, otypes=[float])

def logistic(x):
    s = 1 / (1 + np.exp(-abs(x)))
    return np.where(x > 0, s, 1 - s)

# name: value, largest slope on [low, high], absolute error beside 16 ulp
FUNCTIONS = {
    "exp": (np.exp, lambda a, b: np.exp(b), 0), "expm1": (np.expm1, lambda a, b: np.exp(b), 0),
    "log": (np.log, lambda a, b: 1 / a, 0), "log1p": (np.log1p, lambda a, b: 1 / (1 + a), 0),
    "tanh": (np.tanh, lambda a, b: 1.0, 0), "logistic": (logistic, lambda a, b: 0.25, 8 * U),
    "erf": (erf, lambda a, b: 1.13, 0), "erfc": (erfc, lambda a, b: 1.13, 32 * U),
    "sin": (np.sin, lambda a, b: 1.0, 32 * U), "cos": (np.cos, lambda a, b: 1.0, 32 * U),
    "sqrt": (np.sqrt, lambda a, b: 0.5 / np.sqrt(a), 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda a, b: 0.5 * a**-1.5, 0),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-abs(x))), lambda a, b: 1.0, 96 * U),
}  # fmt: skip

def apply(name, x):
    f, slope, error = FUNCTIONS[name]
    low, high = x.ends()
    bound = 0.0 if name in ("log", "sqrt", "rsqrt") else -1.0 if name == "log1p" else NEVER
    need(np.all(low > bound) or bound == NEVER, f"the argument of {name} may be too small")
    m = f(x.m)
    fixed = np.isneginf(x.m) & (x.r == 0)
    r = up(33 * U * abs(m) + error + x.r * slope(low, high) * 1.0000001)
    return Ball(m, np.where(fixed, 0, r))

def slopes(name, x):
    """First and second derivative as balls."""
    one, y = full(x, 1), apply(name, x)
    if name in ("exp", "expm1"):
        e = apply("exp", x)
        return e, e
    if name in ("log", "log1p"):
        s = one / (x if name == "log" else one + x)
        return s, -(s * s)
    if name == "tanh":
        return one - y * y, full(x, -2) * y * (one - y * y)
    if name in ("logistic", "softplus"):
        s = apply("logistic", x)
        b = s * (one - s)
        return (s, b) if name == "softplus" else (b, b * (one - s - s))
    if name in ("erf", "erfc"):
        c = Ball(np.full(x.m.shape, (1 if name == "erf" else -1) * 1.1283791670955126), 1e-15)
        s = c * apply("exp", -(x * x))
        return s, full(x, -2) * x * s
    if name in ("sin", "cos"):
        return (apply("cos", x), -y) if name == "sin" else (-apply("sin", x), -y)
    s = full(x, 0.5) / y if name == "sqrt" else full(x, -0.5) * y / x
    return s, full(x, -0.5 if name == "sqrt" else -1.5) * s / x

# A value with its first and second derivatives by all weights is a list [v, J, H]; None is zero.

def plus(*parts):
    parts = [p for p in parts if p is not None]
    return sum(parts[1:], parts[0]) if parts else None

def linear(f, u): return [None if part is None else part.on(f) for part in u]

def bilinear(f, u, w, order):
    def g(a, b, turn=None):
        if a is None or b is None:
            return None
        return f(a, b) if turn is None else f(a[turn[0]], b[turn[1]])

    row, column = (slice(None), None), (None, slice(None))
    cross = (g(u[1], w[1], (row, column)), g(u[1], w[1], (column, row))) if order > 1 else ()
    second = plus(g(u[2], w[0]), g(u[0], w[2]), *cross)
    return [f(u[0], w[0]), plus(g(u[1], w[0]), g(u[0], w[1])), second]

def compose(u, value, slope, bend, order):
    if u[1] is None:
        return [value, None, None]
    cross = u[1][:, None] * u[1][None] * bend if order > 1 else None
    return [value, u[1] * slope, plus(None if u[2] is None else u[2] * slope, cross)]

def add(u, w): return [plus(a, b) for a, b in zip(u, w, strict=True)]

def mul(u, w, order): return bilinear(lambda a, b: a * b, u, w, order)

def times(u, x, order): return mul(u, [full(u[0], x), None, None], order)

def power(x, n):
    found = full(x, 1)
    for _ in range(abs(n)):
        found = found * x
    return found if n >= 0 else full(x, 1) / found

def raised(u, n, order):
    slope, bend = (full(u[0], c) * power(u[0], n - k) for k, c in ((1, n), (2, n * (n - 1))))
    return compose(u, power(u[0], n), slope, bend, order)

def unary(name, u, order):
    if name == "silu":
        return mul(u, unary("logistic", u, order), order)
    if name == "gelu":
        tail = unary("erfc", times(u, -0.7071067811865476, order), order)
        return mul(times(u, 0.5, order), tail, order)
    derivatives = slopes(name, u[0]) if u[1] is not None else (None, None)
    return compose(u, apply(name, u[0]), *derivatives, order)

def total(u, rows):
    return [None if p is None else p.on(lambda x: x.reshape(*x.shape[:-1], rows, -1)).sum()
            for p in u]

def spread(u, count): return linear(lambda x: np.repeat(x, count, -1), u)

def gap(a, b):
    """Lower bound of |a - b|, entry by entry."""
    with np.errstate(invalid="ignore"):
        apart = np.where(a.m == b.m, 0.0, abs(a.m - b.m))
    return np.where(np.isinf(apart), np.inf, apart * (1 - 1e-12) - up(a.r + b.r))

def compare(op, a, b):
    need(np.all((gap(a, b) > 0) | ((a.r == 0) & (b.r == 0))), "a comparison is not decided")
    return getattr(np, {"gt": "greater", "lt": "less", "ge": "greater_equal", "le": "less_equal",
                        "eq": "equal", "ne": "not_equal"}[op["name"]])(a.m, b.m)

def logic(op, *given):
    if op["name"] in ("all", "any"):
        return getattr(given[0].reshape(op["size"], -1), op["name"])(1)
    return {"not": np.logical_not, "and": np.logical_and, "or": np.logical_or}[op["name"]](*given)

def below_zero(u, moves):
    need(np.all(u[0].ends()[1] + up(moves) < 0), "a number that is cut at zero may reach zero")
    return u

def weight(op, weights):
    P, start = sum(w.size for w in weights), sum(w.size for w in weights[: op["block"]])
    J = np.zeros((P, op["size"]))
    J[start + np.arange(op["size"]), np.arange(op["size"])] = 1
    return [Ball(weights[op["block"]].ravel()), Ball(J), None]

def take(op, u):
    at = op["index"]
    if not isinstance(u[0], Ball):
        return [u[0][at], None, None]
    found = linear(lambda x: np.where(at < 0, 0.0, x[..., at]), u)
    return [Ball(np.where(at < 0, op["fill"], found[0].m), found[0].r), *found[1:]]

def join(given, P):
    parts = []
    for k, lead in enumerate(((), (P,), (P, P))):
        each = [Ball(np.zeros((*lead, u[0].m.size))) if u[k] is None else u[k] for u in given]
        some = any(u[k] is not None for u in given)
        parts.append(Ball(np.concatenate([p.m for p in each], -1),
                          np.concatenate([p.r for p in each], -1)) if some else None)
    return parts

def select(op, which, a, b, P):
    at = np.arange(op["size"]) + np.where(which[0], 0, op["size"])
    return linear(lambda x: x[..., at], join([a, b], P))

def dot(op, u, w, order):
    b, m, k, n = op["sizes"]

    def product(x, y):
        x = x.on(lambda z: z.reshape(*z.shape[:-1], b, m, k))
        y = y.on(lambda z: z.reshape(*z.shape[:-1], b, k, n))
        return (x @ y).on(lambda z: z.reshape(*z.shape[:-3], b * m * n))

    return bilinear(product, u, w, order)

def exponentials(op, u, order):
    shift = u[0].m.reshape(op["rows"], -1).max(1)
    each = Ball(-np.repeat(shift, u[0].m.size // op["rows"]))
    e = unary("exp", add(u, [each, None, None]), order)
    return e, total(e, op["rows"]), shift

def softmax(op, u, order):
    e, sums, _ = exponentials(op, u, order)
    return mul(e, spread(raised(sums, -1, order), op["size"] // op["rows"]), order)

def logsumexp(op, u, order):
    _, sums, shift = exponentials(op, u, order)
    return add(unary("log", sums, order), [Ball(shift), None, None])

def centred(op, u, order):
    k = op["size"] // op["rows"]
    share = Ball(np.full(op["rows"], -1 / k), 2 * U / k)
    return add(u, spread(mul(total(u, op["rows"]), [share, None, None], order), k))

def normalised(op, u, order):
    share = op["num"] / op["den"]
    share = Ball(np.full(op["rows"], share), 2 * U * share)
    level = mul(total(mul(u, u, order), op["rows"]), [share, None, None], order)
    level = add(level, [Ball(np.full(op["rows"], op["offset"])), None, None])
    return mul(u, spread(unary("rsqrt", level, order), op["size"] // op["rows"]), order)

CENTRE = {  # operation, operands, order, weights, number of weights
    "weight": lambda op, g, o, w, P: weight(op, w),
    "constant": lambda op, g, o, w, P: [Ball(op["value"]), None, None],
    "take": lambda op, g, o, w, P: take(op, g[0]),
    "join": lambda op, g, o, w, P: join(g, P),
    "add": lambda op, g, o, w, P: add(*g),
    "sub": lambda op, g, o, w, P: add(g[0], times(g[1], -1.0, o)),
    "neg": lambda op, g, o, w, P: times(g[0], -1.0, o),
    "mul": lambda op, g, o, w, P: mul(*g, o),
    "div": lambda op, g, o, w, P: mul(g[0], raised(g[1], -1, o), o),
    "dot": lambda op, g, o, w, P: dot(op, *g, o),
    "sum": lambda op, g, o, w, P: total(g[0], op["rows"]),
    "unary": lambda op, g, o, w, P: unary(op["name"], g[0], o),
    "power": lambda op, g, o, w, P: raised(g[0], op["exponent"], o),
    "softmax": lambda op, g, o, w, P: softmax(op, g[0], o),
    "logsumexp": lambda op, g, o, w, P: logsumexp(op, g[0], o),
    "centre": lambda op, g, o, w, P: centred(op, g[0], o),
    "normalise": lambda op, g, o, w, P: normalised(op, g[0], o),
    "compare": lambda op, g, o, w, P: [compare(op, g[0][0], g[1][0]), None, None],
    "logic": lambda op, g, o, w, P: [logic(op, *(u[0] for u in g)), None, None],
    "finite": lambda op, g, o, w, P: [np.isfinite(g[0][0].m), None, None],
    "select": lambda op, g, o, w, P: select(op, *g, P),
    "negative": lambda op, g, o, w, P: below_zero(g[0], 0.0),
}
MASKS = ("constant", "take", "join", "select", "add")

def evaluate(program, weights, order):
    """Every value of a program, with derivatives."""
    found, P = [], sum(w.size for w in weights)
    for op in program["operations"]:
        kind = op["kind"]
        need(kind in CENTRE, f"the operation {kind!r} is not known")
        need(all(i < len(found) for i in op["inputs"]), "an operation uses a later one")
        new = CENTRE[kind](op, [found[i] for i in op["inputs"]], order, weights, P)
        values = new[0].m if isinstance(new[0], Ball) else new[0]
        need(values.size == op["size"], f"{kind} has another size than stated")
        if isinstance(new[0], Ball):
            whole = np.isfinite(values) | (np.isneginf(values) & (kind in MASKS))
            need(whole.all() and np.isfinite(new[0].r).all(), f"overflow in {kind}")
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
        rest = Ball(np.full(n, t)).on(np.diag) - Ball(S) - R @ R.on(np.transpose)
        if np.isfinite(rest.m).all():
            return float(np.nextafter(t + up(rest.norm() + extra), np.inf))
    raise Fails("an eigenvalue could not be bounded")

def spectral(A):
    """Upper bound of the spectral norm of all matrices in a ball."""
    short = Ball(A.m if A.m.shape[0] <= A.m.shape[1] else A.m.T)
    if len(short.m) <= 1 or not A.m.any():
        return A.norm()
    top = eigen_above(short @ short.on(np.transpose))
    return min(A.norm(), float(up(up(np.sqrt(max(top, 0))) + Ball(A.r).norm())))

def sigma(J):
    """Lower bound of the smallest singular value of all wide matrices in a ball."""
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

# ------------------------------------------------------------- 3.3: jets (d1, d2, d3) on one ball

def root(x):
    r = float(np.sqrt(x))
    return r if Q(r) ** 2 == Q(x) else float(up(r))

def length(x): return up(up(np.sqrt((x**2).sum(-1))))

def scaled(d, t): return None if d is None else [x * t for x in d]

def stacked(*ds):
    ds = [d for d in ds if d is not None]
    return [np.sqrt(sum(x**2 for x in xs)) for xs in zip(*ds, strict=True)] if ds else None

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

def positive(a):
    need(a > 1e-60, "an argument or a denominator may reach zero on the ball")
    return a * (1 - 1e-13)

def falling(a, p):
    """Bounds of the derivatives of x^p, where a is the end at which they are largest."""
    c = [abs(x) for x in (p, p * (p - 1), p * (p - 1) * (p - 2))]
    return [c[k] * a ** (p - k - 1) * (1 + 1e-12) if c[k] else 0.0 for k in range(3)]

def outer_slopes(name, low, high):
    z = max(low, -high, 0.0)
    mu = min(1.0, 1 - math.tanh(z) ** 2 + 1e-15)
    if name in ("exp", "expm1"):
        need(high < 700, "an exponential overflows on the ball")
        return [math.exp(high) * (1 + 1e-13)] * 3
    if name in ("log", "log1p"):
        a = positive(low if name == "log" else math.nextafter(1 + low, NEVER))
        return 1 / a, 1 / a**2, 2 / a**3
    if name in ("sqrt", "rsqrt"):
        return falling(positive(low), 0.5 if name == "sqrt" else -0.5)
    return {"tanh": (mu, min(0.76980036, 2 * mu), min(2.0, 4 * mu)),
            "sin": (1, 1, 1), "cos": (1, 1, 1),
            "logistic": (0.25, 0.09622504487, 0.125), "softplus": (1, 0.25, 0.09622504487),
            "erf": (1.1283791671, 0.9678828981, 2.2567583342),
            "erfc": (1.1283791671, 0.9678828981, 2.2567583342),
            "gelu": (1.1289041453, 0.7978845609, 0.7787696351),
            "silu": (1.0998393202, 0.5, 0.3081815159)}[name]

def jets(program, values, rho, roots, norms):
    """The jet of a program's output on the ball of radius rho."""
    B, found = len(roots), []
    for number, op in enumerate(program["operations"]):
        kind, g = op["kind"], [found[i] for i in op["inputs"]]
        v = [values[i][0] for i in op["inputs"]]
        mov = [0.0 if d is None else float(up(length(d[0]) * rho)) for d in g]
        top = [float(up((abs(x.m) + x.r).max(initial=0) + y)) if isinstance(x, Ball) else 0.0
               for x, y in zip(v, mov, strict=True)]
        d = None
        if kind == "weight":
            d = [roots[op["block"]] * np.eye(B)[op["block"]], np.zeros((B, B)), np.zeros((B, B, B))]
        elif kind in ("constant", "logic", "finite") or not any(x is not None for x in g):
            pass
        elif kind == "take":
            d = scaled(g[0], root(float(np.bincount(op["index"][op["index"] >= 0]).max(initial=0))))
        elif kind == "join":
            d = stacked(*g)
        elif kind == "select":
            d = g[1] if v[0].all() else g[2] if not v[0].any() else stacked(*g[1:])
        elif kind in ("add", "sub"):
            some = [x for x in g if x is not None]
            d = [sum(xs) for xs in zip(*some, strict=True)]
        elif kind in ("neg", "centre", "negative"):
            d = g[0]
            need(kind != "negative" or below_zero(values[op["inputs"][0]], mov[0]), "")
        elif kind == "mul":
            d = product(*g, *top)
        elif kind == "div":
            a = positive(float((abs(v[1].m) - v[1].r).min()) * (1 - 1e-12) - mov[1] * (1 + 1e-12))
            d = product(g[0], composed(g[1], *falling(a, -1)), top[0], up(1 / a))
        elif kind == "dot":
            b, m, k, n = op["sizes"]
            left, right = (x.on(lambda z, s=s: z.reshape(s))
                           for x, s in zip(v, ((b, m, k), (b, k, n)), strict=True))
            top = [max(spectral(x[i]) for i in range(b)) for x in (left, right)]
            d = product(*g, *(up(x + y) for x, y in zip(top, mov, strict=True)))
        elif kind == "sum":
            d = scaled(g[0], root(float(v[0].m.size // op["rows"])))
        elif kind == "unary":
            low, high = v[0].ends()
            low, high = (np.nextafter(x, s) for x, s in (
                (low.min() - up(mov[0]), NEVER), (high.max() + up(mov[0]), np.inf)))
            d = composed(g[0], *outer_slopes(op["name"], float(low), float(high)))
        elif kind == "power" and op["exponent"] > 0:
            d = composed(g[0], *falling(top[0], op["exponent"]))
        elif kind == "power":
            a = positive(float((abs(v[0].m) - v[0].r).min()) * (1 - 1e-12) - mov[0] * (1 + 1e-12))
            d = composed(g[0], *falling(a, op["exponent"]))
        elif kind == "softmax":
            s = values[number][0]
            most = min(0.5, up((s.m + s.r).max() + 0.5 * mov[0]))
            d = composed(g[0], most, 0.27216552697590873, 0.5)
        elif kind == "logsumexp":
            d = composed(g[0], 1.0, 0.5, 0.27216552697590873)
        elif kind == "normalise":
            rows = v[0].on(lambda z, r=op["rows"]: z.reshape(r, -1))
            short = max(min(rows[i].least() for i in range(op["rows"])) - mov[0] * (1 + 1e-12), 0.0)
            share = op["num"] / op["den"]
            s = math.sqrt(positive((short**2 * share + op["offset"]) * (1 - 1e-12))) * (1 - 1e-12)
            bend = 1.1547005384 * math.sqrt(up(share)) / s**2
            d = composed(g[0], up(1 / s), up(bend), up(3 * share / s**3))
        elif kind == "compare":
            need(gap(*v).min(initial=np.inf) > up(mov[0] + mov[1]), "a kink is within reach")
        else:
            raise Fails(f"the operation {kind!r} has no rule on balls")
        if d is not None:
            d = [np.where(x == 0, 0.0, up(x)) for x in d]
            if number in norms:  # 3.5: the first derivative at the centre, and what the second adds
                d[0] = np.minimum(d[0], up(up(norms[number] * roots) + up(rho * length(d[1]))))
            need(all(np.isfinite(x).all() for x in d), f"overflow on the ball in {kind}")
        found.append(d)
    need(found[program["output"]] is not None, "the outputs do not depend on the weights")
    return found[program["output"]]

def together(parts, largest):
    joint = largest(np.sqrt(sum(x**2 for x in parts)) * (1 + 1e-12))
    return min(joint, float(up(math.sqrt(sum(largest(x) ** 2 for x in parts)))))

# -------------------------------------------------------------------------------- the theorems

def bounds(proof, arrays):
    """Everything that the theorems need, from the programs alone."""
    weights, roots = arrays["weights"], np.array([root(a) for a in proof["ratios"]])
    order = 2 if "output" in proof["level"] else 1
    r, J, dd, gram, curve = [], [], [], None, None
    scale = Ball(np.repeat(np.sqrt(proof["ratios"]), [w.size for w in weights]))
    scale = Ball(scale.m, up(4 * U * scale.m))
    P, starts = scale.m.size, np.cumsum([0, *(w.size for w in weights)])
    for program, y in zip(arrays["programs"], arrays["targets"], strict=True):
        values = evaluate(program, weights, order)
        out = values[program["output"]]
        need(out[0].m.size == y.size and out[1] is not None, "outputs and targets do not fit")
        norms = {}
        for n in program["anchors"] if "nodes" in proof["level"] else ():
            D = values[n][1]
            norms[n] = np.array([0.0 if D is None else spectral(D[a:b])
                                 for a, b in zip(starts[:-1], starts[1:], strict=True)])
        dd.append(jets(program, values, proof["radius"], roots, norms))
        r.append(out[0] - Ball(y))
        J.append((out[1] * scale[:, None]).on(np.transpose))
        if order > 1:
            H = Ball(np.zeros((P, P, y.size))) if out[2] is None else out[2]
            H = H * scale[:, None, None] * scale[None, :, None]
            flat = H.on(lambda z: z.reshape(P, -1))
            gram = plus(gram, flat @ flat.on(np.transpose))
            curve = plus(curve, (H @ r[-1][:, None])[..., 0])
    rho = proof["radius"]
    residual, jacobian = (Ball(np.concatenate([x.m for x in xs]), np.concatenate([x.r for x in xs]))
                          for xs in (r, J))
    d1 = np.array([d[0] for d in dd])
    L = together([d[1] for d in dd], perron)
    K = together([d[2] for d in dd], lambda d: float(length(np.array([perron(x) for x in d]))))
    if order > 1:
        L = min(L, up(up(math.sqrt(max(eigen_above(gram), 0))) + up(rho * K)))
    norm = spectral(jacobian)
    beta = min(up(math.sqrt(perron(up(d1.T @ d1)))), up(norm + up(L * rho)))
    return {"r": residual, "J": jacobian, "residual": residual.norm(), "jacobian_norm": norm,
            "beta": float(beta), "L": float(L), "K": K, "curve": curve}

def contraction(proof, b):
    """P1."""
    s = sigma(b["J"])
    low, high = (Q(proof["step_size"]) * Q(x) for x in proof["scale"])
    r, beta, L, rho = (Q(float(x)) for x in (b["residual"], b["beta"], b["L"], proof["radius"]))
    alpha, c = Q(s) - L * rho, 1 - high * beta**2 / 2 - high * L * r / 2
    psi = Q(s) * rho - L * rho**2 / 2
    need(alpha > 0, "sigma - L radius is not positive")
    need(c > 0, "the step is too long: c is not positive")
    need(r < c * psi, f"the residual {float(r):.6g} is not below c Psi = {float(c * psi):.6g}")
    later = max(abs(1 - h * x**2) for h in (low, high) for x in (alpha, beta))
    found = {"residual": r, "jacobian_norm": Q(b["jacobian_norm"]), "sigma": Q(s), "beta": beta,
             "L": L, "alpha": alpha, "c": c, "reach": c * psi, "step_low": low, "step_high": high}
    return found, (1 - c * low * alpha**2, later), (Q(0), Q(0))

def minimum(proof, b):
    """P2."""
    s = Ball(np.array(sum(proof["scale"]) / 2), up(proof["scale"][1] - proof["scale"][0]))
    J, r = b["J"], b["r"]
    need("output" in proof["level"], "P2 needs second derivatives")
    hessian = (J.on(np.transpose) @ J + b["curve"]) * s
    low, high = -eigen_above(-hessian), eigen_above(hessian)
    g = ((r[None] @ J)[0] * s).norm()
    sides = zip(proof["scale"], (r.least(), r.norm()), strict=True)
    risk = [Q(0.5) * Q(x) * Q(y) ** 2 for x, y in sides]
    reach = b["residual"] + b["beta"] * proof["radius"]
    M = up(proof["scale"][1] * up(3 * b["beta"] * b["L"] + reach * b["K"]))
    rho, eta = Q(proof["radius"]), Q(proof["step_size"])
    m, top = Q(low) - Q(M) * rho, Q(high) + Q(M) * rho
    need(m > 0, "the Hessian is not positive on the ball")
    need(Q(g) <= rho * (Q(low) / 2 - Q(M) * rho / 8), "the gradient is too large")
    need(0 < eta * top < 2, "the step is too long for the minimum")
    least = risk[0] - Q(g) ** 2 / (2 * m)
    need(least > 0, "the limiting risk may be zero")
    q = max(abs(1 - eta * m), abs(1 - eta * top))
    found = {k: Q(b[k]) for k in ("beta", "L", "K", "residual")}
    found |= {"gradient": Q(g), "lambda_min": Q(low), "lambda_max": Q(high), "M": Q(M), "m": m,
              "Lambda": top}
    return found, (q, q), (least, risk[1])

def close(claimed, found, what):
    """A claimed number must be what was found here, to six digits."""
    need(isinstance(claimed, (int, float)), f"{what} is missing")
    need(math.isfinite(claimed) and abs(Q(claimed) - found) <= abs(found) / 10**6 + Q(1, 10**9),
         f"{what} is stated as {claimed:.9g}, and is {float(found):.9g}")

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
    programs = []
    for text in proof["programs"]:
        ops = [op | {k: arrays[op[k]] for k in ("value", "index") if k in op}
               for op in text["operations"]]
        programs.append(text | {"operations": ops})
    made = {"weights": [arrays[n] for n in proof["weights"]],
            "targets": [arrays[n] for n in proof["targets"]],
            "programs": [programs[k] for k in proof["samples"]]}
    return proof, made

def check(path):
    """The verdict that was checked; `Fails` says what is wrong."""
    try:
        return decided(*read(path))
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        raise Fails(f"the file is malformed ({error!r})") from None

def decided(proof, arrays):
    positive_numbers = [proof["step_size"], *proof["scale"], *proof["ratios"], proof["radius"]]
    need(all(0 < x < math.inf for x in positive_numbers) and proof["scale"][0] <= proof["scale"][1],
         "the step, the radius, the scale or a ratio is not positive")
    need(len(proof["ratios"]) == len(arrays["weights"]) > 0, "blocks and ratios do not fit")
    need(len(arrays["programs"]) == len(arrays["targets"]) > 0, "samples and targets do not fit")
    kind = proof["verdict"], proof["theorem"]
    need(kind in (("converges", "P1"), ("stuck", "P2")), f"{kind} is not checked by this program")
    theorem = contraction if kind[1] == "P1" else minimum
    with np.errstate(all="ignore"):
        found, rate, risk = theorem(proof, bounds(proof, arrays))
    for name, value in found.items():
        close(proof["constants"].get(name), value, name)
    for name, claimed, values in (("rate", proof["rate"], rate), ("risk", proof["risk"], risk)):
        for one, value in zip(claimed, values, strict=True):
            close(one, value, name)
    return proof["verdict"]

if __name__ == "__main__":
    try:
        sys.stdout.write(f"checked: {check(sys.argv[1])}\n")
    except Fails as problem:
        sys.exit(f"not checked: {problem}")
