"""Tables that compare the paper's numbers with ours, from the round records of finished runs."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..experiment import Experiment
from ..measures import value_of
from ..report.groups import SMALL_SCALE
from ..report.runs import Run
from ..report.statistics import Reach, bytes_sent, mean_std, reach_target, rounds_and_bytes
from ..report.tables import (
    Column,
    MeanStd,
    Table,
    byte_size,
    integer,
    percent,
    points,
    significant_digits,
)
from .targets import TARGETS, Entry, Target

Runs = dict[Experiment, dict[int, Run]]  # by experiment (its seed is 0), then by seed
SELECTED = "selected on test data, as in the paper"
FEDAVG = ("FedAvg", "none (FedAvg)", "0 (FedAvg)")  # rows that the others are compared with
DIVERGED = "diverged"
FIGURE_ONLY = "figure only"  # the paper prints no number
BEST = f"its best, {FIGURE_ONLY}"


def difference_to_paper(name: str, dataset: str, entries: list[Entry], small: bool) -> str:
    """Return what differs from the paper's setting, for the title; empty if nothing differs."""
    if small:
        return SMALL_SCALE
    theirs = [exp for entry in TARGETS[name].entries(dataset) for exp in entry.trials.values()]
    ours = [exp for entry in entries for exp in entry.trials.values()]
    notes = []
    for key in ("model", "rounds"):
        pairs = {(getattr(a, key), getattr(b, key)) for a, b in zip(ours, theirs, strict=True)}
        for ours_value, paper in sorted(pairs, key=str):
            if ours_value != paper:
                notes.append(f"{key} {ours_value}, not the paper's {paper}")
    return "; ".join(notes)


def tables(
    target: Target, stem: str, title: str, entries: list[Entry], runs: Runs, *, small: bool
) -> Iterator[Table]:
    """Yield the tables of a target; a figure of t-SNE has none."""
    if target.kind == "tsne":
        return
    if target.kind == "rounds":
        yield rounds(stem, title, entries, runs, small)
    elif target.kind == "seconds":
        yield seconds(stem, title, entries, runs, small)
    else:
        yield accuracies(stem, title, entries, runs, small)
        if any(len(entry.trials) > 1 for entry in entries):
            yield grid(stem, title, entries, runs)


def accuracy_at(run: Run, at_round: int | None) -> float:
    """Return the accuracy after round `at_round`, or after the last round."""
    number = at_round or len(run.rounds)
    return value_of(run.rounds[number - 1])


def by_seed(entry: Entry, label: str, runs: Runs) -> dict[int, float]:
    """Return the accuracy of one trial for each seed that finished."""
    finished = runs.get(entry.trials[label], {})
    return {seed: accuracy_at(run, entry.at_round) for seed, run in sorted(finished.items())}


def best(entry: Entry, runs: Runs) -> str:
    """Return the trial with the highest mean among those with the most finished seeds."""

    def rank(label: str) -> tuple[int, float]:
        values = list(by_seed(entry, label, runs).values())
        return len(values), float(np.mean(values or [0.0]))

    return max(entry.trials, key=rank)


def divergence_note(entries: list[Entry], runs: Runs, seeds: int) -> str:
    """Return a note that names the diverged runs, which no mean includes."""
    notes: dict[Experiment, str] = {}
    for entry in entries:
        for label, exp in entry.trials.items():
            missing = [str(seed) for seed in range(seeds) if seed not in runs.get(exp, {})]
            if missing:
                parts = (entry.row, entry.column.removeprefix("accuracy"), label)
                name = " ".join(filter(None, parts))
                notes[exp] = f"{name} (seed {', '.join(missing)})"
    return f"diverged, and in no mean: {'; '.join(notes.values())}" if notes else ""


def best_mean_std(entry: Entry, runs: Runs) -> MeanStd | None:
    """Return mean and standard deviation of the best trial, or None if all of it diverged.

    The standard deviation is over seeds; for SOLO it is over parties, as in the paper.
    """
    label = best(entry, runs)
    over_parties = solo_mean_std(runs.get(entry.trials[label], {}))
    return over_parties or mean_std(by_seed(entry, label, runs).values())


