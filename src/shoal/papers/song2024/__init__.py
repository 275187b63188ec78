r"""Song et al. (2024): Unraveling the Gradient Descent Dynamics of Transformers.

Symbols: $N$ samples, $n$ tokens, $D$ ``dim``, $H$ ``num_heads``, $d$ ``key_dim``, $d_v$
``value_dim``, $p$ ``out_dim``, $\tau$ ``bandwidth``, $\eta$ ``step_size``. The loss of the layer is
$F=\tfrac12\sum_i\lVert M_i-Y_i\rVert_F^2$ (a sum), that of the classifier the mean cross-entropy.

Certified here: theorem 1 (only $W_V$), theorem 2 ($W_Q$, $W_K$, $W_V$ together), theorem 3 (only
$W_Q$), all ours after the paper's theorems of the same numbers, theorem S (softmax without traps)
and the prediction of the initial tangent kernel. The paper's own constants are not certified: its
full text was not available to us.
"""

from shoal._typing import Any, Array, Callable, Float
from shoal.certificates import Certificate
from shoal.experiments import Case, Paper, Theorem
from shoal.linalg import norm_fro, norm_op
from shoal.models import predict
from shoal.papers.song2024 import layer as architecture
from shoal.papers.song2024 import theorems
from shoal.papers.song2024.choices import (
    Setting,
    activations,
    check,
    complete,
    form,
    held_out,
    init,
    loss,
    model,
    problem,
    program,
    sizes,
    speeds,
)
from shoal.papers.song2024.measuring import (
    LARGEST_KERNEL,
    driving_kernel,
    floor,
    probes,
    start_of,
    usual_step,
)
from shoal.theory.kernel_regime import kernel_regime
from shoal.training import Trajectory


def _of(function: Callable) -> Callable[[Case, Trajectory], Certificate]:
    return lambda case, run: function(start_of(case, case.params0), case.step_size, run)


def _kernel_regime(case: Case, run: Trajectory) -> Certificate:
    r = (predict(model(case.setting), case.params0, case.problem.X) - case.problem.y).ravel()
    A = architecture.value_matrix(case.params0, case.problem.X, form(case.setting))
    size = norm_op(A) * norm_fro(case.params0.W_V) + norm_fro(case.problem.y)
    kernel: Any = driving_kernel(case)
    return kernel_regime(kernel(case.params0), r, case.step_size, run, output_size=size)


def _value_step(case: Case) -> Float[Array, ""]:
    A = architecture.value_matrix(case.params0, case.problem.X, form(case.setting))
    return 1 / norm_op(A) ** 2


def _is_layer(setting: Any) -> bool:
    return setting.model == "layer"


def _has_kernel(setting: Any) -> bool:
    rows = setting.num_samples * setting.num_tokens * setting.out_dim
    return _is_layer(setting) and rows <= LARGEST_KERNEL


_OURS = "ours, after Song et al. (2024), Theorem {}; proof in docs/theory/song2024.md"
_RECORDED = ("gradient_norm", "distance")
THEOREMS = (
    Theorem(
        key="theorem_1",
        statement="Only W_V moves: the loss follows an exact recursion to the least squares floor, "
        "for every kernel; the floor is zero for all targets only if heads x dim >= samples x "
        "tokens.",
        source=_OURS.format(1),
        method="gd",
        probes=(),
        needs=(),
        certificate=_of(theorems.theorem_1),
        largest_step=_value_step,
        covers=_is_layer,
    ),
    Theorem(
        key="theorem_2",
        statement="W_Q, W_K, W_V move together: close to a start with independent features the "
        "loss falls at least like (1 - step * lambda^2 / 4)^t.",
        source=_OURS.format(2),
        method="gd",
        probes=(*_RECORDED, "lambda_A"),
        needs=(),
        certificate=_of(theorems.theorem_2),
        largest_step=lambda case: theorems.largest_step_2(start_of(case, case.params0)),
        covers=_is_layer,
    ),
    Theorem(
        key="theorem_3",
        statement="Only W_Q moves, one head: where every output turns with its query, the loss "
        "falls at least like (1 - step * mu_0 / 4)^t.",
        source=_OURS.format(3),
        method="gd",
        probes=_RECORDED,
        needs=(),
        certificate=_of(theorems.theorem_3),
        largest_step=lambda case: theorems.largest_step_3(start_of(case, case.params0)),
        covers=_is_layer,
    ),
    Theorem(
        key="theorem_s",
        statement="Softmax, only W_Q, affinely independent keys, targets in the affine hull: no "
        "stationary point lies above zero loss.",
        source="ours; proof in docs/theory/song2024.md",
        method="gd",
        probes=(*_RECORDED, "query_sigma"),
        needs=("query_sigma",),
        certificate=_of(theorems.theorem_s),
        largest_step=None,
        covers=lambda setting: _is_layer(setting) and setting.num_heads == 1,
    ),
    Theorem(
        key="kernel_regime",
        statement="The loss curve is the one that the tangent kernel at the start predicts, up to "
        "what the measured movement of the kernel allows.",
        source="ours; proof in docs/theory/kernel_regime.md",
        method="gd",
        probes=("kernel_distance",),
        needs=("kernel_distance",),
        certificate=_kernel_regime,
        largest_step=None,
        covers=_has_kernel,
    ),
)

PAPER = Paper(
    key="song2024",
    title="Unraveling the Gradient Descent Dynamics of Transformers",
    authors="Bingqing Song, Boran Han, Shuai Zhang, Jie Ding, Mingyi Hong",
    year=2024,
    arxiv="2411.07538",
    about="softmax against Gaussian attention, which weights to train, landscapes",
    setting=Setting(),
    problem=problem,
    model=model,
    init=init,
    loss=loss,
    sizes=sizes,
    speeds=speeds,
    kernel=driving_kernel,
    probes=probes,
    default_probes=(
        "movement",
        "distance",
        "gradient_norm",
        "lambda_B",
        "rank_B",
        "lambda_A",
        "row_sum",
        "query_sigma",
        "train_accuracy",
        "test_risk",
        "test_accuracy",
    ),
    theorems=THEOREMS,
    target=lambda setting: "Y" if setting.model == "layer" else "y",
    held_out=held_out,
    check=check,
    floor=floor,
    usual_step=usual_step,
    activations=activations,
    complete=complete,
    program=program,
)

# claims and figures are experiments with the paper as it stands so far
from shoal.papers.song2024.claims import CLAIMS
from shoal.papers.song2024.pictures import FIGURES

PAPER = PAPER._replace(claims=CLAIMS, figures=FIGURES)
