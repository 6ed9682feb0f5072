"""Every table and figure of the paper as experiments, with the paper's number beside each."""

from . import appendix
from . import main_part as main
from .entries import DATASETS, Entry, Target, experiments, preset, small

__all__ = ["DATASETS", "TARGETS", "Entry", "Target", "experiments", "preset", "small"]

TARGETS = {
    "table1": Target("Table 1", "Top-1 accuracy of all methods", main.table1),
    "curves": Target(
        "Figure: communication",
        "Accuracy in each round",
        main.curves,
        kind="curves",
        figure="rounds",
    ),
    "rounds": Target(
        "Table: communication", "Rounds to FedAvg's final accuracy", main.rounds, kind="rounds"
    ),
    "epochs": Target(
        "Figure: local epochs",
        "Accuracy by the number of local epochs",
        main.epochs,
        figure="local epochs E",
    ),
    "scalability": Target(
        "Table: scalability",
        "50 parties, and 100 of which 20 a round",
        main.scalability,
        ("cifar100",),
        figure="rounds",
    ),
    "heterogeneity": Target(
        "Table: heterogeneity", "Accuracy by beta", main.heterogeneity, ("cifar100",), figure="beta"
    ),
    "loss": Target("Table: loss function", "Second term of the local loss", main.loss),
    "head": Target(
        "Appendix: projection head",
        "With and without projection head",
        appendix.head,
        ("cifar10", "cifar100"),
    ),
    "iid": Target(
        "Appendix: IID partition", "Accuracy on an IID partition", appendix.iid, ("cifar10",)
    ),
    "mu": Target("Appendix: effect of mu", "MOON by mu", appendix.mu, figure="mu"),
    "fedprox-mu": Target("Section 4.2", "FedProx tuned over its grid", main.fedprox_mu),
    "temperature": Target(
        "Appendix: temperature",
        "MOON by temperature",
        appendix.temperature,
        figure="temperature tau",
    ),
    "dimension": Target(
        "Appendix: output dimension",
        "MOON by output dimension of the head",
        appendix.dimension,
        figure="output dimension of the head",
    ),
    "fedavgm": Target("Appendix: FedAvgM", "With server momentum", appendix.fedavgm),
    "time": Target(
        "Appendix: computation cost", "Seconds a round", appendix.seconds, kind="seconds"
    ),
    "negatives": Target(
        "Appendix: negative pairs",
        "MOON by the number of negatives",
        appendix.negatives,
        ("cifar10",),
    ),
    "statistics": Target(
        "Appendix: data sets",
        "Samples of parties and of the test set",
        appendix.statistics,
        kind="statistics",
    ),
    "distributions": Target(
        "Figure: data distribution",
        "Who has which classes",
        appendix.distributions,
        kind="distributions",
    ),
    "tsne": Target(
        "Figure: motivation",
        "Representations of four models, of one seed",
        main.motivation,
        ("cifar10",),
        kind="tsne",
        figure="models",
        seeds=1,
    ),
}
