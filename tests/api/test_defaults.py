"""Arguments and defaults of the Python interface."""

import inspect
from pathlib import Path
from typing import Any

import pytest

import moonfl
from moonfl.cli import main
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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": "2"}, "workers must be an integer >= 1, got '2'"),
        ({"workers": 1.5}, "workers must be an integer >= 1, got 1.5"),
        ({"workers": True}, "workers must be an integer >= 1, got True"),
        ({"state_memory": "1G"}, "state_memory must be a number of bytes >= 0, got '1G'"),
        ({"state_memory": -1}, "state_memory must be a number of bytes >= 0, got -1"),
        ({"track": None}, "track must be the name of a tracker .* got None"),
        ({"track": 3}, "track must be the name of a tracker .* got 3"),
        ({"track": [None]}, "track must be the name of a tracker .* got \\[None\\]"),
        ({"watch": None}, "watch must be a function .* got None"),
        ({"out": 5}, "out must be the path of a directory, got 5"),
        ({"out": ""}, "out must be the path of a directory, got ''"),
    ],
)
@pytest.mark.usefixtures("temporary_folder")
def test_arguments_of_another_type(values: dict[str, Any], message: str) -> None:
    experiment = moonfl.Experiment(rounds=1, epochs=1)
    with pytest.raises(moonfl.InputError, match=message):
        moonfl.run(experiment, **values)
    if "out" in values:
        with pytest.raises(moonfl.InputError, match=message):
            moonfl.federate("mlp", [], resume=True, **values)
    else:
        with pytest.raises(moonfl.InputError, match=message):
            moonfl.resume("run", **values)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("directory", [None, "", 3])
def test_only_a_directory_is_resumed(directory: Any) -> None:
    with pytest.raises(moonfl.InputError, match="directory must be the path of a directory"):
        moonfl.resume(directory)


@pytest.mark.parametrize("command", ["run", "sweep", "export"])
def test_an_empty_out_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As of an unset variable; it would be the current folder."""
    with pytest.raises(SystemExit):
        main([command, "run", "--out", ""])
    assert "argument --out: must be a path, got ''" in capsys.readouterr().err


def test_the_name_of_a_preset_is_not_an_experiment() -> None:
    preset: Any = "digits-moon"
    with pytest.raises(moonfl.InputError, match=r"takes an Experiment, got 'digits-moon'; pass"):
        moonfl.run(preset)
