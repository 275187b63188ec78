# %% [markdown]
# # A first certificate
#
# Does a theorem cover this network, and does training obey it? We take the shallow encoder of wu2023 and its theorem A, which promises that
# gradient descent lowers the risk in every step by a factor that it computes from the start.

# %%
import shoal as sh

setup = sh.setup(
    "wu2023", num_samples=2, num_tokens=2, dim=16, tokens="unit", label_scale=0.1, pooling="sum",
    score_exponent=1.0, width=20000,
)  # fmt: skip
setup

# %% [markdown]
# Train with the largest step that the theorem allows. Probes that its conclusions need are recorded by themselves.

# %%
run = sh.train(setup, steps=50, step_size="theorem_a")
print(run)

# %% [markdown]
# Compare. Every hypothesis and every conclusion has two sides and a margin; the verdict follows from them.

# %%
certificate = sh.certify(run, "theorem_a")
print(certificate)

# %% [markdown]
# The proved rate is a bound; the run is faster.

# %%
import matplotlib.pyplot as plt

rate = certificate[0].predicted_rate
plt.semilogy(run.step, run.risk[0], label="run")
plt.semilogy(run.step, run.risk[0, 0] * (1 - rate) ** run.step, "--", label="proved")
plt.xlabel("step"), plt.ylabel("risk"), plt.legend()

# %% [markdown]
# With scores scaled by width^-1/2 instead of width^-1 the same theorem says nothing. The run still converges.

# %%
other = sh.setup(
    "wu2023", num_samples=2, num_tokens=2, dim=16, tokens="unit", label_scale=0.1, pooling="sum",
    score_exponent=0.5, width=1000,
)  # fmt: skip
second = sh.train(other, steps=50, probes=[])
found = sh.certify(second, "theorem_a")
print(found.verdict, "although the risk fell from", second.risk[0, 0], "to", second.risk[0, -1])
assert found.verdict == "not applicable" and certificate.verdict == "holds"
