"""Types of command-line arguments: paths, counts, party numbers, sizes in bytes, accuracies."""

import argparse
import math
from collections.abc import Callable

from ..settings import parse_float, parse_int

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def path(text: str) -> str:
    """Return the text as a path; an empty one, as of an unset variable, is refused."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, got ''")
    return text


def count(text: str) -> int:
    """Return the text as an integer >= 1."""
    rule = "an integer >= 1, such as 3"
    return int(_number(text, rule, parse_int, lambda value: value >= 1))


def size(text: str) -> int:
    """Return the number of bytes that a text such as 500M, 2G or 1000 stands for."""
    rule = "a number of bytes such as 500M or 2G"

    def convert(text: str) -> float:
        unit = text[-1:].upper()
        if unit in UNITS:
            return parse_float(text[:-1]) * UNITS[unit]
        return parse_float(text)

    return int(_number(text, rule, convert, lambda value: 0 <= value < 2**63))


def target(text: str) -> float:
    """Return the target of a metric from a text such as 0.65 or 65%, or 1200 for an RMSE."""
    rule = "a number above 0: an accuracy such as 0.65 or 65%, or an RMSE such as 1200"

    def convert(text: str) -> float:
        if text.endswith("%"):
            return parse_float(text.removesuffix("%")) / 100
        return parse_float(text)

    return _number(text, rule, convert, lambda value: 0 < value < math.inf)


def _number(
    text: str,
    rule: str,
    convert: Callable[[str], float],
    is_allowed: Callable[[float], bool],
) -> float:
    """Return the converted text, or raise an error that states the rule."""
    try:
        value = convert(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not is_allowed(value):
        raise argparse.ArgumentTypeError(f"must be {rule}, got '{text}'")
    return value
