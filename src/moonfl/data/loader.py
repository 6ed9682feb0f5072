"""The shuffled batches of a party."""

from collections.abc import Iterator

import torch

from ..types import Batch
from .augment import Preparation
from .base import Examples


def batches(
    data: Examples,
    preparation: Preparation,
    size: int,
    order: torch.Generator,
    augmentation: torch.Generator | None,
) -> Iterator[Batch]:
    """Yield the batches of one epoch in random order, augmented unless `augmentation` is None.

    The last incomplete batch is dropped. A party smaller than one batch yields a single smaller
    batch.
    """
    total = len(data.y)
    size = min(size, total)
    shuffled = torch.randperm(total, generator=order)
    for start in range(0, total - size + 1, size):
        rows = shuffled[start : start + size].to(data.y.device)
        yield Batch(preparation.batch(data.x, rows, augmentation), data.y[rows], rows)
