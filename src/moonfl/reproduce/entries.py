"""What a table or figure of the paper is: numbers, each with the experiments behind it."""

from collections.abc import Callable, Iterator
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
    """One number of a table: a row, a column, and the experiments behind it."""

    row: str
    trials: dict[
        str, Experiment
    ]  # by setting; where there are several, the best is reported, as in the paper
    paper: str = ""  # as the paper prints it, in %; empty: the paper shows it in a figure only
    column: str = "accuracy"
    at: int | None = None  # read after this round; None: after the last
    best: bool = False  # of its column, says the paper, which prints no number


@dataclass(frozen=True)
class Target:
    where: str
    title: str
    entries: Callable[[str], list[Entry]]  # of a data set
    datasets: tuple[str, ...] = DATASETS
    kind: Kind = "accuracy"
    figure: str = (
        ""  # accuracy by "rounds", t-SNE of "models", or accuracy by the setting of this name
    )
    seeds: int | None = None  # all that are run, however many are asked for


def preset(dataset: str, method: str) -> Experiment:
    return PRESETS[f"{dataset}-{method}"].experiment


def entry(
    dataset: str,
    method: str,
    paper: str = "",
    row: str = "",
    column: str = "accuracy",
    at: int | None = None,
    **changes: Any,
) -> Entry:
    """A method with the paper's best mu; `changes` go to the experiment. SOLO has its own length and no sampling."""
    if method == "solo":
        changes = {
            key: value for key, value in changes.items() if key not in ("rounds", "sample_fraction")
        }
    exp = replace(preset(dataset, method), **changes)
    return Entry(row or METHODS[method], {"": exp}, paper, column, at)


def federated(dataset: str, fedavg: str, fedprox: str, scaffold: str, moon: str) -> list[Entry]:
    """The four federated methods with these numbers of the paper."""
    numbers = {"fedavg": fedavg, "fedprox": fedprox, "scaffold": scaffold, "moon": moon}
    return [entry(dataset, method, number) for method, number in numbers.items()]


def moon(dataset: str, **more: Any) -> Experiment:
    """MOON with the paper's best mu; what is given goes to the algorithm or, where it has none such, the experiment."""
    exp = preset(dataset, "moon")
    own = {key: value for key, value in more.items() if hasattr(exp.algorithm, key)}
    rest = {key: value for key, value in more.items() if key not in own}
    return replace(exp, algorithm=replace(exp.algorithm, **own), **rest)


def plain(dataset: str, method: str) -> str:
    """Table 1 without its deviation, as the other tables repeat it."""
    return SETTINGS[dataset].accuracy[method].split()[0]


def small(exp: Experiment) -> Experiment:
    """The same in seconds, on digits with a small network: a tenth of the rounds, half of the local epochs."""
    base = preset("digits", "fedavg")
    alone = not exp.algorithm.federated or exp.parties == 1
    epochs = exp.epochs // 10 if not exp.algorithm.federated else exp.epochs // 2
    return replace(
        exp,
        dataset="digits",
        model=base.model,
        batch_size=base.batch_size,
        parties=min(exp.parties, 20),
        rounds=exp.rounds if not exp.algorithm.federated else max(3, exp.rounds // 10),
        epochs=max(1, exp.epochs if alone and exp.algorithm.federated else epochs),
        scale="small",
    )


def experiments(entries: list[Entry]) -> Iterator[Experiment]:
    """Each once."""
    seen = set()
    for e in entries:
        for exp in e.trials.values():
            if exp not in seen:
                seen.add(exp)
                yield exp
