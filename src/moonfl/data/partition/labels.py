"""Label skew: every party has samples of k classes only (#C=k).

Li, Diao, Chen, He, Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022.
https://arxiv.org/abs/2102.02079
"""

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .base import Index, Partition, PartitionRequest, check_sizes, random_stream


def by_labels(request: PartitionRequest) -> Partition:
    """Give every party exactly k classes, and split each class evenly among its parties.

    The parties choose one after another, in random order: each takes the k classes that the fewest
    parties have so far, ties at random. So every class is used, and the numbers of parties of any
    two classes differ by at most one.
    """
    classes, labels, sizes = np.unique(request.labels, return_inverse=True, return_counts=True)
    check_sizes(request)
    _check_request(request, sizes)
    stream = random_stream(request.seed, "labels")
    has_class = _assign(stream, request.parties, len(classes), request.classes_per_party)
    pieces: list[list[Index]] = [[] for _ in range(request.parties)]
    for k in range(len(classes)):
        samples = np.flatnonzero(labels == k)
        stream.shuffle(samples)
        owners = stream.permutation(np.flatnonzero(has_class[:, k]))
        for party, piece in zip(owners, np.array_split(samples, len(owners)), strict=True):
            pieces[party].append(piece)
    parts = [np.sort(np.concatenate(party_pieces)) for party_pieces in pieces]
    _check_smallest(min(len(part) for part in parts), request)
    return Partition(parts)


def _assign(
    stream: np.random.RandomState, parties: int, classes: int, per_party: int
) -> NDArray[np.bool_]:
    """Return which party has which class, [parties, classes]."""
    has_class = np.zeros((parties, classes), dtype=bool)
    for party in stream.permutation(parties):
        order = np.lexsort((stream.permutation(classes), has_class.sum(axis=0)))
        has_class[party, order[:per_party]] = True
    return has_class


def _check_request(request: PartitionRequest, sizes: Index) -> None:
    """Raise an InputError if the parties cannot have k classes each, or not all classes."""
    parties = request.parties
    per_party = request.classes_per_party
    classes = len(sizes)
    if per_party > classes:
        raise InputError(
            f"classes_per_party={per_party}, but the training samples have {classes} classes: "
            f"set classes_per_party to {classes} or less"
        )
    if parties * per_party < classes:
        raise InputError(
            f"{parties} parties with {per_party} classes each can hold {parties * per_party} of "
            f"the {classes} classes: set classes_per_party to {-(-classes // parties)} or more, "
            f"or parties to {-(-classes // per_party)} or more"
        )
    sharing = -(-parties * per_party // classes)  # the largest number of parties of a class
    if sizes.min() < sharing:
        raise InputError(
            f"with {parties} parties and classes_per_party={per_party} up to {sharing} parties "
            f"share a class, but the smallest class has {sizes.min()} samples: "
            "reduce parties or classes_per_party"
        )


def _check_smallest(smallest: int, request: PartitionRequest) -> None:
    """Raise an InputError if a party has fewer than `min_samples` samples."""
    if smallest < request.min_samples:
        raise InputError(
            f"the smallest party would have {smallest} samples, and min_samples is "
            f"{request.min_samples}: set min_samples to {smallest} or less, or reduce parties"
        )
