"""Tasks: the data of the parties, the held-out samples, the model, and how a model is evaluated.

There is one path from data to a Task: read a dataset, partition it, hold samples out, build. `run`
takes all of it. `moonfl.federate`, a Flower site and the Flower server start with data that are
already split by party (FederatedData).
"""

from .build import build_task, check_task, make_task, with_derived_settings, with_noise
from .federated_data import (
    DatasetCache,
    FederatedData,
    hash_examples,
    hold_out,
    make_partition,
    read,
    sample_groups,
    shift_and_hold_out,
    split,
)
from .network import in_float32, make_builder
from .task import EVALUATION_BATCH, Task

__all__ = [
    "EVALUATION_BATCH",
    "DatasetCache",
    "FederatedData",
    "Task",
    "build_task",
    "check_task",
    "hash_examples",
    "hold_out",
    "in_float32",
    "make_builder",
    "make_partition",
    "make_task",
    "read",
    "sample_groups",
    "shift_and_hold_out",
    "split",
    "with_derived_settings",
    "with_noise",
]
