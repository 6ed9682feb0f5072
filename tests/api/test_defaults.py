"""Arguments and defaults of the Python interface."""

import inspect
from typing import Any

import pytest

import moonfl
from moonfl.experiment import override
from moonfl.presets import PRESETS


def test_mu_of_moon_has_one_default() -> None:
    experiment = moonfl.Experiment()
    algorithms = [
        moonfl.MOON(),
        experiment.algorithm,
        override(experiment, ["dataset=csv"]).algorithm,
        override(PRESETS["cifar10-fedavg"].experiment, ["algorithm=moon"]).algorithm,
        PRESETS["digits-moon"].experiment.algorithm,
        inspect.signature(moonfl.federate).parameters["algorithm"].default,
    ]
    assert [algorithm.mu for algorithm in algorithms] == [1.0] * 6


def test_presets_keep_the_mu_of_the_paper() -> None:
    expected = {"cifar10": 5.0, "cifar100": 1.0, "tiny-imagenet": 1.0}
    for dataset, mu in expected.items():
        for method in ("moon", "moon-fedavgm"):
            assert PRESETS[f"{dataset}-{method}"].experiment.algorithm.mu == mu


def test_the_name_of_a_preset_is_not_an_experiment() -> None:
    preset: Any = "digits-moon"
    with pytest.raises(moonfl.InputError, match=r"takes an Experiment, got 'digits-moon'; pass"):
        moonfl.run(preset)
