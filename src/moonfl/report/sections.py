"""The sections of a report with their figures and tables; a section without content is left out."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..data.descriptions import describe_data
from ..data.skew import measure_skew
from ..measures import ACCURACY, RMSE
from ..runs.schema import PartitionRecord
from .comparisons import Comparison, compare_with_baseline, figure_groups
from .confusion import confusion_matrix
from .curves import describe_setting, drift_figure, score_curves
from .description_tables import (
    choices_table,
    class_tables,
    party_table,
    runs_table,
    settings_tables,
)
from .dot_charts import (
    PARTY_CHARTS,
    class_chart,
    cost_chart,
    difference_chart,
    final_score_chart,
    party_chart,
    target_chart,
)
from .gains import gains_chart, gains_table, personal_groups
from .groups import Group, by_data, by_dataset
from .partition import describe_sizes, draw_heat_map
from .rendering import Picture, render
from .result_tables import accuracy_table, cost_table, difference_table, target_table
from .statistics import target_by_group
from .tables import Table
from .tsne import first_embedding, tsne_figure

MAX_MATRICES = 8  # groups that get a confusion matrix and a t-SNE figure
MAX_LABELS = 4  # groups that the caption of a partition names


@dataclass(frozen=True)
class Section:
    """A section of the page: a title, an optional introduction, figures and tables."""

    name: str  # its id on the page
    title: str
    text: str = ""
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def report_sections(groups: list[Group], target: float | None) -> list[Section]:
    """Return the sections of the report in their order."""
    sections = [
        accuracy_section(groups),
        target_section(groups, target),
        partition_section(groups),
        class_section(groups),
        party_section(groups),
        representation_section(groups),
        cost_section(groups),
        settings_section(groups),
    ]
    return [section for section in sections if section.pictures or section.tables]


def draw_each(
    name: str, parts: list[list[Group]], draw: Callable[[str, list[Group]], Picture | None]
) -> list[Picture]:
    """Return one figure for each part; their names are numbered if there are several parts."""
    pictures = []
    for number, part in enumerate(parts, 1):
        picture = draw(name if len(parts) == 1 else f"{name}-{number}", part)
        if picture is not None:
            pictures.append(picture)
    return pictures


def without_none(*tables: Table | None) -> list[Table]:
    """Return the tables that are not None."""
    return [table for table in tables if table is not None]


def accuracy_section(groups: list[Group]) -> Section:
    """Return the section on test accuracy."""
    pictures = draw_each("accuracy", figure_groups(groups), score_curves)
    pictures += draw_each("final", by_dataset(groups), final_score_chart)
    pictures += difference_pictures(groups)
    tables = without_none(accuracy_table(groups), difference_table(groups))
    return Section("accuracy", groups[0].measure.title, pictures=pictures, tables=tables)


def difference_pictures(groups: list[Group]) -> list[Picture]:
    """Return a chart of the differences to the baseline for each dataset that has them.

    SOLO is often so far below that the differences of the other methods would be invisible.
    """
    charts: dict[str, list[Comparison]] = {}
    for comparison in compare_with_baseline(groups):
        if comparison.group.federated and comparison.conclusion.differences:
            charts.setdefault(comparison.group.dataset, []).append(comparison)
    pictures = []
    for number, part in enumerate(charts.values(), 1):
        name = "differences" if len(charts) == 1 else f"differences-{number}"
        pictures.append(difference_chart(name, part))
    return pictures


def target_section(groups: list[Group], target: float | None) -> Section:
    """Return the section on rounds and bytes to a target accuracy."""
    targets = target_by_group(groups, target)

    def draw(name: str, part: list[Group]) -> Picture | None:
        return target_chart(name, part, targets[part[0].label])

    return Section(
        name="target",
        title=f"Rounds to a target {groups[0].measure.name}",
        text=(
            "How many rounds and bytes a method needs to reach the target "
            f"{groups[0].measure.name}."
        ),
        pictures=draw_each("target", list(by_data(groups).values()), draw),
        tables=without_none(target_table(groups, target)),
    )


def partition_section(groups: list[Group]) -> Section:
    """Return the section on the partition, with one heat map for each different partition."""
    records: dict[str, PartitionRecord] = {}
    users: dict[str, list[Group]] = {}
    for group in groups:
        for run in group.runs:
            record = run.partition
            if record is None or group.settings.get("parties") == 1:
                continue
            key = repr((record.classes, record.counts, record.names))
            records[key] = record
            members = users.setdefault(key, [])
            if group not in members:
                members.append(group)
    pictures = []
    for number, (key, record) in enumerate(records.items(), 1):
        used_by_all = len(users[key]) == len(groups)
        caption = f"Used by {'all runs' if used_by_all else list_labels(users[key])}."
        pictures.append(partition_picture(f"partition-{number}", record, users[key], caption))
    text = "How the training samples are split over the parties."
    return Section("partition", "Partition", text=text, pictures=pictures)


def list_labels(groups: list[Group]) -> str:
    """Return the labels of the first groups."""
    labels = ", ".join(group.label for group in groups[:MAX_LABELS])
    return f"{labels}…" if len(groups) > MAX_LABELS else labels


def partition_picture(
    name: str, record: PartitionRecord, groups: list[Group], caption: str
) -> Picture:
    """Return the heat map of a partition."""
    counts, names_of_columns = partition_counts(record, groups[0])
    parties, classes = counts.shape
    names = record.names or []
    column = groups[0].measure.output
    title = f"Samples per party and {column}"
    figure = draw_heat_map(
        counts,
        names_of_columns,
        f"{title}: {describe_partition(groups[0])}",
        subtitle=describe_setting(groups),
        names=tuple(names) if len(names) == parties else (),
        column=column,
    )
    sizes = describe_sizes(counts)
    skew = ""
    if groups[0].measure is ACCURACY:
        skew = f"; {measure_skew(counts)}"
    elif record.samples is not None:
        sizes = describe_sizes(np.asarray(record.samples)[:, None])
    caption = f"Training samples of each {column} at each party; {sizes}{skew}. {caption}"
    alt = f"Heat map of {parties} parties by {groups[0].measure.count_outputs(classes)}; {sizes}."
    return render(name, figure, caption, alt)


def partition_counts(
    record: PartitionRecord, group: Group
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the samples of each class or label at each party; of a regression, all samples."""
    counts = np.asarray(record.counts, dtype=np.int64)
    if group.measure is RMSE:
        return counts[:, :1], (", ".join(record.classes),)
    return counts, tuple(record.classes)


