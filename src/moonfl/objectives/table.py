"""The objectives by the name of their task."""

from typing import Any

from .base import Objective
from .classification import Classification

OBJECTIVES: dict[str, type[Objective[Any]]] = {
    "classification": Classification,
}


def make_objective(task: str) -> Objective[Any]:
    """Return the objective of a task, without statistics of its targets."""
    return OBJECTIVES[task]()
