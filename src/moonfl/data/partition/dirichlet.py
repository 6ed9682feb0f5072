"""Non-IID partition: the parties' shares of each class are drawn from a Dirichlet distribution."""

import numpy as np

from .base import MAX_DRAWS, Index, Partition, PartitionRequest, check_sizes, fill_up


def dirichlet(request: PartitionRequest) -> Partition:
    """Draw p ~ Dir_N(beta) for each class and give party j the share p_j of its samples (Sec. 4.1).

    The draws follow the order of the authors' code, so seed 0 gives the standard deviations of
    party sizes that the paper reports. For each class: shuffle its samples, draw p, set p_j = 0 for
    parties that already have their fair share, and split. Everything is drawn again until the
    smallest party has `min_samples`.
    """
    check_sizes(request)
    parties = request.parties
    min_samples = request.min_samples
    stream = np.random.RandomState(request.seed)
    for _ in range(MAX_DRAWS):
        parts = _draw(stream, request.labels, parties, request.beta)
        if min(len(part) for part in parts) >= min_samples:
            return Partition([np.sort(part) for part in parts])
    return fill_up(parts, min_samples)


def _draw(stream: np.random.RandomState, labels: Index, parties: int, beta: float) -> list[Index]:
    """Draw one partition; some of its parties may be too small."""
    pieces: list[list[Index]] = [[] for _ in range(parties)]
    sizes = np.zeros(parties, dtype=np.int64)
    for k in np.unique(labels):
        samples = np.flatnonzero(labels == k)
        stream.shuffle(samples)
        below_fair_share = sizes < len(labels) / parties
        drawn = stream.dirichlet(np.full(parties, beta))
        shares = np.where(below_fair_share & np.isfinite(drawn), drawn, 0.0)
        if shares.sum() == 0:
            # With a tiny beta all the mass may fall on parties that have their fair share, or the
            # draw may underflow to NaN: one of the other parties gets the whole class.
            shares[stream.choice(np.flatnonzero(below_fair_share))] = 1.0
        cuts = (np.cumsum(shares / shares.sum()) * len(samples)).astype(int)[:-1]
        for j, piece in enumerate(np.split(samples, cuts)):
            pieces[j].append(piece)
            sizes[j] += len(piece)
    return [np.concatenate(party_pieces) for party_pieces in pieces]
