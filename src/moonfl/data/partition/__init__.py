"""Partitions of a dataset among parties. `table.py` lists the kinds by name."""

from .base import Index, Partition, PartitionRequest, split_off
from .column import by_column
from .dirichlet import dirichlet
from .dirichlet_balanced import dirichlet_balanced
from .groups import choose_groups
from .iid import iid
from .labels import by_labels
from .quantity import by_quantity
from .shards import by_shards
from .table import CLASS_PARTITIONS, PARTITIONS, check_kind, partition_samples

__all__ = [
    "CLASS_PARTITIONS",
    "PARTITIONS",
    "Index",
    "Partition",
    "PartitionRequest",
    "by_column",
    "by_labels",
    "by_quantity",
    "by_shards",
    "check_kind",
    "choose_groups",
    "dirichlet",
    "dirichlet_balanced",
    "iid",
    "partition_samples",
    "split_off",
]
