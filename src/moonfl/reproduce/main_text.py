"""The tables and figures of the paper's main text, with the numbers that the paper prints."""

from dataclasses import dataclass, replace

from ..algorithms import MOON, FedAvg, FedProx, Solo
from ..presets import SETTINGS
from .entries import METHODS, Entry, entry, federated, mean_accuracy, moon, preset


@dataclass(frozen=True)
class Scale:
    """A column of the scalability table."""

    parties: int
    sample_fraction: float
    at_round: int  # the round that the column shows
    rounds: int  # of the run


SCALES = (
    Scale(parties=50, sample_fraction=1.0, at_round=100, rounds=200),
    Scale(parties=50, sample_fraction=1.0, at_round=200, rounds=200),
    Scale(parties=100, sample_fraction=0.2, at_round=250, rounds=500),
    Scale(parties=100, sample_fraction=0.2, at_round=500, rounds=500),
)


def table1(dataset: str) -> list[Entry]:
    """Return the entries of Table 1: the accuracy of every method."""
    paper = SETTINGS[dataset].accuracy
    return [entry(dataset, method, paper[method].removesuffix(" %")) for method in METHODS]


def curves(dataset: str) -> list[Entry]:
    """Return the federated methods of Table 1, and FedProx with the mu that makes it slow."""
    methods = [replace(e, paper="") for e in table1(dataset) if e.row != "SOLO"]
    slow = entry(dataset, "fedprox", row="FedProx, mu 1", algorithm=FedProx(mu=1.0))
    return [*methods, slow]


def rounds(dataset: str) -> list[Entry]:
    """Return the entries of the communication table: rounds to FedAvg's final accuracy."""
    paper = {
        "cifar10": ("100", "52", "80", "27"),
        "cifar100": ("100", "75", "not reached", "43"),
        "tiny-imagenet": ("20", "17", "not reached", "11"),
    }[dataset]
    return federated(dataset, *paper)


def epochs(dataset: str) -> list[Entry]:
    """Return the methods by number of local epochs.

    The paper shows a figure; only its caption prints numbers, those of one local epoch.
    """
    one_epoch = {
        ("cifar10", "scaffold"): "45.3",
        ("cifar100", "scaffold"): "20.4",
        ("tiny-imagenet", "scaffold"): "2.6",
        ("tiny-imagenet", "fedprox"): "1.2",
    }
    entries = []
    for method in ("moon", "fedavg", "fedprox", "scaffold"):
        for count in (1, 5, 10, 20, 40):
            paper = one_epoch.get((dataset, method), "") if count == 1 else ""
            entries.append(entry(dataset, method, paper, epochs=count, column=f"E = {count}"))
    return entries


def scalability(dataset: str) -> list[Entry]:
    """Return the entries of the scalability table: more parties, and sampled ones."""
    paper = {
        "MOON, mu 1": ("54.7", "58.8", "54.5", "58.2"),
        "MOON, mu 10": ("58.2", "63.2", "56.9", "61.8"),
        "FedAvg": ("51.9", "56.4", "51.0", "55.0"),
        "FedProx": ("52.7", "56.6", "51.3", "54.6"),
        "SCAFFOLD": ("35.8", "44.9", "37.4", "44.5"),
        "SOLO": ("10 ± 0.9", "", "7.3 ± 0.6", ""),
    }
    entries = []
    for row, numbers in paper.items():
        for scale, number in zip(SCALES, numbers, strict=True):
            if row != "SOLO":
                entries.append(scaled_entry(dataset, row, number, scale))
            elif number:
                entries.append(scaled_solo(dataset, number, scale))
    return entries


def scaled_entry(dataset: str, row: str, paper: str, scale: Scale) -> Entry:
    """Return a federated method of the scalability table at one scale."""
    methods = {name: method for method, name in METHODS.items()}
    changes = {"algorithm": MOON(mu=10.0)} if row == "MOON, mu 10" else {}
    column = f"{scale.parties} parties"
    if scale.sample_fraction < 1:
        column += f", {round(scale.sample_fraction * scale.parties)} per round"
    return entry(
        dataset,
        methods[row.split(",")[0]],
        paper,
        row=row,
        column=f"{column}, {scale.at_round} rounds",
        at_round=scale.at_round,
        parties=scale.parties,
        sample_fraction=scale.sample_fraction,
        rounds=scale.rounds,
        **changes,
    )


def scaled_solo(dataset: str, paper: str, scale: Scale) -> Entry:
    """Return SOLO of the scalability table: it has no rounds and samples no parties."""
    column = f"{scale.parties} parties"
    return entry(dataset, "solo", paper, column=column, parties=scale.parties)


def heterogeneity(dataset: str) -> list[Entry]:
    """Return the entries of the heterogeneity table: accuracy by beta."""
    paper = {
        "moon": ("64.0", "67.5", "68.0"),
        "fedavg": ("62.5", "64.5", "65.7"),
        "fedprox": ("62.9", "64.6", "64.9"),
        "scaffold": ("47.3", "52.5", "55.0"),
        "solo": ("15.9 ± 1.5", "22.3 ± 1", "26.6 ± 1.4"),
    }
    return [
        entry(dataset, method, number, beta=beta, column=f"beta = {beta:g}")
        for method, numbers in paper.items()
        for beta, number in zip((0.1, 0.5, 5.0), numbers, strict=True)
    ]


def loss(dataset: str) -> list[Entry]:
    """Return the entries of the loss table: no second term, an l2 norm, MOON's contrast."""
    paper = {"cifar10": "65.8", "cifar100": "66.9", "tiny-imagenet": "24.0"}[dataset]
    grid = {
        f"mu {mu:g}": moon(dataset, mu=mu, contrast="l2")
        for mu in (0.001, 0.01, 0.1, 1.0, 5.0, 10.0)
    }
    return [
        entry(dataset, "fedavg", mean_accuracy(dataset, "fedavg"), row="none (FedAvg)"),
        Entry("l2 norm", grid, paper),
        entry(dataset, "moon", mean_accuracy(dataset, "moon")),
    ]


def fedprox_mu(dataset: str) -> list[Entry]:
    """Return FedProx with every mu that the paper tried."""
    grid = {
        f"mu {mu:g}": replace(preset(dataset, "fedprox"), algorithm=FedProx(mu=mu))
        for mu in (0.001, 0.01, 0.1, 1.0)
    }
    return [Entry("FedProx", grid, mean_accuracy(dataset, "fedprox"))]


def motivation(dataset: str) -> list[Entry]:
    """Return the four models of the motivation's figure.

    The paper does not say for how many rounds FedAvg was trained here; we train it for ten.
    """
    solo = replace(preset(dataset, "solo"), algorithm=Solo())
    fedavg = replace(preset(dataset, "fedavg"), rounds=10, algorithm=FedAvg())
    return [
        Entry("all data in one place", {"": preset(dataset, "centralised")}),
        Entry("one party alone", {"": solo}),
        Entry("FedAvg: global model", {"": fedavg}),
        Entry("FedAvg: a local model", {"": fedavg}),
    ]
