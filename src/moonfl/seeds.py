"""Randomness: one generator for each (seed, purpose, round, party), so order and engine never matter."""

import contextlib
import os
import random
import threading
import zlib
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch

Purpose = Literal[
    "weights",
    "sampling",
    "batches",
    "augmentation",
    "model",
    "evaluation",
    "analysis",
    "holdout",
    "validation",
]


_turn = (
    threading.RLock()
)  # what is set for the whole process is set by one of its threads at a time


def _new_turn() -> None:
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_new_turn)  # the thread that had it is not in the child


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Until the end of this block no other thread's run draws numbers or sets torch's threads."""
    with _turn:
        yield


def derive(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> int:
    """A seed made of the whole combination; torch's generator on the CPU takes the lower 32 bits of it."""
    words = np.random.SeedSequence(
        [seed, zlib.crc32(purpose.encode()), round, party]
    ).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def rng(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> torch.Generator:
    """The stream of random numbers for one purpose in one round at one party."""
    return torch.Generator().manual_seed(derive(seed, purpose, round, party))


@contextlib.contextmanager
def seeded(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> Iterator[None]:
    """The same for what somebody's own code draws in this block from the global generators of torch, numpy and Python;
    on the CPU their streams outside of it go on as if it had not been.
    """
    with exclusive(), torch.random.fork_rng(devices=[]):
        own, of_numpy, of_python = (
            derive(seed, purpose, round, party),
            np.random.get_state(),
            random.getstate(),
        )
        torch.manual_seed(own)
        np.random.seed(own % 2**32)
        random.seed(own)
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """The number of torch threads changes the order of sums, so everywhere it is one."""
    with exclusive():
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
