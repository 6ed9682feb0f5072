"""Runs over Flower messages are bit-identical to those of the embedded engine."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import moonfl
from helpers.custom import custom_experiment, module
from helpers.equality import same
from helpers.flower_deployment import (
    MOON3,
    QUICK,
    Deployment,
    run_simulated,
    table_experiment,
)
from helpers.problems import TABLE, with_algorithm
from moonfl.algorithms import ALGORITHMS
from moonfl.experiment import override

_ = module  # a fixture


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_bit_identical(name: str, tmp_path: Path) -> None:
    exp = with_algorithm(QUICK, name)
    assert same(run_simulated(exp, tmp_path).models, moonfl.run(exp, workers=1).models)


TRAINING = {
    "adam": ["optimizer=adam", "lr=0.002", "schedule=cosine", "warmup=1", "grad_clip=0.5"],
    "nesterov": ["algorithm=fedavg", "nesterov=true", "schedule=step", "schedule.every=1"],
    "scaffold": ["algorithm=scaffold", "schedule=exponential", "schedule.gamma=0.5"],
    "fednova": ["algorithm=fedprox+fednova", "mu=5", "schedule=exponential", "schedule.gamma=0.5"],
    "bfloat16": ["precision=bfloat16", "optimizer=adamw", "lr=0.002"],
}


@pytest.mark.parametrize("words", TRAINING.values(), ids=TRAINING)
def test_training_options_are_bit_identical(words: list[str], tmp_path: Path) -> None:
    """Sites train with the learning rate of the round that the server records."""
    exp = override(MOON3, words)
    result = Deployment(tmp_path / "federation", exp).serve()
    expected = moonfl.run(exp, workers=1)
    assert same(result.models, expected.models)
    assert same(run_simulated(exp, tmp_path / "simulated").models, expected.models)
    rates = [exp.learning_rate(t) for t in range(3)]
    assert [record.lr for record in result.rounds] == rates
    assert [record.lr for record in expected.rounds] == rates


def test_a_deployment_is_bit_identical(deployment: Deployment) -> None:
    """Each site has only its own data and a third of the test set; the accuracy is the same."""
    result = deployment.serve()
    expected = moonfl.run(MOON3, workers=1)
    assert same(result.models, expected.models)
    assert [record["accuracy"] for record in result.rounds] == [
        record["accuracy"] for record in expected.rounds
    ]
    assert result.rounds[0]["loss"] == pytest.approx(expected.rounds[0]["loss"])
    assert sum(n for _, n in result.rounds[0]["sites"].values()) == 360
    keys = ("party", "samples", "steps", "loss", "drift", "bytes_down", "bytes_up")
    for ours, theirs in zip(
        result.rounds[-1]["parties"], expected.rounds[-1]["parties"], strict=True
    ):
        assert {key: ours[key] for key in keys} == {key: theirs[key] for key in keys}


def test_sites_and_server_are_independent_of_torchs_settings(deployment: Deployment) -> None:
    expected = moonfl.run(MOON3, workers=1)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu"), torch.device("meta"):
            result = deployment.serve()
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(result.models, expected.models)


@pytest.mark.parametrize("validation", [None, 0.2])
def test_shifted_data_are_bit_identical(validation: float | None, tmp_path: Path) -> None:
    """Sites get samples that are already shifted, and do not shift them again."""
    exp = replace(MOON3, shift="noise", partition="labels", classes_per_party=4)
    exp = replace(exp, validation=validation)
    result = Deployment(tmp_path / "federation", exp).serve()
    expected = moonfl.run(exp, workers=1)
    assert same(result.models, expected.models)
    assert result.accuracy == expected.accuracy


def test_a_custom_method_and_model_are_bit_identical(module: Path) -> None:
    """The app contains their module; results over messages are those of the embedded engine."""
    exp = custom_experiment()
    deployment = Deployment(module / "federation", exp)
    assert (module / "federation" / "app" / "mymethod.py").read_text() == (
        module / "mymethod.py"
    ).read_text()
    there = deployment.serve()
    here = moonfl.run(exp, workers=1)
    assert same(there.models, here.models)
    assert same(run_simulated(exp, module / "simulated").models, here.models)


def test_tables_are_standardised_over_all_sites(tmp_path: Path) -> None:
    """The moments of the sites give the same bits as a run with all rows in one place."""
    exp = table_experiment(tmp_path, TABLE, 3, "rounds=2", "validation=0.2")
    there = Deployment(tmp_path / "federation", exp).serve()
    here = moonfl.run(exp, workers=1)
    assert same(there.models, here.models)
    assert here.models["global"]["standardise.mean"].abs().max() > 1


def test_a_site_too_small_to_hold_out_samples_takes_part(tmp_path: Path) -> None:
    table = TABLE + "30,1,D,ill\n31,0,D,well\n"
    exp = table_experiment(tmp_path, table, 4, "rounds=1")
    there = Deployment(tmp_path / "federation", exp).serve()
    here = moonfl.run(exp, workers=1)
    assert same(there.models, here.models)
    assert there.rounds[0]["sites"] == here.rounds[0]["sites"]
