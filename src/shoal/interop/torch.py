"""PyTorch modules as JAX functions: exported in float64, translated, and compared with PyTorch.

``torch.export`` gives a graph of core operations; `aten.TABLE` has each of them in JAX. The result
is compared with PyTorch: outputs and gradients, at the module's weights and at three perturbed
ones, must agree to 1e-9 of their size, else the module is refused.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import InputError
from shoal.interop import Foreign
from shoal.interop.aten import CHECKS, PYTHON, TABLE
from shoal.runtime import in_float64

AGREEMENT = 1e-9
PERTURBATIONS = (0.0, 0.1, 0.3, 1.0)
"""Weights are tried as given and with Gaussian noise of these sizes, relative to each block."""


def from_torch(module: Any, x: Any) -> Foreign:
    """A PyTorch module in evaluation mode as a function of its weights and a batch.

    Weights are named as in ``state_dict``; buffers are constants. The module is not changed.
    """
    import copy

    own = copy.deepcopy(module).double().eval()
    arguments = _as_torch(x)
    _call(own, arguments)
    exported = _export(own, arguments)
    function = _translated(exported, own)
    params = {name: _to_numpy(W) for name, W in own.named_parameters()}
    if not params:
        raise InputError(
            f"{type(module).__name__} has no parameters, so there is nothing to train."
        )
    _compare(own, function, x)

    def restore(params: Any) -> Any:
        import torch

        names = {id(W): name for name, W in own.named_parameters()}  # tied weights have one name
        types = {name: W.dtype for name, W in module.state_dict().items()}
        state = {}
        for name, W in own.state_dict(keep_vars=True).items():
            value = params[names[id(W)]] if id(W) in names else _to_numpy(W)
            state[name] = torch.as_tensor(np.array(value)).to(types[name])
        return state

    frozen = tuple(name for name, W in own.named_parameters() if not W.requires_grad)
    if frozen and len(frozen) == len(params):
        raise InputError(f"every parameter of {type(module).__name__} has requires_grad=False.")
    return Foreign(function, params, restore, _read, frozen)


def _read(module: Any) -> dict[str, np.ndarray]:
    return {name: _to_numpy(W) for name, W in module.named_parameters()}


def _to_numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


def _as_torch(x: Any) -> Any:
    import torch

    def one(a: Any) -> Any:
        a = np.asarray(a)
        return torch.as_tensor(a.astype(np.float64) if a.dtype.kind == "f" else a.copy())

    if isinstance(x, dict):
        return {k: one(v) for k, v in x.items()}
    return tuple(one(a) for a in x) if isinstance(x, tuple | list) else (one(x),)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's warnings about its own future."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _call(module: Any, arguments: Any) -> Any:
    """The module's output in PyTorch, or what is wrong with it."""
    label = type(module).__name__
    try:
        with _quiet():
            return module(**arguments) if isinstance(arguments, dict) else module(*arguments)
    except Exception as error:  # whatever the user's module raises
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise InputError(f"{label} fails in PyTorch on this batch ({reason}).") from error


