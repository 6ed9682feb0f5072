"""Label skew by shards: the samples are sorted by class and cut into shards of equal size.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017. https://arxiv.org/abs/1602.05629
"""

import numpy as np

from ...errors import InputError
from .base import Partition, PartitionRequest, check_sizes, random_stream


def by_shards(request: PartitionRequest) -> Partition:
    """Give every party s shards at random.

    The order of samples within a class is random, too. Shards differ by at most one sample. A shard
    may contain the end of one class and the beginning of the next.
    """
    check_sizes(request)
    parties = request.parties
    per_party = request.shards_per_party
    total = len(request.labels)
    shards = parties * per_party
    size = per_party * (total // shards)  # of a party whose shards are all small ones
    if size < request.min_samples:
        raise InputError(
            f"{parties} parties with {per_party} shards each need {shards} shards, which would "
            f"have {total // shards} of the {total} samples, so that a party might have {size}: "
            f"reduce shards_per_party or parties, or set min_samples (now {request.min_samples})"
        )
    stream = random_stream(request.seed, "shards")
    order = stream.permutation(total)
    order = order[np.argsort(request.labels[order], kind="stable")]
    pieces = np.array_split(order, shards)
    owned = stream.permutation(shards).reshape(parties, per_party)
    return Partition([np.sort(np.concatenate([pieces[k] for k in row])) for row in owned])
