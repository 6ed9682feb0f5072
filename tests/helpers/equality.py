"""Bit-identity of nested values, and the pairs of method and server optimizer that can be combined."""

import torch

from moonfl.algorithms import ALGORITHMS
from moonfl.server_optimizers import SERVERS
from moonfl.types import Server

PAIRS = [
    (a, s)
    for a in ALGORITHMS
    for s in SERVERS
    if s == "average" or ALGORITHMS[a].takes_server_optimizer
]


def same(a: object, b: object) -> bool:
    """Equal to the bit, in whatever nesting of dicts and dataclasses."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, Server):
        return same(vars(a), vars(b))
    return a == b


def is_state(state: object) -> bool:
    """dict[str, dict[str, Tensor]], so that memory, a file, a process and a message carry the same thing."""
    return isinstance(state, dict) and all(
        isinstance(label, str)
        and isinstance(params, dict)
        and all(
            isinstance(k, str) and isinstance(v, torch.Tensor) and not v.requires_grad
            for k, v in params.items()
        )
        for label, params in state.items()
    )