def accuracies(stem: str, title: str, entries: list[Entry], runs: Runs, small: bool) -> Table:
    """Return the table paper | ours | difference | difference from FedAvg paired by seed."""
    fedavg = {e.column: by_seed(e, "", runs) for e in entries if e.row in FEDAVG}
    rows = [accuracy_row(e, runs, fedavg.get(e.column, {}), small) for e in entries]
    columns = (
        Column("method"),
        Column("case"),
        Column("setting"),
        Column("paper, % (another setting)" if small else "paper, %"),
        Column("ours, %", percent),
        Column("difference", points),
        Column("minus FedAvg", points),
        Column("seeds", integer),
    )
    notes = ["Ours: mean ± standard deviation over seeds"]
    if any(has_parties_std(run) for seeds in runs.values() for run in seeds.values()):
        notes.append(
            "SOLO: mean ± standard deviation over parties, as in the paper, averaged over seeds"
        )
    if any(row[6] is not None for row in rows):
        notes.append(
            "Minus FedAvg: mean ± standard deviation of the differences paired by seed; such runs "
            "share initial weights and, except SOLO, batches"
        )
    return without_empty(Table(stem, title, columns, rows, ". ".join(notes)))


def accuracy_row(
    entry: Entry, runs: Runs, fedavg: dict[int, float], small: bool
) -> tuple[object, ...]:
    """Return the row of an entry in the table of accuracies."""
    label = best(entry, runs)
    ours = by_seed(entry, label, runs)
    shown = best_mean_std(entry, runs)
    difference = None
    if shown is not None and entry.paper and not small:
        difference = shown.mean - float(entry.paper.split()[0]) / 100
    paired = None
    if entry.row not in FEDAVG:
        paired = mean_std([value - fedavg[seed] for seed, value in ours.items() if seed in fedavg])
    return (
        entry.row,
        entry.column,
        f"{label} ({SELECTED})" if len(entry.trials) > 1 else label,
        entry.paper or (BEST if entry.best else FIGURE_ONLY),
        shown or DIVERGED,
        difference,
        paired,
        len(ours),
    )


def has_parties_std(run: Run) -> bool:
    """Return True if the run records a standard deviation over parties, as SOLO does."""
    return run.rounds[-1].accuracy_std is not None


def solo_mean_std(runs: dict[int, Run]) -> MeanStd | None:
    """Return mean and std over parties, averaged over seeds; None for methods other than SOLO."""
    if not runs or not all(has_parties_std(run) for run in runs.values()):
        return None
    last = [run.rounds[-1] for run in runs.values()]
    mean = float(np.mean([value_of(record) for record in last]))
    std = float(np.mean([record.accuracy_std or 0.0 for record in last]))
    return MeanStd(mean, std, len(last))


def grid(stem: str, title: str, entries: list[Entry], runs: Runs) -> Table:
    """Return the table of every setting that was tried; the best is marked."""
    rows: list[tuple[Any, ...]] = []
    highlighted = set()
    for entry in entries:
        if len(entry.trials) == 1:
            continue
        best_label = best(entry, runs)
        for label in entry.trials:
            note = ""
            if label == best_label:
                highlighted.add((len(rows), 2))
                note = SELECTED
            shown = mean_std(by_seed(entry, label, runs).values())
            rows.append((entry.row, label, shown or DIVERGED, note))
    return Table(
        name=f"{stem}-grid",
        title=f"{title}: every setting tried",
        columns=(Column("method"), Column("setting"), Column("ours, %", percent), Column("")),
        rows=rows,
        highlighted=frozenset(highlighted),
    )


def rounds(stem: str, title: str, entries: list[Entry], runs: Runs, small: bool) -> Table:
    """Return the table of rounds to FedAvg's final accuracy, and of bytes sent until then.

    Each seed is compared with FedAvg of the same seed. FedAvg itself counts as all of its rounds,
    as in the paper. The last speed-up counts FedAvg's first round at that accuracy instead.
    """
    base = next(entry for entry in entries if entry.row == "FedAvg")
    length = base.trials[""].rounds
    goals = by_seed(base, "", runs)
    fedavg = first_rounds(base, goals, runs)
    first_hits = {seed: hit.round for seed, hit in fedavg.items() if hit is not None}
    rows = []
    for entry in entries:
        hits = first_rounds(entry, goals, runs)
        speed_ups = {seed: length / hit.round for seed, hit in hits.items() if hit}
        earlier = {seed: first_hits[seed] / hit.round for seed, hit in hits.items() if hit}
        if entry is base:
            speed_ups = dict.fromkeys(hits, 1.0)
            hits = {
                seed: Reach(length, bytes_sent(runs[base.trials[""]][seed].rounds)) for seed in hits
            }
        numbers, amounts = rounds_and_bytes(list(hits.values()))
        rows.append(
            (
                entry.row,
                entry.paper,
                paper_speed_up(base, entry),
                numbers,
                mean_std(speed_ups.values()),
                mean_std(earlier.values()),
                amounts,
                len(hits),
            )
        )
    other = " (another setting)" if small else ""
    columns = (
        Column("method"),
        Column(f"paper{other}"),
        Column(f"paper's speed-up{other}"),
        Column("ours, each seed", integer),
        Column("speed-up", significant_digits),
        Column("from FedAvg's first", significant_digits),
        Column("sent both ways until then", byte_size),
        Column("seeds", integer),
    )
    return Table(
        name=stem,
        title=title,
        columns=columns,
        rows=rows,
        note=rounds_note(length, list(first_hits.values())),
    )


