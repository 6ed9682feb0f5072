"""Short descriptions of partitions and feature shifts. Does not import torch."""

from collections.abc import Mapping
from typing import Any

CLASSES_PER_PARTY = 2  # default with partition=labels
SHARDS_PER_PARTY = 2  # default with partition=shards
LEVELS = {"noise": 0.1, "rotation": 45.0, "scale": 0.5}  # of a shift at the last party, by default
TITLES = {  # of the kinds of partitions, with the settings of the experiment
    "dirichlet": "Dirichlet, beta {beta:g}",
    "dirichlet-balanced": "balanced Dirichlet, beta {beta:g}",
    "labels": "{classes_per_party} classes per party",
    "shards": "{shards_per_party} shards per party",
    "quantity": "quantity skew, beta {beta:g}",
    "iid": "IID",
    "column": "by {column}",
}


def describe_data(values: Mapping[str, Any]) -> str:
    """Describe partition and feature shift; `values` are the settings of an experiment."""
    used = {
        "beta": values.get("beta", 0.0),
        "classes_per_party": values.get("classes_per_party", CLASSES_PER_PARTY),
        "shards_per_party": values.get("shards_per_party", SHARDS_PER_PARTY),
        "column": values.get("column"),
    }
    kind = str(values.get("partition", ""))
    description = TITLES.get(kind, kind).format(**used)
    if values.get("shift") is None:
        return description
    return f"{description}, {describe_shift(str(values['shift']), values.get('shift_level'))}"


def describe_shift(kind: str, level: float | None) -> str:
    """Describe a shift by its level at the last party; None is the default of the kind."""
    value = LEVELS.get(kind, 0.0) if level is None else level
    titles = {
        "noise": f"noise up to {value:g}",
        "rotation": f"rotation up to {value:g} degrees",
        "scale": f"values scaled down to {1 - value:g}",
    }
    return titles.get(kind, kind)
