"""Natural partition: one party per value of a column of the data (site, person, device)."""

import numpy as np

from ...errors import InputError, unknown
from .base import Partition, PartitionRequest


def by_column(request: PartitionRequest) -> Partition:
    """Make one party for each value of the column, in ascending order of the values.

    `parties` must be the number of values, or 0 for any number.
    """
    column = request.column
    if column is None:
        raise InputError(
            "partition=column needs column=NAME, the column whose values are the parties"
        )
    if column not in request.columns:
        columns = request.columns or ["none: these data have no columns"]
        raise unknown(f"column of {request.dataset}", column, columns)
    values = request.columns[column]
    names, party, counts = np.unique(values, return_inverse=True, return_counts=True)
    if request.parties not in (0, len(names)):
        raise InputError(
            f"column '{column}' has {len(names)} values, but parties={request.parties} is set; "
            f"set parties={len(names)} or omit it"
        )
    parts = np.split(np.argsort(party, kind="stable"), np.cumsum(counts)[:-1])
    return Partition(parts, names=tuple(str(name) for name in names))