def first_rounds(entry: Entry, goals: dict[int, float], runs: Runs) -> dict[int, Reach | None]:
    """Return by seed when the entry's run first reached the goal of that seed."""
    finished = sorted(runs.get(entry.trials[""], {}).items())
    return {seed: reach_target(run.rounds, goals[seed]) for seed, run in finished if seed in goals}


def paper_speed_up(base: Entry, entry: Entry) -> str:
    """Return the speed-up over FedAvg that the paper prints."""
    if not entry.paper.isdecimal():
        return "<1"
    return one_decimal(int(base.paper) / int(entry.paper))


def rounds_note(length: int, first_hits: list[int]) -> str:
    """Return the note that explains the two speed-ups."""
    note = (
        "speed-up: FedAvg's rounds over the method's, mean ± standard deviation over the seeds "
        "that reached it"
    )
    if first_hits:
        note += (
            f". FedAvg counts as all {length}, as in the paper; from FedAvg's first: as the round "
            f"in which it first had its last accuracy ({', '.join(map(str, first_hits))})"
        )
    return note


def one_decimal(number: float) -> str:
    """Return the number with one decimal; a half is rounded up, as in the paper."""
    return f"{math.floor(10 * number + 0.5) / 10:.1f}"


def seconds(stem: str, title: str, entries: list[Entry], runs: Runs, small: bool) -> Table:
    """Return the table of seconds per round, without the first round.

    Machines differ, so the ratio to FedAvg is what can be compared.
    """
    measured = {entry.row: mean_seconds(runs.get(entry.trials[""], {})) for entry in entries}
    ours = measured["FedAvg"]
    (paper,) = (float(entry.paper) for entry in entries if entry.row == "FedAvg")
    rows: list[tuple[Any, ...]] = []
    for entry in entries:
        mean = measured[entry.row]
        rows.append(
            (
                entry.row,
                entry.paper,
                mean or DIVERGED,
                float(entry.paper) / paper,
                mean.mean / ours.mean if mean is not None and ours is not None else None,
                mean.count if mean is not None else 0,
            )
        )
    columns = (
        Column("method"),
        Column("paper, s (V100, another setting)" if small else "paper, s (V100)"),
        Column("ours, s", significant_digits),
        Column("paper / FedAvg", significant_digits),
        Column("ours / FedAvg", significant_digits),
        Column("seeds", integer),
    )
    note = (
        "a whole round: training, averaging, evaluation; not the first, where MOON has no "
        "second term"
    )
    if all(len(run.rounds) == 1 for seeds in runs.values() for run in seeds.values()):
        note = (
            "the first round alone: training, averaging, evaluation; MOON has no second term in it"
        )
    return Table(name=stem, title=title, columns=columns, rows=rows, note=note)


def mean_seconds(runs: dict[int, Run]) -> MeanStd | None:
    """Return mean and std over seeds of the mean time of a round after the first."""
    means = []
    for run in runs.values():
        records = run.rounds[1:] or run.rounds
        means.append(np.mean([record.get("seconds", np.nan) for record in records]))
    return mean_std(means)


def statistics(stem: str, entries: list[Entry], ours: list[str], small: bool) -> Table:
    """Return the table of the numbers of samples."""
    columns = (
        Column("dataset"),
        Column("number"),
        Column("paper (another dataset)" if small else "paper"),
        Column("ours"),
    )
    rows = []
    for entry, number in zip(entries, ours, strict=True):
        dataset = "digits" if small else entry.row
        rows.append((dataset, entry.column, entry.paper, number))
    title = "Samples, mean ± standard deviation over parties"
    if small:
        title += f" ({SMALL_SCALE})"
    return Table(name=stem, title=title, columns=columns, rows=rows)


def without_empty(table: Table) -> Table:
    """Return the table without columns that are empty or only repeat the word "accuracy"."""
    columns = [
        k
        for k in range(len(table.columns))
        if k == 0 or any(row[k] not in (None, "", "accuracy") for row in table.rows)
    ]
    return table.select(columns)
