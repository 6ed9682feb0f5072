"""Statistics of groups: mean and standard deviation over seeds, differences paired by seed, rounds
and bytes to a target score, and metrics per party and class.

A score is the value of a group's measure: accuracy, RMSE or mAP.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..measures import measure_of, value_of
from ..runs.schema import PartySum, RoundRecord
from ..runs.stopping import absences, best_round, evaluated, selected_round
from .groups import Group, by_data
from .tables import MeanStd

Floats = NDArray[np.float64]
SitesField = Literal["sites", "global_sites"]  # of RoundRecord
NOT_REACHED = "not reached"


def mean_std(values: Iterable[float | None]) -> MeanStd | None:
    """Return mean and standard deviation of the finite values; None if there are none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return None
    numbers = np.asarray(finite, dtype=float)
    std = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
    return MeanStd(float(numbers.mean()), std, len(numbers))


def mean_std_curves(values: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation over the first axis; the latter is 0 for a single row."""
    mean = values.mean(axis=0)
    std = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    return mean, std


def final_scores(group: Group) -> Floats:
    """Return the test score of the last round for each seed."""
    return np.array([values[-1] for values in group.metric(group.measure.key)])


def final_score(group: Group) -> MeanStd:
    """Return mean and standard deviation over seeds of the last round's test score."""
    score = mean_std(final_scores(group))
    assert score is not None
    return score


def final_metric(group: Group, name: str) -> MeanStd | None:
    """Return mean and standard deviation over seeds of a metric in the last round."""
    return mean_std(values[-1] for values in group.metric(name))


def metric_per_round(group: Group, name: str) -> MeanStd | None:
    """Return mean and standard deviation over seeds of a metric's mean over rounds."""
    return mean_std(values.mean() for values in group.metric(name))


def selected_score(group: Group) -> MeanStd | None:
    """Return the test score of the rounds that are selected by validation score."""
    selected = [selected_round(records) for records in group.records()]
    return mean_std(value_of(record) for record in selected if record is not None)


def best_rounds(group: Group) -> list[tuple[float, int]]:
    """Return for each seed the best test score and the first round that has it."""
    best = [best_round(records) for records in group.records()]
    return [(value_of(record), record.round) for record in best]


def paired_differences(group: Group, base: Group) -> tuple[list[int], list[float]]:
    """Return the seeds that both groups have, and the differences of their final scores."""
    ours = dict(zip(group.seeds, final_scores(group), strict=True))
    theirs = dict(zip(base.seeds, final_scores(base), strict=True))
    seeds = sorted(ours.keys() & theirs.keys())
    return seeds, [float(ours[seed] - theirs[seed]) for seed in seeds]


@dataclass(frozen=True)
class Reach:
    """The first round at which a run has the target score, and the bytes sent until then."""

    round: int
    bytes: float | None  # None if not recorded


def reach_by_seed(group: Group, target: float) -> list[Reach | None]:
    """Return for each seed when it reaches the target score."""
    return [reach_target(records, target) for records in group.records()]


def reach_target(records: Sequence[RoundRecord], target: float) -> Reach | None:
    """Return when the target score is first reached; None if it never is.

    A round that was evaluated without some sites does not count.
    """
    incomplete = absences(records)
    for record in evaluated(records):
        value = value_of(record)
        is_reached = value == target or measure_of(record).is_better(value, target)
        if is_reached and record.round not in incomplete:
            return Reach(record.round, bytes_sent(records[: record.round]))
    return None


def bytes_sent(records: Sequence[RoundRecord]) -> float | None:
    """Return the bytes sent to and by the parties in these rounds; None if not recorded."""
    total: float = 0
    for record in records:
        if record.bytes_down is None or record.bytes_up is None:
            return None
        total += record.bytes_down + record.bytes_up
    return total


def rounds_and_bytes(hits: Sequence[Reach | None]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return two cells of a table: the rounds and the bytes to the target, by seed."""
    rounds = tuple(hit.round if hit else NOT_REACHED for hit in hits)
    sent = tuple(hit.bytes if hit else NOT_REACHED for hit in hits)
    return rounds, sent


def target_scores(groups: list[Group], target: float | None) -> dict[str, float]:
    """Return the target score of the groups on each data, by the name that `by_data` gives them.

    Without a `target` it is the final score of the baseline, of the longest group if there are
    several; without one it is the worst final score. Rounds that were evaluated without all sites
    do not count.
    """
    targets: dict[str, float] = {}
    for name, members in by_data(groups).items():
        base = [group for group in members if group.is_baseline]
        if target is not None:
            targets[name] = target
        elif base:
            longest = max(base, key=lambda group: group.length)
            targets[name] = complete_score(longest)
        else:
            targets[name] = members[0].measure.worst(map(complete_score, members))
    return targets


def target_by_group(groups: list[Group], target: float | None) -> dict[str, float]:
    """Return the target score of each group by its label."""
    targets = target_scores(groups, target)
    return {
        group.label: targets[name] for name, members in by_data(groups).items() for group in members
    }


def complete_score(group: Group) -> float:
    """Return the mean over seeds of the score in the last round that all sites evaluated.

    A run without such a round counts with its last one.
    """
    scores = []
    for run, records in zip(group.runs, group.records(), strict=True):
        complete = [record for record in evaluated(records) if record.round not in run.absences]
        scores.append(value_of((complete or records)[-1]))
    return float(np.mean(scores))


def party_metric(group: Group, name: str) -> dict[int, float]:
    """Return for each party the mean over seeds of a field of FinalParty."""
    values: dict[int, list[float]] = {}
    for run in group.runs:
        for party in run.final.parties:
            value = getattr(party, name)
            if value is not None:
                values.setdefault(party.party, []).append(value)
    return mean_by_party(values)


def last_sites(group: Group, field: SitesField = "sites") -> list[Mapping[str, PartySum]]:
    """Return for each seed the sums by party after the last round."""
    return [getattr(records[-1], field) or {} for records in group.records()]


def held_out_scores(group: Group, field: SitesField = "sites") -> dict[int, float]:
    """Return for each party the score of the last model on the samples it holds out.

    With "global_sites" it is the score of the global model where parties have their own.
    """
    values: dict[int, list[float]] = {}
    for sites in last_sites(group, field):
        for party, sums in sites.items():
            values.setdefault(int(party), []).append(group.measure.from_sums([sums]))
    return mean_by_party(values)


def mean_by_party(values: dict[int, list[float]]) -> dict[int, float]:
    """Return the mean of each party's values, sorted by party."""
    return {party: float(np.mean(values[party])) for party in sorted(values)}


def confusion_shares(group: Group) -> Floats | None:
    """Return the confusion matrix over all seeds as shares of each true class (row).

    The row of a class without test samples is NaN.
    """
    matrices = [
        np.asarray(run.final.confusion, dtype=float)
        for run in group.runs
        if run.final.confusion is not None
    ]
    if not matrices or len({matrix.shape for matrix in matrices}) > 1:
        return None
    total = np.sum(matrices, axis=0)
    samples = total.sum(axis=1, keepdims=True)
    shares: Floats = total / np.where(samples > 0, samples, np.nan)
    return shares


def class_accuracies(group: Group) -> list[float | None]:
    """Return the accuracy of each class, None without test samples; empty if not recorded."""
    shares = confusion_shares(group)
    if shares is None:
        return []
    return [None if np.isnan(share) else share for share in shares.diagonal().tolist()]


def drift_curves(group: Group) -> tuple[Floats, Floats] | None:
    """Return mean and standard deviation of ||w_i - w|| over parties and seeds, for each round.

    A round without parties is NaN; None if no round has recorded drifts.
    """
    mean = np.full(group.length, np.nan)
    std = np.full(group.length, np.nan)
    for t in range(group.length):
        parties = [party for run in group.runs for party in run.rounds[t].parties or []]
        drifts = [party.drift for party in parties if party.drift is not None]
        if drifts:
            mean[t] = np.mean(drifts)
            std[t] = np.std(drifts)
    return None if np.isnan(mean).all() else (mean, std)
