"""Runs that differ only by their seed form a group."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .labels import DATASETS, FEDAVG, distinguish, method_labels, order
from .run_checks import Fact
from .runs import Run

SMALL_SCALE = "small scale, not the paper's setting"
PLACE = ("seed", "data_dir")  # what runs of one group may differ in
LENGTH = (
    "rounds",
    "epochs",
    "parties",
    "sample_fraction",
)  # what differs by nature where nothing is federated
PANEL = 7  # groups a figure can show together


@dataclass(frozen=True)
class Group:
    runs: tuple[Run, ...]  # in order of their seeds
    label: str = ""
    method: str = ""
    setting: str = ""  # what sets its panel apart from the others
    style: int = 0

    @property
    def settings(self) -> Fact:
        return self.runs[0].settings

    @property
    def dataset(self) -> str:
        """As papers write it."""
        return DATASETS.get(self.settings["dataset"], str(self.settings["dataset"]))

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def length(self) -> int:
        """Rounds that all of its runs have; after them a mean would be one of fewer seeds."""
        return min(len(run.rounds) for run in self.runs)

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def diverged(self) -> bool:
        return any(run.diverged for run in self.runs)

    @property
    def federated(self) -> bool:
        return self.runs[0].federated

    @property
    def is_fedavg(self) -> bool:
        return (
            self.federated
            and (self.settings["algorithm.name"], self.settings.get("server.name", "average"))
            == FEDAVG
        )

    @property
    def small(self) -> bool:
        return self.settings.get("scale") == "small"

    @property
    def classes(self) -> list[str]:
        named = (
            run.partition["classes"]
            for run in self.runs
            if run.partition and "classes" in run.partition
        )
        return next(named, [])

    def class_names(self, count: int) -> list[str]:
        """Of `count` classes; numbers where the names are not known, or are those of other data."""
        return self.classes if len(self.classes) == count else [str(k) for k in range(count)]

    def party(self, i: int) -> str:
        """Its name, where parties have any of their own."""
        names: list[str] = next(
            (
                run.partition["names"]
                for run in self.runs
                if run.partition and "names" in run.partition
            ),
            [],
        )
        return names[i] if i < len(names) and names.count(names[i]) == 1 else f"party {i}"

    def counted(self) -> list[list[Fact]]:
        """By seed, the rounds that its results are of: all, or while one is unfinished those that every seed has."""
        return [run.rounds if self.finished else run.rounds[: self.length] for run in self.runs]

    def told(self, key: str) -> list[NDArray[np.float64]]:
        """A fact of each of them, by seed; NaN where it was not recorded."""
        return [
            np.array([fact.get(key, np.nan) for fact in rounds], dtype=float)
            for rounds in self.counted()
        ]

    def series(self, key: str) -> NDArray[np.float64]:
        """A fact of the rounds that every seed has, [seeds, rounds]."""
        return np.array([values[: self.length] for values in self.told(key)])

    def family(self, without: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
        """The settings that are not the method's."""
        own = ("algorithm.", "server.")
        kept = (
            key for key in self.settings if not key.startswith(own) and key not in PLACE + without
        )
        return tuple((key, repr(self.settings[key])) for key in sorted(kept))


def group_runs(runs: list[Run]) -> tuple[list[Group], list[str]]:
    """The groups, add_prefix and in order, and notes on the runs that do not count."""
    notes: list[str] = []
    together: dict[str, dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: -len(run.rounds)):
        seeds = together.setdefault(
            repr(sorted((k, v) for k, v in run.settings.items() if k not in PLACE)), {}
        )
        kept = seeds.setdefault(run.seed, run)
        if kept is not run:
            notes.append(
                f"{run.path} repeats {kept.path} (same settings and seed) and is left out."
            )
    groups = []
    for seeds in together.values():
        done = {seed: run for seed, run in seeds.items() if run.finished}
        notes += [
            f"{run.path} {run.shortfall} and is left out: other seeds of it are done."
            for seed, run in seeds.items()
            if done and seed not in done
        ]
        groups.append(Group(tuple(run for _, run in sorted((done or seeds).items()))))
    groups = named(sorted(groups, key=lambda g: order(g.settings, g.federated)))
    notes += [
        f"{g.label} is unfinished: round {g.length} of {g.settings['rounds']}."
        for g in groups
        if not g.finished and not g.diverged
    ]
    notes += [
        f"{g.label} diverged after round {', '.join(str(len(run.rounds)) for run in g.runs if run.diverged)} of "
        f"{g.settings['rounds']}."
        for g in groups
        if g.diverged
    ]
    notes += [
        f"{g.label} stopped early, after round {', '.join(str(len(run.rounds)) for run in g.runs)} of "
        f"{g.settings['rounds']}: its accuracy on the validation samples rose no more."
        for g in groups
        if any(run.stopped_early for run in g.runs)
    ]
    return groups, notes


def named(groups: list[Group]) -> list[Group]:
    methods = method_labels([g.settings for g in groups], [g.federated for g in groups])
    settings = distinguish([g.settings for g in groups], [g.federated for g in groups], LENGTH)
    mixed = len({g.small for g in groups}) > 1
    ends = [" (small scale)" if mixed and g.small else "" for g in groups]
    labels = [
        " ".join(filter(None, parts)) + end
        for *parts, end in zip(methods, settings, ends, strict=True)
    ]
    for label in [
        label for label, count in Counter(labels).items() if count > 1
    ]:  # of those that are not federated
        alike = [i for i, other in enumerate(labels) if other == label]
        apart = distinguish([groups[i].settings for i in alike], [True] * len(alike), ())
        for i, more in zip(alike, apart, strict=True):
            labels[i] = " ".join(filter(None, (label, more)))
    twice = Counter[str]()
    for i, label in enumerate(labels):
        twice[label] += 1
        labels[i] += f" ({twice[label]})" if twice[label] > 1 else ""
    names = (
        methods if len(set(methods)) > 1 else labels
    )  # of several methods each has its colour in every panel
    first = [name for name, g in zip(names, groups, strict=True) if g.is_fedavg][:1]
    others = list(dict.fromkeys(name for name in names if name not in first))
    step = (
        PANEL - 1
    )  # FedAvg is 0, and any `step` others in a row differ from it and from each other
    styles = {name: 1 + k % step + PANEL * (k // step) for k, name in enumerate(others)}
    parts = zip(groups, labels, methods, settings, names, strict=True)
    return [
        replace(g, label=a, method=m, setting=s, style=styles.get(name, 0))
        for g, a, m, s, name in parts
    ]
