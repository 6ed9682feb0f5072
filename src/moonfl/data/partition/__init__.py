"""Partitions of a dataset among parties. `table.py` lists the kinds by name."""

from .base import Index, Partition, PartitionRequest, split_off
from .column import by_column
from .dirichlet import dirichlet
from .groups import choose_groups
from .iid import iid
from .table import PARTITIONS, check_kind, partition_samples

__all__ = [
    "PARTITIONS",
    "Index",
    "Partition",
    "PartitionRequest",
    "by_column",
    "check_kind",
    "choose_groups",
    "dirichlet",
    "iid",
    "partition_samples",
    "split_off",
]
