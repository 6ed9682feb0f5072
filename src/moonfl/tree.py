"""Params of a module and back, and arithmetic on Params.

Arithmetic returns new tensors, changes nothing, and works on the names of its first argument:
`sub(global_params, trained_model)` leaves the buffers out because the first has none.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import seeds
from .types import Params

PLAIN = (bool, int, float, complex, str, type(None))
TORCHS = vars(nn.Module()).keys()  # attributes that every module has


class Lazy(Mapping[str, Tensor]):
    """Params of which each tensor is computed when it is asked for, and not kept: many fit where one does."""

    def __init__(self, names: Iterable[str], of: Callable[[str], Tensor]) -> None:
        self.names, self.of = dict.fromkeys(names), of

    def __getitem__(self, name: str) -> Tensor:
        return self.of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def params_of(model: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters themselves, not copies: a loss may be written in them."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Everything else a model is made of (BatchNorm statistics, parameters its author froze)."""
    trainable = {
        id(p) for p in params_of(model).values()
    }  # one that two layers share has a second name
    return {
        name: v for name, v in model.state_dict(keep_vars=True).items() if id(v) not in trainable
    }


def shared(model: nn.Module, another: nn.Module) -> str | None:
    """The name of what training the first would change of the second: a parameter, or a module with buffers."""
    memory = {p.untyped_storage().data_ptr() for p in params_of(another).values() if p.numel() > 0}
    modules = {id(module) for module in another.modules() if module._buffers}
    params = (
        name for name, p in params_of(model).items() if p.untyped_storage().data_ptr() in memory
    )
    return next(
        params,
        next((name for name, module in model.named_modules() if id(module) in modules), None),
    )


def copy(a: Params) -> Params:
    """Fresh contiguous tensors on the CPU, whatever layout and device the module has: what travels and is kept is
    there, and sums over it go in one order everywhere.
    """
    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in a.items()}


def build_module(build: Callable[[], nn.Module]) -> nn.Module:
    """A module to load params into. What of it is no param is the same in every process, wherever it is made."""
    with seeds.seeded(0, "weights"):
        return build()


@torch.no_grad()
def load(model: nn.Module, params: Params) -> nn.Module:
    """Write `params` into the model's own tensors; every name must be there."""
    for name, tensor in (params_of(model) | buffers_of(model)).items():
        tensor.copy_(params[name])
    return model


class Unsaved(NamedTuple):
    """What a model keeps beside its state_dict, by the name of its module and its own; tensors that are no buffers and
    containers are not looked into.
    """

    buffers: Mapping[tuple[str, str], Tensor | None]  # those that their author keeps out
    plain: Mapping[tuple[str, str], object]  # numbers, flags and texts


def hidden_state_of(model: nn.Module) -> Unsaved:
    """Copies."""
    buffers: dict[tuple[str, str], Tensor | None] = {}
    plain: dict[tuple[str, str], object] = {}
    for owner, module in model.named_modules():
        for name in module._non_persistent_buffers_set & module._buffers.keys():
            buffer = module._buffers[name]
            buffers[owner, name] = None if buffer is None else buffer.clone()
        plain |= {(owner, name): vars(module)[name] for name in plain_names(module)}
    return Unsaved(buffers, plain)


def plain_names(module: nn.Module) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if name not in TORCHS and isinstance(value, PLAIN)
    ]


def restore_hidden_state(model: nn.Module, unsaved: Unsaved) -> None:
    """Whatever a forward pass has made of it since: other buffers, of other shapes, or none; a count of its calls."""
    modules = dict(model.named_modules())
    for owner, module in modules.items():
        for name in (name for name in plain_names(module) if (owner, name) not in unsaved.plain):
            delattr(module, name)
        for name in module._non_persistent_buffers_set & module._buffers.keys():
            delattr(module, name)
    for (owner, name), buffer in unsaved.buffers.items():
        modules[owner].register_buffer(
            name, None if buffer is None else buffer.clone(), persistent=False
        )
    for (owner, name), value in unsaved.plain.items():
        if vars(modules[owner]).get(name) is not value:
            setattr(modules[owner], name, value)


def to(a: Params, device: torch.device) -> Params:
    return {k: v.to(device) for k, v in a.items()}


def zeros_like(a: Params) -> Params:
    return {k: torch.zeros_like(v) for k, v in a.items()}


def add(a: Params, b: Params, scale: float = 1.0) -> Params:
    """a + scale * b"""
    return {k: v + scale * b[k] for k, v in a.items()}


def sub(a: Params, b: Params) -> Params:
    """a - b"""
    return {k: v - b[k] for k, v in a.items()}


def mul(a: Params, scale: float) -> Params:
    """scale * a"""
    return {k: v * scale for k, v in a.items()}


def mean(trees: Iterable[tuple[Params, float]]) -> Params:
    """The weighted mean of (Params, weight) pairs, summed in float64 in the order given.

    Dtypes are those of the first; integers (BatchNorm's count of batches) are rounded, and where all have the same they
    keep it, however large.
    """
    items = iter(trees)
    first, weight = next(items)
    total = {k: wide(v) * weight for k, v in first.items()}
    differ = {k: False for k, v in first.items() if is_integer(v.dtype)}
    for tree, w in items:
        total = {k: v + wide(tree[k]) * w for k, v in total.items()}
        differ = {k: before or not tree[k].equal(first[k]) for k, before in differ.items()}
        weight += w
    return {
        k: as_dtype(v / weight, first[k].dtype) if differ.get(k, True) else first[k].clone()
        for k, v in total.items()
    }


def wide(value: Tensor) -> Tensor:
    """What sums are taken in."""
    return value.to(torch.complex128) if value.is_complex() else value.double()


def is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def as_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers are rounded."""
    return (value.round() if is_integer(dtype) else value).to(dtype)


def flat(a: Params, names: Iterable[str]) -> Tensor:
    """One vector of these tensors: what a loss does with it costs a few operations, not a few for every tensor."""
    return torch.cat([a[name].flatten() for name in names])


def dot(a: Params, b: Params) -> Tensor:
    """<a, b>"""
    return (flat(a, a) * flat(b, a)).sum()


def sq_dist(a: Params, b: Params) -> Tensor:
    """||a - b||^2"""
    return (flat(a, a) - flat(b, a)).square().sum()


def norm(a: Params) -> float:
    """The Euclidean norm of all of it, summed in float64."""
    return math.sqrt(sum(float(v.double().square().sum()) for v in a.values()))


def num_bytes(a: Params) -> int:
    return sum(v.numel() * v.element_size() for v in a.values())
