"""The tables and pictures of the CIFAR-10 results page, made from the stored runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from moonfl.report.conclusions import t_interval
from moonfl.report.curves import score_curves
from moonfl.report.groups import group_runs
from moonfl.report.rendering import Picture
from moonfl.report.runs import Run
from moonfl.report.statistics import mean_std, reach_target, rounds_and_bytes
from moonfl.report.tables import (
    Column,
    Interval,
    Markdown,
    Table,
    byte_size,
    integer,
    percent,
    points,
    significant_digits,
)
from moonfl.reproduce import figures, tables
from moonfl.reproduce.runner import run_name
from moonfl.reproduce.targets import TARGETS, Entry, preset
from stored_runs import (
    DATASET,
    SEEDS,
    command,
    divergence,
    experiment_of,
    runs_of,
    target_runs,
)

LAST = 10  # rounds that a mean over the last rounds includes
FIRST_PLOTTED = 20  # the round in which the figure of late rounds starts
METHODS = ("MOON", "FedAvg", "FedProx", "SCAFFOLD")
PARTITION_METHODS = {"moon": "MOON", "fedavg": "FedAvg", "scaffold": "SCAFFOLD"}
PARTITION_SEEDS = (0, 1, 2)
OTHERS = [  # what others report for this setting, in the order of METHODS
    (
        "Flower's baseline (2023), 100 rounds, one run on the same partition",
        "70.7",
        None,
        "68.5",
        None,
    ),
    (
        "NIID-Bench (2021), 50 rounds, no projection head, mean over partitions",
        None,
        "68.2",
        "67.9",
        "69.8",
    ),
]


def last_accuracies(run: Run) -> list[float]:
    """Return the accuracies of the last rounds."""
    return [float(record.accuracy) for record in run.rounds[-LAST:]]


def last_mean(run: Run) -> float:
    """Return the mean accuracy of the last rounds."""
    return float(np.mean(last_accuracies(run)))


def table1(stored: dict[str, Run]) -> Table:
    """Return Table 1 with the command of each row."""
    target = TARGETS["table1"]
    entries, runs = target_runs("table1", stored)
    title = f"{target.reference}: {target.title}"
    (table,) = tables.tables(target, "table1", title, entries, runs, small=False)
    return add_columns(table, {Column("command"): commands(entries, runs)})


def commands(entries: list[Entry], runs: tables.Runs) -> list[str]:
    """Return the command that gives each row."""
    return [Markdown(f"`{command(entry.trials[tables.best(entry, runs)])}`") for entry in entries]


def add_columns(table: Table, columns: Mapping[Column, Sequence[object]]) -> Table:
    """Return the table with more columns on the right."""
    rows = [(*row, *cells) for row, *cells in zip(table.rows, *columns.values(), strict=True)]
    return replace(table, columns=(*table.columns, *columns), rows=rows)


def late_rounds(entries: list[Entry], runs: tables.Runs) -> Table:
    """Return the mean accuracy of the last rounds, which is less noisy than one round."""
    by_seed = {entry.row: dict(sorted(runs[entry.trials[""]].items())) for entry in entries}
    fedavg = {seed: last_mean(run) for seed, run in by_seed["FedAvg"].items()}
    rows = []
    for row, seeds in by_seed.items():
        means = {seed: last_mean(run) for seed, run in seeds.items()}
        leads = []
        if row != "FedAvg":
            leads = [mean - fedavg[seed] for seed, mean in means.items() if seed in fedavg]
        within = np.mean([np.std(last_accuracies(run), ddof=1) for run in seeds.values()])
        rows.append(
            (
                row,
                mean_std(means.values()),
                mean_std(leads),
                interval(leads),
                tuple(leads),
                float(within),
            )
        )
    columns = (
        Column("method"),
        Column("ours, %", percent),
        Column("minus FedAvg", points),
        Column("95 % interval", points),
        Column(f"seeds {', '.join(map(str, SEEDS))}", points),
        Column("within a run", percent),
    )
    note = (
        "ours and minus FedAvg: mean ± standard deviation over seeds; 95 % interval: of the lead, "
        "by Student's t; within a run: the standard deviation of its last rounds, in points"
    )
    return Table("steady", f"Mean of the last {LAST} rounds", columns, rows, note)


def interval(values: list[float]) -> Interval | None:
    """Return the 95 % interval of the mean by Student's t; None for fewer than two values."""
    return t_interval(values) if len(values) > 1 else None


