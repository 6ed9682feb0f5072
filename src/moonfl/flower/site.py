"""A site of a deployment: its site.toml, its own data, and nobody else's."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from .. import seeds, settings
from ..data.augment import default_preparation
from ..data.base import Dataset, check_names
from ..data.cifar import CIFAR10, CIFAR10_CLASSES, CIFAR10_TRAIN, read_examples
from ..data.datasets import source
from ..data.folder import read_folder
from ..data.npz import read_npz
from ..data.partition import split_off
from ..data.tables import read_csv
from ..errors import InputError
from ..experiment import Experiment, read_toml
from ..runs.site_states import SiteStates
from ..settings import setting
from ..task import Task, make_builder
from .client import Site


@dataclass(frozen=True)
class SiteConfig:
    """What site.toml says. Paths are taken from where that file is."""

    party: int = setting(0, "which party this site is, from 0", low=0)
    name: str = setting("", "what others may call it")
    data: str = setting(
        "data.npz",
        "an .npz or .csv file, a folder of tables, of images per class, or of CIFAR-10 batches",
    )
    holdout: float = setting(
        0.2, "the share held out for evaluation where the data have no test part", low=0, below=1
    )
    states: str = setting("states", "the folder for what the method keeps here between rounds")
    secret: str = setting("", "by which the server knows that this site is this party")
    device: str = setting("cpu", "where this site trains: cpu, cuda, cuda:1, ...")


def read_config(path: Path) -> SiteConfig:
    try:
        return settings.build(SiteConfig, read_toml(path), "")
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def read_site(path: Path, exp: Experiment) -> tuple[Experiment, Site]:
    """The experiment as this site runs it, and the site."""
    config, folder = read_config(path), path.parent
    exp = replace(exp, device=config.device)
    data = read_data(folder / config.data, exp)
    check_names("a class", data.classes)
    if exp.dataset == "cifar10" and data.classes != CIFAR10_CLASSES:
        raise InputError(
            f"{folder / config.data} is not of CIFAR-10, as the experiment says; it wants dataset=sites"
        )
    train, test, validation = data.train, data.test, None
    rows = np.arange(len(train.y))
    if test is None:
        rows, held = split_off(rows, config.holdout, seeds.rng(0, "holdout", 0, config.party))
        test = train.take(torch.from_numpy(held))
    if exp.validation is not None:
        rows, held = split_off(rows, exp.validation, seeds.rng(0, "validation", 0, config.party))
        validation = train.take(torch.from_numpy(held)).to(exp.device) if len(held) else None
    own = train.take(torch.from_numpy(rows)).to(exp.device)
    preparation = source(exp.dataset).preparation or default_preparation(
        own.x.dtype, len(own.x.shape) - 1
    )
    network = make_builder(exp, tuple(own.x.shape[1:]), own.x.dtype, len(data.classes))
    task = Task(
        network.build,
        {config.party: own},
        test.to(exp.device),
        preparation,
        network.batch_norm,
        data.classes,
        validation=validation,
    )
    return exp, Site(
        config.party,
        config.name or f"party {config.party}",
        task,
        lambda run: SiteStates(folder / config.states / run),
        data.features,
        config.secret,
    )


def read_data(path: Path, exp: Experiment) -> Dataset:
    """By what is there: a file by its ending, a folder by what it holds."""
    if path.suffix == ".csv" or (path / "train.csv").exists():
        return read_csv(path, exp.reading, one_party=True)
    if not path.is_dir():
        return read_npz(path, exp.reading)
    found = [path / name for name in CIFAR10_TRAIN if (path / name).exists()]
    if not found:
        return read_folder(path, exp.reading)
    train, _ = read_examples(found, "labels", len(CIFAR10_CLASSES))
    held = path / "test_batch"
    test = read_examples([held], "labels", len(CIFAR10_CLASSES))[0] if held.exists() else None
    return Dataset(train, test, CIFAR10_CLASSES, CIFAR10)
