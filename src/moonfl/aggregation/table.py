"""The aggregation rules by name. A new one is a function next to this file and an entry here."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from .. import tree
from ..algorithms.fednova import REQUIRES_SGD
from ..types import Mean, Params, Update
from .fednova import normalise
from .robust import MEDIAN, trimmed_mean_of_trees


class Aggregation(NamedTuple):
    """A rule that averages values over parties, for a share of parties to trim."""

    rule: Callable[[float], Mean]
    description: str  # {weighting}: of the algorithm; {trim}: in per cent
    # (updates, w^t, a of so many steps) -> updates to average in their place
    prepare: Callable[[list[Update], Params, Callable[[int], float]], list[Update]] = (
        lambda updates, w, effective_steps: updates
    )
    requires_sgd: str = ""  # why it needs SGD, without nesterov and grad_clip


AGGREGATIONS = {
    "mean": Aggregation(lambda trim: tree.mean, "{weighting}"),
    "median": Aggregation(
        lambda trim: functools.partial(trimmed_mean_of_trees, trim=MEDIAN),
        "coordinate-wise median; every party has one vote",
    ),
    "trimmed-mean": Aggregation(
        lambda trim: functools.partial(trimmed_mean_of_trees, trim=trim),
        "coordinate-wise mean without {trim} % of the parties at either end; "
        "every party has one vote",
    ),
    "fednova": Aggregation(
        lambda trim: tree.mean,
        "{weighting}; updates are scaled to the same effective number of steps (FedNova)",
        normalise,
        REQUIRES_SGD,
    ),
}


def aggregation_rule(name: str, trim: float | None) -> Mean:
    """Return the function that averages values over parties."""
    return AGGREGATIONS[name].rule(trim or 0.0)


def describe(name: str, trim: float | None, clip: float | None, weighting: str) -> str:
    """Describe how updates are aggregated; `weighting` is the algorithm's own description."""
    percent = f"{100 * (trim or 0):g}"
    text = AGGREGATIONS[name].description.format(weighting=weighting, trim=percent)
    if clip is None:
        return text
    return f"{text}; updates with a norm above {clip:g} are scaled down to it"
