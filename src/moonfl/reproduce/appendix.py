"""The tables and figures of the paper's appendix."""

from dataclasses import replace

from ..presets import SETTINGS
from ..server_optimizers import Momentum
from .entries import METHODS, Entry, entry, federated, moon, plain, preset
from .main_part import table1


def head(dataset: str) -> list[Entry]:
    without = {
        "cifar10": ("66.8", "66.7", "67.5", "67.1", "39.8 ± 3.9"),
        "cifar100": ("66.1", "65.0", "65.4", "49.5", "22.5 ± 1.1"),
    }[dataset]
    made = [
        entry(dataset, method, number, head=False, column="without head")
        for method, number in zip(METHODS, without, strict=True)
    ]
    return made + [
        replace(e, column="with head", paper=e.paper if e.row == "SOLO" else e.paper.split()[0])
        for e in table1(dataset)
    ]


def iid(dataset: str) -> list[Entry]:
    paper = {0.1: "73.6", 1.0: "73.6", 5.0: "73.0", 10.0: "72.8"}
    made = [
        Entry(f"MOON, mu {mu:g}", {"": moon(dataset, mu=mu, partition="iid")}, paper[mu])
        for mu in paper
    ]
    return [*made, entry(dataset, "fedavg", "73.4", partition="iid")]


def mu(dataset: str) -> list[Entry]:
    paper = {
        "cifar10": ("66.3", "66.5", "68.4", "69.1", "68.3"),
        "cifar100": ("64.5", "65.1", "67.5", "67.1", "67.3"),
        "tiny-imagenet": ("23.0", "23.4", "25.1", "24.4", "25.0"),
    }[dataset]
    made = [entry(dataset, "fedavg", paper[0], row="0 (FedAvg)")]
    values = (0.1, 1.0, 5.0, 10.0)
    return made + [
        Entry(f"{mu:g}", {"": moon(dataset, mu=mu)}, number)
        for mu, number in zip(values, paper[1:], strict=True)
    ]


def temperature(dataset: str) -> list[Entry]:
    best = {"cifar10": 0.5, "cifar100": 1.0, "tiny-imagenet": 0.5}[dataset]
    return [
        Entry(f"tau {tau:g}", {"": moon(dataset, tau=tau)}, best=tau == best)
        for tau in (0.1, 0.5, 1.0)
    ]


def dimension(dataset: str) -> list[Entry]:
    best = {"cifar10": 128, "cifar100": 256, "tiny-imagenet": 128}[dataset]
    return [
        Entry(f"{size}", {"": moon(dataset, out_dim=size)}, best=size == best)
        for size in (64, 128, 256)
    ]


def fedavgm(dataset: str) -> list[Entry]:
    paper, values = SETTINGS[dataset].accuracy, (0.1, 0.7, 0.9)
    made = [entry(dataset, method, plain(dataset, method)) for method in ("fedavg", "moon")]
    for method, row in (("fedavg", "FedAvgM"), ("moon", "MOON + FedAvgM")):
        grid = {
            f"momentum {b:g}": replace(preset(dataset, method), server=Momentum(momentum=b))
            for b in values
        }
        made.append(
            Entry(
                row,
                grid,
                paper["fedavgm" if method == "fedavg" else "moon-fedavgm"].removesuffix(" %"),
            )
        )
    return made


def seconds(dataset: str) -> list[Entry]:
    paper = {
        "cifar10": ("330", "340", "332", "337"),
        "cifar100": ("1200", "1440", "1200", "1860"),
        "tiny-imagenet": ("6180", "8100", "6720", "11820"),
    }[dataset]
    return federated(dataset, *paper)


def negatives(dataset: str) -> list[Entry]:
    paper = {1: "69.1", 2: "67.2", 5: "67.7", 100: "63.5"}
    return [
        Entry(
            f"k = {k}",
            {f"mu {mu:g}": moon(dataset, mu=mu, negatives=k) for mu in (0.1, 1.0, 5.0, 10.0)},
            number,
        )
        for k, number in paper.items()
    ]


def statistics(dataset: str) -> list[Entry]:
    paper = {"cifar10": "5,000 ± 1,165", "cifar100": "5,000 ± 181", "tiny-imagenet": "10,000 ± 99"}
    trials = {"": preset(dataset, "fedavg")}
    return [
        Entry(dataset, trials, paper[dataset], column="training samples a party"),
        Entry(dataset, trials, "10,000", column="test samples"),
    ]


def distributions(dataset: str) -> list[Entry]:
    return [
        Entry(f"beta {beta:g}", {"": replace(preset(dataset, "fedavg"), beta=beta)})
        for beta in (0.5, 0.1, 5.0)
    ]
