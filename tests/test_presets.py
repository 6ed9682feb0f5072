"""The presets have the settings of the paper."""

from moonfl.algorithms import MOON, FedProx
from moonfl.presets import DEFAULT, PRESETS, SETTINGS


def test_every_dataset_has_every_method() -> None:
    assert DEFAULT in PRESETS
    methods = {name.removeprefix("digits-") for name in PRESETS if name.startswith("digits-")}
    assert set(PRESETS) == {f"{dataset}-{method}" for dataset in SETTINGS for method in methods}


def test_settings_of_the_paper() -> None:
    """Sec. 4.1: rounds, local epochs, batches, SGD, partition. Sec. 4.2: the best mu."""
    rounds = {"cifar10": 100, "cifar100": 100, "tiny-imagenet": 20}
    mu = {"cifar10": (5, 0.01), "cifar100": (1, 0.001), "tiny-imagenet": (1, 0.001)}
    for dataset in rounds:
        moon = PRESETS[f"{dataset}-moon"].experiment
        fedprox = PRESETS[f"{dataset}-fedprox"].experiment
        assert (moon.rounds, moon.epochs, moon.batch_size) == (rounds[dataset], 10, 64)
        assert (moon.lr, moon.momentum, moon.weight_decay) == (0.01, 0.9, 1e-5)
        assert (moon.partition, moon.parties, moon.beta) == ("dirichlet", 10, 0.5)
        assert moon.algorithm == MOON(mu=mu[dataset][0], tau=0.5)
        assert fedprox.algorithm == FedProx(mu=mu[dataset][1])
    solo = PRESETS["cifar10-solo"].experiment
    assert (solo.rounds, solo.epochs) == (1, 300)
    centralised = PRESETS["cifar10-centralised"].experiment
    assert (centralised.parties, centralised.rounds, centralised.epochs) == (1, 300, 1)


def test_paper_accuracies_belong_to_presets() -> None:
    for dataset, setting in SETTINGS.items():
        for method, accuracy in setting.accuracy.items():
            assert PRESETS[f"{dataset}-{method}"].paper == accuracy
    assert PRESETS["cifar10-fednova"].paper == ""
