"""Who gains and who loses by a party's own model, compared with the global model and with SOLO."""

from collections.abc import Mapping

import numpy as np

from ..runs.schema import PartySum
from .groups import Group
from .result_tables import mark_small
from .tables import Column, Table, integer, points

Shares = dict[int, float]  # party -> share of correct predictions on its held-out samples
GLOBAL_MODEL = "its global model"


def gains_table(groups: list[Group]) -> Table | None:
    """Return the table of parties that gain or lose; None if no run has models of the parties."""
    rows = []
    solo = [group for group in groups if is_solo(group)]
    for group in groups:
        if not has_party_models(group):
            continue
        if all(run.rounds[-1].global_sites for run in group.runs):
            rows.append(compare(group, GLOBAL_MODEL, shares(group), shares(group, "global_sites")))
        for other in solo:
            if held_out_sizes(group) == held_out_sizes(other):
                rows.append(compare(group, other.label, shares(group), shares(other)))
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
            "parties hold out equally many samples."
        ),
    )


def is_solo(group: Group) -> bool:
    """Return True for SOLO with results on each party's own samples."""
    last = [run.rounds[-1] for run in group.runs]
    return all(record.accuracy_std is not None and record.sites for record in last)


def has_party_models(group: Group) -> bool:
    """Return True if the parties evaluated their own models, by accuracy, and trained together."""
    last = [run.rounds[-1] for run in group.runs]
    return not is_solo(group) and all(r.party_accuracy is not None and r.sites for r in last)


def last_sites(group: Group, field: str) -> list[Mapping[str, PartySum]]:
    """Return for each seed the counts by party after the last round."""
    return [getattr(records[-1], field) or {} for records in group.records()]


def shares(group: Group, field: str = "sites") -> Shares:
    """Return for each party the mean over seeds of its share of correct predictions."""
    values: dict[int, list[float]] = {}
    for sites in last_sites(group, field):
        for party, (correct, number) in sites.items():
            values.setdefault(int(party), []).append(correct / number)
    return {party: float(np.mean(values[party])) for party in sorted(values)}


def held_out_sizes(group: Group) -> dict[str, int]:
    """Return how many samples each party holds out."""
    sites = last_sites(group, "sites")[0]
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