def _export(module: Any, arguments: Any) -> Any:
    """The graph of core operations; the number of samples stays free where the module allows."""
    import torch

    free = {0: torch.export.Dim.AUTO}
    named = isinstance(arguments, dict)
    shapes = dict.fromkeys(arguments, free) if named else tuple(free for _ in arguments)
    args, keywords = ((), arguments) if named else (arguments, None)
    name = type(module).__name__
    for dynamic in (shapes, None):
        try:
            with _quiet():
                found = torch.export.export(
                    module, args, keywords, dynamic_shapes=dynamic, strict=False
                )
                graph = found.graph_module.graph
                if any("set_grad_enabled" in str(node.target) for node in graph.nodes):
                    raise InputError(
                        f"{name} computes a part under torch.no_grad(), which an export forgets; "
                        "write .detach() after it, or set requires_grad=False on its weights."
                    )
                table = torch.export.default_decompositions()
                table.pop(torch.ops.aten.detach.default, None)  # it stops gradients: keep it
                return found.run_decompositions(table)
        except InputError:
            raise
        except Exception as error:  # torch.export has no common class for what it cannot do
            reason = _first_line(error)
    raise InputError(
        f"torch.export cannot read {name} ({reason}). Data-dependent control flow is the usual "
        "reason; if the batch is wrong, module(x) fails in PyTorch too."
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


def _source_of(node: Any) -> str:
    """The line of the user's source that made an operation."""
    lines = (node.stack_trace or "").splitlines()
    files = [i for i, line in enumerate(lines) if line.strip().startswith("File ")]
    own = [i for i in files if "site-packages/torch/" not in lines[i]] or files
    if not own:
        return ""
    place = re.search(r'File "(.*?)", line (\d+)', lines[own[-1]])
    code = lines[own[-1] + 1].strip() if own[-1] + 1 < len(lines) else ""
    return f" ({place[1]}, line {place[2]}: {code})" if place else ""


def _path_of(node: Any) -> str:
    """Where in the module a node belongs, such as ``layers.1.self_attn``."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return re.sub(r"[^\w.]+", "_", path.removeprefix("L__self__").strip("."))


def _translated(exported: Any, module: Any) -> Callable[[Any, Any], Any]:
    """The graph as a function of weights by name and a batch."""
    label = type(module).__name__
    signature, graph = exported.graph_signature, exported.graph_module.graph
    first = {id(W): name for name, W in module.named_parameters()}  # tied weights have one name
    own = {name: first[id(W)] for name, W in module.named_parameters(remove_duplicate=False)}
    weights = {node: own[name] for node, name in signature.inputs_to_parameters.items()}
    stored = exported.state_dict | exported.constants
    fixed_names = dict(signature.inputs_to_buffers) | dict(
        signature.inputs_to_lifted_tensor_constants
    )
    fixed = {node: _to_numpy(stored[name]) for node, name in fixed_names.items()}
    inputs = list(signature.user_inputs)
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    operations = {node.name: _operation(node, label) for node in nodes}
    paths = {node.name: _path_of(node) or label for node in nodes}
    (output,) = (node for node in graph.nodes if node.op == "output")
    results = list(output.args[0])[-len(signature.user_outputs) :]
    if signature.buffers_to_mutate:
        names = ", ".join(signature.buffers_to_mutate.values())
        raise InputError(f"{label} changes its buffers ({names}) when it is called.")
    last_use: dict[str, str] = {}
    for node in nodes:
        for used in node.all_input_nodes:
            last_use[used.name] = node.name
    kept = {node.name for node in output.all_input_nodes}

    @jax.numpy_rank_promotion("allow")  # PyTorch broadcasts by rank, whatever the user's JAX does
    def function(params: Any, x: Any) -> Any:
        given = list(x.values()) if isinstance(x, dict) else x
        given = list(given) if isinstance(given, tuple | list) else [given]
        given = [jnp.asarray(array) for array in given]
        values: dict[str, Any] = {node: params[name] for node, name in weights.items()}
        values |= {node: jnp.asarray(array) for node, array in fixed.items()}
        values |= dict(zip(inputs, given, strict=True))

        def value(argument: Any) -> Any:
            if isinstance(argument, list | tuple):
                return [value(a) for a in argument]
            return values[argument.name] if hasattr(argument, "op") else argument

        for node in nodes:
            if (operation := operations[node.name]) is None:
                continue
            keywords = {k: value(v) for k, v in node.kwargs.items() if k not in _PLACEMENT}
            try:
                with jax.named_scope(paths[node.name]):  # so that findings name the submodule
                    values[node.name] = operation(*(value(a) for a in node.args), **keywords)
            except NotImplementedError:
                raise _refused(node, label, "with these arguments") from None
            for used in node.all_input_nodes:
                if last_use[used.name] == node.name and used.name not in kept:
                    values.pop(used.name, None)
        found = [value(node) for node in results]
        return found[0] if len(found) == 1 else tuple(found)

    function.__name__ = label
    return function


_PLACEMENT = ("device", "pin_memory", "layout", "memory_format", "non_blocking", "generator")


def _operation(node: Any, label: str) -> Callable | None:
    if node.target in PYTHON:
        return PYTHON[node.target]
    name = str(node.target)
    if any(check in name for check in CHECKS):
        return None
    if name not in TABLE:
        raise _refused(node, label)
    return TABLE[name]


def _refused(node: Any, label: str, how: str = "") -> InputError:
    name = str(node.target).removesuffix(".default")
    return InputError(
        f"{label} uses {name}{' ' + how if how else ''}, which shoal cannot translate"
        f"{_source_of(node)}. Write that part with other operations, or bring the model in JAX."
    )


@in_float64
def _compare(module: Any, function: Callable, x: Any) -> None:
    """Refuse a translation whose outputs or gradients are not PyTorch's."""
    import torch

    rng = np.random.default_rng(0)
    label = type(module).__name__
    parameters = dict(module.named_parameters())
    original = {name: W.detach().clone() for name, W in parameters.items()}
    arguments = _as_torch(x)
    x = jax.tree.map(_to_numpy, arguments)
    probe: Any = None

    @jax.jit
    def both(params: Any, probe: Any) -> Any:
        out, pull = jax.vjp(lambda p: function(p, x), params)
        return out, pull(probe)[0]

    for size in PERTURBATIONS:
        with torch.no_grad():
            for name, W in parameters.items():
                scale = size * float(original[name].std(correction=0) or 1.0)
                noise = torch.as_tensor(rng.standard_normal(W.shape))
                W.copy_(original[name] + scale * noise)
        out = _call(module, arguments)
        if not isinstance(out, torch.Tensor):
            kind = type(out).__name__
            raise InputError(
                f"{label} returns a {kind}, and a setup needs one tensor of outputs: wrap it in a "
                "module whose forward returns the tensor."
            )
        if not out.is_floating_point():
            raise InputError(f"{label} returns {out.dtype}; expected floating-point outputs.")
        if probe is None:
            probe = rng.standard_normal(tuple(out.shape))
        moving = [W for W in parameters.values() if W.requires_grad]
        gradients = torch.autograd.grad(out, moving, torch.as_tensor(probe), allow_unused=True)
        ours, pulled = both({name: _to_numpy(W) for name, W in parameters.items()}, probe)
        _require_equal(label, "outputs", _to_numpy(out), ours)
        names = [name for name, W in parameters.items() if W.requires_grad]
        for name, theirs in zip(names, gradients, strict=True):
            wanted = np.zeros(parameters[name].shape) if theirs is None else _to_numpy(theirs)
            _require_equal(label, f"the gradient of {name}", wanted, pulled[name])
    with torch.no_grad():
        for name, W in parameters.items():
            W.copy_(original[name])


def _require_equal(label: str, what: str, theirs: np.ndarray, ours: Any) -> None:
    ours = np.asarray(ours)
    size = max(float(np.max(np.abs(theirs), initial=0)), 1e-3)
    apart = float(np.max(np.abs(theirs - ours), initial=0)) / size
    if not apart <= AGREEMENT:
        raise InputError(
            f"the translation of {label} is not exact: {what} differ from PyTorch's by {apart:.1e} "
            f"(at most {AGREEMENT:.0e} is accepted). Please report the module."
        )
