"""`moonfl list` and `moonfl data`. Does not import torch unless a dataset is downloaded."""

import argparse
from pathlib import Path

from ... import overview
from ...data.locations import directory, missing_files
from ...errors import InputError
from ...report.tables import align

NOTE = """\
under the datasets: top-1 test accuracy in the paper, %
(with FedAvgM the best of three server momenta, 0.1, 0.7 and 0.9)"""


def list_presets(args: argparse.Namespace) -> None:
    """Print the methods of the presets by the component that they change."""
    presets = overview.read().presets
    datasets = list(dict.fromkeys(preset.dataset for preset in presets))
    by_method: dict[str, dict[str, overview.PresetEntry]] = {}
    for preset in presets:
        method = preset.name.removeprefix(f"{preset.dataset}-")
        by_method.setdefault(method, {})[preset.dataset] = preset
    with_paper = [dataset for dataset in datasets if any_accuracy(presets, dataset)]
    rows = [("METHOD", "description", *with_paper)]
    titles: dict[int, str] = {}  # of the groups, by the row that they start with
    for component in overview.COMPONENTS:
        titles[len(rows)] = component
        for method, entries in by_method.items():
            entry = next(iter(entries.values()))
            if entry.component == component:
                accuracies = [entries[name].paper.removesuffix(" %") for name in with_paper]
                rows.append((method, entry.description, *accuracies))
    print(f"A preset is DATASET-METHOD, such as {presets[0].name}.")
    print(f"DATASET: {', '.join(datasets)}\n")
    for number, line in enumerate(align(rows).splitlines()):
        if number in titles:
            print(f"\n{titles[number]}")
        print(line)
    print(f"\n{NOTE}")


def any_accuracy(presets: list[overview.PresetEntry], dataset: str) -> bool:
    """Return True if the paper has an accuracy for some method on this dataset."""
    return any(preset.paper for preset in presets if preset.dataset == dataset)


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
