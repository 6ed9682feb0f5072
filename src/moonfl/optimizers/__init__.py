"""Optimizers of local training, and schedules of its learning rate. `table.py` lists them by name.

Server optimizers are in the package `server_optimizers`.
"""

from .adam import Adam, AdamW
from .base import LocalOptimizer, StepOptions, take_step
from .schedules import Constant, Cosine, Exponential, Schedule, Step, scheduled_lr
from .sgd import SGD
from .table import OPTIMIZERS, SCHEDULES

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Exponential",
    "LocalOptimizer",
    "Schedule",
    "Step",
    "StepOptions",
    "scheduled_lr",
    "take_step",
]
