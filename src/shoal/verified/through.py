r"""P3: stuck although the Hessian is singular, through an intermediate array u.

The outputs are $F(u(\theta))$ and every trained weight acts through u (attention scores, say). The
constants of u come from jets in the weights; those of $G(u)=\frac s2\|F(u)-y\|^2$ from jets in u
around the midpoint of the enclosure of $u_0$; the width $\delta$ of that enclosure is added to the
radius of the ball and, times the curvature, to the gradient.
"""

import numpy as np

from shoal.verified import balls, fate
from shoal.verified.balls import Refusal, up
from shoal.verified.decide import Decision
from shoal.verified.facts import RADII, Question, facts, gradient, on_balls, second, third_bound
from shoal.verified.facts import hessian as full_hessian
from shoal.verified.fate import Range
from shoal.verified.program import cut
from shoal.verified.spectra import lambda_max, lambda_min


def stuck_through(question: Question, at: tuple[int, ...], risk: Range) -> Decision:
    """Decide by P3; ``at`` numbers the value u in every sample's program."""
    try:
        return _decided(question, at, risk)
    except Refusal as refusal:
        return Decision("undecided", f"P3 cannot be tried: {refusal}.", risk=risk)


def _decided(question: Question, at: tuple[int, ...], risk: Range) -> Decision:
    firsts, seconds = [], []
    for program, number in zip(question.programs, at, strict=True):
        first, rest = cut(program, number)
        if rest is None:
            raise Refusal("some trained weight does not act through the chosen array alone")
        firsts.append(first)
        seconds.append(rest)
    sizes = [first.operations[first.output].size for first in firsts]
    blank = tuple(np.zeros(n) for n in sizes)
    inner = question._replace(programs=tuple(firsts), targets=blank)
    if sum(sizes) > question.num_weights:
        raise Refusal(f"the array has {sum(sizes)} entries, more than trained weights")
    found = facts(inner)
    if not found.sigma > 0:
        raise Refusal("the derivative of the chosen array is not onto")
    bound = on_balls(inner, found, RADII)
    middles = [centre.output.value.mid for centre in found.centres]
    delta = max(balls.norm(balls.exact(c.output.value.rad)) for c in found.centres)
    delta = float(up(delta * np.sqrt(len(middles))))
    outer = [
        Outer(question._replace(programs=(rest,), weights=(u,), targets=(y,), ratios=np.ones(1)))
        for rest, u, y in zip(seconds, middles, question.targets, strict=True)
    ]
    best, failed = np.inf, "no ball around the weights is covered"
    for g, rho in enumerate(bound.radii):
        if bound.reasons[g]:
            continue
        L_u = float(bound.L[g])
        low = float(balls.down(found.sigma - up(L_u * rho)))
        high = float(bound.beta[g])
        reach = float(up(up(high * rho) + delta))
        curves = [part.curvature(reach) for part in outer]
        if any(c is None for c in curves):
            continue
        m = min(c.low for c in curves)  # type: ignore[union-attr]
        top = max(c.high for c in curves)  # type: ignore[union-attr]
        slope = float(
            up(balls.norm(balls.exact(np.array([p.slope for p in outer]))) + up(top * delta))
        )
        tried = fate.valley(slope, Range(m, top), Range(low, high), L_u, question.step_size,
                            float(rho), risk)  # fmt: skip
        if tried is None:
            continue
        if not tried.holds:
            short = tried.needed / tried.reach if tried.reach > 0 else np.inf
            if short < best:
                best, failed = short, f"P3 is short of its condition by a factor of {short:.4g}"
            continue
        constants = {
            "gradient": slope, "m": m, "m_bar": top, "a_u": low, "b_u": high, "L_u": L_u,
            "kappa": tried.kappa, "Lambda": tried.Lambda, "needed": tried.needed,
            "reach": tried.reach, "delta": delta,
        }  # fmt: skip
        if not tried.risk.low > 0:
            failed = "the limit is certain, and the sign of its risk is not"
            continue
        return Decision(
            "stuck", "Gradient descent converges to a local minimum of positive risk.", "P3",
            float(rho), (tried.factor, tried.factor), tried.risk, "output", constants,
        )  # fmt: skip
    return Decision("undecided", f"{failed[:1].upper()}{failed[1:]}.", risk=risk,
                    constants={"short_by": best})  # fmt: skip


class Outer:
    """One sample's outputs as a function of its u, and the curvature of its risk on balls."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.found = facts(question)
        curve = second(question, self.found)
        if curve is None:
            raise Refusal("the chosen array is too large for a Hessian")
        self.squares = curve.squares
        ball = full_hessian(question, self.found, curve)
        self.low, self.high = lambda_min(ball), lambda_max(ball)
        self.slope = balls.norm(gradient(question, self.found))

    def curvature(self, radius: float) -> Range | None:
        """Bounds of the Hessian's eigenvalues on a ball; None if a rule does not hold there."""
        bound = on_balls(
            self.question, self.found, np.array([radius]), order=3, squares=self.squares
        )
        if bound.reasons[0] or bound.K is None:
            return None
        beta, L, K = float(bound.beta[0]), float(bound.L[0]), float(bound.K[0])
        M = third_bound(self.question, self.found.residual_norm, beta, L, K, radius)
        change = float(up(M * radius))
        return Range(float(np.nextafter(self.low - change, -np.inf)), float(up(self.high + change)))
