"""The aggregation rules by name. A new one is a function next to this file and an entry here."""

import functools
from collections.abc import Callable

from .. import tree
from ..types import Mean
from .robust import MEDIAN, trimmed_mean_of_trees

MEAN = "mean"
AGGREGATIONS: dict[str, Callable[[float], Mean]] = {  # name -> (share to trim -> rule)
    MEAN: lambda trim: tree.mean,
    "median": lambda trim: functools.partial(trimmed_mean_of_trees, trim=MEDIAN),
    "trimmed-mean": lambda trim: functools.partial(trimmed_mean_of_trees, trim=trim),
}


def aggregation_rule(name: str, trim: float | None) -> Mean:
    """Return the function that averages values over parties."""
    return AGGREGATIONS[name](trim or 0.0)


def describe(name: str, trim: float | None, clip: float | None, weighting: str) -> str:
    """Describe how updates are aggregated; `weighting` is the algorithm's own description."""
    texts = {
        MEAN: weighting,
        "median": "coordinate-wise median; every party has one vote",
        "trimmed-mean": (
            f"coordinate-wise mean without {100 * (trim or 0):g} % of the parties at either end; "
            "every party has one vote"
        ),
    }
    if clip is None:
        return texts[name]
    return f"{texts[name]}; updates with a norm above {clip:g} are scaled down to it"
