"""Every table and figure of the paper as experiments, with the paper's number beside each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from .algorithms import MOON, FedAvg, FedProx, Solo
from .experiment import Experiment
from .presets import PRESETS, SETTINGS
from .servers import Momentum

DATASETS = ("cifar10", "cifar100", "tiny-imagenet")
METHODS = {"moon": "MOON", "fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "solo": "SOLO"}
Kind = Literal["accuracy", "curves", "rounds", "seconds", "statistics", "distributions", "tsne"]


@dataclass(frozen=True)
class Entry:
    """One number of a table: a row, a column, and the experiments behind it."""

    row: str
    trials: dict[str, Experiment]  # by setting; where there are several, the best is reported, as in the paper
    paper: str = ""  # as the paper prints it, in %; empty: the paper shows it in a figure only
    column: str = "accuracy"
    at: int | None = None  # read after this round; None: after the last


@dataclass(frozen=True)
class Target:
    where: str
    title: str
    entries: Callable[[str], list[Entry]]  # of a data set
    datasets: tuple[str, ...] = DATASETS
    kind: Kind = "accuracy"


def preset(dataset: str, method: str) -> Experiment:
    return PRESETS[f"{dataset}-{method}"].experiment


def entry(
    dataset: str, method: str, paper: str = "", row: str = "", column: str = "accuracy", at: int | None = None,
    **changes: Any,
) -> Entry:  # fmt: skip
    """A method with the paper's best mu; `changes` go to the experiment. SOLO has its own length and no sampling."""
    if method == "solo":
        changes = {key: value for key, value in changes.items() if key not in ("rounds", "sample_fraction")}
    exp = replace(preset(dataset, method), **changes)
    return Entry(row or METHODS[method], {"": exp}, paper, column, at)


def federated(dataset: str, fedavg: str, fedprox: str, scaffold: str, moon: str) -> list[Entry]:
    """The four federated methods with these numbers of the paper."""
    numbers = {"fedavg": fedavg, "fedprox": fedprox, "scaffold": scaffold, "moon": moon}
    return [entry(dataset, method, number) for method, number in numbers.items()]


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


def seconds(dataset: str) -> list[Entry]:
    paper = {
        "cifar10": ("330", "340", "332", "337"),
        "cifar100": ("1200", "1440", "1200", "1860"),
        "tiny-imagenet": ("6180", "8100", "6720", "11820"),
    }[dataset]
    return federated(dataset, *paper)


def epochs(dataset: str) -> list[Entry]:
    """Only what the caption says of one local epoch is printed; the rest is a figure."""
    printed = {
        ("cifar10", "scaffold"): "45.3", ("cifar100", "scaffold"): "20.4", ("tiny-imagenet", "scaffold"): "2.6",
        ("tiny-imagenet", "fedprox"): "1.2",
    }  # fmt: skip
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
            column = f"{parties} parties" + ("" if row == "SOLO" else f", {at} rounds")
            made.append(
                entry(dataset, names[row], number, row=row, column=column, at=None if row == "SOLO" else at,
                      parties=parties, sample_fraction=fraction, rounds=last, **changes)
            )  # fmt: skip
    return made


SCALES = ((50, 1.0, 100, 200), (50, 1.0, 200, 200), (100, 0.2, 250, 500), (100, 0.2, 500, 500))


def heterogeneity(dataset: str) -> list[Entry]:
    paper = {
        "moon": ("64.0", "67.5", "68.0"), "fedavg": ("62.5", "64.5", "65.7"), "fedprox": ("62.9", "64.6", "64.9"),
        "scaffold": ("47.3", "52.5", "55.0"), "solo": ("15.9 ± 1.5", "22.3 ± 1", "26.6 ± 1.4"),
    }  # fmt: skip
    return [
        entry(dataset, method, number, beta=beta, column=f"beta = {beta:g}")
        for method, numbers in paper.items()
        for beta, number in zip((0.1, 0.5, 5.0), numbers, strict=True)
    ]


def loss(dataset: str) -> list[Entry]:
    l2 = {"cifar10": "65.8", "cifar100": "66.9", "tiny-imagenet": "24.0"}[dataset]
    grid = {f"mu {mu:g}": moon(dataset, mu=mu, contrast="l2") for mu in (0.001, 0.01, 0.1, 1.0, 5.0, 10.0)}
    none, ours = (plain(dataset, method) for method in ("fedavg", "moon"))
    return [
        entry(dataset, "fedavg", none, row="none (FedAvg)"),
        Entry("l2 norm", grid, l2),
        entry(dataset, "moon", ours),
    ]


def head(dataset: str) -> list[Entry]:
    without = {
        "cifar10": ("66.8", "66.7", "67.5", "67.1", "39.8 ± 3.9"),
        "cifar100": ("66.1", "65.0", "65.4", "49.5", "22.5 ± 1.1"),
    }[dataset]
    made = [
        entry(dataset, method, number, head=False, column="without head")
        for method, number in zip(METHODS, without, strict=True)
    ]
    return made + [replace(e, column="with head") for e in table1(dataset)]


def iid(dataset: str) -> list[Entry]:
    paper = {0.1: "73.6", 1.0: "73.6", 5.0: "73.0", 10.0: "72.8"}
    made = [Entry(f"MOON, mu {mu:g}", {"": moon(dataset, mu=mu, partition="iid")}, paper[mu]) for mu in paper]
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
        Entry(f"{mu:g}", {"": moon(dataset, mu=mu)}, number) for mu, number in zip(values, paper[1:], strict=True)
    ]


