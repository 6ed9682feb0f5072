"""Tables that compare published accuracies and leads over FedAvg with ours."""

from collections.abc import Callable, Sequence

import numpy as np

from moonfl.report.runs import Run
from moonfl.report.statistics import mean_std
from moonfl.report.tables import Column, Markdown, Table, integer, percent, points
from moonfl.reproduce import tables
from moonfl.reproduce.targets import Entry
from result_tables import LAST
from stored_runs import command, divergence


def comparison_table(
    name: str,
    title: str,
    entries: list[Entry],
    runs: tables.Runs,
    *,
    published: str,
    ours: str,
    missing: str = tables.FIGURE_ONLY,
) -> Table:
    """Return published accuracies and leads over FedAvg next to ours.

    `published` and `ours` name the source and the setting in the head of the table. An entry's
    `paper` is the published accuracy; `missing` replaces one that is not printed.
    """
    fedavg = {entry.column: entry for entry in entries if entry.row in tables.FEDAVG}
    rows = [comparison_row(entry, fedavg.get(entry.column), runs, missing) for entry in entries]
    columns = (
        Column("method"),
        Column("case"),
        Column(f"{published}, %"),
        Column(f"{published.partition(' (')[0]}: minus FedAvg", points),
        Column(f"{ours}, %", percent),
        Column("ours: minus FedAvg", points),
        Column(f"ours: minus FedAvg, last {LAST}", points),
        Column("seeds", integer),
        Column("command"),
    )
    return tables.without_empty(Table(name, title, columns, rows))


def comparison_row(
    entry: Entry, base: Entry | None, runs: tables.Runs, missing: str
) -> tuple[object, ...]:
    """Return a row of the comparison; `base` is FedAvg in the same case.

    If a run diverged, the round in which it did replaces the mean and the leads, because a mean
    over the other seeds would flatter the method.
    """
    by_seed = runs[entry.trials[""]]
    diverged = ", ".join(divergence(run) for run in by_seed.values() if run.diverged)
    paper_lead = None
    leads: list[float] = []
    late_leads: list[float] = []
    if base is not None and base is not entry and entry.paper and base.paper:
        paper_lead = (paper_number(entry) - paper_number(base)) / 100
    if base is not None and base is not entry and not diverged:
        fedavg = runs[base.trials[""]]
        seeds = [seed for seed in sorted(by_seed) if seed in fedavg]
        leads = differences(entry, by_seed, fedavg, seeds, tables.accuracy_at)
        if entry.trials[""].algorithm.federated:
            late_leads = differences(entry, by_seed, fedavg, seeds, late_accuracy)
    return (
        entry.row,
        entry.column,
        entry.paper or missing,
        paper_lead,
        diverged or tables.best_mean_std(entry, runs),
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
