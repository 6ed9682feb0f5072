"""Aggregation: how the updates of a round become one model. `table.py` lists the rules by name."""

from .clipping import clip_difference, clip_update
from .table import AGGREGATIONS, aggregation_rule, describe

__all__ = ["AGGREGATIONS", "aggregation_rule", "clip_difference", "clip_update", "describe"]
