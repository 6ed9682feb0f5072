"""What is computed from the facts: means over seeds, differences paired by seed, rounds and bytes to a target."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runs.schema import RoundRecord, convert
from ..runs.stopping import selected_round
from .groups import Group
from .run_checks import Fact
from .tables import MeanStd

Floats = NDArray[np.float64]
NOT_REACHED = "not reached"


def mean_std(values: Any) -> MeanStd | None:
    """Mean and deviation of what is there; None where nothing is."""
    there = np.asarray([v for v in values if v is not None and math.isfinite(v)], dtype=float)
    if not len(there):
        return None
    return MeanStd(
        float(there.mean()), float(there.std(ddof=1)) if len(there) > 1 else None, len(there)
    )


def band(values: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation over the first axis; the deviation of one row is 0."""
    mean = values.mean(axis=0)
    return mean, values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)


def finals(g: Group) -> Floats:
    return np.array([values[-1] for values in g.told("accuracy")])


def final(g: Group) -> MeanStd:
    made = mean_std(finals(g))
    assert made is not None
    return made


def at_end(g: Group, key: str) -> MeanStd | None:
    return mean_std(values[-1] for values in g.told(key))


def of_chosen(g: Group) -> MeanStd | None:
    """Test accuracy of the round that validation samples choose."""
    accuracies = []
    for rounds in g.counted():
        record = selected_round(convert(rounds, list[RoundRecord], "rounds"))
        if record is not None:
            accuracies.append(record.accuracy)
    return mean_std(accuracies)


def bests(g: Group) -> list[tuple[float, int]]:
    """Of each seed the highest accuracy and the first round that had it."""
    return [(float(row.max()), int(row.argmax()) + 1) for row in g.told("accuracy")]


def difference(g: Group, base: Group) -> tuple[list[int], list[float]]:
    """The seeds that both have, and at each of them the final accuracy of `g` minus that of `base`."""
    ours, theirs = (dict(zip(x.seeds, finals(x), strict=True)) for x in (g, base))
    common = sorted(ours.keys() & theirs.keys())
    return common, [float(ours[seed] - theirs[seed]) for seed in common]


@dataclass(frozen=True)
class Reach:
    """When a seed's accuracy first was at the target, and what was sent until then."""

    round: int
    bytes: float | None  # None: not recorded


def reach(g: Group, target: float) -> list[Reach | None]:
    return [reach_target(rounds, target) for rounds in g.counted()]


def reach_target(rounds: list[Fact], target: float) -> Reach | None:
    first = next(
        (n for n, fact in enumerate(rounds, 1) if fact.get("accuracy", -1) >= target), None
    )
    return None if first is None else Reach(first, bytes_sent(rounds[:first]))


def bytes_sent(rounds: list[Fact]) -> float | None:
    """Both ways, in bytes; None where that was not recorded."""
    known = [fact[key] for fact in rounds for key in ("bytes_down", "bytes_up") if key in fact]
    return sum(known) if len(known) == 2 * len(rounds) else None


def rounds_and_bytes(hits: list[Reach | None]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Two cells of a table, by seed."""
    return tuple(h.round if h else NOT_REACHED for h in hits), tuple(
        h.bytes if h else NOT_REACHED for h in hits
    )


def targets(groups: list[Group], given: float | None) -> dict[str, float]:
    """By data set: the one given, or the final accuracy of its longest FedAvg group, or the smallest final one."""
    found: dict[str, float] = {}
    for dataset in dict.fromkeys(g.dataset for g in groups):
        there = [g for g in groups if g.dataset == dataset]
        fedavg = [g for g in there if g.is_fedavg]
        longest = max(fedavg, key=lambda g: g.length, default=None)
        natural = final(longest).mean if longest else min(final(g).mean for g in there)
        found[dataset] = natural if given is None else given
    return found


def per_round(g: Group, key: str) -> MeanStd | None:
    """Of each seed the mean over its rounds."""
    return mean_std(values.mean() for values in g.told(key))


def party_values(g: Group, key: str) -> dict[int, float]:
    """A fact of final.json per party, mean over the seeds that have it."""
    found: dict[int, list[float]] = {}
    for run in g.runs:
        for row in run.final.get("parties") or []:
            if isinstance(row.get(key), (int, float)) and math.isfinite(row[key]):
                found.setdefault(row["party"], []).append(row[key])
    return {party: float(np.mean(found[party])) for party in sorted(found)}


def held_out(g: Group) -> dict[int, float]:
    """The global model's accuracy on what each party holds out, after the last round, mean over the seeds."""
    found: dict[int, list[float]] = {}
    for rounds in g.counted():
        for i, (right, number) in rounds[-1].get("sites", {}).items():
            found.setdefault(int(i), []).append(right / number)
    return {party: float(np.mean(found[party])) for party in sorted(found)}


def confusion(g: Group) -> Floats | None:
    """Row-wise shares, the test sets of all seeds together."""
    tables = [
        np.asarray(run.final["confusion"], dtype=float)
        for run in g.runs
        if "confusion" in run.final
    ]
    if not tables or len({t.shape for t in tables}) > 1:
        return None
    integer = np.sum(tables, axis=0)
    shares: Floats = integer / np.maximum(integer.sum(axis=1, keepdims=True), 1)
    return shares


def drifts(g: Group) -> tuple[Floats, Floats] | None:
    """Mean and deviation of ||w_i - w|| over parties and seeds, per round."""
    mean, deviation = np.empty(g.length), np.empty(g.length)
    for t in range(g.length):
        values = [
            row["drift"]
            for run in g.runs
            for row in run.rounds[t].get("parties", [])
            if row.get("drift") is not None
        ]
        if not values:
            return None
        mean[t], deviation[t] = np.mean(values), np.std(values)
    return mean, deviation
