"""Which groups are compared: together in one figure, and with which FedAvg baseline."""

from typing import Any

import numpy as np

from .groups import LENGTH, MAX_PER_FIGURE, Group


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
    """Split groups into figures of at most MAX_PER_FIGURE; FedAvg is in each of them."""
    if len(groups) <= MAX_PER_FIGURE:
        return [groups]
    fedavg = [group for group in groups if group.is_fedavg][:1]
    others = [group for group in groups if group not in fedavg]
    step = MAX_PER_FIGURE - len(fedavg)
    count = -(-len(others) // step)  # rounded up
    parts = np.array_split(range(len(others)), count)
    return [fedavg + [others[i] for i in part] for part in parts]


def baseline(group: Group, groups: list[Group]) -> Group | None:
    """Return the FedAvg group with the same settings; None if there is none or several.

    For a group without federation, the settings of the length of training are not compared.
    """
    without = () if group.federated else LENGTH
    setting = group.shared_settings(without)
    matches = [
        other for other in groups if other.is_fedavg and other.shared_settings(without) == setting
    ]
    if len(matches) != 1 or matches[0] is group:
        return None
    return matches[0]
