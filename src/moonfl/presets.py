"""The paper's experiments by name, DATASET-METHOD, with the accuracy that the paper reports."""

from dataclasses import dataclass, replace

from .algorithms import (
    MOON,
    Algorithm,
    Ditto,
    FedAvg,
    FedDecorr,
    FedDyn,
    FedExP,
    FedLC,
    FedNova,
    FedNTD,
    FedProx,
    FedRep,
    FedRS,
    FedSAM,
    PerFedAvg,
    QFedAvg,
    Scaffold,
    Solo,
    replaces_aggregation,
)
from .experiment import Experiment
from .overview import BASELINES, SEVERAL
from .server_optimizers import Adagrad, Average, Momentum


@dataclass(frozen=True)
class Preset:
    """An experiment with a name, as `moonfl list` shows it."""

    experiment: Experiment
    description: str  # the same for every dataset
    paper: str = ""  # top-1 test accuracy in the paper; empty if the paper has none

    @property
    def component(self) -> str:
        """Return the component of a federation that the preset changes, compared with FedAvg."""
        exp = self.experiment
        changed = {
            "local term": has_local_term(exp.algorithm),
            "personal part": exp.has_party_models,
            "aggregation": exp.aggregation != "mean" or replaces_aggregation(exp.algorithm),
            "privacy": exp.clip is not None,
            "server optimizer": not isinstance(exp.server, Average),
        }
        names = [name for name, is_changed in changed.items() if is_changed]
        if not names or not exp.algorithm.federated:
            return BASELINES
        # A term may bring its own aggregation, as FedDyn's does.
        return names[0] if names[1:] in ([], ["aggregation"]) else SEVERAL


@dataclass(frozen=True)
class Setting:
    """The settings that the paper chose for one dataset (Sec. 4.1 and 4.2)."""

    base: Experiment
    moon_mu: float  # the best mu of MOON
    fedprox_mu: float  # the best mu of FedProx
    decorrelation: float  # beta of FedDecorr in its authors' scripts
    accuracy: dict[str, str]  # Table 1, and the FedAvgM table of the appendix


SETTINGS = {
    "digits": Setting(
        base=Experiment(dataset="digits", rounds=30, epochs=5, batch_size=16),
        moon_mu=1.0,
        fedprox_mu=0.01,
        decorrelation=0.1,
        accuracy={},
    ),
    "cifar10": Setting(
        base=Experiment(dataset="cifar10", rounds=100),
        moon_mu=5.0,
        fedprox_mu=0.01,
        decorrelation=0.1,
        accuracy={
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
        base=Experiment(dataset="cifar100", rounds=100),
        moon_mu=1.0,
        fedprox_mu=0.001,
        decorrelation=0.05,
        accuracy={
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
        base=Experiment(dataset="tiny-imagenet", rounds=20),
        moon_mu=1.0,
        fedprox_mu=0.001,
        decorrelation=0.1,
        accuracy={
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
# The paper reports the best of 0.1, 0.7 and 0.9 and does not say which one it is.
SERVER_MOMENTUM = 0.7


def has_local_term(method: Algorithm) -> bool:
    """Return True if the method changes what a party minimises."""
    return any(
        getattr(type(method), hook) is not getattr(Algorithm, hook)
        for hook in ("term", "local_loss")
    )


def methods(setting: Setting) -> dict[str, tuple[Experiment, str]]:
    """Return the experiment and the description of every method on one dataset."""
    fedavg = replace(setting.base, algorithm=FedAvg())
    moon = replace(fedavg, algorithm=MOON(mu=setting.moon_mu))
    fedprox = replace(fedavg, algorithm=FedProx(mu=setting.fedprox_mu))
    feddecorr = replace(fedavg, algorithm=FedDecorr(weight=setting.decorrelation))
    solo = replace(fedavg, algorithm=Solo(), rounds=1, epochs=300)
    momentum = Momentum(momentum=SERVER_MOMENTUM)
    centralised = replace(fedavg, parties=1, rounds=300, epochs=1)
    model = fedavg.model if str(fedavg.model).startswith("resnet") else "resnet18"
    fedbn = replace(fedavg, model=model, personal="batchnorm")  # needs a model with BatchNorm
    fedrep = replace(fedavg, algorithm=FedRep(), personal="output")
    perfedavg = replace(fedavg, algorithm=PerFedAvg(), finetune=1)
    return {
        "moon": (moon, "MOON with the paper's mu"),
        "fedavg": (fedavg, "FedAvg"),
        "fedprox": (fedprox, "FedProx with the paper's mu"),
        "scaffold": (replace(fedavg, algorithm=Scaffold()), "SCAFFOLD"),
        "solo": (solo, "parties alone, 300 epochs"),
        "fedavgm": (replace(fedavg, server=momentum), "FedAvgM, momentum 0.7"),
        "moon-fedavgm": (replace(moon, server=momentum), "MOON with FedAvgM"),
        "fednova": (replace(fedavg, algorithm=FedNova()), "FedNova"),
        "feddyn": (replace(fedavg, algorithm=FedDyn()), "FedDyn, alpha 0.1"),
        "feddecorr": (feddecorr, "FedDecorr, authors' beta"),
        "fedntd": (replace(fedavg, algorithm=FedNTD()), "FedNTD, beta 1, tau 1"),
        "fedlc": (replace(fedavg, algorithm=FedLC()), "FedLC, tau 1"),
        "fedrs": (replace(fedavg, algorithm=FedRS()), "FedRS, alpha 0.5"),
        "fedsam": (replace(fedavg, algorithm=FedSAM()), "FedSAM, rho 0.05"),
        "fedexp": (replace(fedavg, algorithm=FedExP()), "FedExP"),
        "fedadagrad": (replace(fedavg, server=Adagrad(lr=0.01)), "FedAdagrad, server lr 0.01"),
        "qfedavg": (replace(fedavg, algorithm=QFedAvg(q=0.01)), "q-FedAvg, q 0.01"),
        "fedbn": (fedbn, "FedBN: BatchNorm stays"),
        "fedper": (replace(fedavg, personal="output"), "FedPer: output layer stays"),
        "lgfedavg": (replace(fedavg, personal="encoder"), "LG-FedAvg: encoder stays"),
        "ditto": (replace(fedavg, algorithm=Ditto()), "Ditto, lam 0.1"),
        "fedrep": (fedrep, "FedRep: 10 head epochs"),
        "perfedavg": (perfedavg, "Per-FedAvg, alpha 0.01"),
        "finetune": (replace(fedavg, finetune=5), "FedAvg, fine-tuned 5 epochs"),
        "centralised": (centralised, "all data at one party"),
    }


def build_presets() -> dict[str, Preset]:
    """Return every method on every dataset by name."""
    presets = {}
    for dataset, setting in SETTINGS.items():
        for method, (experiment, description) in methods(setting).items():
            paper = setting.accuracy.get(method, "")
            presets[f"{dataset}-{method}"] = Preset(experiment, description, paper)
    return presets


PRESETS = build_presets()
DEFAULT = "digits-moon"
