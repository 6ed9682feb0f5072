"""The tables of results: accuracy, differences to FedAvg, the way to a target, cost."""

from .groups import SMALL, Group
from .numbers import bests, difference, final, per_round, reach, spread, targets
from .panels import baseline
from .tables import Column, Table, digits, percent, points, size, whole

SEEDS = "± is the standard deviation over seeds (n - 1 below)."


def titled(title: str, groups: list[Group]) -> str:
    """With the mark of reduced runs, so that no table or figure goes about without it."""
    if not any(g.small for g in groups):
        return title
    return f"{title} ({'' if all(g.small for g in groups) else 'some runs: '}{SMALL})"


def rounds_of(g: Group) -> str:
    return str(g.length) if g.finished else f"{g.length} of {g.settings['rounds']}"


def accuracy(groups: list[Group]) -> Table:
    rows = []
    for g in groups:
        best = bests(g)
        parties = spread(g.series("accuracy_std")[:, -1])
        rows.append((
            g.label, final(g), spread(a for a, _ in best), tuple(t for _, t in best), len(g.runs), rounds_of(g),
            parties.mean if parties else None,
        ))  # fmt: skip
    columns = (
        Column("method"), Column("final accuracy, %", percent), Column("best accuracy, %", percent),
        Column("best round, by seed", whole), Column("seeds", whole), Column("rounds", whole),
        Column("deviation over parties, %", percent),
    )  # fmt: skip
    keep = len(columns) if any(row[-1] is not None for row in rows) else -1
    note = f"Final is the last round's; best is the highest of any round, which needs the test set to be found. {SEEDS}"
    return Table("accuracy", titled("Test accuracy", groups), columns[:keep], [row[:keep] for row in rows], note)


def differences(groups: list[Group]) -> Table | None:
    rows = []
    for g in groups:
        base = baseline(g, groups)
        if base is not None:
            seeds, values = difference(g, base)
            rows.append((g.label, base.label, len(seeds), spread(values), tuple(values)))
    if not rows:
        return None
    columns = (Column("method"), Column("minus"), Column("common seeds", whole),
               Column("difference, points", points), Column("by seed", points))  # fmt: skip
    note = f"Final accuracy of the method minus FedAvg's at the same seed and settings. {SEEDS}"
    return Table("differences", titled("Difference to FedAvg, paired by seed", groups), columns, rows, note)


def to_target(groups: list[Group], given: float | None) -> Table | None:
    goal = targets(groups, given)
    rows = []
    for g in groups:
        if g.federated:
            target = goal[g.dataset]
            hits = reach(g, target)
            rows.append((
                g.label, target, f"{sum(h is not None for h in hits)} of {len(hits)}",
                tuple(h.round if h else "not reached" for h in hits),
                tuple(h.bytes if h else "not reached" for h in hits),
            ))  # fmt: skip
    if not rows:
        return None
    columns = (Column("method"), Column("target, %", percent), Column("reached", whole),
               Column("rounds, by seed", whole), Column("sent both ways, by seed", size))  # fmt: skip
    source = "The target was given." if given is not None else (
        "The target is the final accuracy of the data set's first FedAvg group; without one, the smallest final one."
    )  # fmt: skip
    return Table("target", titled("Rounds and bytes to a target accuracy", groups), columns, rows, source)


def cost(groups: list[Group]) -> Table:
    rows = []
    for g in groups:
        base = baseline(g, groups)
        seconds, processor = per_round(g, "seconds"), per_round(g, "cpu_seconds")
        before = per_round(base, "cpu_seconds") if base and g.federated else None
        ratio = processor.mean / before.mean if processor and before and before.mean else None
        down, up = per_round(g, "bytes_down"), per_round(g, "bytes_up")
        sent = (down.mean + up.mean) * g.length if down and up else None
        rows.append((
            g.label, seconds, processor, ratio, down.mean if down else None, up.mean if up else None, sent,
        ))  # fmt: skip
    columns = (
        Column("method"), Column("seconds a round", digits), Column("processor seconds a round", digits),
        Column("processor time / FedAvg's", lambda v: f"{v:.2f}"), Column("sent to parties a round", size),
        Column("sent back a round", size), Column("sent in all", size),
    )  # fmt: skip
    note = f"Bytes are the sum over the parties of a round, mean over seeds. {SEEDS}"
    return Table("cost", titled("Cost", groups), columns, rows, note)


def short(groups: list[Group], given: float | None) -> Table:
    """Everything on one line a group, for a terminal."""
    goal = targets(groups, given)
    rows = []
    for g in groups:
        base = baseline(g, groups)
        gain = spread(difference(g, base)[1]) if base else None
        best = spread(a for a, _ in bests(g))
        hits = reach(g, goal[g.dataset]) if g.federated else []
        rows.append((
            g.label, len(g.runs), rounds_of(g), final(g), best, gain,
            tuple(h.round if h else "not reached" for h in hits), per_round(g, "cpu_seconds"),
        ))  # fmt: skip
    columns = (
        Column("method"), Column("seeds", whole), Column("rounds", whole), Column("final, %", percent),
        Column("best, %", percent), Column("minus FedAvg", points), Column("rounds to target", whole),
        Column("cpu s a round", digits),
    )  # fmt: skip
    ends = "; ".join(f"{name} {percent(value)} %" for name, value in goal.items())
    return Table("short", titled("Test accuracy", groups), columns, rows, f"\nTarget: {ends}. {SEEDS}")
