"""The request for a partition, its result, and the split into training and held-out samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ... import seeds
from ...errors import InputError
from ..descriptions import CLASSES_PER_PARTY, SHARDS_PER_PARTY

Index = NDArray[np.int64]
MAX_DRAWS = 100  # draws of a partition before parties that are too small are filled up


@dataclass(frozen=True)
class PartitionRequest:
    """The training samples to partition and the settings that a kind of partition may use."""

    labels: Index  # the class of every sample
    parties: int  # the number of parties; 0: as many as the data have (by column only)
    columns: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)  # name -> values
    beta: float = 0.5  # concentration of a Dirichlet distribution
    seed: int = 0
    min_samples: int = 10  # the smallest party that a random partition may have
    column: str | None = None  # the column whose values are the parties
    classes_per_party: int = CLASSES_PER_PARTY
    shards_per_party: int = SHARDS_PER_PARTY
    dataset: str = "the dataset"  # its name, for error messages


@dataclass(frozen=True)
class Partition:
    """The samples of every party."""

    parts: list[Index]  # parts[i]: the samples of party i, ascending
    note: str = ""  # information for the user about this partition
    names: tuple[str, ...] = ()  # names of the parties, if they have any

    def sizes(self) -> Index:
        """Return the number of samples of each party."""
        return np.array([len(part) for part in self.parts])

    def counts(self, labels: Index, classes: int) -> Index:
        """Count the samples of each class at each party, [parties, classes]."""
        return np.stack([np.bincount(labels[part], minlength=classes) for part in self.parts])


def random_stream(seed: int, purpose: seeds.Purpose) -> np.random.RandomState:
    """Return the random numbers of one kind of partition.

    RandomState draws the same numbers in every version of numpy.
    """
    return np.random.RandomState(seeds.derive(seed, purpose) % 2**32)


def draw_shares(stream: np.random.RandomState, number: int, beta: float) -> NDArray[np.float64]:
    """Draw shares from a symmetric Dirichlet distribution.

    With a tiny beta the draw may underflow to NaN; then one of them is 1, as in the limit.
    """
    shares = stream.dirichlet(np.full(number, beta))
    if np.isfinite(shares).all():
        return shares
    shares = np.zeros(number)
    shares[stream.randint(number)] = 1.0
    return shares


def check_sizes(request: PartitionRequest) -> None:
    """Raise an InputError if there are too few samples for parties of `min_samples` each."""
    total = len(request.labels)
    parties = request.parties
    min_samples = request.min_samples
    if total >= parties * min_samples:
        return
    remedy = f"set parties to {total // min_samples} or less"
    if total >= parties:
        remedy += f", or min_samples to {total // parties} or less"
    raise InputError(
        f"{parties} parties of at least {min_samples} samples need {parties * min_samples}, "
        f"the data have {total}: {remedy}"
    )


def fill_up(parts: list[Index], min_samples: int) -> Partition:
    """Fill up parties that are too small with samples from the party that is then the largest."""
    parts = list(parts)
    sizes = np.array([len(part) for part in parts])
    small = np.flatnonzero(sizes < min_samples)
    for j in small:
        while sizes[j] < min_samples:
            donor = int(sizes.argmax())
            parts[j] = np.append(parts[j], parts[donor][-1])
            parts[donor] = parts[donor][:-1]
            sizes[donor] -= 1
            sizes[j] += 1
    note = (
        f"{len(small)} of {len(parts)} parties had under {min_samples} samples after {MAX_DRAWS} "
        "draws and were filled up"
    )
    return Partition([np.sort(part) for part in parts], note)


def split_off(part: Index, share: float, stream: torch.Generator) -> tuple[Index, Index]:
    """Split a party's samples at random into training samples (at least one) and held-out samples.

    Both are returned in ascending order.
    """
    order = torch.randperm(len(part), generator=stream).numpy()
    cut = min(round(share * len(order)), len(order) - 1)
    return part[np.sort(order[cut:])], part[np.sort(order[:cut])]
