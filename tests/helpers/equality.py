"""Comparison of nested values; valid pairs of methods, and of method and server optimizer."""

import itertools

import torch

from moonfl.algorithms import ALGORITHMS, compose
from moonfl.errors import InputError
from moonfl.server_optimizers import SERVERS
from moonfl.types import Server

PAIRS = [
    (algorithm, server)
    for algorithm, cls in ALGORITHMS.items()
    for server in SERVERS
    if server == "average" or cls.takes_server_optimizer
]


def composes(*names: str) -> bool:
    """Return True if the methods with these names compose with their default settings."""
    try:
        compose(*(ALGORITHMS[name]() for name in names))
    except InputError:
        return False
    return True


COMPOSITIONS = [
    f"{a}+{b}"
    for a, b in itertools.combinations(ALGORITHMS, 2)
    if "fedavg" not in (a, b) and composes(a, b)
]


def same(a: object, b: object) -> bool:
    """Return True if two nested values of dicts, servers and tensors are bit-identical."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, Server):
        return same(vars(a), vars(b))
    return a == b


def is_state(state: object) -> bool:
    """Return True for a dict[str, dict[str, Tensor]] without gradients.

    Memory, files, processes and messages carry states of this type without a change.
    """
    if not isinstance(state, dict):
        return False
    return all(isinstance(label, str) and is_params(params) for label, params in state.items())


def is_params(params: object) -> bool:
    """Return True for a dict[str, Tensor] without gradients."""
    if not isinstance(params, dict):
        return False
    return all(
        isinstance(name, str) and isinstance(value, torch.Tensor) and not value.requires_grad
        for name, value in params.items()
    )
