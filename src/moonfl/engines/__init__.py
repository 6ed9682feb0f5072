"""Engines train the parties of a round, in this process or in a pool of worker processes."""

from .base import Engine, check_workers, make_engine, num_cores

__all__ = ["Engine", "check_workers", "make_engine", "num_cores"]
