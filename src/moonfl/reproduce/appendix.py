"""The tables and figures of the paper's appendix, with the numbers that the paper prints."""

from dataclasses import replace

from ..presets import SETTINGS
from ..server_optimizers import Momentum
from .entries import METHODS, Entry, entry, federated, mean_accuracy, moon, preset
from .main_text import table1


def head(dataset: str) -> list[Entry]:
    """Return every method without and with the projection head."""
    paper = {
        "cifar10": ("66.8", "66.7", "67.5", "67.1", "39.8 ± 3.9"),
        "cifar100": ("66.1", "65.0", "65.4", "49.5", "22.5 ± 1.1"),
    }[dataset]
    entries = [
        entry(dataset, method, number, head=False, column="without head")
        for method, number in zip(METHODS, paper, strict=True)
    ]
    for e in table1(dataset):
        number = e.paper if e.row == "SOLO" else e.paper.split()[0]
        entries.append(replace(e, column="with head", paper=number))
    return entries


def iid(dataset: str) -> list[Entry]:
    """Return MOON by mu, and FedAvg, on an IID partition."""
    paper = {0.1: "73.6", 1.0: "73.6", 5.0: "73.0", 10.0: "72.8"}
    entries = []
    for mu, number in paper.items():
        exp = replace(moon(dataset, mu=mu), partition="iid")
        entries.append(Entry(f"MOON, mu {mu:g}", {"": exp}, number))
    return [*entries, entry(dataset, "fedavg", "73.4", partition="iid")]


def mu(dataset: str) -> list[Entry]:
    """Return MOON by mu; mu = 0 is FedAvg."""
    fedavg, *paper = {
        "cifar10": ("66.3", "66.5", "68.4", "69.1", "68.3"),
        "cifar100": ("64.5", "65.1", "67.5", "67.1", "67.3"),
        "tiny-imagenet": ("23.0", "23.4", "25.1", "24.4", "25.0"),
    }[dataset]
    entries = [entry(dataset, "fedavg", fedavg, row="0 (FedAvg)")]
    for mu, number in zip((0.1, 1.0, 5.0, 10.0), paper, strict=True):
        entries.append(Entry(f"{mu:g}", {"": moon(dataset, mu=mu)}, number))
    return entries


def temperature(dataset: str) -> list[Entry]:
    """Return MOON by temperature tau."""
    best = {"cifar10": 0.5, "cifar100": 1.0, "tiny-imagenet": 0.5}[dataset]
    return [
        Entry(f"tau {tau:g}", {"": moon(dataset, tau=tau)}, best=tau == best)
        for tau in (0.1, 0.5, 1.0)
    ]


def dimension(dataset: str) -> list[Entry]:
    """Return MOON by output dimension of the projection head."""
    best = {"cifar10": 128, "cifar100": 256, "tiny-imagenet": 128}[dataset]
    exp = preset(dataset, "moon")
    return [
        Entry(f"{size}", {"": replace(exp, out_dim=size)}, best=size == best)
        for size in (64, 128, 256)
    ]


def fedavgm(dataset: str) -> list[Entry]:
    """Return FedAvg and MOON without and with server momentum."""
    entries = [
        entry(dataset, method, mean_accuracy(dataset, method)) for method in ("fedavg", "moon")
    ]
    rows = {"fedavgm": ("FedAvgM", "fedavg"), "moon-fedavgm": ("MOON + FedAvgM", "moon")}
    for key, (row, method) in rows.items():
        grid = {
            f"momentum {value:g}": replace(preset(dataset, method), server=Momentum(momentum=value))
            for value in (0.1, 0.7, 0.9)
        }
        paper = SETTINGS[dataset].accuracy[key].removesuffix(" %")
        entries.append(Entry(row, grid, paper))
    return entries


def seconds(dataset: str) -> list[Entry]:
    """Return the entries of the computation cost table: seconds per round."""
    paper = {
        "cifar10": ("330", "340", "332", "337"),
        "cifar100": ("1200", "1440", "1200", "1860"),
        "tiny-imagenet": ("6180", "8100", "6720", "11820"),
    }[dataset]
    return federated(dataset, *paper)


def negatives(dataset: str) -> list[Entry]:
    """Return MOON by the number of negatives k, each with the best of four mu."""
    paper = {1: "69.1", 2: "67.2", 5: "67.7", 100: "63.5"}
    entries = []
    for k, number in paper.items():
        grid = {f"mu {mu:g}": moon(dataset, mu=mu, negatives=k) for mu in (0.1, 1.0, 5.0, 10.0)}
        entries.append(Entry(f"k = {k}", grid, number))
    return entries


def statistics(dataset: str) -> list[Entry]:
    """Return the numbers of training samples per party and of test samples."""
    paper = {"cifar10": "5,000 ± 1,165", "cifar100": "5,000 ± 181", "tiny-imagenet": "10,000 ± 99"}
    trials = {"": preset(dataset, "fedavg")}
    return [
        Entry(dataset, trials, paper[dataset], column="training samples per party"),
        Entry(dataset, trials, "10,000", column="test samples"),
    ]


def distributions(dataset: str) -> list[Entry]:
    """Return the partitions that the paper shows as heat maps."""
    return [
        Entry(f"beta {beta:g}", {"": replace(preset(dataset, "fedavg"), beta=beta)})
        for beta in (0.5, 0.1, 5.0)
    ]
