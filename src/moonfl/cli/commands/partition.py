"""`moonfl partition`: which party has which samples."""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...data.base import Dataset
from ...data.partition import Partition
from ...data.targets import CLASSIFICATION, REGRESSION
from ...objectives import OBJECTIVES
from ...report.partition import (
    check_image_format,
    heat_map,
    label_table,
    partition_table,
    target_table,
)
from ...task import make_partition, read
from ..experiments import describe_partition, select_experiment


def partition(args: argparse.Namespace) -> None:
    """Print the samples of each class at each party, and draw them as a heat map."""
    _, exp = select_experiment(args.words, args.trust)
    out = Path(args.out)
    check_image_format(out)
    dataset = read(exp)
    partition = make_partition(exp, dataset)
    text, counts, columns = count_samples(exp.task, dataset, partition)
    title = f"{exp.dataset}: {describe_partition(exp)}"
    output = OBJECTIVES[exp.task].measure.output
    heat_map(counts, columns, title, out, partition.names, column=output)
    print(text)
    if partition.note:
        print(partition.note)
    print(f"heat map in {out}")


def count_samples(
    task: str, dataset: Dataset, partition: Partition
) -> tuple[str, NDArray[np.int64], tuple[str, ...]]:
    """Return a table of the partition, and the counts and column names of its heat map.

    A heat map of a regression has one column: every sample has all targets.
    """
    y = dataset.train.y.numpy()
    classes, names = dataset.classes, partition.names
    if task == CLASSIFICATION:
        counts = partition.counts(y, len(classes))
        return partition_table(counts, classes, names), counts, classes
    parties = [y[part] for part in partition.parts]
    sizes = partition.sizes()
    if task == REGRESSION:
        return target_table(parties, classes, names), sizes[:, None], (", ".join(classes),)
    counts = np.stack([labels.sum(axis=0) for labels in parties]).astype(np.int64)
    return label_table(counts, sizes, classes, names), counts, classes
