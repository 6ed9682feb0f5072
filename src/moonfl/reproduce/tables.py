"""The paper's numbers and ours beside each other, from the facts of finished runs."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..experiment import Experiment
from ..report.groups import SMALL_SCALE
from ..report.runs import Run
from ..report.statistics import MeanStd, Reach, bytes_sent, mean_std, reach_target, rounds_and_bytes
from ..report.tables import Column, Table, byte_size, integer, percent, points, significant_digits
from .targets import TARGETS, Entry, Target

Runs = dict[Experiment, dict[int, Run]]  # by experiment (its seed 0) and seed
CHOSEN = "chosen on test data, as in the paper"
FEDAVG = ("FedAvg", "none (FedAvg)", "0 (FedAvg)")  # rows that the others are compared with
DIVERGED = "diverged"
FIGURE_ONLY = "figure only"  # the paper prints no number
BEST = f"its best, {FIGURE_ONLY}"


def setting(name: str, dataset: str, entries: list[Entry], small: bool) -> str:
    """What differs from the paper's setting, to stand in the title; empty where nothing does."""
    if small:
        return SMALL_SCALE
    papers = [exp for e in TARGETS[name].entries(dataset) for exp in e.trials.values()]
    ours = [exp for e in entries for exp in e.trials.values()]
    notes = []
    for key in ("model", "rounds"):
        changed = {(getattr(a, key), getattr(b, key)) for a, b in zip(ours, papers, strict=True)}
        notes += [f"{key} {a}, not the paper's {b}" for a, b in sorted(changed, key=str) if a != b]
    return "; ".join(notes)


def tables(
    target: Target, stem: str, title: str, entries: list[Entry], runs: Runs, small: bool
) -> Iterator[Table]:
    if target.kind == "tsne":
        return
    if target.kind == "rounds":
        yield rounds(stem, title, entries, runs, small)
    elif target.kind == "seconds":
        yield seconds(stem, title, entries, runs, small)
    else:
        yield accuracies(stem, title, entries, runs, small)
        if any(len(e.trials) > 1 for e in entries):
            yield grid(stem, title, entries, runs)


def value(run: Run, at: int | None) -> float:
    return float(run.rounds[(at or len(run.rounds)) - 1]["accuracy"])


def by_seed(entry: Entry, label: str, runs: Runs) -> dict[int, float]:
    return {
        seed: value(run, entry.at)
        for seed, run in sorted(runs.get(entry.trials[label], {}).items())
    }


def best(entry: Entry, runs: Runs) -> str:
    """The setting with the highest mean, of those that most seeds came through."""

    def rank(label: str) -> tuple[int, float]:
        found = [*by_seed(entry, label, runs).values()]
        return len(found), float(np.mean(found or [0.0]))

    return max(entry.trials, key=rank)


def diverged(entries: list[Entry], runs: Runs, seeds: int) -> str:
    """Which of the runs that were wanted are in no number, for they led nowhere."""
    lost = {
        exp: " ".join(filter(None, (e.row, e.column.removeprefix("accuracy"), label)))
        + f" (seed {missing})"
        for e in entries
        for label, exp in e.trials.items()
        if (
            missing := ", ".join(
                str(seed) for seed in range(seeds) if seed not in runs.get(exp, {})
            )
        )
    }
    return f"diverged, and in no mean: {'; '.join(lost.values())}" if lost else ""


def reported(entry: Entry, runs: Runs) -> MeanStd | None:
    """Mean and deviation of the best setting: over seeds, for SOLO over parties as in the paper; None: diverged."""
    label = best(entry, runs)
    return solo_spread(runs.get(entry.trials[label], {})) or mean_std(
        by_seed(entry, label, runs).values()
    )


def accuracies(stem: str, title: str, entries: list[Entry], runs: Runs, small: bool) -> Table:
    """paper | ours | difference, and the difference from FedAvg paired by seed."""
    fedavg = {e.column: by_seed(e, "", runs) for e in entries if e.row in FEDAVG}
    rows = []
    for e in entries:
        label = best(e, runs)
        ours = by_seed(e, label, runs)
        shown = reported(e, runs)
        paper = float(e.paper.split()[0]) / 100 if e.paper else None
        gap = shown.mean - paper if shown is not None and paper is not None and not small else None
        base = fedavg.get(e.column, {})
        paired = (
            None if e.row in FEDAVG else mean_std([ours[s] - base[s] for s in ours if s in base])
        )
        chosen = f"{label} ({CHOSEN})" if len(e.trials) > 1 else label
        rows.append(
            (
                e.row,
                e.column,
                chosen,
                e.paper or (BEST if e.best else FIGURE_ONLY),
                shown or DIVERGED,
                gap,
                paired,
                len(ours),
            )
        )
    paper_name = "paper, % (another setting)" if small else "paper, %"
    columns = (
        Column("method"),
        Column("case"),
        Column("setting"),
        Column(paper_name),
        Column("ours, %", percent),
        Column("difference", points),
        Column("minus FedAvg", points),
        Column("seeds", integer),
    )
    notes = ["ours: mean ± standard deviation (n - 1) over seeds"]
    if any(
        "accuracy_std" in run.rounds[-1] for of_seed in runs.values() for run in of_seed.values()
    ):
        notes.append("for SOLO, as in the paper, over parties (n), mean of the seeds")
    if any(row[6] is not None for row in rows):
        notes.append(
            "minus FedAvg: mean ± standard deviation of the differences between runs of one seed, which share "
            "first weights and (but SOLO) batches"
        )
    return without_empty(Table(stem, title, columns, rows, "; ".join(notes)))


