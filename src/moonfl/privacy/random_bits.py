"""Random numbers that cannot be guessed from others: the output of SHAKE-256 for a key.

torch's generators have a seed of 32 bits and can be reconstructed from their output. Noise from
them could be removed. Whoever knows the key can compute the numbers again.
"""

import hashlib
import math
import secrets

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WORD = 8  # bytes per number
FRACTION = 53  # bits of a float64


def new_key() -> bytes:
    """Return a key that nobody knows, from the operating system."""
    return secrets.token_bytes(32)


def seed_key(seed: int, t: int) -> bytes:
    """Return the key of a round that follows from the seed of a run."""
    return f"seed {seed} round {t}".encode()


def uniform(key: bytes, purpose: str, number: int) -> NDArray[np.float64]:
    """Return numbers that are uniformly distributed in [0, 1)."""
    stream = hashlib.shake_256(len(key).to_bytes(WORD, "little") + key + purpose.encode())
    words = np.frombuffer(stream.digest(WORD * number), dtype="<u8")
    numbers: NDArray[np.float64] = (words >> np.uint64(64 - FRACTION)).astype(np.float64)
    return numbers * 2.0**-FRACTION


def normal(key: bytes, purpose: str, shape: torch.Size) -> Tensor:
    """Return float64 numbers with the standard normal distribution, by Box and Muller."""
    number = math.prod(shape)
    pairs = (number + 1) // 2
    values = uniform(key, purpose, 2 * pairs)
    radius = np.sqrt(-2 * np.log1p(-values[:pairs]))  # 1 - u is in (0, 1]
    angle = 2 * math.pi * values[pairs:]
    numbers = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return torch.from_numpy(numbers[:number].copy()).reshape(shape)
