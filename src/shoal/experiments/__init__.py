"""What a paper brings to the laboratory, and how one setting of it is run and certified.

This is the outside of the library: `nouns` are plain values, `preparing` turns words into a problem
and weights, `running` compiles, trains and certifies.
"""

from shoal.experiments.nouns import (
    ANY_METHOD,
    Case,
    Experiment,
    FigureRecipe,
    Paper,
    Theorem,
    data_key,
    theorem_of,
    trained,
)
from shoal.experiments.preparing import (
    check_problem,
    initial_params,
    prepare,
    problem_arrays,
    read_problem,
)
from shoal.experiments.running import (
    BATCH,
    ITERATES,
    METHODS,
    STOCHASTIC,
    allowed_step,
    certify,
    default_step,
    endings,
    has_kernel,
    kernel_predictions,
    numbers_of,
    probe_names,
    require_covered,
    simulate,
    snapshots,
)

__all__ = [
    "ANY_METHOD",
    "BATCH",
    "ITERATES",
    "METHODS",
    "STOCHASTIC",
    "Case",
    "Experiment",
    "FigureRecipe",
    "Paper",
    "Theorem",
    "allowed_step",
    "certify",
    "check_problem",
    "data_key",
    "default_step",
    "endings",
    "has_kernel",
    "initial_params",
    "kernel_predictions",
    "numbers_of",
    "prepare",
    "probe_names",
    "problem_arrays",
    "read_problem",
    "require_covered",
    "simulate",
    "snapshots",
    "theorem_of",
    "trained",
]
