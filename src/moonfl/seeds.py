"""Randomness: one generator for each (seed, purpose, round, party), so order and engine never matter."""

import zlib
from typing import Literal

import numpy as np
import torch

Purpose = Literal["weights", "sampling", "batches", "augmentation", "model", "analysis", "holdout", "validation"]


def number(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> int:
    """A 63-bit seed made of the whole combination."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), round, party]).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def rng(seed: int, purpose: Purpose, round: int = 0, party: int = 0) -> torch.Generator:
    """The stream of random numbers for one purpose in one round at one party."""
    return torch.Generator().manual_seed(number(seed, purpose, round, party))