def rounds_to_paper(stored: dict[str, Run]) -> Table:
    """Return the rounds to the final accuracy of the paper's FedAvg, one goal for all methods."""
    entries, runs = target_runs("rounds", stored)
    (paper,) = (e.paper for e in TARGETS["table1"].entries(DATASET) if e.row == "FedAvg")
    goal = float(paper.split()[0])
    rows = []
    for entry in entries:
        by_seed = sorted(runs[entry.trials[""]].items())
        hits = [reach_target(run.rounds, goal / 100) for _, run in by_seed]
        rows.append((entry.row, entry.paper, *rounds_and_bytes(hits)))
    columns = (
        Column("method"),
        Column("paper"),
        Column("ours, each seed", integer),
        Column("sent both ways until then", byte_size),
    )
    title = f"Rounds to {goal} %, where the paper's FedAvg ends"
    note = "ours: the first round at or above it; the paper's FedAvg ends there, after all rounds"
    return Table("level", title, columns, rows, note)


def rounds_to_fedavg(stored: dict[str, Run]) -> Table:
    """Return the paper's communication table: rounds to FedAvg's final accuracy."""
    target = TARGETS["rounds"]
    entries, runs = target_runs("rounds", stored)
    title = f"{target.title}, the paper's table of communication"
    (table,) = tables.tables(target, "rounds", title, entries, runs, small=False)
    return table


def by_partition(stored: dict[str, Run]) -> Table:
    """Return the accuracy of single runs on several partitions."""
    rows = []
    for number in PARTITION_SEEDS:
        runs = {}
        for method, row in PARTITION_METHODS.items():
            exp = replace(preset(DATASET, method), partition_seed=number)
            runs[row] = stored[run_name(exp)]
        final = {row: float(run.rounds[-1].accuracy) for row, run in runs.items()}
        mean = {row: last_mean(run) for row, run in runs.items()}
        leads = []
        for values in (final, mean):
            leads += [values[row] - values["FedAvg"] for row in ("MOON", "SCAFFOLD")]
        name = "0 (as in Table 1)" if number == 0 else str(number)
        rows.append((name, *final.values(), *leads))
    columns = [Column("partition seed")]
    columns += [Column(f"{row}, %", percent) for row in PARTITION_METHODS.values()]
    for suffix in ("", f", last {LAST}"):
        columns += [Column(f"{row} minus FedAvg{suffix}", points) for row in ("MOON", "SCAFFOLD")]
    note = f"one run each; last {LAST}: by the mean of the last {LAST} rounds"
    return Table("partitions", "Accuracy by partition, seed 0", tuple(columns), rows, note)


def variant(name: str, stored: dict[str, Run]) -> Table:
    """Return the table of a target with seed 0, which all of its rows have."""
    target = TARGETS[name]
    entries, runs = complete_rows(name, stored)
    title = f"{target.title} ({target.reference})"
    table, *_ = tables.tables(target, name, title, entries, runs, small=False)
    seeds = [k for k, column in enumerate(table.columns) if column.name == "seeds"]
    others = [k for k in range(len(table.columns)) if k not in seeds]
    table = replace(table.select(others), note="")
    columns = {
        Column(f"minus FedAvg, last {LAST}", points): late_leads(entries, runs, stored),
        Column("command"): commands(entries, runs),
    }
    return add_columns(table, columns)


def complete_rows(name: str, stored: dict[str, Run]) -> tuple[list[Entry], tables.Runs]:
    """Return the entries of a target, with seed 0, whose row has a run in every column."""
    entries, runs = target_runs(name, stored, seeds=(0,))
    columns = {entry.column for entry in TARGETS[name].entries(DATASET)}
    complete = []
    for entry in entries:
        filled = {other.column for other in entries if other.row == entry.row}
        if filled == columns:
            complete.append(entry)
    return complete, runs


def late_leads(
    entries: list[Entry], runs: tables.Runs, stored: dict[str, Run]
) -> list[float | None]:
    """Return each entry's lead over FedAvg of its column by the mean of the last rounds."""
    fedavg = {"accuracy": stored[run_name(preset(DATASET, "fedavg"))]}
    selected = [runs[entry.trials[tables.best(entry, runs)]][0] for entry in entries]
    for entry, run in zip(entries, selected, strict=True):
        if entry.row in tables.FEDAVG:
            fedavg[entry.column] = run
    leads: list[float | None] = []
    for entry, run in zip(entries, selected, strict=True):
        base = fedavg[entry.column]
        if run.federated and run is not base:
            leads.append(last_mean(run) - last_mean(base))
        else:
            leads.append(None)
    return leads


