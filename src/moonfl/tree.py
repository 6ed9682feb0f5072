"""Arithmetic on parameter dictionaries (Params), and their exchange with torch modules.

The first half copies parameters and buffers between modules and dictionaries, and saves the state
of a module that its state_dict leaves out. The second half joins dictionaries by prefix and does
arithmetic: `add`, `sub`, `mean`, `norm` and others. Arithmetic returns new tensors, changes
nothing, and works on the names of its first argument: `sub(global_params, trained_model)` leaves
the buffers out because the first argument has none.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import seeds
from .errors import RunError
from .types import Params, State

PLAIN_TYPES = (bool, int, float, complex, str, type(None))
MODULE_ATTRIBUTES = vars(nn.Module()).keys()  # attributes that torch gives every module


class Lazy(Mapping[str, Tensor]):
    """Params whose tensors are computed on each access and not stored, to save memory."""

    def __init__(self, names: Iterable[str], compute: Callable[[str], Tensor]) -> None:
        self.names = dict.fromkeys(names)
        self.compute = compute

    def __getitem__(self, name: str) -> Tensor:
        return self.compute(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def params_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters themselves, not copies, so that a loss can use them."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the other tensors of the state_dict: BatchNorm statistics and frozen parameters."""
    # A parameter that two layers share appears in the state_dict a second time, by another name.
    trainable = {id(p) for p in params_of(model).values()}
    tensors = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in tensors.items() if id(tensor) not in trainable}


def find_shared(model: nn.Module, other: nn.Module) -> str | None:
    """Return the name of a parameter or module with buffers that both models share, or None.

    Training the first model would change the second one through it.
    """
    memory = {p.untyped_storage().data_ptr() for p in params_of(other).values() if p.numel() > 0}
    for name, param in params_of(model).items():
        if param.untyped_storage().data_ptr() in memory:
            return name
    modules = {id(module) for module in other.modules() if module._buffers}
    for owner, module in model.named_modules():
        if id(module) in modules:
            return str(owner)
    return None


def copy(a: Params) -> Params:
    """Return contiguous copies on the CPU, whatever the layout and device of the tensors.

    Tensors that are sent or stored are on the CPU, and contiguous tensors are summed in the same
    order everywhere.
    """
    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in a.items()}


