"""The tables and pictures of the CIFAR-100 results page.

The paper trains ResNet-50 on CIFAR-100, which two CPU cores cannot. Our runs use the CNN that the
paper has for CIFAR-10. Accuracies therefore cannot be compared with the paper's, but the order of
the methods, and whether one leads FedAvg, can.
"""

from dataclasses import dataclass, replace

import result_tables
from comparisons import comparison_table
from moonfl.report.curves import score_curves
from moonfl.report.groups import group_runs
from moonfl.report.rendering import Picture
from moonfl.report.runs import Run
from moonfl.report.tables import Table
from moonfl.reproduce import tables
from moonfl.reproduce.targets import TARGETS, Entry
from stored_runs import runs_of

DATASET = "cifar100"


@dataclass(frozen=True)
class Comparison:
    """A table of the paper that is repeated with another network."""

    target: str
    title: str
    model: str = "simple-cnn"
    network: str = "CNN"  # in the head of the table
    rounds: int | None = None  # None: as in the paper


COMPARISONS = {
    "table1": Comparison("table1", "10 parties, beta 0.5, 100 rounds"),
    "mu": Comparison("mu", "MOON by mu"),
    "scalability": Comparison("scalability", "100 parties, 20 per round, the paper's CNN"),
    "scalability-wide": Comparison(
        "scalability",
        "100 parties, 20 per round, wide-cnn",
        model="wide-cnn",
        network="wide-cnn",
        rounds=250,
    ),
    "heterogeneity": Comparison("heterogeneity", "By beta, 10 parties, 100 rounds"),
}
PICTURES = {"curves": "table1", "many-parties": "scalability", "wide": "scalability-wide"}


def entries_and_runs(name: str, stored: dict[str, Run]) -> tuple[list[Entry], tables.Runs]:
    """Return the entries of a comparison that have a stored run, and these runs."""
    comparison = COMPARISONS[name]
    entries = []
    for entry in TARGETS[comparison.target].entries(DATASET):
        trials = {}
        for label, exp in entry.trials.items():
            rounds = comparison.rounds if exp.algorithm.federated else None
            trials[label] = replace(exp, model=comparison.model, rounds=rounds or exp.rounds)
        if comparison.rounds is None or entry.at_round == comparison.rounds:
            entries.append(replace(entry, trials=trials))
    runs = runs_of(entries, stored)
    return [entry for entry in entries if any(e in runs for e in entry.trials.values())], runs


def table(name: str, stored: dict[str, Run]) -> Table:
    """Return the paper's accuracies and leads over FedAvg next to ours."""
    comparison = COMPARISONS[name]
    entries, runs = entries_and_runs(name, stored)
    return comparison_table(
        name,
        comparison.title,
        entries,
        runs,
        published="paper (ResNet-50)",
        ours=f"ours ({comparison.network})",
    )


def late_rounds(stored: dict[str, Run]) -> Table:
    """Return the leads of the federated methods with 10 parties by the mean of the last rounds."""
    entries, runs = entries_and_runs("table1", stored)
    federated = [entry for entry in entries if entry.trials[""].algorithm.federated]
    return result_tables.late_rounds(federated, runs)


def pictures(stored: dict[str, Run]) -> dict[str, Picture]:
    """Return the pictures of the page by name."""
    drawn = {}
    for name, comparison in PICTURES.items():
        entries, runs = entries_and_runs(comparison, stored)
        federated = [e for e in entries if e.trials[""].algorithm.federated]
        selected = {exp: runs[exp] for entry in federated for exp in entry.trials.values()}
        groups, _ = group_runs([run for by_seed in selected.values() for run in by_seed.values()])
        if groups:
            network = COMPARISONS[comparison].network
            subtitle = f"CIFAR-100, {network}, from round {result_tables.FIRST_PLOTTED} on"
            stem = f"results-cifar100-{name}"
            drawn[name] = score_curves(stem, groups, subtitle, result_tables.FIRST_PLOTTED)
    return drawn
