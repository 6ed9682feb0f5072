"""The tables and pictures of the CIFAR-100 results page.

The paper trains ResNet-50 on CIFAR-100, which two CPU cores cannot. Our runs use the CNN that the
paper has for CIFAR-10. Accuracies therefore cannot be compared with the paper's, but the order of
the methods and their leads over FedAvg can.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from moonfl.report.curves import accuracy_curves
from moonfl.report.groups import group_runs
from moonfl.report.rendering import Picture
from moonfl.report.runs import Run
from moonfl.report.statistics import mean_std
from moonfl.report.tables import Column, Markdown, Table, integer, percent, points
from moonfl.reproduce import tables
from moonfl.reproduce.targets import TARGETS, Entry
from result_tables import FIRST_PLOTTED, LAST
from stored_runs import command, runs_of

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
    fedavg = {entry.column: entry for entry in entries if entry.row in tables.FEDAVG}
    rows = [comparison_row(entry, fedavg.get(entry.column), runs) for entry in entries]
    columns = (
        Column("method"),
        Column("case"),
        Column("paper (ResNet-50), %"),
        Column("paper: minus FedAvg", points),
        Column("ours (CNN), %", percent),
        Column("ours: minus FedAvg", points),
        Column(f"ours: minus FedAvg, last {LAST}", points),
        Column("seeds", integer),
        Column("command"),
    )
    return tables.without_empty(Table(target, TITLES[target], columns, rows))


def comparison_row(entry: Entry, base: Entry | None, runs: tables.Runs) -> tuple[object, ...]:
    """Return a row of the comparison; `base` is FedAvg in the same case."""
    by_seed = runs[entry.trials[""]]
    is_compared = base is not None and base is not entry
    paper_lead = None
    leads: list[float] = []
    late_leads: list[float] = []
    if base is not None and is_compared:
        if entry.paper and base.paper:
            paper_lead = (paper_number(entry) - paper_number(base)) / 100
        fedavg = runs[base.trials[""]]
        seeds = [seed for seed in sorted(by_seed) if seed in fedavg]
        leads = differences(entry, by_seed, fedavg, seeds, tables.accuracy_at)
        if entry.trials[""].algorithm.federated:
            late_leads = differences(entry, by_seed, fedavg, seeds, late_accuracy)
    return (
        entry.row,
        entry.column,
        entry.paper or tables.FIGURE_ONLY,
        paper_lead,
        tables.best_mean_std(entry, runs),
        mean_std(leads),
        mean_std(late_leads),
        len(by_seed),
        Markdown(f"`{command(entry.trials[''])}`"),
    )


def paper_number(entry: Entry) -> float:
    """Return the accuracy that the paper prints, in %, without its standard deviation."""
    return float(entry.paper.split()[0])


def differences(
    entry: Entry,
    ours: dict[int, Run],
    fedavg: dict[int, Run],
    seeds: Sequence[int],
    accuracy: Callable[[Run, int | None], float],
) -> list[float]:
    """Return the leads over FedAvg by seed, after the round that the entry shows."""
    return [
        accuracy(ours[seed], entry.at_round) - accuracy(fedavg[seed], entry.at_round)
        for seed in seeds
    ]


def late_accuracy(run: Run, at_round: int | None) -> float:
    """Return the mean accuracy of the ten rounds up to `at_round`, or of the last ten."""
    number = at_round or len(run.rounds)
    return float(np.mean([record.accuracy for record in run.rounds[number - LAST : number]]))


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
