"""Arithmetic on parameter dictionaries (Params), and their exchange with torch modules.

The first half copies parameters and buffers between modules and dictionaries, and saves the state
of a module that its state_dict leaves out. The second half joins dictionaries by prefix and does
arithmetic: `add`, `sub`, `mean`, `norm` and others. Arithmetic returns new tensors, changes
nothing, and works on the names of its first argument: `sub(global_params, trained_model)` leaves
the buffers out because the first argument has none.

Flat buffers: where all tensors of a dictionary lie in one buffer, each operation is one operation
on the buffer instead of one per tensor. `copy`, `flatten_parameters` and messages between processes
lay tensors out in this way; `flat_buffer` recognises it. Values do not depend on it.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import seeds
from .errors import RunError
from .types import Params, State

ALIGNMENT = 64  # bytes; every tensor of a flat buffer starts at a multiple of it
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


def changed_tensor(before: Params, after: Params) -> str | None:
    """Return a name that one of two trees lacks or whose shape or dtype differs, or None."""
    old = {name: (value.shape, value.dtype) for name, value in before.items()}
    new = {name: (value.shape, value.dtype) for name, value in after.items()}
    return next((name for name in {**old, **new} if old.get(name) != new.get(name)), None)


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


@torch.no_grad()
def copy(a: Params) -> Params:
    """Return contiguous copies on the CPU, whatever the layout and device of the tensors.

    Tensors that are sent or stored are on the CPU, and contiguous tensors are summed in the same
    order everywhere.
    """
    buffer = flat_buffer(a)
    if buffer is not None and buffer.is_cpu:
        return in_buffer(buffer.clone(), a)
    tensors = {k: v.cpu() for k, v in a.items()}
    if len({v.dtype for v in tensors.values()}) != 1:
        return {k: v.clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    copies = in_buffer(zero_buffer(tensors), tensors)
    torch._foreach_copy_(list(copies.values()), list(tensors.values()))
    return copies


def build_module(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a module to load Params into.

    Random numbers drawn while it is built are the same in every process, so that attributes
    outside of the state_dict are, too.
    """
    with seeds.seeded(0, "weights"):
        return build()


@torch.no_grad()
def load_all(tensors: Params, params: Params) -> bool:
    """Copy `params` into tensors of the same names in one operation.

    Return False, without copying, if a shape or dtype differs, or a value is not on the CPU.
    """
    targets = list(tensors.values())
    values = [params[name] for name in tensors]
    for target, value in zip(targets, values, strict=True):
        if value.shape != target.shape or value.dtype is not target.dtype or not value.is_cpu:
            return False
    torch._foreach_copy_(targets, values)
    return True


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
    return _elementwise(torch.zeros_like, a)


def add(a: Params, b: Params, scale: float = 1.0) -> Params:
    """Return a + scale * b."""
    return _elementwise(lambda v, w: v + scale * w, a, b)


def sub(a: Params, b: Params) -> Params:
    """Return a - b."""
    return _elementwise(torch.sub, a, b)


def mul(a: Params, scale: float) -> Params:
    """Return scale * a."""
    return _elementwise(lambda v: v * scale, a)


def _elementwise(function: Callable[..., Tensor], a: Params, *others: Params) -> Params:
    """Apply a function of tensors of the same shape to every tensor, or to the whole buffers."""
    buffer = flat_buffer(a)
    if buffer is not None:
        buffers = [matching_buffer(a, buffer, other) for other in others]
        if all(other is not None for other in buffers):
            return in_buffer(function(buffer, *buffers), a)
    return {k: function(v, *(other[k] for other in others)) for k, v in a.items()}


def mean(trees: Iterable[tuple[Params, float]]) -> Params:
    """Return the weighted mean of (Params, weight) pairs, summed in float64 in their order.

    Dtypes are those of the first pair. Integers, such as BatchNorm's count of batches, are
    rounded; an integer tensor that is the same everywhere is returned exactly, however large.
    """
    pairs = iter(trees)
    first, total_weight = next(pairs)
    buffer = flat_buffer(first)
    if buffer is not None and buffer.is_floating_point():
        return _flat_mean(first, buffer, total_weight, pairs)
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


