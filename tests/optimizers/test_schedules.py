"""Schedules of the learning rate: closed forms, agreement with torch's schedulers, limits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moonfl.errors import InputError
from moonfl.optimizers import (
    SCHEDULES,
    Constant,
    Cosine,
    Exponential,
    Schedule,
    Step,
    scheduled_lr,
)

ROUNDS = 30


def rates(
    schedule: Schedule, warmup: int = 0, rounds: int = ROUNDS, lr: float = 0.1
) -> list[float]:
    """Return the learning rate of every round."""
    return [scheduled_lr(lr, schedule, warmup, t, rounds) for t in range(rounds)]


def torch_rates(make: object, lr: float = 0.1) -> list[float]:
    """Return the learning rates of a scheduler of torch that steps once per round."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr)
    scheduler = make(optimizer)
    values = []
    for _ in range(ROUNDS):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


def test_schedules_are_those_of_torch() -> None:
    library = torch.optim.lr_scheduler
    assert rates(Step(every=7, gamma=0.3)) == pytest.approx(
        torch_rates(lambda optimizer: library.StepLR(optimizer, 7, 0.3))
    )
    assert rates(Exponential(gamma=0.9)) == pytest.approx(
        torch_rates(lambda optimizer: library.ExponentialLR(optimizer, 0.9))
    )
    assert rates(Cosine(final=0.02)) == pytest.approx(
        torch_rates(lambda optimizer: library.CosineAnnealingLR(optimizer, ROUNDS - 1, 0.002))
    )


def test_the_constant_schedule_is_the_learning_rate_itself() -> None:
    assert rates(Constant(), lr=0.1) == [0.1] * ROUNDS


def test_cosine_ends_at_its_final_fraction_in_the_last_round() -> None:
    values = rates(Cosine(final=0.05))
    assert values[0] == 0.1
    assert values[-1] == pytest.approx(0.005, rel=1e-12)
    assert rates(Cosine(), rounds=1) == [0.1]


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_rises_linearly_and_the_schedule_follows(name: str) -> None:
    schedule = SCHEDULES[name]()
    values = rates(schedule, warmup=4)
    assert values[:4] == pytest.approx([0.02, 0.04, 0.06, 0.08])
    assert values[4:] == rates(schedule, rounds=ROUNDS - 4)


@given(
    st.sampled_from([Constant(), Step(every=3), Exponential(), Cosine(), Cosine(final=1.0)]),
    st.integers(1, 200),
    st.data(),
)
def test_rates_are_positive_and_at_most_lr(
    schedule: Schedule, rounds: int, data: st.DataObject
) -> None:
    warmup = data.draw(st.integers(0, rounds - 1))
    if isinstance(schedule, Step):
        rounds = min(rounds, 90)
        warmup = min(warmup, rounds - 1)
    values = rates(schedule, warmup, rounds)
    assert all(0 < value <= 0.1 * (1 + 1e-15) for value in values)
    assert values[warmup] == 0.1
    assert values[: warmup + 1] == sorted(values[: warmup + 1])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)


class Negative(Schedule):
    """A schedule with a wrong factor."""

    def factor(self, t: int, rounds: int) -> float:
        return math.nan if t else -1.0


@pytest.mark.parametrize(("t", "value"), [(0, "-0.1"), (1, "nan")])
def test_a_wrong_factor_of_a_custom_schedule_is_refused(t: int, value: str) -> None:
    with pytest.raises(
        InputError, match=f"Negative gives the learning rate {value} in round {t + 1}"
    ):
        scheduled_lr(0.1, Negative(), 0, t, 5)
