"""Which groups stand together: in one figure, and against which FedAvg."""

from typing import Any

import numpy as np

from .groups import LENGTH, PANEL, Group


def panels(groups: list[Group]) -> list[list[Group]]:
    """The groups that one figure shows: of one data set, and of one setting where there are several methods."""
    several = len({g.method for g in groups}) > 1
    fields: dict[Any, list[Group]] = {}
    for g in groups:
        if g.federated:
            fields.setdefault(g.family() if several else g.dataset, []).append(g)
    for g in groups:
        if not g.federated:
            near = [
                field for field in fields.values() if field[0].family(LENGTH) == g.family(LENGTH)
            ]
            for field in near or [fields.setdefault(g.dataset, [])]:
                field.append(g)
    return [part for field in fields.values() for part in chunks(field)]


def chunks(field: list[Group]) -> list[list[Group]]:
    """At most PANEL groups together; FedAvg stays with all."""
    if len(field) <= PANEL:
        return [field]
    fixed = [g for g in field if g.is_fedavg][:1]
    rest = [g for g in field if g not in fixed]
    step = PANEL - len(fixed)
    count = -(-len(rest) // step)
    return [fixed + [rest[i] for i in part] for part in np.array_split(range(len(rest)), count)]


def baseline(g: Group, groups: list[Group]) -> Group | None:
    """FedAvg under the same settings; without federation those of length are not compared."""
    without = () if g.federated else LENGTH
    same = [
        other for other in groups if other.is_fedavg and other.family(without) == g.family(without)
    ]
    return same[0] if len(same) == 1 and same[0] is not g else None
