"""Local optimizers and schedules by name. A new one is a class next to this file and an entry."""

from .adam import Adam, AdamW
from .base import LocalOptimizer
from .schedules import Constant, Cosine, Exponential, Schedule, Step
from .sgd import SGD

OPTIMIZERS: dict[str, type[LocalOptimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "step": Step,
    "cosine": Cosine,
    "exponential": Exponential,
}
