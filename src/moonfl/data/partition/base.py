"""The request for a partition, its result, and the split into training and held-out samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

Index = NDArray[np.int64]


@dataclass(frozen=True)
class PartitionRequest:
    """The training samples to partition and the settings that a kind of partition may use."""

    labels: Index  # the class of every sample
    parties: int  # the number of parties; 0: as many as the data have (by column only)
    columns: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)  # name -> values
    beta: float = 0.5  # concentration of a Dirichlet distribution
    seed: int = 0
    min_samples: int = 10  # the smallest party that a Dirichlet partition may have
    column: str | None = None  # the column whose values are the parties
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


def split_off(part: Index, share: float, stream: torch.Generator) -> tuple[Index, Index]:
    """Split a party's samples at random into training samples (at least one) and held-out samples.

    Both are returned in ascending order.
    """
    order = torch.randperm(len(part), generator=stream).numpy()
    cut = min(round(share * len(order)), len(order) - 1)
    return part[np.sort(order[cut:])], part[np.sort(order[:cut])]
