"""The tables and pictures of the CIFAR-100 results page.

The paper trains ResNet-50 on CIFAR-100, which two CPU cores cannot. Our runs use the CNN that the
paper has for CIFAR-10. Accuracies therefore cannot be compared with the paper's, but the order of
the methods and their leads over FedAvg can.
"""

from dataclasses import replace

from comparisons import comparison_table
from moonfl.report.curves import accuracy_curves
from moonfl.report.groups import group_runs
from moonfl.report.rendering import Picture
from moonfl.report.runs import Run
from moonfl.report.tables import Table
from moonfl.reproduce import tables
from moonfl.reproduce.targets import TARGETS, Entry
from result_tables import FIRST_PLOTTED
from stored_runs import runs_of

DATASET = "cifar100"
MODEL = "simple-cnn"
TITLES = {
    "table1": "10 parties, beta 0.5, 100 rounds",
    "mu": "MOON by mu",
    "scalability": "100 parties, 20 per round",
    "heterogeneity": "By beta, 10 parties, 100 rounds",
}


def entries_and_runs(target: str, stored: dict[str, Run]) -> tuple[list[Entry], tables.Runs]:
    """Return the entries of a target with our model that have a stored run, and these runs."""
    entries = []
    for entry in TARGETS[target].entries(DATASET):
        trials = {label: replace(exp, model=MODEL) for label, exp in entry.trials.items()}
        entries.append(replace(entry, trials=trials))
    runs = runs_of(entries, stored)
    return [entry for entry in entries if any(e in runs for e in entry.trials.values())], runs


def comparison(target: str, stored: dict[str, Run]) -> Table:
    """Return the paper's accuracies and leads over FedAvg next to ours."""
    entries, runs = entries_and_runs(target, stored)
    return comparison_table(
        target,
        TITLES[target],
        entries,
        runs,
        published="paper (ResNet-50)",
        ours="ours (CNN)",
    )


def pictures(stored: dict[str, Run]) -> dict[str, Picture]:
    """Return the pictures of the page by name."""
    drawn = {}
    for name, target in (("curves", "table1"), ("many-parties", "scalability")):
        entries, runs = entries_and_runs(target, stored)
        federated = [e for e in entries if e.trials[""].algorithm.federated]
        selected = {exp: runs[exp] for entry in federated for exp in entry.trials.values()}
        groups, _ = group_runs([run for by_seed in selected.values() for run in by_seed.values()])
        if groups:
            subtitle = f"CIFAR-100, the paper's CNN, from round {FIRST_PLOTTED} on"
            stem = f"results-cifar100-{name}"
            drawn[name] = accuracy_curves(stem, groups, subtitle, FIRST_PLOTTED)
    return drawn