def solo_spread(of_seed: dict[int, Run]) -> MeanStd | None:
    """Mean and deviation over parties, as the paper gives them for SOLO; None for other methods."""
    facts = [run.rounds[-1] for run in of_seed.values()]
    if not facts or not all("accuracy_std" in fact for fact in facts):
        return None
    mean, deviation = (
        float(np.mean([fact[key] for fact in facts])) for key in ("accuracy", "accuracy_std")
    )
    return MeanStd(mean, deviation, len(facts))


def grid(stem: str, title: str, entries: list[Entry], runs: Runs) -> Table:
    """Every setting that was tried; the best is marked."""
    rows: list[tuple[Any, ...]] = []
    marked = set()
    for e in entries:
        for label in e.trials if len(e.trials) > 1 else ():
            if label == best(e, runs):
                marked.add((len(rows), 2))
            chosen = CHOSEN if label == best(e, runs) else ""
            rows.append(
                (e.row, label, mean_std(by_seed(e, label, runs).values()) or DIVERGED, chosen)
            )
    columns = (Column("method"), Column("setting"), Column("ours, %", percent), Column(""))
    return Table(
        f"{stem}-grid", f"{title}: every setting tried", columns, rows, marked=frozenset(marked)
    )


def rounds(stem: str, title: str, entries: list[Entry], runs: Runs, small: bool) -> Table:
    """Per seed: the first round at FedAvg's final accuracy of that seed, and what all parties sent and got until then.

    FedAvg counts as all of its rounds, as in the paper; the last speed-up counts its first round at that accuracy.
    """
    base = next(e for e in entries if e.row == "FedAvg")
    fedavg, length = by_seed(base, "", runs), base.trials[""].rounds
    facts_of = {
        e.row: {
            seed: run.rounds
            for seed, run in sorted(runs.get(e.trials[""], {}).items())
            if seed in fedavg
        }
        for e in entries
    }
    touched = {
        seed: hit.round
        for seed, facts in facts_of["FedAvg"].items()
        if (hit := reach_target(facts, fedavg[seed]))
    }
    rows = []
    for e in entries:
        there = facts_of[e.row]
        hits = [reach_target(facts, fedavg[seed]) for seed, facts in there.items()]
        from_touch = mean_std(
            [touched[seed] / h.round if h else None for seed, h in zip(there, hits, strict=True)]
        )
        if e is base:
            hits = [Reach(length, bytes_sent(facts)) for facts in there.values()]
        speed = mean_std([length / h.round if h else None for h in hits])
        papers = one_place(int(base.paper) / int(e.paper)) if e.paper.isdecimal() else "<1"
        first, bytes_until = rounds_and_bytes(hits)
        rows.append((e.row, e.paper, papers, first, speed, from_touch, bytes_until, len(hits)))
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
    note = "speed-up: FedAvg's rounds over the method's, mean ± deviation over the seeds that reached it"
    if touched:
        at = ", ".join(map(str, touched.values()))
        note += f". FedAvg counts as all {length}, as in the paper; from FedAvg's first: as the round in which "
        note += f"it first had its last accuracy ({at})"
    return Table(stem, title, columns, rows, note)


def one_place(number: float) -> str:
    """A half goes up, as in the paper."""
    return f"{math.floor(10 * number + 0.5) / 10:.1f}"


def seconds(stem: str, title: str, entries: list[Entry], runs: Runs, small: bool) -> Table:
    """Rounds after the first; machines differ, so what compares is the ratio to FedAvg."""
    found = {
        e.row: mean_std(
            [
                np.mean([f.get("seconds", np.nan) for f in run.rounds[1:] or run.rounds])
                for run in runs.get(e.trials[""], {}).values()
            ]
        )
        for e in entries
    }
    ours, papers = found["FedAvg"], float(next(e.paper for e in entries if e.row == "FedAvg"))
    rows: list[tuple[Any, ...]] = []
    for e in entries:
        mean = found[e.row]
        ratio = mean.mean / ours.mean if mean is not None and ours is not None else None
        count = mean.count if mean is not None else 0
        rows.append((e.row, e.paper, mean or DIVERGED, float(e.paper) / papers, ratio, count))
    paper_name = "paper, s (V100, another setting)" if small else "paper, s (V100)"
    columns = (
        Column("method"),
        Column(paper_name),
        Column("ours, s", significant_digits),
        Column("paper / FedAvg", significant_digits),
        Column("ours / FedAvg", significant_digits),
        Column("seeds", integer),
    )
    note = "a whole round: training, averaging, evaluation; not the first, where MOON has no second term"
    if all(len(run.rounds) == 1 for of_seed in runs.values() for run in of_seed.values()):
        note = (
            "the first round alone: training, averaging, evaluation; MOON has no second term in it"
        )
    return Table(stem, title, columns, rows, note)


def statistics(stem: str, entries: list[Entry], ours: list[str], small: bool) -> Table:
    columns = (
        Column("data set"),
        Column("what"),
        Column("paper (of another)" if small else "paper"),
        Column("ours"),
    )
    rows = [
        ("digits" if small else e.row, e.column, e.paper, own)
        for e, own in zip(entries, ours, strict=True)
    ]
    return Table(
        stem,
        f"Samples, mean and deviation over parties{f' ({SMALL_SCALE})' if small else ''}",
        columns,
        rows,
    )


def without_empty(table: Table) -> Table:
    """Columns in which nothing stands, or only the one word, say nothing."""
    keep = [
        k
        for k in range(len(table.columns))
        if k == 0 or any(row[k] not in (None, "", "accuracy") for row in table.rows)
    ]
    return replace(
        table,
        columns=tuple(table.columns[k] for k in keep),
        rows=[tuple(row[k] for k in keep) for row in table.rows],
    )