def build_module(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a module to load Params into.

    Random numbers drawn while it is built are the same in every process, so that attributes
    outside of the state_dict are, too.
    """
    with seeds.seeded(0, "weights"):
        return build()


@torch.no_grad()
def load(model: nn.Module, params: Params) -> nn.Module:
    """Copy `params` into the tensors of the model.

    Every name of the model must be present, with its shape and dtype: `copy_` alone would repeat
    values to fill a larger tensor, and convert them.
    """
    for name, tensor in (params_of(model) | buffers_of(model)).items():
        value = params[name]
        if value.shape != tensor.shape or value.dtype != tensor.dtype:
            raise RunError(
                f"the model has '{name}' as {tensor.dtype} {list(tensor.shape)}, but it is to be "
                f"loaded with {value.dtype} {list(value.shape)}"
            )
        tensor.copy_(value)
    return model


class HiddenState(NamedTuple):
    """The state of a model outside of its state_dict, by (name of the module, name in it).

    Containers, and tensors that are not buffers, are not included.
    """

    buffers: Mapping[tuple[str, str], Tensor | None]  # registered with persistent=False
    attributes: Mapping[tuple[str, str], object]  # numbers, flags and strings


def hidden_state_of(model: nn.Module) -> HiddenState:
    """Return a copy of the state of a model outside of its state_dict."""
    buffers: dict[tuple[str, str], Tensor | None] = {}
    attributes: dict[tuple[str, str], object] = {}
    for owner, module in model.named_modules():
        for name in module._non_persistent_buffers_set & module._buffers.keys():
            buffer = module._buffers[name]
            buffers[owner, name] = None if buffer is None else buffer.clone()
        for name in _plain_attributes(module):
            attributes[owner, name] = vars(module)[name]
    return HiddenState(buffers, attributes)


def restore_hidden_state(model: nn.Module, state: HiddenState) -> None:
    """Undo what forward passes changed outside of the state_dict.

    Examples are a counter of calls, and a buffer that was added, removed or reshaped.
    """
    modules = dict(model.named_modules())
    for owner, module in modules.items():
        for name in _plain_attributes(module):
            if (owner, name) not in state.attributes:
                delattr(module, name)
        for name in module._non_persistent_buffers_set & module._buffers.keys():
            delattr(module, name)
    for (owner, name), buffer in state.buffers.items():
        saved = None if buffer is None else buffer.clone()
        modules[owner].register_buffer(name, saved, persistent=False)
    for (owner, name), value in state.attributes.items():
        if vars(modules[owner]).get(name) is not value:
            setattr(modules[owner], name, value)


def _plain_attributes(module: nn.Module) -> list[str]:
    """Return the names of the numbers, flags and strings that a module's author added to it."""
    return [
        name
        for name, value in vars(module).items()
        if name not in MODULE_ATTRIBUTES and isinstance(value, PLAIN_TYPES)
    ]


def add_prefix(prefix: str, state: State) -> State:
    """Return the State with `prefix/` before every label, so that several fit into one."""
    return {f"{prefix}/{label}": params for label, params in state.items()}


def select_prefix(prefix: str, state: State) -> State:
    """Return the part of a State that `add_prefix` added, without the prefix."""
    start = f"{prefix}/"
    selected = {}
    for label, params in state.items():
        if label.startswith(start) and label != start:
            selected[label.removeprefix(start)] = params
    return selected


def to(a: Params, device: torch.device) -> Params:
    """Return the tensors on a device."""
    return {k: v.to(device) for k, v in a.items()}


def zeros_like(a: Params) -> Params:
    """Return zeros of the same shapes and dtypes."""
    return {k: torch.zeros_like(v) for k, v in a.items()}


def add(a: Params, b: Params, scale: float = 1.0) -> Params:
    """Return a + scale * b."""
    return {k: v + scale * b[k] for k, v in a.items()}


def sub(a: Params, b: Params) -> Params:
    """Return a - b."""
    return {k: v - b[k] for k, v in a.items()}


def mul(a: Params, scale: float) -> Params:
    """Return scale * a."""
    return {k: v * scale for k, v in a.items()}


def mean(trees: Iterable[tuple[Params, float]]) -> Params:
    """Return the weighted mean of (Params, weight) pairs, summed in float64 in their order.

    Dtypes are those of the first pair. Integers, such as BatchNorm's count of batches, are
    rounded; an integer tensor that is the same everywhere is returned exactly, however large.
    """
    pairs = iter(trees)
    first, total_weight = next(pairs)
    total = {k: to_wide(v) * total_weight for k, v in first.items()}
    differs = {k: False for k, v in first.items() if is_integer(v.dtype)}
    for tree, weight in pairs:
        total = {k: v + to_wide(tree[k]) * weight for k, v in total.items()}
        differs = {k: before or not tree[k].equal(first[k]) for k, before in differs.items()}
        total_weight += weight
    result = {}
    for k, v in total.items():
        if differs.get(k, True):
            result[k] = to_dtype(v / total_weight, first[k].dtype)
        else:
            result[k] = first[k].clone()
    return result


def to_wide(value: Tensor) -> Tensor:
    """Return the tensor in the dtype of sums: float64 or complex128."""
    return value.to(torch.complex128) if value.is_complex() else value.double()


def to_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in a dtype, rounded if that is an integer."""
    return (value.round() if is_integer(dtype) else value).to(dtype)


def is_integer(dtype: torch.dtype) -> bool:
    """Return True for integer and boolean dtypes."""
    return not (dtype.is_floating_point or dtype.is_complex)


def flat(a: Params, names: Iterable[str]) -> Tensor:
    """Concatenate these tensors to one vector, so that a loss needs few operations."""
    return torch.cat([a[name].flatten() for name in names])


def dot(a: Params, b: Params) -> Tensor:
    """Return the inner product <a, b>."""
    return (flat(a, a) * flat(b, a)).sum()


def sq_dist(a: Params, b: Params) -> Tensor:
    """Return the squared distance ||a - b||^2."""
    return (flat(a, a) - flat(b, a)).square().sum()


def norm(a: Params) -> float:
    """Return the Euclidean norm over all tensors, summed in float64."""
    return math.sqrt(sum(float(v.double().square().sum()) for v in a.values()))


def num_bytes(a: Params) -> int:
    """Return the size of all tensors in bytes."""
    return sum(v.numel() * v.element_size() for v in a.values())
