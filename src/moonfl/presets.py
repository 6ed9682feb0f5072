"""The paper's experiments by name, DATASET-METHOD, with the paper's number beside each."""

from dataclasses import dataclass, replace

from .algorithms import MOON, FedAvg, FedDyn, FedNova, FedProx, Scaffold, Solo
from .experiment import Experiment
from .server_optimizers import Momentum


@dataclass(frozen=True)
class Preset:
    experiment: Experiment
    about: str
    paper: str = ""  # top-1 test accuracy in the paper


@dataclass(frozen=True)
class Setting:
    """What one data set of the paper changes (Sec. 4.1 and 4.2)."""

    base: Experiment
    moon_mu: float  # the best mu of MOON
    fedprox_mu: float  # the best mu of FedProx
    accuracy: dict[str, str]  # Table 1, and the FedAvgM table of the appendix


SETTINGS = {
    "digits": Setting(
        Experiment(dataset="digits", rounds=30, epochs=5, batch_size=16), 1.0, 0.01, {}
    ),
    "cifar10": Setting(
        Experiment(dataset="cifar10", rounds=100),
        5.0,
        0.01,
        {
            "moon": "69.1 ± 0.4 %",
            "fedavg": "66.3 ± 0.5 %",
            "fedprox": "66.9 ± 0.2 %",
            "scaffold": "66.6 ± 0.2 %",
            "solo": "46.3 ± 5.1 %",
            "fedavgm": "67.1 %",
            "moon-fedavgm": "69.6 %",
        },
    ),
    "cifar100": Setting(
        Experiment(dataset="cifar100", rounds=100),
        1.0,
        0.001,
        {
            "moon": "67.5 ± 0.4 %",
            "fedavg": "64.5 ± 0.4 %",
            "fedprox": "64.6 ± 0.2 %",
            "scaffold": "52.5 ± 0.3 %",
            "solo": "22.3 ± 1.0 %",
            "fedavgm": "65.1 %",
            "moon-fedavgm": "67.8 %",
        },
    ),
    "tiny-imagenet": Setting(
        Experiment(dataset="tiny-imagenet", rounds=20),
        1.0,
        0.001,
        {
            "moon": "25.1 ± 0.1 %",
            "fedavg": "23.0 ± 0.1 %",
            "fedprox": "23.2 ± 0.2 %",
            "scaffold": "16.0 ± 0.2 %",
            "solo": "8.6 ± 0.4 %",
            "fedavgm": "23.4 %",
            "moon-fedavgm": "25.5 %",
        },
    ),
}


def variants(setting: Setting) -> dict[str, tuple[Experiment, str]]:
    """Every method on one data set -> (experiment, what it is)."""
    base = replace(setting.base, algorithm=FedAvg())
    moon, fedprox = MOON(mu=setting.moon_mu), FedProx(mu=setting.fedprox_mu)
    momentum = Momentum(
        momentum=0.7
    )  # the paper has the best of 0.1, 0.7 and 0.9, and does not say which it is
    return {
        "moon": (replace(base, algorithm=moon), f"MOON, mu {moon.mu:g}"),
        "fedavg": (base, "FedAvg"),
        "fedprox": (replace(base, algorithm=fedprox), f"FedProx, mu {fedprox.mu:g}"),
        "scaffold": (replace(base, algorithm=Scaffold()), "SCAFFOLD"),
        "solo": (
            replace(base, algorithm=Solo(), rounds=1, epochs=300),
            "every party alone, 300 epochs",
        ),
        "fedavgm": (replace(base, server=momentum), "FedAvgM, server momentum 0.7"),
        "moon-fedavgm": (replace(base, algorithm=moon, server=momentum), "MOON with FedAvgM"),
        "fednova": (replace(base, algorithm=FedNova()), "FedNova"),
        "feddyn": (replace(base, algorithm=FedDyn()), "FedDyn, alpha 0.1"),
        "centralised": (
            replace(base, parties=1, rounds=300, epochs=1),
            "all data in one place, 300 epochs",
        ),
    }


PRESETS = {
    f"{dataset}-{method}": Preset(experiment, about, setting.accuracy.get(method, ""))
    for dataset, setting in SETTINGS.items()
    for method, (experiment, about) in variants(setting).items()
}
DEFAULT = "digits-moon"
