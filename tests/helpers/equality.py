"""Comparison of nested values, and the valid pairs of algorithm and server optimizer."""

import torch

from moonfl.algorithms import ALGORITHMS
from moonfl.server_optimizers import SERVERS
from moonfl.types import Server

PAIRS = [
    (algorithm, server)
    for algorithm, cls in ALGORITHMS.items()
    for server in SERVERS
    if server == "average" or cls.takes_server_optimizer
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
