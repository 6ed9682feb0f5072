"""Label skew with parties of equal size: each party's label proportions are Dirichlet.

Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019. https://arxiv.org/abs/1909.06335
"""

import numpy as np
from numpy.typing import NDArray

from .base import Index, Partition, PartitionRequest, check_sizes, draw_shares, random_stream


def dirichlet_balanced(request: PartitionRequest) -> Partition:
    """Draw q ~ Dir_K(beta) for each party, and give it its equal share of samples with labels ~ q.

    Every sample is used, so the parties compete for classes. All parties draw the labels of all
    their samples. Of a class that is drawn more often than it has samples, the requests that are
    granted are selected at random. The others are drawn again from the classes that are left. Each
    repetition exhausts a class, so there are at most as many repetitions as classes.
    """
    check_sizes(request)
    classes, labels, available = np.unique(request.labels, return_inverse=True, return_counts=True)
    stream = random_stream(request.seed, "dirichlet-balanced")
    draws = [draw_shares(stream, len(classes), request.beta) for _ in range(request.parties)]
    sizes = np.full(request.parties, len(labels) // request.parties)
    sizes[: len(labels) % request.parties] += 1
    counts = _allocate(stream, np.stack(draws), sizes, available)
    pieces: list[list[Index]] = [[] for _ in range(request.parties)]
    for k in range(len(classes)):
        samples = np.flatnonzero(labels == k)
        stream.shuffle(samples)
        cuts = np.cumsum(counts[:, k])[:-1]
        for party, piece in enumerate(np.split(samples, cuts)):
            pieces[party].append(piece)
    return Partition([np.sort(np.concatenate(party_pieces)) for party_pieces in pieces])


def _allocate(
    stream: np.random.RandomState,
    proportions: NDArray[np.float64],
    sizes: Index,
    available: Index,
) -> Index:
    """Return the number of samples of each class at each party, [parties, classes].

    `sizes` are the sums of its rows, and `available` those of its columns.
    """
    counts = np.zeros(proportions.shape, dtype=np.int64)
    while True:
        open_slots = sizes - counts.sum(axis=1)
        if not open_slots.any():
            return counts
        remaining = available - counts.sum(axis=0)
        left = np.flatnonzero(remaining)
        for party in np.flatnonzero(open_slots):
            shares = _normalise(proportions[party, left], remaining[left])
            counts[party, left] += stream.multinomial(open_slots[party], shares)
        for k in np.flatnonzero(counts.sum(axis=0) > available):
            _withdraw(stream, counts[:, k], int(counts[:, k].sum() - available[k]))


def _normalise(shares: NDArray[np.float64], remaining: Index) -> NDArray[np.float64]:
    """Scale a party's proportions of the classes that are left to a sum of 1.

    A party without a share of any of them takes them in proportion to what is left.
    """
    weights = shares if shares.sum() > 0 else remaining.astype(np.float64)
    normalised: NDArray[np.float64] = weights / weights.sum()
    return normalised


def _withdraw(stream: np.random.RandomState, counts: Index, excess: int) -> None:
    """Take `excess` samples of a class away from random parties, in place."""
    owners = np.repeat(np.arange(len(counts)), counts)
    selected = stream.choice(owners, excess, replace=False)
    counts -= np.bincount(selected, minlength=len(counts))
