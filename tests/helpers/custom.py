"""A module with a custom method, server optimizer and model, as a user would write it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moonfl.experiment import Experiment, override

METHOD = """
import typing
from dataclasses import dataclass

import torch
from torch import nn

import moonfl
from moonfl.settings import setting


@dataclass(frozen=True)
class Small(moonfl.FedAvg):
    lam: float = setting(0.1, "weight of the penalty; 0 is FedAvg", low=0)

    def local_loss(self, party):
        def loss(model, batch):
            z, logits = model(batch.x)
            return party.supervised(logits, batch) + self.lam * z.square().mean()

        return loss


@dataclass(frozen=True)
class Shadow(moonfl.FedAvg):
    lr: float = setting(0.1, "has the name of a setting of every experiment")


@dataclass(frozen=True)
class Halfway(moonfl.Average):
    def step(self, params, aggregated, state):
        return {k: (v + aggregated[k]) / 2 for k, v in params.items()}, state


def narrow(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 7), nn.ReLU())


@dataclass(frozen=True)
class Demanding(moonfl.FedAvg):
    lam: float


class Bare(moonfl.FedAvg):
    lam: float = setting(0.1, "not a setting, because the class is not a dataclass")


class Unweighted(moonfl.FedAvg):
    weighting: typing.ClassVar[str] = "a class variable, so no dataclass is needed"


class NotAnAlgorithm:
    pass


plain = 3
"""


SETTINGS = [
    "algorithm=mymethod:Small",
    "lam=0.5",
    "server=mymethod:Halfway",
    "model=mymethod:narrow",
]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write modules to the current folder and return it."""
    (tmp_path / "mymethod.py").write_text(METHOD)
    (tmp_path / "broken.py").write_text("import missing_dependency\n")
    (tmp_path / "worse.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    return tmp_path


def custom_experiment(**changes: Any) -> Experiment:
    """Return an experiment with the custom method, server optimizer and model."""
    exp = override(Experiment(parties=3, rounds=2, epochs=1), SETTINGS)
    return replace(exp, **changes)
