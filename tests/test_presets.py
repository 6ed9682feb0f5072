"""The presets have the settings of the paper."""

import pytest

from moonfl.algorithms import MOON, FedProx
from moonfl.presets import DEFAULT, PRESETS, SETTINGS


def test_every_dataset_has_every_method() -> None:
    assert DEFAULT in PRESETS
    methods = {name.removeprefix("digits-") for name in PRESETS if name.startswith("digits-")}
    assert set(PRESETS) == {f"{dataset}-{method}" for dataset in SETTINGS for method in methods}


@pytest.mark.parametrize(
    ("dataset", "moon_mu", "fedprox_mu", "rounds", "model"),
    [
        ("cifar10", 5, 0.01, 100, "simple-cnn"),
        ("cifar100", 1, 0.001, 100, "resnet50"),
        ("tiny-imagenet", 1, 0.001, 20, "resnet50"),
    ],
)
def test_settings_of_the_paper(
    dataset: str, moon_mu: float, fedprox_mu: float, rounds: int, model: str
) -> None:
    """Sec. 4.1: network, rounds, SGD, partition. Sec. 4.2: the best mu."""
    moon = PRESETS[f"{dataset}-moon"].experiment
    assert moon.algorithm == MOON(mu=moon_mu, tau=0.5, negatives=1)
    assert PRESETS[f"{dataset}-fedprox"].experiment.algorithm == FedProx(mu=fedprox_mu)
    assert (moon.model, moon.head, moon.out_dim) == (model, True, 256)
    assert (moon.rounds, moon.epochs, moon.batch_size) == (rounds, 10, 64)
    assert (moon.lr, moon.momentum, moon.weight_decay) == (0.01, 0.9, 1e-5)
    assert (moon.partition, moon.partition_seed) == ("dirichlet", 0)
    assert (moon.parties, moon.beta) == (10, 0.5)
    solo = PRESETS[f"{dataset}-solo"].experiment
    assert (solo.rounds, solo.epochs) == (1, 300)
    centralised = PRESETS[f"{dataset}-centralised"].experiment
    assert (centralised.parties, centralised.rounds, centralised.epochs) == (1, 300, 1)


def test_paper_accuracies_belong_to_presets() -> None:
    for dataset, setting in SETTINGS.items():
        for method, accuracy in setting.accuracy.items():
            assert PRESETS[f"{dataset}-{method}"].paper == accuracy
    assert PRESETS["cifar10-moon"].paper.startswith("69.1")
    assert PRESETS["cifar10-fednova"].paper == ""
