"""What a paper brings to the laboratory, and how one setting of it is run and certified.

This is the outside of the library: `nouns` are plain values, `preparing` turns words into a problem
and weights, `running` compiles and trains, `certifying` confronts runs with theorems, `together`
runs many settings of one shape.
"""

from shoal.experiments.certifying import (
    allowed_step,
    allowed_steps,
    certify,
    default_step,
    endings,
    has_kernel,
    kernel_predictions,
    require_covered,
    require_method,
)
from shoal.experiments.nouns import (
    ANY_METHOD,
    Case,
    Experiment,
    FigureRecipe,
    Paper,
    Planned,
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
    refuse_giants,
    require_whole_records,
)
from shoal.experiments.running import (
    BATCH,
    ITERATES,
    METHODS,
    STOCHASTIC,
    numbers_of,
    probe_names,
    simulate,
    snapshots,
    stride_of,
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
    "Planned",
    "Theorem",
    "allowed_step",
    "allowed_steps",
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
    "refuse_giants",
    "require_covered",
    "require_method",
    "require_whole_records",
    "simulate",
    "snapshots",
    "stride_of",
    "theorem_of",
    "trained",
]
