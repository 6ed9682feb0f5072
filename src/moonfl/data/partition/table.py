"""The kinds of partitions by name. A new kind is a file in this folder and an entry here."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...errors import unknown
from .base import Partition, PartitionRequest
from .column import by_column
from .dirichlet import dirichlet
from .dirichlet_balanced import dirichlet_balanced
from .iid import iid
from .labels import by_labels
from .quantity import by_quantity
from .shards import by_shards

PARTITIONS: dict[str, Callable[[PartitionRequest], Partition]] = {
    "dirichlet": dirichlet,
    "dirichlet-balanced": dirichlet_balanced,
    "labels": by_labels,
    "shards": by_shards,
    "quantity": by_quantity,
    "iid": iid,
    "column": by_column,
}
CLASS_PARTITIONS = ("dirichlet", "dirichlet-balanced", "labels", "shards")  # need classes


def check_kind(kind: str) -> None:
    """Raise an InputError with the nearest names if there is no such kind of partition."""
    if kind not in PARTITIONS:
        raise unknown("partition", kind, PARTITIONS)


def partition_samples(kind: str, request: PartitionRequest) -> Partition:
    """Partition the samples of a dataset; `kind` is a key of PARTITIONS.

    Add a note if the data have columns that could be used as natural parties instead.
    """
    check_kind(kind)
    partition = PARTITIONS[kind](request)
    notes = [partition.note, _unused_columns_note(request)]
    return replace(partition, note="; ".join(note for note in notes if note))


def _unused_columns_note(request: PartitionRequest) -> str:
    """Return a note that names up to three columns with at least two samples per value."""
    if request.column is not None:
        return ""
    names = [
        name
        for name, values in request.columns.items()
        if 2 * len(np.unique(values)) <= len(values)
    ]
    if not names:
        return ""
    keys = " or ".join(f"column={name}" for name in names[:3])
    return f"samples are partitioned at random; {keys} would take the parties from the data"