def _flat_mean(
    first: Params, buffer: Tensor, total_weight: float, pairs: Iterator[tuple[Params, float]]
) -> Params:
    """Return the weighted mean of floats; the first Params lie in a buffer."""
    total = buffer.double() * total_weight
    wide = torch.zeros_like(total)
    parts = in_buffer(wide, first)
    for tree, weight in pairs:
        other = matching_buffer(first, buffer, tree)
        if other is not None:
            wide.copy_(other)
        else:
            for k, part in parts.items():
                part.copy_(tree[k])
        total += wide.mul_(weight)
        total_weight += weight
    return in_buffer(to_dtype(total / total_weight, buffer.dtype), first)


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
    return math.sqrt(sum(_sum_of_squares(v) for v in a.values()))


def distance(a: Params, b: Params) -> float:
    """Return the Euclidean norm of a - b: that of `norm(sub(a, b))` without storing a - b."""
    return math.sqrt(sum(_sum_of_squares(v - b[k]) for k, v in a.items()))


def _sum_of_squares(value: Tensor) -> float:
    return float(value.double().square().sum())


def is_finite(a: Params) -> bool:
    """Return True if no value is infinite or undefined."""
    buffer = flat_buffer(a)
    # A sum is infinite or undefined if one of its terms is. If it is finite, all terms are.
    if buffer is not None and math.isfinite(buffer.sum().item()):
        return True
    return all(bool(torch.isfinite(value).all()) for value in a.values())


def num_bytes(a: Params) -> int:
    """Return the size of all tensors in bytes."""
    return sum(v.numel() * v.element_size() for v in a.values())


def aligned(size: int) -> int:
    """Round a number of bytes up to the start of the next tensor of a flat buffer."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@functools.lru_cache(maxsize=1024)
def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides = itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1)
    return tuple(strides)[::-1][-len(shape) :] if shape else ()


def flat_buffer(a: Params) -> Tensor | None:
    """Return the memory of all tensors as one vector, or None if they are not laid out flat.

    Flat means: contiguous, of one dtype, in one storage, each at the next multiple of ALIGNMENT.
    Values between the tensors are unspecified; in buffers that this module creates they are 0. A
    tensor that needs a gradient is not part of a buffer, except under torch.no_grad.
    """
    if type(a) is not dict or not a:
        return None
    tensors = list(a.values())
    first = tensors[0]
    dtype = first.dtype
    differentiable = torch.is_grad_enabled()
    try:
        start = first.data_ptr()
        size = 0
        for tensor in tensors:
            if tensor.data_ptr() != start + size or tensor.dtype is not dtype:
                return None
            if tensor.numel() == 0 or not tensor.is_contiguous():
                return None
            if differentiable and tensor.requires_grad:
                return None
            size += aligned(tensor.nbytes)
    except RuntimeError:  # sparse tensors, and those inside of torch.func, have no memory
        return None
    storage = first.untyped_storage()
    if dtype.is_complex or start + size > storage.data_ptr() + storage.nbytes():
        return None
    length: int = size // dtype.itemsize
    return torch.as_strided(first, (length,), (1,), first.storage_offset())


def matching_buffer(a: Params, buffer: Tensor, other: Params) -> Tensor | None:
    """Return the buffer of those tensors in `other` that `a` names, if it is laid out alike."""
    if type(other) is not dict:
        return None
    selected = {k: other[k] for k in a}
    flat = flat_buffer(selected)
    if flat is None or flat.shape != buffer.shape or flat.dtype is not buffer.dtype:
        return None
    if any(selected[k].shape != v.shape for k, v in a.items()):
        return None
    return flat


def zero_buffer(a: Params) -> Tensor:
    """Return a buffer of zeros for tensors of one dtype."""
    size = sum(aligned(v.nbytes) for v in a.values())
    first = next(iter(a.values()))
    return torch.zeros(size // first.itemsize, dtype=first.dtype, device=first.device)


def in_buffer(buffer: Tensor, like: Params) -> dict[str, Tensor]:
    """Return tensors in a buffer, with the names and shapes of `like`."""
    tensors = {}
    position = buffer.storage_offset()
    for name, tensor in like.items():
        shape = tuple(tensor.shape)
        tensors[name] = buffer.as_strided(shape, contiguous_stride(shape), position)
        position += aligned(tensor.nbytes) // tensor.itemsize
    return tensors


@torch.no_grad()
def flatten_parameters(model: nn.Module) -> None:
    """Move the trainable parameters of a module into one buffer, if their layout allows it."""
    params = params_of(model)
    if len({(p.dtype, p.device) for p in params.values()}) != 1:
        return
    if not all(p.is_contiguous() and p.numel() > 0 for p in params.values()):
        return
    views = in_buffer(zero_buffer(params), params)
    for name, param in params.items():
        views[name].copy_(param)
        param.data = views[name]
