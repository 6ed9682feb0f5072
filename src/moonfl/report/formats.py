"""How values of a measure are written in tables and sentences: in percent, or in their unit."""

from collections.abc import Callable

from ..measures import Measure
from .tables import interval_end, percent, points, signed_digits, significant_digits

Format = Callable[[float], str]


def value_format(measure: Measure) -> Format:
    """Return the format of a value."""
    return percent if measure.is_share else significant_digits


def difference_format(measure: Measure) -> Format:
    """Return the format of a difference of two values."""
    return points if measure.is_share else signed_digits


def interval_format(measure: Measure) -> Format:
    """Return the format of the end of an interval of differences."""
    return interval_end if measure.is_share else signed_digits


def with_unit(measure: Measure, text: str) -> str:
    """Return a formatted value with its unit, if it has one."""
    return f"{text} %" if measure.is_share else text


def difference_unit(measure: Measure) -> str:
    """Return the unit of a difference, after a space or a comma; empty if it has none."""
    return "points" if measure.is_share else ""
