"""Building blocks of the paper's tables and figures: an entry is one number and its experiments."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..experiment import Experiment
from ..presets import PRESETS, SETTINGS

DATASETS = ("cifar10", "cifar100", "tiny-imagenet")
METHODS = {
    "moon": "MOON",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "solo": "SOLO",
}
Kind = Literal["accuracy", "curves", "rounds", "seconds", "statistics", "distributions", "tsne"]


@dataclass(frozen=True)
class Entry:
    """One number of a table: its row and column, and the experiments that it comes from."""

    row: str
    trials: dict[str, Experiment]  # by setting; of several the best is reported, as in the paper
    paper: str = ""  # as printed in the paper, in %; empty if the paper only shows a figure
    column: str = "accuracy"
    at_round: int | None = None  # the round to read the accuracy from; None: the last round
    best: bool = False  # the paper calls it the best of its column but prints no number


@dataclass(frozen=True)
class Target:
    """A table or figure of the paper."""

    reference: str  # where it is in the paper
    title: str
    entries: Callable[[str], list[Entry]]  # returns the entries for a dataset
    datasets: tuple[str, ...] = DATASETS
    kind: Kind = "accuracy"
    # "rounds": accuracy per round, "models": t-SNE per model, else accuracy by this setting
    figure: str = ""
    max_seeds: int | None = None  # run at most so many seeds, even if more are requested


def preset(dataset: str, method: str) -> Experiment:
    """Return the paper's experiment of a method on a dataset."""
    return PRESETS[f"{dataset}-{method}"].experiment


def entry(
    dataset: str,
    method: str,
    paper: str = "",
    *,
    row: str = "",
    column: str = "accuracy",
    at_round: int | None = None,
    **changes: Any,
) -> Entry:
    """Return the entry of a method with the paper's best mu and `changes` to the experiment.

    SOLO keeps its number of rounds and trains every party, whatever the changes are.
    """
    if method == "solo":
        for key in ("rounds", "sample_fraction"):
            changes.pop(key, None)
    exp = replace(preset(dataset, method), **changes)
    return Entry(
        row=row or METHODS[method],
        trials={"": exp},
        paper=paper,
        column=column,
        at_round=at_round,
    )


def federated(dataset: str, fedavg: str, fedprox: str, scaffold: str, moon: str) -> list[Entry]:
    """Return the entries of the four federated methods with these numbers from the paper."""
    numbers = {"fedavg": fedavg, "fedprox": fedprox, "scaffold": scaffold, "moon": moon}
    return [entry(dataset, method, number) for method, number in numbers.items()]


def moon(dataset: str, **hyperparameters: Any) -> Experiment:
    """Return the paper's MOON experiment with other hyperparameters of MOON."""
    exp = preset(dataset, "moon")
    return replace(exp, algorithm=replace(exp.algorithm, **hyperparameters))


def mean_accuracy(dataset: str, method: str) -> str:
    """Return the number of Table 1 without its standard deviation, as other tables repeat it."""
    return SETTINGS[dataset].accuracy[method].split()[0]


def shrink(exp: Experiment) -> Experiment:
    """Return a version of the experiment that takes seconds: digits, a small network, few rounds.

    Federated methods run a tenth of the rounds with half of the local epochs. SOLO trains for a
    tenth of its epochs, and training on all data in one place for a tenth of its rounds.
    """
    base = preset("digits", "fedavg")
    rounds, epochs = exp.rounds, exp.epochs
    if exp.algorithm.federated:
        rounds = max(3, rounds // 10)
        if exp.parties > 1:
            epochs = max(1, epochs // 2)
    else:
        epochs = max(1, epochs // 10)
    return replace(
        exp,
        dataset="digits",
        model=base.model,
        batch_size=base.batch_size,
        parties=min(exp.parties, 20),
        rounds=rounds,
        epochs=epochs,
        scale="small",
    )


def experiments(entries: list[Entry]) -> list[Experiment]:
    """Return the experiments of these entries without repetitions."""
    return list(dict.fromkeys(exp for entry in entries for exp in entry.trials.values()))