def describe_partition(group: Group) -> str:
    """Return the kind of partition in words."""
    if group.settings.get("dataset") == "sites":
        return "data of the sites"
    return describe_data(group.settings)


def class_section(groups: list[Group]) -> Section:
    """Return the section on classes: accuracy per class and confusion matrices."""
    recorded = [
        group for group in groups if any(run.final.confusion is not None for run in group.runs)
    ]
    pictures = draw_each("classes", figure_groups(recorded), class_chart)
    pictures += draw_each(
        "confusion",
        [[group] for group in recorded[:MAX_MATRICES]],
        lambda name, part: confusion_matrix(name, part[0]),
    )
    return Section(
        name="classes",
        title="Classes",
        text=describe_selection("Confusion matrices", recorded),
        pictures=pictures,
        tables=class_tables(groups),
    )


def describe_selection(figures: str, groups: list[Group]) -> str:
    """Return a note if only the first groups have a figure."""
    if len(groups) <= MAX_MATRICES:
        return ""
    return f"{figures} of the first {MAX_MATRICES} of {len(groups)} groups."


def party_section(groups: list[Group]) -> Section:
    """Return the section on parties: drift, and metrics per party."""
    federated = [group for group in groups if group.federated]
    parts = figure_groups(federated)
    pictures = draw_each("drift", parts, drift_figure)
    for key in PARTY_CHARTS:
        pictures += draw_each(f"party-{key}", parts, functools.partial(party_chart, key=key))
    pictures += draw_each(
        "gains",
        [[group] for group in personal_groups(groups)[:MAX_MATRICES]],
        lambda name, part: gains_chart(name, part[0], groups),
    )
    return Section(
        name="parties",
        title="Parties",
        text=(
            "How well the final model fits each party, and how far local training moves a party's "
            "model away from it."
        ),
        pictures=pictures,
        tables=without_none(gains_table(groups), party_table(federated)),
    )


def representation_section(groups: list[Group]) -> Section:
    """Return the section on representations, with t-SNE figures."""
    recorded = [group for group in groups if first_embedding(group) is not None]
    pictures = draw_each(
        "tsne",
        [[group] for group in recorded[:MAX_MATRICES]],
        lambda name, part: tsne_figure(name, part[0]),
    )
    text = describe_selection("t-SNE", recorded)
    return Section("representation", "Representations", text=text, pictures=pictures)


def cost_section(groups: list[Group]) -> Section:
    """Return the section on computation and communication."""
    pictures = draw_each("cost", by_dataset(groups), cost_chart)
    return Section("cost", "Cost", pictures=pictures, tables=[cost_table(groups)])


def settings_section(groups: list[Group]) -> Section:
    """Return the section on settings, implementation choices and run directories."""
    tables = [*settings_tables(groups), *without_none(choices_table(groups)), runs_table(groups)]
    return Section("settings", "Settings", tables=tables)