def fedprox_mu(dataset: str) -> list[Entry]:
    grid = {
        f"mu {mu:g}": replace(preset(dataset, "fedprox"), algorithm=FedProx(mu=mu)) for mu in (0.001, 0.01, 0.1, 1.0)
    }
    return [Entry("FedProx", grid, plain(dataset, "fedprox"))]


def temperature(dataset: str) -> list[Entry]:
    return [Entry(f"tau {tau:g}", {"": moon(dataset, tau=tau)}) for tau in (0.1, 0.5, 1.0)]


def dimension(dataset: str) -> list[Entry]:
    return [Entry(f"{size}", {"": moon(dataset, out_dim=size)}) for size in (64, 128, 256)]


def fedavgm(dataset: str) -> list[Entry]:
    paper, values = SETTINGS[dataset].accuracy, (0.1, 0.7, 0.9)
    made = [entry(dataset, method, plain(dataset, method)) for method in ("fedavg", "moon")]
    for method, row in (("fedavg", "FedAvgM"), ("moon", "MOON + FedAvgM")):
        grid = {f"momentum {b:g}": replace(preset(dataset, method), server=Momentum(momentum=b)) for b in values}
        made.append(Entry(row, grid, paper["fedavgm" if method == "fedavg" else "moon-fedavgm"].removesuffix(" %")))
    return made


def negatives(dataset: str) -> list[Entry]:
    paper = {1: "69.1", 2: "67.2", 5: "67.7", 100: "63.5"}
    return [
        Entry(f"k = {k}", {f"mu {mu:g}": moon(dataset, mu=mu, negatives=k) for mu in (0.1, 1.0, 5.0, 10.0)}, number)
        for k, number in paper.items()
    ]


def statistics(dataset: str) -> list[Entry]:
    paper = {"cifar10": "5,000 ± 1,165", "cifar100": "5,000 ± 181", "tiny-imagenet": "10,000 ± 99"}
    return [Entry(dataset, {"": preset(dataset, "fedavg")}, paper[dataset])]


def distributions(dataset: str) -> list[Entry]:
    return [Entry(f"beta {beta:g}", {"": replace(preset(dataset, "fedavg"), beta=beta)}) for beta in (0.5, 0.1, 5.0)]


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


def moon(dataset: str, **more: Any) -> Experiment:
    """MOON with the paper's best mu; what is given goes to the algorithm or, where it has none such, the experiment."""
    exp = preset(dataset, "moon")
    own = {key: value for key, value in more.items() if hasattr(exp.algorithm, key)}
    rest = {key: value for key, value in more.items() if key not in own}
    return replace(exp, algorithm=replace(exp.algorithm, **own), **rest)


def plain(dataset: str, method: str) -> str:
    """Table 1 without its deviation, as the other tables repeat it."""
    return SETTINGS[dataset].accuracy[method].split()[0]


TARGETS = {
    "table1": Target("Table 1", "Top-1 accuracy of all methods", table1),
    "curves": Target("Figure: communication", "Accuracy in each round", curves, kind="curves"),
    "rounds": Target("Table: communication", "Rounds to FedAvg's final accuracy", rounds, kind="rounds"),
    "epochs": Target("Figure: local epochs", "Accuracy by the number of local epochs", epochs),
    "scalability": Target("Table: scalability", "50 parties, and 100 of which 20 a round", scalability, ("cifar100",)),
    "heterogeneity": Target("Table: heterogeneity", "Accuracy by beta", heterogeneity, ("cifar100",)),
    "loss": Target("Table: loss function", "Second term of the local loss", loss),
    "head": Target("Appendix: projection head", "With and without projection head", head, ("cifar10", "cifar100")),
    "iid": Target("Appendix: IID partition", "Accuracy on an IID partition", iid, ("cifar10",)),
    "mu": Target("Appendix: effect of mu", "MOON by mu", mu),
    "fedprox-mu": Target("Section 4.2", "FedProx tuned over its grid", fedprox_mu),
    "temperature": Target("Appendix: temperature", "MOON by temperature", temperature),
    "dimension": Target("Appendix: output dimension", "MOON by output dimension of the head", dimension),
    "fedavgm": Target("Appendix: FedAvgM", "With server momentum", fedavgm),
    "time": Target("Appendix: computation cost", "Seconds of training in a round", seconds, kind="seconds"),
    "negatives": Target("Appendix: negative pairs", "MOON by the number of negatives", negatives, ("cifar10",)),
    "statistics": Target("Appendix: data sets", "Samples a party, mean and deviation", statistics, kind="statistics"),
    "distributions": Target("Figure: data distribution", "Who has which classes", distributions, kind="distributions"),
    "tsne": Target("Figure: motivation", "Representations of four models", motivation, ("cifar10",), kind="tsne"),
}


def small(exp: Experiment) -> Experiment:
    """The same in seconds, on digits with a small network: a tenth of the rounds, half of the local epochs."""
    base = preset("digits", "fedavg")
    alone = not exp.algorithm.federated or exp.parties == 1
    epochs = exp.epochs // 10 if not exp.algorithm.federated else exp.epochs // 2
    return replace(
        exp, dataset="digits", model=base.model, batch_size=base.batch_size, parties=min(exp.parties, 20),
        rounds=exp.rounds if not exp.algorithm.federated else max(3, exp.rounds // 10),
        epochs=max(1, exp.epochs if alone and exp.algorithm.federated else epochs), scale="small",
    )  # fmt: skip


def experiments(entries: list[Entry]) -> Iterator[Experiment]:
    """Each once."""
    seen = set()
    for e in entries:
        for exp in e.trials.values():
            if exp not in seen:
                seen.add(exp)
                yield exp
