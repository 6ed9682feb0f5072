"""Kinds of tasks: the supervised loss, what is counted over samples, and the scores from it."""

from .base import Objective
from .classification import Classification
from .table import OBJECTIVES, make_objective

__all__ = ["OBJECTIVES", "Classification", "Objective", "make_objective"]
