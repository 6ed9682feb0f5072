"""How non-IID a partition is, in three numbers. Does not import torch."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Skew(NamedTuple):
    """Measures of label skew and quantity skew. An IID partition has 0, all classes, and 0."""

    distance: float  # mean total variation distance of the parties' labels to all labels, 0 to 1
    effective_classes: float  # mean over parties of exp(entropy of the labels), from 1
    imbalance: float  # standard deviation of the party sizes, divided by their mean, from 0

    def __str__(self) -> str:
        return (
            f"total variation distance {self.distance:.2f}, "
            f"{self.effective_classes:.1f} effective classes per party, "
            f"size imbalance {self.imbalance:.2f}"
        )


def measure_skew(counts: NDArray[np.int64]) -> Skew:
    """Measure a partition by its samples of each class at each party, [parties, classes].

    Every party counts equally, however large it is. Parties without samples have no labels and
    count for the imbalance only.
    """
    sizes = counts.sum(axis=1)
    if not sizes.any():
        return Skew(0.0, 0.0, 0.0)
    shares = counts[sizes > 0] / sizes[sizes > 0, None]
    overall = counts.sum(axis=0) / sizes.sum()
    distance = np.abs(shares - overall).sum(axis=1).mean() / 2
    logarithms = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    entropy = -(shares * logarithms).sum(axis=1)
    return Skew(
        distance=float(distance),
        effective_classes=float(np.exp(entropy).mean()),
        imbalance=float(sizes.std() / sizes.mean()),
    )
