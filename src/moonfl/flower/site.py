"""A site of a deployment: its site.toml, its own data, and nobody else's."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .. import seeds, settings
from ..data import source
from ..data.base import Examples
from ..data.cifar import CIFAR10_CLASSES, CIFAR10_TRAIN, read_examples
from ..data.npz import Arrays, read_npz
from ..errors import InputError
from ..experiment import Experiment, read_toml
from ..settings import setting
from ..states import SiteStates
from ..task import Task, make_builder
from .client import Site


@dataclass(frozen=True)
class SiteConfig:
    """What site.toml says. Paths are taken from where that file is."""

    party: int = setting(0, "which party this site is, from 0", low=0)
    name: str = setting("", "what others may call it")
    data: str = setting("data.npz", "an .npz file with x and y, or a folder of CIFAR-10 batches")
    holdout: float = setting(0.2, "the share held out for evaluation where the data have no test part", low=0, below=1)
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
    arrays = read_data(folder / config.data)
    train, test = (arrays.train, arrays.test) if arrays.test is not None else split(arrays.train, config)
    preparation = source(exp.dataset).preparation or arrays.preparation
    build, batch_norm = make_builder(exp, tuple(train.x.shape[1:]), len(arrays.classes))
    on_device = [Examples(x.to(exp.device), y.to(exp.device)) for x, y in (train, test)]
    task = Task(build, {config.party: on_device[0]}, on_device[1], preparation, batch_norm, arrays.classes)
    name = config.name or f"party {config.party}"
    return exp, Site(config.party, name, task, lambda run: SiteStates(folder / config.states / run), config.secret)


def read_data(path: Path) -> Arrays:
    if not path.is_dir():
        return read_npz(path)
    found = [path / name for name in CIFAR10_TRAIN if (path / name).exists()]
    if not found:
        raise InputError(f"{path} has none of {CIFAR10_TRAIN[0]} to {CIFAR10_TRAIN[-1]}; give an .npz file or those")
    train, _ = read_examples(found, "labels", len(CIFAR10_CLASSES))
    held = path / "test_batch"
    test = read_examples([held], "labels", len(CIFAR10_CLASSES))[0] if held.exists() else None
    return Arrays(train, test, CIFAR10_CLASSES)


def split(examples: Examples, config: SiteConfig) -> tuple[Examples, Examples]:
    """The same samples are held out every time; at least one is left to train on."""
    order = torch.randperm(len(examples.y), generator=seeds.rng(0, "holdout", 0, config.party))
    cut = min(round(config.holdout * len(order)), len(order) - 1)
    held, kept = order[:cut].sort().values, order[cut:].sort().values
    return Examples(examples.x[kept], examples.y[kept]), Examples(examples.x[held], examples.y[held])
