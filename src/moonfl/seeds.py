"""Random number streams: one generator for each (seed, purpose, round, party).

Because no two uses share a stream, results do not depend on the order in which parties are trained
or on the engine that trains them. `seeded` does the same for code that draws from the global
generators. `one_thread` fixes the order of floating-point sums.
"""

import contextlib
import functools
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
    "labels",
    "shards",
    "quantity",
    "dirichlet-balanced",
    "shift",
    "test",
]


_lock = threading.RLock()  # held while process-wide generators or thread counts are changed


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # a thread that held it does not exist in the child


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Keep other threads from using the global generators or changing torch's thread count."""
    with _lock:
        yield


def branch(seed: int, name: str) -> int:
    """Return a seed whose streams are independent of those of `seed`; with no name, `seed`."""
    if not name:
        return seed
    entropy = [seed, zlib.crc32(name.encode())]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])


def derive(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> int:
    """Return the seed of one stream; torch's CPU generator uses its lower 32 bits."""
    entropy = [seed, zlib.crc32(purpose.encode()), round, party]
    words = np.random.SeedSequence(entropy).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def rng(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> torch.Generator:
    """Return the random number generator for one purpose in one round at one party."""
    return torch.Generator().manual_seed(derive(seed, purpose, round, party))


@contextlib.contextmanager
def seeded(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python inside this block.

    They are restored afterwards (on the CPU), as if nothing had been drawn in between.
    """
    with restored():
        seed_generators(seed, purpose, round, party)
        yield


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the global generators of torch (on the CPU), numpy and Python after this block."""
    with exclusive():
        torch_state = torch.default_generator.get_state()
        numpy_state = np.random.get_state()
        python_state = random.getstate()
        try:
            yield
        finally:
            torch.default_generator.set_state(torch_state)
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def seed_generators(seed: int, purpose: Purpose, round: int, party: int) -> None:
    """Seed the global generators of torch, numpy and Python for one stream.

    This takes a fraction of the time of `seeded`. It is for processes of our own, and inside of
    `restored`.
    """
    stream_seed = derive(seed, purpose, round, party)
    _seed_torch(stream_seed)
    np.random.seed(stream_seed % 2**32)
    random.seed(stream_seed)


def _seed_torch(seed: int) -> None:
    """Do the same as torch.manual_seed, faster on a machine without an accelerator.

    There torch.manual_seed formats a stack trace for a later error message, which takes longer
    than all other seeding.
    """
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@functools.cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch with one thread, because the number of threads changes the order of sums."""
    with exclusive():
        previous = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(previous)
