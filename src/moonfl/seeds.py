"""Randomness: one generator for each (seed, purpose, round, party), so order and engine never matter."""

import contextlib
import random
import zlib
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch

Purpose = Literal["weights", "sampling", "batches", "augmentation", "model", "evaluation", "analysis", "holdout",
                  "validation"]  # fmt: skip


def number(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> int:
    """A 63-bit seed made of the whole combination."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), round, party]).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def rng(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> torch.Generator:
    """The stream of random numbers for one purpose in one round at one party."""
    return torch.Generator().manual_seed(number(seed, purpose, round, party))


@contextlib.contextmanager
def drawn(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> Iterator[None]:
    """The same for what somebody's own code draws in this block from the global generators of torch, numpy and Python;
    on the CPU their streams outside of it go on as if it had not been.
    """
    own, of_numpy, of_python = number(seed, purpose, round, party), np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(own)
        np.random.seed(own % 2**32)
        random.seed(own)
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
