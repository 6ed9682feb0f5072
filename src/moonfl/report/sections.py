"""What stands in a report, section by section; a section without facts is left out."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from . import description_tables, result_tables
from .comparisons import baseline, panels
from .curves import accuracy_curves, drift, seeds_of, subtitle
from .dot_charts import classes, cost, final_accuracy, parties, to_target
from .groups import Group
from .partition import describe_sizes, draw_heat_map
from .rendering import Picture, render
from .statistics import difference, final, mean_std, targets
from .tables import Column, Table, percent, points
from .tsne import confusion_matrix, tsne

MAPS = 8  # groups that get a confusion matrix and a t-SNE map of their own


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    text: str
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def sections(groups: list[Group], target: float | None) -> list[Section]:
    made = [
        *accuracies(groups),
        *on_target(groups, target),
        *partitions(groups),
        *by_class(groups),
        *by_party(groups),
        *representations(groups),
        *costs(groups),
        *all_settings(groups),
    ]
    return [section for section in made if section.pictures or section.tables]


def each(
    name: str, parts: list[list[Group]], make: Callable[[str, list[Group]], Picture | None]
) -> list[Picture]:
    """One figure a part; numbered where there are several."""
    names = [name if len(parts) == 1 else f"{name}-{k}" for k in range(1, len(parts) + 1)]
    return [
        made for n, part in zip(names, parts, strict=True) if (made := make(n, part)) is not None
    ]


def by_dataset(groups: list[Group]) -> list[list[Group]]:
    parts: dict[str, list[Group]] = {}
    for g in groups:
        parts.setdefault(g.dataset, []).append(g)
    return list(parts.values())


def headline(groups: list[Group]) -> list[str]:
    """A sentence a data set: who ends highest, and by how much above FedAvg."""
    return [one_headline(part, len(by_dataset(groups)) > 1) for part in by_dataset(groups)]


def one_headline(part: list[Group], several: bool) -> str:
    ranked = sorted((g for g in part if g.federated), key=lambda g: -final(g).mean) or part
    top, base = ranked[0], baseline(ranked[0], part)
    level = Column("", percent).text(final(top))
    where = f"{top.dataset}: " if several else ""
    where += "so far, " if not all(g.finished for g in part) else ""
    if len(ranked) == 1:
        return f"{where}{top.label} ends at {level} % over {seeds_of(top)}."
    equal = [g.label for g in ranked if final(g).mean == final(top).mean]
    if len(equal) > 1:
        return f"{where}{' and '.join(equal)} end equal, at {level} %."
    among = " of the federated methods" if len(ranked) < len(part) else ""
    gain = mean_std(difference(top, base)[1]) if base else None
    ends = f", {Column('', points).text(gain)} points against FedAvg" if gain else ""
    return f"{where}{top.label} ends highest{among}, at {level} % over {seeds_of(top)}{ends}."


def accuracies(groups: list[Group]) -> list[Section]:
    shown = each("accuracy", panels(groups), accuracy_curves) + each(
        "final", by_dataset(groups), final_accuracy
    )
    made = [result_tables.accuracy(groups), result_tables.differences(groups)]
    return [Section("accuracy", "Accuracy", "", shown, [table for table in made if table])]


def on_target(groups: list[Group], target: float | None) -> list[Section]:
    goal, made = targets(groups, target), result_tables.to_target(groups, target)
    shown = each(
        "target", by_dataset(groups), lambda n, part: to_target(n, part, goal[part[0].dataset])
    )
    text = "How soon a method is as good as the target, in rounds and in what was sent."
    return [Section("target", "The way to a target", text, shown, [made] if made else [])]


def partitions(groups: list[Group]) -> list[Section]:
    distinct: dict[str, list[Group]] = {}
    for g in groups:
        for run in g.runs:
            if run.partition and "counts" in run.partition and g.settings.get("parties") != 1:
                users = distinct.setdefault(json.dumps(run.partition), [])
                users += [] if g in users else [g]
    shown = []
    for number, (text, users) in enumerate(distinct.items(), 1):
        known = json.loads(text)
        counts = np.asarray(known["counts"], dtype=np.int64)
        names = tuple(known.get("classes") or map(str, range(counts.shape[1])))
        given = known.get("names") or []
        parties = tuple(map(str, given)) if len(given) == len(counts) else ()
        figure = draw_heat_map(
            counts,
            names,
            f"Who has what: {describe_partition(users[0])}",
            subtitle=subtitle(users),
            names=parties,
        )
        who = (
            "all runs"
            if len(users) == len(groups)
            else ", ".join(g.label for g in users[:4]) + ("…" if len(users) > 4 else "")
        )
        said = f"Training samples of each class at each party; {describe_sizes(counts)}. Used by {who}."
        alt = f"Heat map of {counts.shape[0]} parties by {counts.shape[1]} classes; {describe_sizes(counts)}."
        shown.append(render(f"partition-{number}", figure, said, alt))
    return [
        Section(
            "partition", "Partition", "How the training samples are dealt to the parties.", shown
        )
    ]


def describe_partition(g: Group) -> str:
    kind = g.settings.get("partition", "")
    if g.settings.get("dataset") == "sites":
        return "each site its own"
    return f"Dirichlet, beta {g.settings.get('beta', 0):g}" if kind == "dirichlet" else str(kind)


def by_class(groups: list[Group]) -> list[Section]:
    parts = panels([g for g in groups if any("confusion" in run.final for run in g.runs)])
    chosen = [[g] for g in groups if any("confusion" in run.final for run in g.runs)]
    shown = each("classes", parts, classes) + each(
        "confusion", chosen[:MAPS], lambda n, part: confusion_matrix(n, part[0])
    )
    text = (
        f"Confusion matrices of the first {MAPS} of {len(chosen)} groups."
        if len(chosen) > MAPS
        else ""
    )
    return [Section("classes", "Classes", text, shown, description_tables.per_class(groups))]


def by_party(groups: list[Group]) -> list[Section]:
    federated = panels([g for g in groups if g.federated])
    shown = each("drift", federated, drift)
    for key in ("accuracy", "held-out", "distance", "similarity"):
        shown += each(f"party-{key}", federated, functools.partial(parties, key=key))
    made = description_tables.per_party([g for g in groups if g.federated])
    return [
        Section(
            "parties",
            "Parties",
            "What the global model is to each party, and how far parties go from it.",
            shown,
            [made] if made else [],
        )
    ]


def representations(groups: list[Group]) -> list[Section]:
    chosen = [
        [g] for g in groups if any((run.final.get("tsne") or {}).get("points") for run in g.runs)
    ]
    text = f"Maps of the first {MAPS} of {len(chosen)} groups." if len(chosen) > MAPS else ""
    shown = each("tsne", chosen[:MAPS], lambda n, part: tsne(n, part[0]))
    return [Section("representation", "Representation", text, shown)]


def costs(groups: list[Group]) -> list[Section]:
    return [
        Section(
            "cost", "Cost", "", each("cost", by_dataset(groups), cost), [result_tables.cost(groups)]
        )
    ]


def all_settings(groups: list[Group]) -> list[Section]:
    made = [
        *description_tables.settings(groups),
        description_tables.choices(groups),
        description_tables.sources(groups),
    ]
    return [Section("settings", "Settings", "", [], [table for table in made if table])]
