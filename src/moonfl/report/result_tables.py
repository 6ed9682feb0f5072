"""The tables of results: accuracy, differences to FedAvg, the way to a target, cost."""

from typing import Any

from .comparisons import baseline
from .groups import SMALL_SCALE, Group
from .statistics import (
    at_end,
    bests,
    difference,
    final,
    mean_std,
    of_chosen,
    per_round,
    reach,
    rounds_and_bytes,
    targets,
)
from .tables import Column, Table, byte_size, integer, percent, points, significant_digits

SOMETIMES = (
    "macro-F1, %",
    "balanced, %",
    "chosen, %",
    "deviation over parties, %",
)  # columns that runs may lack
SEEDS = "± is the standard deviation over seeds (n - 1 below)."


def titled(title: str, groups: list[Group]) -> str:
    """With the mark of reduced runs, so that no table or figure goes about without it."""
    if not any(g.small for g in groups):
        return title
    return f"{title} ({'' if all(g.small for g in groups) else 'some runs: '}{SMALL_SCALE})"


def rounds_of(g: Group) -> str:
    if not g.finished:
        return f"{g.length} of {g.settings['rounds']}{', diverged' if g.diverged else ''}"
    longest = max(len(run.rounds) for run in g.runs)
    return str(longest) if g.length == longest else f"{g.length} to {longest}"


def made(
    name: str, title: str, columns: tuple[Column, ...], rows: list[tuple[Any, ...]], note: str
) -> Table:
    """Without what no run has of what runs may lack."""
    keep = [
        k
        for k, c in enumerate(columns)
        if c.name not in SOMETIMES or any(row[k] is not None for row in rows)
    ]
    return Table(
        name,
        title,
        tuple(columns[k] for k in keep),
        [tuple(row[k] for k in keep) for row in rows],
        note,
    )


def accuracy(groups: list[Group]) -> Table:
    rows = []
    for g in groups:
        best = bests(g)
        parties = at_end(g, "accuracy_std")
        rows.append(
            (
                g.label,
                final(g),
                at_end(g, "macro_f1"),
                at_end(g, "balanced_accuracy"),
                of_chosen(g),
                mean_std(a for a, _ in best),
                tuple(t for _, t in best),
                len(g.runs),
                rounds_of(g),
                parties.mean if parties else None,
            )
        )
    columns = (
        Column("method"),
        Column("final accuracy, %", percent),
        Column("macro-F1, %", percent),
        Column("balanced, %", percent),
        Column("chosen, %", percent),
        Column("best accuracy, %", percent),
        Column("best round, by seed", integer),
        Column("seeds", integer),
        Column("rounds", integer),
        Column("deviation over parties, %", percent),
    )
    note = "Final is the last round's, as macro-F1 and balanced accuracy are; best is the highest of any round, which "
    note += "needs the test set to be found."
    note += (
        " Chosen is the round that is best on the validation samples."
        if any(map(of_chosen, groups))
        else ""
    )
    return made("accuracy", titled("Test accuracy", groups), columns, rows, f"{note} {SEEDS}")


def differences(groups: list[Group]) -> Table | None:
    rows = []
    for g in groups:
        base = baseline(g, groups)
        if base is not None:
            seeds, values = difference(g, base)
            rows.append((g.label, base.label, len(seeds), mean_std(values), tuple(values)))
    if not rows:
        return None
    columns = (
        Column("method"),
        Column("minus"),
        Column("common seeds", integer),
        Column("difference, points", points),
        Column("by seed", points),
    )
    note = f"Final accuracy of the method minus FedAvg's at the same seed and settings. {SEEDS}"
    return Table(
        "differences", titled("Difference to FedAvg, paired by seed", groups), columns, rows, note
    )


def to_target(groups: list[Group], given: float | None) -> Table | None:
    goal = targets(groups, given)
    rows = []
    for g in groups:
        if g.federated:
            target = goal[g.dataset]
            hits = reach(g, target)
            count = f"{sum(h is not None for h in hits)} of {len(hits)}"
            rows.append((g.label, target, count, *rounds_and_bytes(hits)))
    if not rows:
        return None
    columns = (
        Column("method"),
        Column("target, %", percent),
        Column("reached", integer),
        Column("rounds, by seed", integer),
        Column("sent both ways, by seed", byte_size),
    )
    source = (
        "The target was given."
        if given is not None
        else (
            "The target is the final accuracy of FedAvg, of the group with most rounds where the data set has several; "
            "without one, the smallest final one."
        )
    )
    return Table(
        "target", titled("Rounds and bytes to a target accuracy", groups), columns, rows, source
    )


def cost(groups: list[Group]) -> Table:
    rows = []
    for g in groups:
        base = baseline(g, groups)
        seconds, processor = per_round(g, "seconds"), per_round(g, "cpu_seconds")
        before = per_round(base, "cpu_seconds") if base and g.federated else None
        ratio = processor.mean / before.mean if processor and before and before.mean else None
        down, up = per_round(g, "bytes_down"), per_round(g, "bytes_up")
        sent = mean_std(
            a.sum() + b.sum() for a, b in zip(g.told("bytes_down"), g.told("bytes_up"), strict=True)
        )
        rows.append(
            (
                g.label,
                seconds,
                processor,
                ratio,
                down.mean if down else None,
                up.mean if up else None,
                sent.mean if sent else None,
            )
        )
    columns = (
        Column("method"),
        Column("seconds a round", significant_digits),
        Column("processor seconds a round", significant_digits),
        Column("processor time / FedAvg's", lambda v: f"{v:.2f}"),
        Column("sent to parties a round", byte_size),
        Column("sent back a round", byte_size),
        Column("sent in all", byte_size),
    )
    note = f"Bytes are the sum over the parties of a round, mean over seeds. {SEEDS}"
    return Table("cost", titled("Cost", groups), columns, rows, note)


def short(groups: list[Group], given: float | None) -> Table:
    """Everything on one line a group, for a terminal."""
    goal = targets(groups, given)
    rows = []
    for g in groups:
        base = baseline(g, groups)
        gain = mean_std(difference(g, base)[1]) if base else None
        best = mean_std(a for a, _ in bests(g))
        hits = reach(g, goal[g.dataset]) if g.federated else []
        rows.append(
            (
                g.label,
                len(g.runs),
                rounds_of(g),
                final(g),
                at_end(g, "macro_f1"),
                at_end(g, "balanced_accuracy"),
                best,
                gain,
                rounds_and_bytes(hits)[0],
                per_round(g, "cpu_seconds"),
            )
        )
    columns = (
        Column("method"),
        Column("seeds", integer),
        Column("rounds", integer),
        Column("final, %", percent),
        Column("macro-F1, %", percent),
        Column("balanced, %", percent),
        Column("best, %", percent),
        Column("minus FedAvg", points),
        Column("rounds to target", integer),
        Column("cpu s/round", significant_digits),
    )
    ends = "; ".join(f"{name} {percent(value)} %" for name, value in goal.items())
    return made(
        "short", titled("Test accuracy", groups), columns, rows, f"\nTarget: {ends}. {SEEDS}"
    )
