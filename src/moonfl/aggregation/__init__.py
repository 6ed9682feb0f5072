"""Aggregation: how the updates of a round become one model."""
