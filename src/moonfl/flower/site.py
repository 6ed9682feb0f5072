"""A site of a deployment: its site.toml and its own data."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .. import settings
from ..data.base import Dataset
from ..data.cifar import CIFAR10, CIFAR10_CLASSES, CIFAR10_TRAIN, read_examples
from ..data.columns import rules_of
from ..data.datasets import preparation_of
from ..data.encoding import unlearned_encoding
from ..data.folder import read_folder
from ..data.npz import read_npz
from ..data.tables import read_csv
from ..data.targets import CLASSIFICATION
from ..errors import InputError
from ..experiment import HOLDOUT, Experiment
from ..runs.index import read_toml
from ..runs.site_states import SiteStates
from ..settings import setting
from ..task import FederatedData, build_task, hold_out, sample_groups
from .client import Site


@dataclass(frozen=True)
class SiteConfig:
    """The contents of site.toml. Paths are relative to the folder of that file."""

    party: int = setting(0, "the party that this site is, from 0", low=0)
    name: str = setting("", "name of the site in logs and reports")
    data: str = setting(
        "data.npz",
        "an .npz or .csv file, or a folder: of tables, of images per class, of CIFAR-10 batches",
    )
    holdout: float = setting(
        HOLDOUT, "share held out for evaluation if the data have no test part", low=0, below=1
    )
    states: str = setting("states", "folder for the party's state between rounds")
    secret: str = setting("", "proves to the server that this site is this party")
    device: str = setting("cpu", "device for training: cpu, cuda, cuda:1, ...")


def read_config(path: Path) -> SiteConfig:
    """Read a site.toml."""
    try:
        return settings.build(SiteConfig, read_toml(path), "")
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None


def load_site(path: Path, exp: Experiment) -> tuple[Experiment, Site]:
    """Return the experiment with this site's device, and the site with its data."""
    config = read_config(path)
    folder = path.parent
    exp = replace(exp, device=config.device)
    data = read_data(folder / config.data, exp)
    if exp.dataset == "cifar10" and data.classes != CIFAR10_CLASSES:
        raise InputError(
            f"{folder / config.data} is not CIFAR-10, but the experiment has dataset=cifar10; "
            "for other data it needs dataset=sites"
        )
    if rules_of(exp.reading).encodes and data.table is None:
        raise InputError(
            f"{folder / config.data} is not a table; with impute or encode every site needs a .csv "
            "file, or a folder with train.csv"
        )
    federated = federated_data(exp, config, data)
    encoding = None if data.table is None else unlearned_encoding(data.table)
    site = Site(
        party=config.party,
        name=config.name or f"party {config.party}",
        task=build_task(exp, federated, encoding=encoding),
        table=None if data.table is None else federated,
        states=lambda run: SiteStates(folder / config.states / run),
        features=data.features,
        secret=config.secret,
    )
    return exp, site


def federated_data(exp: Experiment, config: SiteConfig, data: Dataset) -> FederatedData:
    """Return the data of a site: one party, with held-out samples if it has enough."""
    x = data.train.x
    preparation = preparation_of(exp.dataset, x.dtype, len(x.shape) - 1)
    federated = FederatedData(
        train=data.train,
        parts={config.party: np.arange(len(data.train.y))},
        test=data.test,
        classes=data.classes,
        preparation=preparation,
        features=data.features,
        table=data.table,
        groups=sample_groups(exp, data),
    )
    return hold_out(federated, test=config.holdout, validation=exp.validation, required=False)


def read_data(path: Path, exp: Experiment) -> Dataset:
    """Read the data of a site: a file by its suffix, a folder by its contents."""
    if path.suffix == ".csv" or (path / "train.csv").exists():
        return read_csv(path, exp.reading, one_party=True)
    if not path.is_dir():
        return read_npz(path, exp.reading)
    if exp.task != CLASSIFICATION:
        raise InputError(
            f"{path} is a folder without train.csv; with task={exp.task} the data must be an .npz "
            "file or a table: a .csv file, or a folder with train.csv"
        )
    batches = [path / name for name in CIFAR10_TRAIN if (path / name).exists()]
    if batches:
        return read_cifar10_batches(path, batches)
    return read_folder(path, exp.reading)


def read_cifar10_batches(folder: Path, batches: list[Path]) -> Dataset:
    """Read some batches of CIFAR-10, and its test batch if it is there."""
    classes = len(CIFAR10_CLASSES)
    train, _ = read_examples(batches, "labels", classes)
    test = None
    if (folder / "test_batch").exists():
        test, _ = read_examples([folder / "test_batch"], "labels", classes)
    return Dataset(train=train, test=test, classes=CIFAR10_CLASSES, preparation=CIFAR10)
