"""The weights of a task's model: what every framework can train alike, and what none would train.

With a parameter that a pass does not use (`task.find_unused_parameters`) DDP and Horovod have each their own
way: here it gets a gradient of zero, so that none meets one.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from unet_scaling.run.training_state import some_of
from unet_scaling.task.functions import TaskFunctions

# What Horovod averages, and what it can give to the other workers.
AVERAGED = (torch.float32, torch.float64, torch.float16)
SENT = (*AVERAGED, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
CURE_OF_TYPE = {
    torch.bool: "keep it as uint8, or register it with persistent=False",
    torch.bfloat16: "keep it as float32, and set training.precision = 'bf16'",
    torch.complex64: "keep real and imaginary part as float32",
    torch.complex128: "keep real and imaginary part as float64",
}


def require_usable(task: TaskFunctions, model: object) -> None:
    """Raise UserError for a model that has nothing to train, or what no framework gives to all workers."""
    if not isinstance(model, nn.Module):
        raise task.mistake("build_model", f"gives {type(model).__name__}; return an nn.Module")
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not trained:
        raise task.mistake("build_model", "no parameter has requires_grad: there is nothing to train")
    for name, tensor in (trained | model.state_dict(keep_vars=True)).items():
        fault = _fault(tensor, AVERAGED if name in trained else SENT)
        if fault:
            raise task.mistake("build_model", f"{name} {fault}")


def _fault(tensor: object, allowed: Sequence[torch.dtype]) -> str:
    """Return why a tensor cannot be had by all workers, and the cure; empty where it can."""
    if not isinstance(tensor, Tensor):
        return f"is {type(tensor).__name__}, and no framework sends it: keep tensors alone in the state"
    if is_lazy(tensor):
        return "has no shape yet: pass a sample through the lazy modules in build_model"
    if tensor.device.type != "cpu":
        return f"is on the device {tensor.device}: build the model on the CPU; each worker moves it"
    if tensor.dtype not in allowed:
        cure = CURE_OF_TYPE.get(tensor.dtype, "keep it as float32")
        return f"is {str(tensor.dtype).removeprefix('torch.')}, which Horovod does not take: {cure}"
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        return "is not contiguous, and Horovod takes no other: assign .contiguous() of it"
    return ""


def require_all_trained(task: TaskFunctions, function: str, model: nn.Module, groups: Iterable[Any]) -> None:
    """Raise UserError unless groups, as torch's optimizers take them, have each weight that is trained."""
    chosen = [group["params"] if isinstance(group, dict) else group for group in groups]
    given = {id(each) for one in chosen for each in ([one] if isinstance(one, Tensor) else one)}
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    lacking = [name for name, weight in trained if id(weight) not in given]
    if lacking:
        cure = "no optimizer would train it; return it, or set requires_grad_(False)"
        raise task.mistake(function, f"leaves out {some_of(lacking)}: {cure}")


def backward_nodes(loss: Tensor) -> Iterator[Any]:
    """Yield the nodes of the graph through which the backward pass of a loss goes."""
    seen = set()
    open_nodes: list[Any] = [loss.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_nodes += [following for following, _ in node.next_functions]
            yield node


def where_kept(model: nn.Module, tensor: Tensor) -> str:
    """Return the attribute of the model that holds a tensor which is no parameter; else its shape."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            leaves = [] if name in ("_parameters", "_buffers", "_modules") else tree_leaves(value)
            for place, leaf in enumerate(leaves):
                inner = dict(leaf.named_parameters()) if isinstance(leaf, nn.Module) else {"": leaf}
                found = [f"[{place}].{key}" if key else "" for key, held in inner.items() if held is tensor]
                if found:
                    return f"{path}.{name}{found[0]}".lstrip(".")
    return f"a tensor of shape {list(tensor.shape)}"


def with_zero_gradients(loss: Tensor, model: nn.Module) -> Tensor:
    """Return the loss as it is, from which every trained parameter gets a gradient, if of zeros.

    The gradient of a parameter that the loss uses is not changed.
    """
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    joined: Tensor = _ZeroGradients.apply(loss, *trained)  # type: ignore[no-untyped-call]
    return joined


class _ZeroGradients(torch.autograd.Function):
    # A term `0 * weight.sum()` would read all weights, and be NaN where one is infinite.
    @staticmethod
    def forward(ctx: Any, loss: Tensor, *weights: Tensor) -> Tensor:  # noqa: ANN401
        ctx.weights = [(weight.shape, weight.dtype, weight.device) for weight in weights]
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        # Each takes the memory of one zero, until it is added or kept.
        zeros = (
            torch.zeros((), dtype=dtype, device=device).expand(shape) for shape, dtype, device in ctx.weights
        )
        return gradient, *zeros
