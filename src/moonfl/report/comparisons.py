"""Which groups are compared: together in one figure, and with which baseline."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .conclusions import Conclusion, Pairing, conclude
from .groups import LENGTH, MAX_PER_FIGURE, Group, baseline_name, same_data, same_model
from .statistics import final_score, paired_differences


@dataclass(frozen=True)
class Comparison:
    """A group, its baseline, and what their runs show."""

    group: Group
    baseline: Group | None  # with the same settings; FedAvg, or what the user chose
    conclusion: Conclusion
    baseline_name: str = "FedAvg"


def figure_groups(groups: list[Group]) -> list[list[Group]]:
    """Return the groups that share a figure.

    A figure shows one dataset; if there are several methods, also one setting. Groups without
    federation (SOLO, centralised) join the figures of the settings they belong to.
    """
    several_methods = len({group.method for group in groups}) > 1
    figures: dict[Any, list[Group]] = {}
    for group in groups:
        if group.federated:
            key = group.shared_settings() if several_methods else group.dataset
            figures.setdefault(key, []).append(group)
    for group in groups:
        if not group.federated:
            setting = group.shared_settings(LENGTH)
            matches = [
                members
                for members in figures.values()
                if members[0].shared_settings(LENGTH) == setting
            ]
            for members in matches or [figures.setdefault(group.dataset, [])]:
                members.append(group)
    return [part for members in figures.values() for part in split_figure(members)]


def split_figure(groups: list[Group]) -> list[list[Group]]:
    """Split groups into figures of at most MAX_PER_FIGURE; the baseline is in each of them."""
    if len(groups) <= MAX_PER_FIGURE:
        return [groups]
    base = [group for group in groups if group.is_baseline][:1]
    others = [group for group in groups if group not in base]
    step = MAX_PER_FIGURE - len(base)
    count = -(-len(others) // step)  # rounded up
    parts = np.array_split(range(len(others)), count)
    return [base + [others[i] for i in part] for part in parts]


def compare_with_baseline(groups: list[Group]) -> list[Comparison]:
    """Return a comparison for each other group on a dataset that has the baseline.

    The verdicts of all groups are corrected together, because a reader sees them together.
    """
    datasets = {group.dataset for group in groups if group.is_baseline}
    compared = [group for group in groups if group.dataset in datasets and not group.is_baseline]
    baselines = [baseline(group, groups) for group in compared]
    pairings = []
    for group, base in zip(compared, baselines, strict=True):
        if base is None:
            pairings.append(Pairing((), missing_baseline(group, groups)))
        else:
            pairings.append(pair(group, base))
    return [
        Comparison(group, base, conclusion, baseline_name(groups))
        for group, base, conclusion in zip(compared, baselines, conclude(pairings), strict=True)
    ]


def pair(group: Group, base: Group) -> Pairing:
    """Return the differences of the common seeds, and why they support no verdict, if so.

    Accuracies on the samples of different sites have no difference.
    """
    incomplete = [problem for problem in map(absence, (group, base)) if problem]
    if incomplete:
        return Pairing((), incomplete[0])
    seeds, differences = paired_differences(group, base)
    problems = [problem for problem in map(run_problem, (group, base)) if problem]
    if (group.is_solo and base.has_party_models) or (base.is_solo and group.has_party_models):
        problems.append(
            "SOLO is evaluated on all test samples, and personal models on those of their party; "
            f"compare {group.measure.by_party}"
        )
    ours = {run.seed: run for run in group.runs}
    theirs = {run.seed: run for run in base.runs}
    problems += [
        f"the runs with seed {seed} have different data or partitions"
        for seed in seeds
        if not same_data(ours[seed], theirs[seed])
    ]
    measure = group.measure
    return Pairing(
        differences=tuple(differences),
        problem=problems[0] if problems else "",
        higher_is_better=measure.higher_is_better,
        unit=1.0 if measure.is_share else final_score(base).mean,
    )


def absence(group: Group) -> str:
    """Return which group has a final round that was evaluated without all sites; or nothing."""
    if any(run.rounds[-1].round in run.absences for run in group.runs):
        return f"the final round of {group.label} was evaluated without all sites"
    return ""


def run_problem(group: Group) -> str:
    """Return why the runs of a group support no verdict; empty if they do.

    The remaining runs of a method that diverges with some seeds say nothing about the others.
    """
    if group.diverged_count:
        finished = sum(run.finished for run in group.runs)
        total = finished + group.diverged_count
        return f"{group.diverged_count} of {total} runs of {group.label} diverged"
    return "" if group.finished else f"{group.label} is unfinished"


def baseline(group: Group, groups: list[Group]) -> Group | None:
    """Return the baseline with the same settings; None if there is none or several.

    For a group without federation, the settings of the length of training are not compared.
    """
    matches = baseline_matches(group, groups)
    if len(matches) != 1 or matches[0] is group:
        return None
    return matches[0]


def baseline_matches(group: Group, groups: list[Group]) -> list[Group]:
    """Return the baseline groups with the same settings.

    If there are several, return those with the same data, and of these the one with the same model.
    """
    without = () if group.federated else LENGTH
    setting = group.shared_settings(without)
    matches = [
        other for other in groups if other.is_baseline and other.shared_settings(without) == setting
    ]
    if len(matches) > 1:
        matches = [other for other in matches if same_data(group.runs[0], other.runs[0])]
        same_size = [other for other in matches if same_model(group.runs[0], other.runs[0])]
        if len(same_size) == 1:
            return same_size
    return matches


def missing_baseline(group: Group, groups: list[Group]) -> str:
    """Return why a group has no baseline: the settings in which the nearest one differs."""
    matches = baseline_matches(group, groups)
    if len(matches) > 1:
        return f"{len(matches)} groups of {baseline_name(groups)} match its settings"
    without = () if group.federated else LENGTH
    setting = dict(group.shared_settings(without))
    nearest: list[str] | None = None
    for other in groups:
        if other.is_baseline and other.dataset == group.dataset:
            theirs = dict(other.shared_settings(without))
            keys = sorted(setting.keys() | theirs.keys())
            differing = [
                f"{key}={theirs.get(key, 'none')} instead of {setting.get(key, 'none')}"
                for key in keys
                if setting.get(key) != theirs.get(key)
            ]
            if nearest is None or len(differing) < len(nearest):
                nearest = differing
    return (
        f"{baseline_name(groups)} has {', '.join(nearest or ['other data or another partition'])}"
    )
