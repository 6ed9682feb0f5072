"""The table of targets: every table and figure of the paper by the name that the CLI uses."""

from . import appendix, main_text
from .entries import DATASETS, Entry, Target, experiments, preset, shrink

__all__ = ["DATASETS", "TARGETS", "Entry", "Target", "experiments", "preset", "shrink"]

TARGETS = {
    "table1": Target(
        reference="Table 1",
        title="Top-1 accuracy of all methods",
        entries=main_text.table1,
    ),
    "curves": Target(
        reference="Figure: communication",
        title="Accuracy in each round",
        entries=main_text.curves,
        kind="curves",
        figure="rounds",
    ),
    "rounds": Target(
        reference="Table: communication",
        title="Rounds to FedAvg's final accuracy",
        entries=main_text.rounds,
        kind="rounds",
    ),
    "epochs": Target(
        reference="Figure: local epochs",
        title="Accuracy by the number of local epochs",
        entries=main_text.epochs,
        figure="local epochs E",
    ),
    "scalability": Target(
        reference="Table: scalability",
        title="50 parties, and 100 parties with 20 per round",
        entries=main_text.scalability,
        datasets=("cifar100",),
        figure="rounds",
    ),
    "heterogeneity": Target(
        reference="Table: heterogeneity",
        title="Accuracy by beta",
        entries=main_text.heterogeneity,
        datasets=("cifar100",),
        figure="beta",
    ),
    "loss": Target(
        reference="Table: loss function",
        title="Second term of the local loss",
        entries=main_text.loss,
    ),
    "head": Target(
        reference="Appendix: projection head",
        title="With and without projection head",
        entries=appendix.head,
        datasets=("cifar10", "cifar100"),
    ),
    "iid": Target(
        reference="Appendix: IID partition",
        title="Accuracy on an IID partition",
        entries=appendix.iid,
        datasets=("cifar10",),
    ),
    "mu": Target(
        reference="Appendix: effect of mu",
        title="MOON by mu",
        entries=appendix.mu,
        figure="mu",
    ),
    "fedprox-mu": Target(
        reference="Section 4.2",
        title="FedProx tuned over its grid",
        entries=main_text.fedprox_mu,
    ),
    "temperature": Target(
        reference="Appendix: temperature",
        title="MOON by temperature",
        entries=appendix.temperature,
        figure="temperature tau",
    ),
    "dimension": Target(
        reference="Appendix: output dimension",
        title="MOON by output dimension of the head",
        entries=appendix.dimension,
        figure="output dimension of the head",
    ),
    "fedavgm": Target(
        reference="Appendix: FedAvgM",
        title="With server momentum",
        entries=appendix.fedavgm,
    ),
    "time": Target(
        reference="Appendix: computation cost",
        title="Seconds per round",
        entries=appendix.seconds,
        kind="seconds",
    ),
    "negatives": Target(
        reference="Appendix: negative pairs",
        title="MOON by the number of negatives",
        entries=appendix.negatives,
        datasets=("cifar10",),
    ),
    "statistics": Target(
        reference="Appendix: datasets",
        title="Samples per party and in the test set",
        entries=appendix.statistics,
        kind="statistics",
    ),
    "distributions": Target(
        reference="Figure: data distribution",
        title="Classes per party",
        entries=appendix.distributions,
        kind="distributions",
    ),
    "tsne": Target(
        reference="Figure: motivation",
        title="Representations of four models, one seed",
        entries=main_text.motivation,
        datasets=("cifar10",),
        kind="tsne",
        figure="models",
        max_seeds=1,
    ),
}
