"""Which groups of samples are held out: all samples of a patient, person or recording together."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from .base import Index


def choose_groups(
    parts: Mapping[int, Index],
    groups: Index,
    share: float,
    stream: Callable[[int], torch.Generator],
) -> set[int]:
    """Return the groups to hold out, a share of every party's groups.

    `groups` is the group of each sample, and `stream` returns the random numbers of a party. A
    group with samples at several parties is held out at all of them or at none. Every party keeps
    at least one group.
    """
    members = {i: set(np.unique(groups[part]).tolist()) for i, part in parts.items()}
    held_out: set[int] = set()
    decided: set[int] = set()
    for i, candidates in members.items():
        goal = min(round(share * len(candidates)), len(candidates) - 1)
        undecided = sorted(candidates - decided)
        for k in torch.randperm(len(undecided), generator=stream(i)).tolist():
            if len(candidates & held_out) >= goal:
                break
            if not _empties_a_party(members, held_out | {undecided[k]}):
                held_out.add(undecided[k])
        decided |= candidates
    return held_out


def _empties_a_party(members: Mapping[int, set[int]], held_out: set[int]) -> bool:
    """Return True if a party that has samples would keep no group."""
    return any(groups and groups <= held_out for groups in members.values())
