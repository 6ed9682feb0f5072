"""Quantity skew: the parties have IID labels, but very different numbers of samples.

Li, Diao, Chen, He, Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022.
https://arxiv.org/abs/2102.02079
"""

import numpy as np

from .base import (
    MAX_DRAWS,
    Partition,
    PartitionRequest,
    check_sizes,
    draw_shares,
    fill_up,
    random_stream,
)


def by_quantity(request: PartitionRequest) -> Partition:
    """Draw the parties' shares of all samples from Dir_N(beta) and split the shuffled samples.

    The shares are drawn again until the smallest party has `min_samples`; after MAX_DRAWS draws
    small parties are filled up from the largest.
    """
    check_sizes(request)
    total = len(request.labels)
    stream = random_stream(request.seed, "quantity")
    order = stream.permutation(total)
    for _ in range(MAX_DRAWS):
        shares = draw_shares(stream, request.parties, request.beta)
        cuts = np.minimum(np.cumsum(shares) * total, total).astype(int)[:-1]
        parts = np.split(order, cuts)
        if min(len(part) for part in parts) >= request.min_samples:
            return Partition([np.sort(part) for part in parts])
    return fill_up(parts, request.min_samples)
