"""Probes: each one function that returns a function of the parameters.

The same probe runs inside the training scan (``segment(..., probes={"name": probe})``) and
afterwards over saved parameters (``jax.vmap(probe)(saved)``).
"""
