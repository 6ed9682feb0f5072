"""The tables about compositions and personal models on the CIFAR-10 page."""

from dataclasses import dataclass

from moonfl.experiment import Experiment, override
from moonfl.report.runs import Run
from moonfl.report.tables import Column, Markdown, Table, percent, points
from moonfl.reproduce.runner import run_name
from moonfl.reproduce.targets import preset
from result_tables import LAST, last_mean
from stored_runs import DATASET, command


@dataclass(frozen=True)
class Method:
    """A row of one of the tables, which is one run."""

    name: str
    preset: str
    changes: str = ""
    parts: tuple[str, ...] = ()  # names of the rows that it is composed of

    @property
    def experiment(self) -> Experiment:
        """Return the experiment with seed 0."""
        return override(preset(DATASET, self.preset), self.changes.split())


COMPOSITIONS = (
    Method("FedAvg", "fedavg"),
    Method("FedAvgM", "fedavgm"),
    Method("MOON", "moon"),
    Method("MOON, FedAvgM", "moon-fedavgm", parts=("MOON", "FedAvgM")),
    Method("SCAFFOLD", "scaffold"),
    Method("MOON + SCAFFOLD", "moon", "algorithm=moon+scaffold", ("MOON", "SCAFFOLD")),
    Method("MOON + FedDecorr", "moon", "algorithm=moon+feddecorr", ("MOON",)),
    Method("MOON + FedNTD", "moon", "algorithm=moon+fedntd", ("MOON",)),
    Method(
        "SCAFFOLD, FedAvgM",
        "scaffold",
        "server=momentum server.momentum=0.7",
        ("SCAFFOLD", "FedAvgM"),
    ),
)
PERSONAL = (
    Method("FedAvg, fine-tuned for one epoch", "fedavg", "finetune=1"),
    Method("FedAvg, FedPer", "fedavg", "personal=output"),
    Method("MOON, FedPer", "moon", "personal=output"),
    Method("SCAFFOLD, FedPer", "scaffold", "personal=output"),
    Method("SOLO, 1,000 epochs", "solo", "epochs=1000"),
)


def stored_methods(methods: tuple[Method, ...], stored: dict[str, Run]) -> dict[Method, Run]:
    """Return the methods that have a stored run with seed 0, and these runs."""
    names = {method: run_name(method.experiment) for method in methods}
    return {method: stored[name] for method, name in names.items() if name in stored}


def compositions(stored: dict[str, Run]) -> Table:
    """Return the accuracy of compositions and their lead over FedAvg and over their parts."""
    runs = stored_methods(COMPOSITIONS, stored)
    means = {method.name: last_mean(run) for method, run in runs.items()}
    rows = []
    for method, run in runs.items():
        mean = means[method.name]
        rows.append(
            (
                method.name,
                float(run.rounds[-1].accuracy),
                mean,
                None if method.name == "FedAvg" else mean - means["FedAvg"],
                mean - max(means[part] for part in method.parts) if method.parts else None,
                run.versions["kernels"],
                Markdown(f"`{command(method.experiment)}`"),
            )
        )
    columns = (
        Column("method"),
        Column("last round, %", percent),
        Column(f"last {LAST}, %", percent),
        Column(f"minus FedAvg, last {LAST}", points),
        Column(f"minus its better part, last {LAST}", points),
        Column("kernels"),
        Column("command"),
    )
    note = (
        f"last {LAST}: mean of the last {LAST} rounds; of FedDecorr and FedNTD alone there is no "
        "run, so their compositions are compared with MOON"
    )
    return Table("compositions", "Compositions, seed 0", columns, rows, note)


def personal(stored: dict[str, Run]) -> Table:
    """Return the accuracy of personal models, and of the global one, on the parties' own samples.

    A run with fine-tuning has both.
    """
    rows = []
    for method, run in stored_methods(PERSONAL, stored).items():
        last = run.rounds[-1]
        markdown = Markdown(f"`{command(method.experiment)}`")
        if last.global_score is not None:
            name = f"{method.name.partition(',')[0]}, global model"
            worst = last.global_party_score_worst
            rows.append((name, last.global_score, last.global_party_score, worst, markdown))
        all_samples = last.accuracy if run.federated else None
        worst = last.party_accuracy_worst
        rows.append((method.name, all_samples, last.party_accuracy, worst, markdown))
    columns = (
        Column("method"),
        Column("all samples, %", percent),
        Column("mean over parties, %", percent),
        Column("worst party, %", percent),
        Column("command"),
    )
    note = (
        "all samples: share of all test samples, each classified by the model of one party; "
        "mean over parties: each party has the same weight"
    )
    return Table("personal", "Personal models, seed 0, last round", columns, rows, note)
