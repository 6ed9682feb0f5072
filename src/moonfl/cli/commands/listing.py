"""`moonfl list` and `moonfl data`. Does not import torch unless a dataset is downloaded."""

import argparse
from pathlib import Path

from ... import overview
from ...data.locations import directory, missing_files
from ...errors import InputError
from ...report.tables import align

PAPER_NOTE = (
    "paper: top-1 test accuracy; with FedAvgM the best of three server momenta, 0.1, 0.7 and 0.9"
)


def list_presets(args: argparse.Namespace) -> None:
    """Print the presets with their description and the paper's accuracy."""
    rows = [("preset", "description", "paper")]
    for preset in overview.read().presets:
        rows.append((preset.name, preset.description, preset.paper))
    print(align(rows))
    print(f"\n{PAPER_NOTE}")


def data(args: argparse.Namespace) -> None:
    """List the datasets, or download one."""
    datasets = overview.read().datasets
    if (args.action == "get") != (args.name is not None):
        names = ", ".join(dataset.name for dataset in datasets)
        raise InputError(
            f"`moonfl data get NAME` needs one of {names}; `moonfl data list` takes no name"
        )
    data_dir = directory(args.data_dir)
    if args.action == "get":
        from ...data.download import get

        print(f"{args.name} is in {get(args.name, data_dir, args.origin)}")
        return
    print(align([(dataset.name, locate(dataset, data_dir)) for dataset in datasets]))


def locate(dataset: overview.DatasetEntry, data_dir: Path) -> str:
    """Return where a dataset is, or how to download it."""
    if not dataset.url:
        return dataset.location
    folder = data_dir / dataset.folder
    if not missing_files(folder, dataset.files, dataset.suffixes):
        return f"in {folder}"
    return f"not in {data_dir}; `moonfl data get {dataset.name}` downloads {dataset.url}"
