"""Write your own probe: one function that returns a function of the parameters.

The question here: how much attention does each token pay to itself, and does training change it?
"""

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

from shoal.papers.wu2023.encoder import Scales, attention, encoder

from shoal import inits, problems
from shoal.losses import half_sum_of_squares
from shoal.methods import gradient_descent
from shoal.models import empirical_risk
from shoal.training import run


def self_attention_share(X, scales):
    """Mean weight on the diagonal of the attention matrices."""

    def probe(params):
        B = jax.vmap(lambda x: attention(params, x, scales))(X)
        return jnp.mean(jnp.diagonal(B, axis1=1, axis2=2))

    return probe


num_samples, num_tokens, dim, width = 8, 4, 10, 64
key_data, key_labels, key_weights = jax.random.split(jax.random.key(0), 3)
X = problems.gaussian_tokens(key_data, num_samples, num_tokens, dim)
problem = problems.Problem(X, problems.gaussian_labels(key_labels, num_samples, 1.0))

scales = Scales(score=width**-0.5, output=1.0, pool=1 / num_tokens)
model = encoder(dim, width, scales)
risk = empirical_risk(model, problem, half_sum_of_squares)
probe = self_attention_share(X, scales)


def train(key):
    """One run; what varies is its argument, so that seeds are one ``vmap``."""
    params0 = inits.lecun(key, model.spec)
    method = gradient_descent(step_size=0.02)
    return run(method, risk, params0, num_steps=200, every=20, probes={"self": probe})


# eight seeds, one call, one compilation
trajectory = jax.jit(jax.vmap(train))(jax.random.split(key_weights, 8))
for k in range(0, 11, 2):
    share = trajectory.probes["self"][:, k]
    print(
        f"step {int(trajectory.step[0, k]):3d}: risk {jnp.median(trajectory.risk[:, k]):9.3g}, "
        f"weight on itself {share.mean():.4f} (+- {share.std():.4f} over seeds; "
        f"uniform is {1 / num_tokens})"
    )

# the same probe runs afterwards over saved parameters
after = jax.vmap(probe)(trajectory.params)
assert jnp.allclose(after, trajectory.probes["self"][:, -1])
