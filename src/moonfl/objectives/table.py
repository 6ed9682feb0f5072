"""The objectives by the name of their task."""

from typing import Any

from .base import Objective
from .classification import Classification
from .multilabel import MultiLabel
from .regression import Regression

OBJECTIVES: dict[str, type[Objective[Any]]] = {
    "classification": Classification,
    "regression": Regression,
    "multilabel": MultiLabel,
}


def make_objective(task: str) -> Objective[Any]:
    """Return the objective of a task, without statistics of its targets."""
    return OBJECTIVES[task]()