def seconds(quiet: dict[str, Run]) -> Table:
    """Return the time of a round, from the short runs on an idle machine."""
    lengths = sorted({len(run.rounds) for run in quiet.values()})
    if len(lengths) > 1:
        raise SystemExit(
            f"the runs in results/quiet have {lengths} rounds; their times cannot be compared"
        )
    rounds = lengths[0]
    target = TARGETS["time"]
    entries = []
    for entry in target.entries(DATASET):
        trials = {label: replace(exp, rounds=rounds) for label, exp in entry.trials.items()}
        entries.append(replace(entry, trials=trials))
    runs = runs_of(entries, quiet)
    entries = [entry for entry in entries if entry.trials[""] in runs]
    seeds = len({run.seed for run in quiet.values()})
    words = f"moonfl reproduce time --dataset {DATASET} --seeds {seeds} --rounds {rounds}"
    title = Markdown(
        f"{target.reference}: {target.title}; from `{words}` on two otherwise idle cores"
    )
    (table,) = tables.tables(target, "time", title, entries, runs, small=False)
    return table


def all_runs(stored: dict[str, Run]) -> Table:
    """Return every run with its command, accuracy and cost."""
    rows = []
    for run in stored.values():
        accuracies = [float(record.accuracy) for record in run.rounds]
        cpu_seconds = sum(record.get("cpu_seconds", 0) for record in run.rounds)
        sent = sum(record.get("bytes_up", 0) for record in run.rounds)
        rows.append(
            (
                Markdown(f"`{command(experiment_of(run))}`"),
                divergence(run) if run.diverged else accuracies[-1],
                max(accuracies),
                cpu_seconds / 60,
                sent if run.federated else None,
                run.versions["kernels"],
            )
        )
    columns = (
        Column("command"),
        Column("accuracy, %", percent),
        Column("best round, %", percent),
        Column("CPU minutes", significant_digits),
        Column("sent by parties", byte_size),
        Column("kernels"),
    )
    note = (
        "CPU minutes: of training, summed over the processes; "
        "compare them only between runs with the same kernels and version; "
        "kernels: the instruction set of the machine"
    )
    if any("party_accuracy" in run.rounds[-1] and run.federated for run in stored.values()):
        note += "; accuracy of personal models: each on its party's part of the test set"
    return Table("runs", "Commands, accuracies and costs", columns, sorted(rows), note)


def others(stored: dict[str, Run]) -> Table:
    """Return the accuracies that the paper and others report next to ours."""
    entries = {e.row: e for e in TARGETS["table1"].entries(DATASET) if e.row in METHODS}
    runs = runs_of(list(entries.values()), stored)
    paper = [entries[row].paper for row in METHODS]
    ours = [tables.best_mean_std(entries[row], runs) for row in METHODS]
    rows = [
        ("the paper, 100 rounds, three trials", *paper),
        *OTHERS,
        ("moonfl, 100 rounds, three trials", *ours),
    ]
    columns = (Column(""), *(Column(row, percent) for row in METHODS))
    return Table("numbers", "", columns, rows)


def versions(stored: dict[str, Run]) -> str:
    """Return a list of the software versions and machines, with the number of runs of each."""
    counts: Counter[str] = Counter()
    for run in stored.values():
        counts[", ".join(f"{key} {value}" for key, value in sorted(run.versions.items()))] += 1
    return "\n".join(f"- {count} runs: {line}" for line, count in sorted(counts.items()))


def pictures(stored: dict[str, Run]) -> dict[str, Picture]:
    """Return the pictures of the page by name."""
    drawn = {}
    for name in ("curves", "tsne"):
        entries, runs = target_runs(name, stored)
        (drawn[name],) = figures.pictures(
            TARGETS[name], f"results-{name}", "CIFAR-10", entries, runs, small=False
        )
    entries, runs = target_runs("rounds", stored)
    groups, _ = group_runs([run for e in entries for run in runs[e.trials[""]].values()])
    subtitle = f"CIFAR-10, from round {FIRST_PLOTTED} on"
    drawn["late"] = score_curves("results-late", groups, subtitle, FIRST_PLOTTED)
    return drawn
