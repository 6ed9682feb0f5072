"""Who gains and who loses by a party's own model, compared with the global model and with SOLO."""

from dataclasses import replace

import numpy as np

from ..measures import ACCURACY
from .dot_charts import Series, comparison_chart
from .groups import Group, same_data
from .rendering import Picture
from .result_tables import mark_small
from .statistics import held_out_scores, last_sites
from .tables import Column, Table, integer, points

Shares = dict[int, float]  # party -> share of correct predictions on its held-out samples
GLOBAL_MODEL = "its global model"


def gains_table(groups: list[Group]) -> Table | None:
    """Return the table of parties that gain or lose; None if no run has models of the parties."""
    rows = []
    for group in personal_groups(groups):
        for reference, other in references(group, groups).items():
            rows.append(compare(group, reference, held_out_scores(group), other))
    if not rows:
        return None
    return Table(
        name="gains",
        title=mark_small("Who gains and who loses by personal models", groups),
        columns=(
            Column("method"),
            Column("compared with"),
            Column("parties that gain", integer),
            Column("equal", integer),
            Column("that lose", integer),
            Column("mean difference, points", points),
            Column("smallest, points", points),
            Column("at"),
            Column("largest, points", points),
            Column("at "),
        ),
        rows=rows,
        note=(
            "Accuracy of each party's model minus that of the other model, after the last round, "
            "on the samples that the party holds out, mean over seeds. SOLO is compared if its "
            "parties have the same data and hold out equally many samples."
        ),
    )


def personal_groups(groups: list[Group]) -> list[Group]:
    """Return the groups whose parties have models of their own, which classify samples."""
    return [group for group in groups if group.has_party_models and group.measure == ACCURACY]


def references(group: Group, groups: list[Group]) -> dict[str, Shares]:
    """Return the results of the models that a group's personal models are compared with."""
    results = {}
    if all(run.rounds[-1].global_sites for run in group.runs):
        results[GLOBAL_MODEL] = held_out_scores(group, "global_sites")
    for other in groups:
        if other.is_solo and has_same_samples(group, other):
            results[other.label] = held_out_scores(other)
    return results


def gains_chart(name: str, group: Group, groups: list[Group]) -> Picture | None:
    """Return a chart of a group's personal models and their references at every party."""
    others = references(group, groups)
    if not others:
        return None
    scores = {**others, "personal model": held_out_scores(group)}
    series = []
    for style, (label, values) in enumerate(scores.items()):
        percent = {group.party_name(party): 100 * value for party, value in values.items()}
        series.append(Series(replace(group, label=label, method=label, style=style), percent))
    return comparison_chart(
        name,
        series,
        title=f"Personal models: {group.label}",
        axis="accuracy on the party's held-out samples, %",
        caption=(
            "Accuracy of each party's personal model and of the models it is compared with, on "
            "the samples that the party holds out, mean over seeds."
        ),
    )


def has_same_samples(group: Group, other: Group) -> bool:
    """Return True if the parties of two groups have the same data and hold out as many samples."""
    is_same = same_data(group.runs[0], other.runs[0])
    return is_same and held_out_sizes(group) == held_out_sizes(other)


def held_out_sizes(group: Group) -> dict[str, int]:
    """Return how many samples each party holds out."""
    sites = last_sites(group)[0]
    return {party: number for party, (_, number) in sorted(sites.items())}


def compare(group: Group, reference: str, own: Shares, other: Shares) -> tuple[object, ...]:
    """Return a row of the table."""
    differences = {party: own[party] - other[party] for party in own if party in other}
    low = min(differences, key=lambda party: differences[party])
    high = max(differences, key=lambda party: differences[party])
    values = list(differences.values())
    return (
        group.label,
        reference,
        sum(value > 0 for value in values),
        sum(value == 0 for value in values),
        sum(value < 0 for value in values),
        float(np.mean(values)),
        differences[low],
        group.party_name(low),
        differences[high],
        group.party_name(high),
    )
