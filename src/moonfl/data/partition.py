"""Who has which samples: Dirichlet over classes, IID, or by a column of the data."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InputError

Index = NDArray[np.int64]
MAX_DRAWS = 100  # draws of a Dirichlet partition before small parties are filled up


@dataclass(frozen=True)
class Partition:
    parts: list[Index]  # parts[i]: the samples of party i, ascending
    note: str = ""  # what the user should know about how it was made
    names: tuple[str, ...] = ()  # of the parties, where they have any

    def sizes(self) -> Index:
        return np.array([len(part) for part in self.parts])

    def counts(self, labels: Index, classes: int) -> Index:
        """Samples of each class at each party, [parties, classes]."""
        return np.stack([np.bincount(labels[part], minlength=classes) for part in self.parts])


def dirichlet(
    labels: Index, parties: int, beta: float, seed: int = 0, min_samples: int = 10
) -> Partition:
    """For each class k draw p ~ Dir_N(beta) and give party j the share p_j of its samples (Sec. 4.1).

    Follows the order of the authors' draws (per class: shuffle, Dirichlet, leave out parties that already have
    their fair share, split; all again until the smallest party has `min_samples`), so seed 0 gives the deviations of
    party sizes that the paper prints.
    """
    total = len(labels)
    if total < parties * min_samples:
        lower = f", or min_samples to {total // parties} or less" if total >= parties else ""
        raise InputError(
            f"{parties} parties of at least {min_samples} samples need {parties * min_samples}, the data have {total}: "
            f"set parties to {total // min_samples} or less{lower}"
        )
    stream = np.random.RandomState(seed)
    for _ in range(MAX_DRAWS):
        parts = _draw(stream, labels, parties, beta)
        if min(len(part) for part in parts) >= min_samples:
            return Partition([np.sort(part) for part in parts])
    small = sum(len(part) < min_samples for part in parts)
    note = f"{small} of {parties} parties had under {min_samples} samples after {MAX_DRAWS} draws and were filled up"
    return Partition([np.sort(part) for part in _fill(parts, min_samples)], note)


def _draw(stream: np.random.RandomState, labels: Index, parties: int, beta: float) -> list[Index]:
    held: list[list[Index]] = [[] for _ in range(parties)]
    sizes = np.zeros(parties, dtype=np.int64)
    for k in np.unique(labels):
        samples = np.flatnonzero(labels == k)
        stream.shuffle(samples)
        open_ = sizes < len(labels) / parties
        drawn = stream.dirichlet(np.full(parties, beta))
        shares = np.where(open_ & np.isfinite(drawn), drawn, 0.0)
        if (
            shares.sum() == 0
        ):  # a tiny beta: all the mass fell on closed parties, or the draw underflowed to NaN
            shares[stream.choice(np.flatnonzero(open_))] = 1.0
        cuts = (np.cumsum(shares / shares.sum()) * len(samples)).astype(int)[:-1]
        for j, piece in enumerate(np.split(samples, cuts)):
            held[j].append(piece)
            sizes[j] += len(piece)
    return [np.concatenate(pieces) for pieces in held]


def _fill(parts: list[Index], min_samples: int) -> list[Index]:
    """Each party that is too small takes what it lacks, a sample at a time, from the party that is then largest."""
    parts = list(parts)
    sizes = np.array([len(part) for part in parts])
    for j in np.flatnonzero(sizes < min_samples):
        while sizes[j] < min_samples:
            donor = int(sizes.argmax())
            parts[j] = np.append(parts[j], parts[donor][-1])
            parts[donor] = parts[donor][:-1]
            sizes[donor] -= 1
            sizes[j] += 1
    return parts


def iid(total: int, parties: int, seed: int = 0) -> Partition:
    """Shuffled and dealt out equally."""
    if total < parties:
        raise InputError(
            f"{parties} parties need at least {parties} samples, the data have {total}: set parties lower"
        )
    order = np.random.RandomState(seed).permutation(total)
    return Partition([np.sort(part) for part in np.array_split(order, parties)])


def by_column(values: NDArray[np.generic], parties: int, column: str) -> Partition:
    """A party for each value of a column (site, person, device), by value; 0 `parties`: any number."""
    names, party, counts = np.unique(values, return_inverse=True, return_counts=True)
    if parties not in (0, len(names)):
        raise InputError(
            f"column '{column}' has {len(names)} values, so there are parties={len(names)}, not {parties}"
        )
    parts = np.split(np.argsort(party, kind="stable"), np.cumsum(counts)[:-1])
    return Partition(parts, names=tuple(str(name) for name in names))


def split_off(part: Index, share: float, stream: torch.Generator) -> tuple[Index, Index]:
    """What is left to train on, at least one sample, and what is held out; both ascending."""
    order = torch.randperm(len(part), generator=stream).numpy()
    cut = min(round(share * len(order)), len(order) - 1)
    return part[np.sort(order[cut:])], part[np.sort(order[:cut])]
