"""Groups: the runs that differ only in their seed, with a label and a line style."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, unknown
from ..measures import Measure, measure_of
from ..runs.schema import RoundRecord
from .labels import (
    dataset_name,
    is_fedavg,
    is_of_method,
    method_labels,
    setting_labels,
    sort_key,
)
from .run_checks import Settings
from .runs import Run, first_difference

SMALL_SCALE = "small scale, not the paper's setting"
IGNORED = ("seed", "data_dir")  # runs of one group may differ in these
LENGTH = ("rounds", "epochs", "parties", "sample_fraction")  # differ without federation
MAX_PER_FIGURE = 7  # groups that one figure can show


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, on the same data."""

    runs: tuple[Run, ...]  # sorted by seed
    label: str = ""
    method: str = ""
    setting: str = ""  # the settings that differ from those of other groups
    style: int = 0  # number of the colour, line style and marker
    left_out: tuple[Run, ...] = ()  # unfinished or diverged, while other seeds are finished
    is_baseline: bool = False  # whether other groups are compared with this one

    @property
    def settings(self) -> Settings:
        """Return the settings that all runs share."""
        return self.runs[0].settings

    @property
    def dataset(self) -> str:
        """Return the name of the dataset as papers write it."""
        return dataset_name(self.settings)

    @property
    def measure(self) -> Measure:
        """Return the metric by which the runs are compared."""
        return measure_of(self.runs[0].rounds[-1])

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of the runs."""
        return [run.seed for run in self.runs]

    @property
    def length(self) -> int:
        """Return the number of rounds that all runs have."""
        return min(len(run.rounds) for run in self.runs)

    @property
    def finished(self) -> bool:
        """Return True if all runs are finished."""
        return all(run.finished for run in self.runs)

    @property
    def diverged(self) -> bool:
        """Return True if a run diverged."""
        return any(run.diverged for run in self.runs)

    @property
    def diverged_count(self) -> int:
        """Return how many runs diverged, with those that are left out."""
        return sum(run.diverged for run in (*self.runs, *self.left_out))

    @property
    def federated(self) -> bool:
        """Return True if the parties trained one model together."""
        return self.runs[0].federated

    @property
    def is_fedavg(self) -> bool:
        """Return True for plain FedAvg, the default baseline of the other methods."""
        return self.federated and is_fedavg(self.settings)

    @property
    def is_solo(self) -> bool:
        """Return True for SOLO with results on each party's own samples."""
        last = [run.rounds[-1] for run in self.runs]
        std = self.measure.std
        return all(getattr(record, std) is not None and record.sites for record in last)

    @property
    def has_party_models(self) -> bool:
        """Return True if the parties evaluated their own models, and trained together."""
        last = [run.rounds[-1] for run in self.runs]
        mean = self.measure.by_party
        is_evaluated = all(getattr(r, mean) is not None and r.sites for r in last)
        return is_evaluated and not self.is_solo

    @property
    def small(self) -> bool:
        """Return True for runs at small scale, which must not be taken for the paper's."""
        return self.settings.get("scale") == "small"

    @property
    def classes(self) -> list[str]:
        """Return the names of the classes; empty if no run recorded them."""
        for run in self.runs:
            if run.partition is not None:
                return run.partition.classes
        return []

    def class_names(self, count: int) -> list[str]:
        """Return names for `count` classes: numbers if there are not as many recorded names."""
        return self.classes if len(self.classes) == count else [str(k) for k in range(count)]

    def party_name(self, party: int) -> str:
        """Return the name of a party, or `party 3` if it has none or shares it."""
        names: list[str] = []
        for run in self.runs:
            if run.partition is not None and run.partition.names is not None:
                names = run.partition.names
                break
        if party < len(names) and names.count(names[party]) == 1:
            return names[party]
        return f"party {party}"

    def records(self) -> list[list[RoundRecord]]:
        """Return for each seed the round records that count for results.

        While a run is unfinished, these are the rounds that all seeds have.
        """
        return [run.rounds if self.finished else run.rounds[: self.length] for run in self.runs]

    def metric(self, name: str) -> list[NDArray[np.float64]]:
        """Return for each seed the values of a field of RoundRecord; NaN if it is not recorded."""
        values = []
        for records in self.records():
            recorded = [getattr(record, name) for record in records]
            values.append(np.array([np.nan if v is None else v for v in recorded], dtype=float))
        return values

    def metric_matrix(self, name: str) -> NDArray[np.float64]:
        """Return the values of a metric [seeds, rounds] in the rounds that all seeds have."""
        return np.array([values[: self.length] for values in self.metric(name)])

    def shared_settings(self, without: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
        """Return the settings that are not the method's, as a key to compare groups by."""
        pairs = []
        for key in sorted(self.settings):
            if not is_of_method(key) and key not in IGNORED + without:
                pairs.append((key, repr(self.settings[key])))
        return tuple(pairs)


def check_one_task(runs: list[Run]) -> None:
    """Check that all runs have the same task: other metrics cannot be compared."""
    paths: dict[str, Run] = {}
    for run in runs:
        paths.setdefault(str(run.settings.get("task", "classification")), run)
    if len(paths) > 1:
        examples = [f"{run.path} has task={task}" for task, run in paths.items()]
        raise InputError(
            f"runs of different tasks cannot be compared: {', '.join(examples)}; name the folders "
            "of one task"
        )


def group_runs(runs: list[Run], baseline: str | None = None) -> tuple[list[Group], list[str]]:
    """Return the groups, sorted and labelled, and notes on runs that are left out or unfinished.

    `baseline` names the method that the others are compared with; by default it is FedAvg.
    """
    check_one_task(runs)
    by_settings, notes = runs_by_settings(runs)
    groups = []
    for by_seed in by_settings:
        seeds = sorted(by_seed)
        included = [seed for seed in seeds if by_seed[seed].finished]
        if not included:
            included = [seed for seed in seeds if by_seed[seed].rounds]
        if not included:
            continue
        left_out = [by_seed[seed] for seed in seeds if seed not in included]
        notes += [
            f"{run.path} {run.status} and is left out: other seeds of it are finished."
            for run in left_out
            if run.rounds
        ]
        members = tuple(by_seed[seed] for seed in included)
        groups.append(Group(members, left_out=tuple(left_out)))
    groups.sort(key=lambda group: sort_key(group.settings, group.federated))
    groups = mark_baseline(add_labels(groups), baseline)
    return groups, notes + status_notes(groups)


def runs_by_settings(runs: list[Run]) -> tuple[list[dict[int, Run]], list[str]]:
    """Return the runs that share settings, data, model and code, by seed, and notes on the others.

    Of runs with equal settings and seed, the one with most rounds counts.
    """
    by_settings: dict[str, list[dict[int, Run]]] = {}
    notes = []
    for run in sorted(runs, key=lambda run: -len(run.rounds)):
        key = repr(sorted((k, v) for k, v in run.settings.items() if k not in IGNORED))
        candidates = by_settings.setdefault(key, [])
        by_seed = find_same_problem(run, candidates)
        if by_seed is None:
            if candidates:
                first = next(iter(candidates[0].values()))
                notes.append(
                    f"{run.path} has the settings of {first.path}, but other data, another "
                    "partition, another model or other code, so they are different groups."
                )
            by_seed = {}
            candidates.append(by_seed)
        elif not all(same_data(run, other) for other in by_seed.values()):
            first = next(iter(by_seed.values()))
            notes.append(
                f"{run.path} and {first.path} are seeds of one group with different data or "
                "partitions, which add to the variance between seeds."
            )
        longest_run = by_seed.setdefault(run.seed, run)
        if longest_run is not run:
            notes.append(repetition_note(run, longest_run))
    return [by_seed for candidates in by_settings.values() for by_seed in candidates], notes


def repetition_note(run: Run, original: Run) -> str:
    """Return a note on a run with the settings and seed of another, and whether it differs."""
    difference = first_difference(run, original)
    results = "identical results"
    if difference is not None:
        results = f"other results from round {difference}"
    elif len(run.rounds) < len(original.rounds):
        results = f"identical results up to its last round, {len(run.rounds)}"
    return (
        f"{run.path} repeats {original.path} (same settings and seed) with {results}, and is "
        "left out."
    )


def find_same_problem(run: Run, candidates: list[dict[int, Run]]) -> dict[int, Run] | None:
    """Return the first of these runs by seed that solve the same problem as a run.

    They have its model, code and data. Other seeds may have another partition of data without a
    file, as runs of moonfl.federate over repeated splits.
    """
    for by_seed in candidates:
        others = by_seed.values()
        if all(same_method(run, other) and may_be_seeds(run, other) for other in others):
            return by_seed
    return None


def same_method(run: Run, other: Run) -> bool:
    """Return False if two runs have another model, or another version of user-supplied code."""
    is_known = bool(run.code and other.code)  # not so in runs of older versions
    return same_model(run, other) and not (is_known and run.code != other.code)


def may_be_seeds(run: Run, other: Run) -> bool:
    """Return True if two runs have the same data, or different seeds and no other file of data."""
    is_same_file = run.settings.get("data_dir") == other.settings.get("data_dir")
    return same_data(run, other) or (run.seed != other.seed and is_same_file)


def same_model(run: Run, other: Run) -> bool:
    """Return False if models of different size were sent, as of two models without a name."""
    sizes = {model_bytes(run), model_bytes(other)} - {None}
    return len(sizes) <= 1


def model_bytes(run: Run) -> float | None:
    """Return the bytes that were sent to a party in the first round; None if unknown."""
    parties = run.rounds[0].parties if run.rounds else None
    return parties[0].bytes_down if parties else None


def same_data(run: Run, other: Run) -> bool:
    """Return False if two runs recorded different training data or partitions.

    A centralised run has all data in one party, so that only the classes are compared with it.
    """
    if run.partition is None or other.partition is None:
        return True
    if run.partition.classes != other.partition.classes:
        return False
    counts = np.array(run.partition.counts)
    other_counts = np.array(other.partition.counts)
    if 1 in (len(counts), len(other_counts)):
        return np.array_equal(counts.sum(axis=0), other_counts.sum(axis=0))
    hashes = {run.partition.sha256, other.partition.sha256} - {None}
    return np.array_equal(counts, other_counts) and len(hashes) <= 1


def small_scale_mark(groups: list[Group]) -> str:
    """Return the mark of runs at small scale; empty if there are none."""
    if not any(group.small for group in groups):
        return ""
    return SMALL_SCALE if all(group.small for group in groups) else f"some runs: {SMALL_SCALE}"


def status_notes(groups: list[Group]) -> list[str]:
    """Return notes on groups that are unfinished, diverged, stopped early or lack sites."""
    unfinished, diverged, stopped, incomplete = [], [], [], []
    for group in groups:
        incomplete += [absence_note(group, run) for run in group.runs if run.absences]
        rounds = group.settings["rounds"]
        if group.diverged:
            lengths = [str(len(run.rounds)) for run in group.runs if run.diverged]
            diverged.append(f"{group.label} diverged after round {', '.join(lengths)} of {rounds}.")
        elif not group.finished:
            unfinished.append(f"{group.label} is unfinished: round {group.length} of {rounds}.")
        if any(run.stopped_early for run in group.runs):
            lengths = [str(len(run.rounds)) for run in group.runs]
            stopped.append(
                f"{group.label} stopped early, after round {', '.join(lengths)} of {rounds}: "
                f"its validation {group.measure.name} no longer improved."
            )
    return unfinished + diverged + stopped + incomplete


def absence_note(group: Group, run: Run) -> str:
    """Return a note on the rounds of a run that were evaluated without some sites."""
    rounds: dict[str, list[str]] = {}
    for number, parties in run.absences.items():
        names = ", ".join(group.party_name(party) for party in parties)
        rounds.setdefault(names, []).append(str(number))
    parts = [f"{', '.join(numbers)} without {names}" for names, numbers in rounds.items()]
    return (
        f"{group.label}, seed {run.seed}: rounds were evaluated without all sites "
        f"({'; '.join(parts)}). Their {group.measure.name} covers other samples than "
        "that of the other rounds, so none of them is the best round next to complete ones, and "
        "none reaches the target."
    )


def add_labels(groups: list[Group]) -> list[Group]:
    """Return the groups with labels that tell them apart, and with line styles."""
    all_settings = [group.settings for group in groups]
    federated = [group.federated for group in groups]
    methods = method_labels(all_settings, federated)
    settings = setting_labels(all_settings, federated, LENGTH)
    mixed_scales = len({group.small for group in groups}) > 1
    labels = []
    for group, method, setting in zip(groups, methods, settings, strict=True):
        label = f"{method} {setting}" if setting else method
        label = f"{label} (small scale)" if mixed_scales and group.small else label
        labels.append(label + final_absence_mark(group))
    labels = number_repeated(distinguish_repeated(labels, groups))
    # Each method has one style in all figures; if there is one method, each group has its own.
    names = methods if len(set(methods)) > 1 else labels
    styles = line_styles(names, groups)
    return [
        replace(
            group,
            label=labels[i],
            method=methods[i],
            setting=settings[i],
            style=styles.get(names[i], 0),
        )
        for i, group in enumerate(groups)
    ]


def final_absence_mark(group: Group) -> str:
    """Return the mark of a group whose final accuracy lacks some sites; empty for others."""
    absent: set[int] = set()
    for run in group.runs:
        absent |= set(run.absences.get(len(run.rounds), []))
    if not absent:
        return ""
    return f" (final round without {', '.join(map(group.party_name, sorted(absent)))})"


def distinguish_repeated(labels: list[str], groups: list[Group]) -> list[str]:
    """Return the labels with further settings, or the file of the data, if groups share a label."""
    result = list(labels)
    repeated = [label for label, count in Counter(labels).items() if count > 1]
    for label in repeated:
        same = [i for i, other in enumerate(labels) if other == label]
        further = setting_labels([groups[i].settings for i in same], [True] * len(same), ())
        for i, setting in zip(same, further, strict=True):
            result[i] = f"{label} {setting}" if setting else label
    for label, count in Counter(result).items():
        same = [i for i, other in enumerate(result) if other == label]
        files = [data_file(groups[i].settings) for i in same]
        if count > 1 and len(set(files)) > 1:
            for i, name in zip(same, files, strict=True):
                result[i] = f"{label} data_dir={name}"
    return result


def number_repeated(labels: list[str]) -> list[str]:
    """Return the labels with a number after the second and further uses of a label."""
    counts = Counter[str]()
    result = []
    for label in labels:
        counts[label] += 1
        result.append(f"{label} ({counts[label]})" if counts[label] > 1 else label)
    return result


def line_styles(names: list[str], groups: list[Group]) -> dict[str, int]:
    """Return a style number for each name.

    FedAvg is 0. Any MAX_PER_FIGURE - 1 other names in a row differ from it and from each other.
    """
    fedavg = [name for name, group in zip(names, groups, strict=True) if group.is_fedavg][:1]
    others = list(dict.fromkeys(name for name in names if name not in fedavg))
    step = MAX_PER_FIGURE - 1
    return {name: 1 + k % step + MAX_PER_FIGURE * (k // step) for k, name in enumerate(others)}


def mark_baseline(groups: list[Group], name: str | None) -> list[Group]:
    """Return the groups; those with this label, method or algorithm are marked as baseline."""
    if name is None:
        return [replace(group, is_baseline=group.is_fedavg) for group in groups]
    federated = [group for group in groups if group.federated]
    wanted = name.casefold()
    for key in (group_label, group_method, group_algorithm):
        matches = [group for group in federated if key(group).casefold() == wanted]
        if matches:
            break
    else:
        raise unknown("baseline", name, {group.label for group in federated})
    settings = Counter(group.shared_settings() for group in matches)
    repeated = [group.label for group in matches if settings[group.shared_settings()] > 1]
    if repeated:
        raise InputError(
            f"the baseline {name} is ambiguous: {' and '.join(repeated)}; write one of these"
        )
    return [replace(group, is_baseline=group in matches) for group in groups]


def group_label(group: Group) -> str:
    """Return the label of a group."""
    return group.label


def group_method(group: Group) -> str:
    """Return the name of a group's method as papers write it."""
    return group.method


def group_algorithm(group: Group) -> str:
    """Return the name of a group's algorithm on the command line."""
    return str(group.settings["algorithm.name"])


def baseline_name(groups: list[Group]) -> str:
    """Return the name of the method that the others are compared with."""
    methods = [group.method for group in groups if group.is_baseline and not group.is_fedavg]
    return methods[0] if methods else "FedAvg"


def by_data(groups: list[Group]) -> dict[str, list[Group]]:
    """Return the groups that share a dataset and its file, by a name for these data.

    They may have different partitions of the data.
    """
    parts: list[list[Group]] = []
    for group in groups:
        for part in parts:
            if has_data_of(group, part):
                part.append(group)
                break
        else:
            parts.append([group])
    repeated = Counter(part[0].dataset for part in parts)
    names = []
    for part in parts:
        dataset = part[0].dataset
        is_only_one = repeated[dataset] == 1
        names.append(dataset if is_only_one else f"{dataset} {data_file(part[0].settings)}")
    return dict(zip(number_repeated(names), parts, strict=True))


def has_data_of(group: Group, part: list[Group]) -> bool:
    """Return True if a group has the data of these groups, perhaps with another partition.

    Other settings partition the same file differently; with equal settings other data are others.
    """
    part = [other for other in part if other.dataset == group.dataset]
    if any(same_data(group.runs[0], other.runs[0]) for other in part):
        return True
    location, settings = group.settings.get("data_dir"), group.shared_settings()
    is_same_file = any(other.settings.get("data_dir") == location for other in part)
    return is_same_file and all(other.shared_settings() != settings for other in part)


def data_file(settings: Settings) -> str:
    """Return the name of the file or folder of a run's data."""
    return Path(str(settings.get("data_dir", ""))).name


def by_dataset(groups: list[Group]) -> list[list[Group]]:
    """Return the groups of each dataset."""
    parts: dict[str, list[Group]] = {}
    for group in groups:
        parts.setdefault(group.dataset, []).append(group)
    return list(parts.values())
