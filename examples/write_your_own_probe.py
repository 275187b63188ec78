"""Write your own probe: a function of a setup that returns a function of the parameters.

The question here: how much attention does each token pay to itself, and does training change it?
"""

import jax
import jax.numpy as jnp
import numpy as np

import shoal as sh


def self_attention(setup):
    """Mean weight on the diagonal of wu2023's attention matrices."""
    X, score = setup.inputs, setup.setting.scales().score

    def probe(params):
        attention = jax.nn.softmax(score * (X @ params.W_Q.T) @ (X @ params.W_K.T).mT, axis=-1)
        return jnp.mean(jnp.diagonal(attention, axis1=1, axis2=2))

    return probe


# A dict gives probes of your own a name; None stands for one that exists. Probes run inside the
# compiled training loop, so what they share with a training step is computed once.
setup = sh.setup("wu2023", num_samples=8, num_tokens=4, dim=10, width=64, seeds=range(8))
probes = {"self_attention": self_attention, "attention_entropy": None}
run = sh.train(setup, steps=200, step_size=0.02, every=20, probes=probes)

for k in range(0, len(run.step), 2):
    share = run.probes["self_attention"][:, k]
    print(
        f"step {run.step[k]:3d}: risk {np.median(run.risk[:, k]):9.3g}, weight on itself "
        f"{share.mean():.4f} (+- {share.std():.4f} over seeds; uniform is {1 / 4})"
    )

# It is a column of the run's table like any other probe, and can be drawn and saved.
print(run.frame().tail(3))

# Some probes are expensive: "name@100" records every 100 steps.
rare = sh.train(setup, steps=200, step_size=0.02, probes={"self_attention@100": self_attention})
assert np.allclose(rare.probes["self_attention"][:, ::100], run.probes["self_attention"][:, ::5])
