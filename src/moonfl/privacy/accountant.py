"""The accountant: epsilon and delta of many rounds, by privacy loss distributions.

The library dp-accounting computes them. Neighbouring federations differ in one party with all of
its samples, which one of them has and the other lacks.
"""

import functools
import importlib
import importlib.metadata
from typing import Any

from ..errors import InputError

PRECISION = 1e-3  # of a calibrated noise multiplier


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


@functools.cache
def epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return the smallest epsilon that the accountant can prove."""
    if rounds == 0:
        return 0.0
    accountant = library().pld.PLDAccountant()
    accountant.compose(rounds_event(noise, rate, rounds))
    return float(accountant.get_epsilon(delta))


@functools.cache
def noise_for(target: float, rate: float, rounds: int, delta: float) -> float:
    """Return a noise multiplier with at most this epsilon, close to the smallest one."""
    accounting = library()
    noise = accounting.calibrate_dp_mechanism(
        accounting.pld.PLDAccountant,
        lambda noise: rounds_event(noise, rate, rounds),
        target,
        delta,
        tol=PRECISION,
    )
    return float(noise)
