"""Schedules: the learning rate of each round as a function of its number alone.

A resumed run therefore continues exactly, and a Flower site computes the same value as the server.
"""

import math
from dataclasses import dataclass

from ..errors import InputError
from ..settings import setting

SMALLEST_LR = 2.0**-126  # methods divide by the learning rate: 1 / lr must fit into float32


@dataclass(frozen=True)
class Schedule:
    """Returns the factor of the learning rate in each round. Its fields are the settings."""

    def factor(self, t: int, rounds: int) -> float:
        """Return the factor in round t of `rounds`; t counts from 0, after the warm-up."""
        return 1.0


@dataclass(frozen=True)
class Constant(Schedule):
    """The learning rate is lr in all rounds: the default of the contract."""


@dataclass(frozen=True)
class Step(Schedule):
    """The learning rate is multiplied by gamma every few rounds."""

    every: int = setting(10, "rounds between two reductions", low=1)
    gamma: float = setting(0.1, "factor of each reduction", above=0, high=1)

    def factor(self, t: int, rounds: int) -> float:
        return float(self.gamma ** (t // self.every))


@dataclass(frozen=True)
class Exponential(Schedule):
    """The learning rate is multiplied by gamma in every round."""

    gamma: float = setting(0.99, "factor of each round", above=0, high=1)

    def factor(self, t: int, rounds: int) -> float:
        return float(self.gamma**t)


@dataclass(frozen=True)
class Cosine(Schedule):
    """The learning rate falls from lr to final * lr in the last round, along half a cosine.

    Loshchilov, Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017, without
    restarts. https://arxiv.org/abs/1608.03983
    """

    final: float = setting(0.01, "factor in the last round (rounds)", above=0, high=1)

    def factor(self, t: int, rounds: int) -> float:
        progress = t / max(1, rounds - 1)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2


def scheduled_lr(lr: float, schedule: Schedule, warmup: int, t: int, rounds: int) -> float:
    """Return the learning rate of round t, which counts from 0, of `rounds`.

    In the first `warmup` rounds it rises linearly: lr (t + 1) / (warmup + 1). The schedule extends
    over the remaining rounds.
    """
    if t < warmup:
        return lr * (t + 1) / (warmup + 1)
    value = lr * schedule.factor(t - warmup, rounds - warmup)
    if not SMALLEST_LR <= value < math.inf:
        name = type(schedule).__name__
        raise InputError(
            f"the schedule {name} gives the learning rate {value:g} in round {t + 1}, which must "
            f"be a finite number >= {SMALLEST_LR:.2g}; change lr or the settings of the schedule"
        )
    return value
