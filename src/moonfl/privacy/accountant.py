"""The accountant: epsilon and delta of many rounds, by privacy loss distributions.

The library dp-accounting computes them. Neighbouring federations differ in one party with all of
its samples, which one of them has and the other lacks. N, the number of parties, is public and the
same in both: a party that is lacking sends nothing.
"""

import functools
import importlib
import importlib.metadata
import math
from typing import Any

from ..errors import InputError

PRECISION = 1e-3  # of a calibrated noise multiplier
SMALLEST_DELTA = 1e-12  # the library's own errors are about 1e-15
INTERVAL = 1e-4  # between the discrete values of the privacy loss
LARGEST_NOISE = 1e6  # multiplier up to which calibration searches


def library() -> Any:
    """Return the module dp_accounting, or raise an InputError that says how to install it."""
    try:
        accounting = importlib.import_module("dp_accounting")
        importlib.import_module("dp_accounting.pld")
    except ImportError:
        raise InputError(
            "dp needs the library dp-accounting; install it with `pip install 'moonfl[privacy]'`"
        ) from None
    return accounting


def name() -> str:
    """Return the name and version of the accountant."""
    library()
    return f"dp-accounting {importlib.metadata.version('dp-accounting')}, PLD"


def rounds_event(noise: float, rate: float, rounds: int) -> Any:
    """Return the event of the library for rounds with this noise multiplier and sampling rate."""
    accounting = library()
    event = accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = accounting.PoissonSampledDpEvent(rate, event)
    return accounting.SelfComposedDpEvent(event, rounds)


def new_accountant(noise: float, rate: float, rounds: int) -> Any:
    """Return an accountant for such rounds, whose time and memory stay small with little noise.

    The interval between values grows with the privacy loss. Every interval gives an upper bound of
    epsilon, and the bound of a large epsilon needs no small interval.
    """
    summed = rounds if rate == 1 else 1  # the library treats rounds of all parties as one
    loss = summed / (2 * noise**2)
    interval = INTERVAL * max(1.0, loss)
    return library().pld.PLDAccountant(value_discretization_interval=interval)


@functools.cache
def epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return the smallest epsilon that the accountant can prove; infinity if there is none."""
    if rounds == 0:
        return 0.0
    accountant = new_accountant(noise, rate, rounds)
    try:
        accountant.compose(rounds_event(noise, rate, rounds))
        return float(accountant.get_epsilon(delta))
    except OverflowError:  # with hardly any noise
        return math.inf


@functools.cache
def noise_for(target: float, rate: float, rounds: int, delta: float) -> float:
    """Return a noise multiplier with at most this epsilon, close to the smallest one."""
    lower, upper = 0.0, 1.0
    while epsilon(upper, rate, rounds, delta) > target:
        lower, upper = upper, 2 * upper
        if upper > LARGEST_NOISE:
            raise InputError(
                f"no noise gives dp.epsilon={target:g} with dp.delta={delta:g} after {rounds} "
                "rounds; increase dp.epsilon or dp.delta"
            )
    while upper - lower > PRECISION * upper:
        middle = (lower + upper) / 2
        if epsilon(middle, rate, rounds, delta) > target:
            lower = middle
        else:
            upper = middle
    return upper
