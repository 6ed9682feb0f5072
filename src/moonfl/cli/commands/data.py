"""`moonfl partition`: which party has which samples."""

import argparse
from pathlib import Path

from ...data.datasets import load
from ...data.locations import directory
from ...report.partition import check_image_format, heat_map, partition_table
from ...task import make_partition
from ..experiments import describe_partition, select_experiment


def partition(args: argparse.Namespace) -> None:
    """Print the samples of each class at each party, and draw them as a heat map."""
    _, exp = select_experiment(args.words, args.trust)
    out = Path(args.out)
    check_image_format(out)
    dataset = load(exp.dataset, directory(exp.data_dir), exp.reading)
    partition = make_partition(exp, dataset)
    counts = partition.counts(dataset.train.y.numpy(), len(dataset.classes))
    title = f"{exp.dataset}: {describe_partition(exp)}"
    heat_map(counts, dataset.classes, title, out, partition.names)
    print(partition_table(counts, dataset.classes, partition.names))
    if partition.note:
        print(partition.note)
    print(f"heat map in {out}")
