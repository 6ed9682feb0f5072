"""Params of a module and back, and arithmetic on Params.

Arithmetic returns new tensors, changes nothing, and works on the names of its first argument:
`sub(global_params, trained_model)` leaves the buffers out because the first has none.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from .types import Params


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
    trainable = {id(p) for p in params_of(model).values()}  # one that two layers share has a second name
    return {name: v for name, v in model.state_dict(keep_vars=True).items() if id(v) not in trainable}


def copy(a: Params) -> Params:
    """Fresh contiguous tensors on the CPU, whatever layout and device the module has: what travels and is kept is
    there, and sums over it go in one order everywhere.
    """
    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in a.items()}


def made(build: Callable[[], nn.Module]) -> nn.Module:
    """A module to load params into. What of it is no param is the same in every process, wherever it is made."""
    with torch.random.fork_rng(devices=[]):  # the caller's stream stays as it is
        torch.manual_seed(0)
        return build()


@torch.no_grad()
def load(model: nn.Module, params: Params) -> nn.Module:
    """Write `params` into the model's own tensors; every name must be there."""
    for name, tensor in (params_of(model) | buffers_of(model)).items():
        tensor.copy_(params[name])
    return model


def unsaved_buffers_of(model: nn.Module) -> dict[tuple[str, str], Tensor | None]:
    """Copies of those that are no part of the model, which its author keeps out of its state_dict; by their module's
    name and their own.
    """
    return {
        (owner, name): None if buffer is None else buffer.clone()
        for owner, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if name in module._non_persistent_buffers_set
    }


def restore_unsaved(model: nn.Module, buffers: Mapping[tuple[str, str], Tensor | None]) -> None:
    """Whatever a forward pass has made of them since: others, of other shapes, or none."""
    for owner, name in unsaved_buffers_of(model):
        delattr(model.get_submodule(owner), name)
    for (owner, name), buffer in buffers.items():
        own = None if buffer is None else buffer.clone()
        model.get_submodule(owner).register_buffer(name, own, persistent=False)


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

    Dtypes are those of the first; integers (BatchNorm's count of batches) are rounded.
    """
    items = iter(trees)
    first, weight = next(items)
    total = {k: v.double() * weight for k, v in first.items()}
    for tree, w in items:
        total = {k: v + tree[k].double() * w for k, v in total.items()}
        weight += w
    return {k: as_dtype(v / weight, first[k].dtype) for k, v in total.items()}


def as_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers are rounded."""
    return (value if dtype.is_floating_point else value.round()).to(dtype)


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
