# %% [markdown]
# # Your own model
#
# Any JAX function of weights and a batch can be measured, certified, proved and diagnosed. Here a small attention layer.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import shoal as sh

rng = np.random.default_rng(0)
x, y = rng.standard_normal((6, 4, 6)), 0.3 * rng.standard_normal(6)


def model(params, x):
    scores = x @ params["q"] @ jnp.swapaxes(x @ params["k"], 1, 2)
    return jnp.tanh(jax.nn.softmax(scores) @ x @ params["v"]).mean(1) @ params["head"]


def initial(key):
    keys = jax.random.split(key, 4)
    shapes = {"q": (6, 6), "k": (6, 6), "v": (6, 6), "head": (6,)}
    return {
        name: 0.4 * jax.random.normal(k, s)
        for k, (name, s) in zip(keys, shapes.items(), strict=True)
    }


setup = sh.setup(model, initial, x, y, seeds=range(4))
print(setup)

# %% [markdown]
# `initial(key)` draws the weights of each seed. Train four seeds at once and record what moves.

# %%
run = sh.train(setup, steps=400, probes=["movement", "sharpness@20", "attention_entropy"])
run.plot("movement", "attention_entropy")
print(run)

# %% [markdown]
# Which weights matter? Freeze all but some.

# %%
for names in ("head", "v,head", "q,k,v,head"):
    part = sh.setup(model, initial, x, y, seeds=range(4), train=names)
    trained = sh.train(part, steps=400, probes=[])
    plt.semilogy(trained.step, np.median(trained.risk, axis=0), label=names)
plt.xlabel("step"), plt.ylabel("risk"), plt.legend(title="trained")

# %% [markdown]
# Is the end certain? And does anything hold it up?

# %%
one = sh.setup(model, initial, x, y)
longer = sh.train(one, steps=3000, probes=[])
proof = sh.prove(longer, levels=("jets", "nodes"))
print(proof)
print(sh.diagnose(longer, trials=False))

# %% [markdown]
# Keep it. A folder holds everything, and any tool can read it.

# %%
run.save("mine")
again = sh.load("mine", setup)
assert np.array_equal(again.risk, run.risk)
