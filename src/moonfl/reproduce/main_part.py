"""The tables and figures of the paper's main part."""

from dataclasses import replace

from ..algorithms import MOON, FedAvg, FedProx, Solo
from ..presets import SETTINGS
from .entries import METHODS, Entry, entry, federated, moon, plain, preset

SCALES = (
    (50, 1.0, 100, 200),
    (50, 1.0, 200, 200),
    (100, 0.2, 250, 500),
    (100, 0.2, 500, 500),
)  # parties ... rounds


def table1(dataset: str) -> list[Entry]:
    paper = SETTINGS[dataset].accuracy
    return [entry(dataset, method, paper[method].removesuffix(" %")) for method in METHODS]


def curves(dataset: str) -> list[Entry]:
    slow = entry(dataset, "fedprox", row="FedProx, mu 1", algorithm=FedProx(mu=1.0))
    return [replace(e, paper="") for e in table1(dataset) if e.row != "SOLO"] + [slow]


def rounds(dataset: str) -> list[Entry]:
    paper = {
        "cifar10": ("100", "52", "80", "27"),
        "cifar100": ("100", "75", "not reached", "43"),
        "tiny-imagenet": ("20", "17", "not reached", "11"),
    }[dataset]
    return federated(dataset, *paper)


def epochs(dataset: str) -> list[Entry]:
    """Only what the caption says of one local epoch is printed; the rest is a figure."""
    printed = {
        ("cifar10", "scaffold"): "45.3",
        ("cifar100", "scaffold"): "20.4",
        ("tiny-imagenet", "scaffold"): "2.6",
        ("tiny-imagenet", "fedprox"): "1.2",
    }
    made = []
    for method in ("moon", "fedavg", "fedprox", "scaffold"):
        for count in (1, 5, 10, 20, 40):
            number = printed.get((dataset, method), "") if count == 1 else ""
            made.append(entry(dataset, method, number, epochs=count, column=f"E = {count}"))
    return made


def scalability(dataset: str) -> list[Entry]:
    mu10 = MOON(mu=10.0)
    paper = {
        "MOON, mu 1": ("54.7", "58.8", "54.5", "58.2"),
        "MOON, mu 10": ("58.2", "63.2", "56.9", "61.8"),
        "FedAvg": ("51.9", "56.4", "51.0", "55.0"),
        "FedProx": ("52.7", "56.6", "51.3", "54.6"),
        "SCAFFOLD": ("35.8", "44.9", "37.4", "44.5"),
        "SOLO": ("10 ± 0.9", "", "7.3 ± 0.6", ""),
    }
    names = {METHODS[m]: m for m in METHODS} | {"MOON, mu 1": "moon", "MOON, mu 10": "moon"}
    made = []
    for row, numbers in paper.items():
        for (parties, fraction, at, last), number in zip(SCALES, numbers, strict=True):
            if row == "SOLO" and at == last:
                continue
            changes = {"algorithm": mu10} if row == "MOON, mu 10" else {}
            chosen = f", {round(fraction * parties)} a round" if fraction < 1 else ""
            column = f"{parties} parties" + ("" if row == "SOLO" else f"{chosen}, {at} rounds")
            made.append(
                entry(
                    dataset,
                    names[row],
                    number,
                    row=row,
                    column=column,
                    at=None if row == "SOLO" else at,
                    parties=parties,
                    sample_fraction=fraction,
                    rounds=last,
                    **changes,
                )
            )
    return made


def heterogeneity(dataset: str) -> list[Entry]:
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
    l2 = {"cifar10": "65.8", "cifar100": "66.9", "tiny-imagenet": "24.0"}[dataset]
    grid = {
        f"mu {mu:g}": moon(dataset, mu=mu, contrast="l2")
        for mu in (0.001, 0.01, 0.1, 1.0, 5.0, 10.0)
    }
    none, ours = (plain(dataset, method) for method in ("fedavg", "moon"))
    return [
        entry(dataset, "fedavg", none, row="none (FedAvg)"),
        Entry("l2 norm", grid, l2),
        entry(dataset, "moon", ours),
    ]


def fedprox_mu(dataset: str) -> list[Entry]:
    grid = {
        f"mu {mu:g}": replace(preset(dataset, "fedprox"), algorithm=FedProx(mu=mu))
        for mu in (0.001, 0.01, 0.1, 1.0)
    }
    return [Entry("FedProx", grid, plain(dataset, "fedprox"))]


def motivation(dataset: str) -> list[Entry]:
    """The paper does not say how long FedAvg was trained here; ten rounds."""
    alone = replace(preset(dataset, "solo"), algorithm=Solo())
    fedavg = replace(preset(dataset, "fedavg"), rounds=10, algorithm=FedAvg())
    return [
        Entry("all data in one place", {"": preset(dataset, "centralised")}),
        Entry("one party alone", {"": alone}),
        Entry("FedAvg: global model", {"": fedavg}),
        Entry("FedAvg: a local model", {"": fedavg}),
    ]
