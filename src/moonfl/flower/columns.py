"""Columns of tables at sites: their common order, and which ones a site lacks."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..data.base import Examples
from ..data.images import Images
from ..errors import first_names
from ..task import FederatedData, Task
from .refusals import RefusedError, sanitize

MAX_COLUMNS = 5  # names that a message lists


def order_rows(data: FederatedData, features: list[str]) -> FederatedData:
    """Return the rows of a site with their columns in this order; empty: in that of the site."""
    if not features or list(data.features) == features:
        return data
    check_same_columns(data.features, features)
    order = [data.features.index(name) for name in features]

    def arrange(examples: Examples | None) -> Examples | None:
        if examples is None or isinstance(examples.x, Images):
            return examples
        return examples._replace(x=examples.x[:, order])

    table = data.table or ()
    return replace(
        data,
        train=arrange(data.train) or data.train,
        test=arrange(data.test),
        validation=arrange(data.validation),
        features=tuple(features),
        table=tuple(table[k] for k in order),
    )


def order_task(task: Task, party: int, features: list[str]) -> Task:
    """Return the task of a site, which is this party, with its columns in this order."""
    if list(task.features) == features:
        return task
    check_same_columns(task.features, features)
    order = torch.tensor([task.features.index(name) for name in features])

    def arrange(examples: Examples) -> Examples:
        assert not isinstance(examples.x, Images)
        return examples._replace(x=examples.x[:, order.to(examples.x.device)])

    return replace(
        task,
        parties={party: arrange(task.parties[party])},
        test=arrange(task.test),
        validation=None if task.validation is None else arrange(task.validation),
        features=tuple(features),
    )


def check_same_columns(ours: Sequence[str], theirs: list[str]) -> None:
    """Check that a site has the columns that all sites agreed on."""
    if set(theirs) != set(ours):
        raise RefusedError(f"its columns differ: {describe_columns(ours, theirs)}")


def describe_columns(ours: Sequence[str], theirs: Sequence[str], other: str = "the others") -> str:
    """Return which columns one site lacks and which only it has; `other` names the others."""
    known = set(ours)
    expected = set(theirs)
    missing = [name for name in theirs if name not in known]
    additional = [name for name in ours if name not in expected]
    parts = []
    if missing:
        parts.append(f"it lacks {list_columns(missing)}, which {other} has")
    if additional:
        parts.append(f"it has {list_columns(additional)}, which {other} lacks")
    return ", and ".join(parts)


def list_columns(names: list[str]) -> str:
    """Return the names of columns, at most a few."""
    quoted = [f"'{sanitize(name)}'" for name in names]
    return f"the column{'s' if len(names) > 1 else ''} {first_names(quoted, MAX_COLUMNS)}"
