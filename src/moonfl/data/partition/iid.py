"""IID partition: the samples are shuffled and split evenly."""

import numpy as np

from ...errors import InputError
from .base import Partition, PartitionRequest


def iid(request: PartitionRequest) -> Partition:
    """Shuffle the samples and split them into parties of equal size (up to one sample)."""
    total = len(request.labels)
    parties = request.parties
    if total < parties:
        raise InputError(
            f"{parties} parties need at least {parties} samples, the data have {total}: "
            f"set parties to {total} or less"
        )
    order = np.random.RandomState(request.seed).permutation(total)
    return Partition([np.sort(part) for part in np.array_split(order, parties)])
