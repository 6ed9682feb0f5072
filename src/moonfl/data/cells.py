"""The cells of a table as text: numbers, missing values, dates, and the categories of a column."""

import math
import re

import numpy as np

from ..settings import parse_float

FLOAT32_MAX = float(np.finfo(np.float32).max)
MISSING = frozenset(  # spellings of a missing value, in lower case
    ("", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "null", "none", "?")
)
BOOLEANS = {"true": 1.0, "false": 0.0}
TIME = r"([ T]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s?(Z|[+-]\d{2}:?\d{2})?)?"
DATE = re.compile(
    rf"(\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}){TIME}"
)
INTEGER = re.compile(r"([+-]?[0-9]+)\.0*")  # an integer with a decimal point, as in 1.0
DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+")


def parse_number(text: str) -> float:
    """Return the value of a cell.

    What is not a number, exceeds float32, or is an integer beyond 2^53 is a ValueError.
    """
    value = parse_float(text)
    if abs(value) < 2**53:
        return value
    is_integer = text.strip().lstrip("+-").isdigit()
    if not abs(value) <= FLOAT32_MAX or (is_integer and abs(int(text)) > 2**53):
        raise ValueError(f"{text} cannot be held")
    return value


def is_number(text: str) -> bool:
    """Return True if the text is a number that a float can hold."""
    try:
        parse_number(text)
    except ValueError:
        return False
    return True


def cell_problem(text: str) -> str:
    """Return why a cell has no value."""
    try:
        is_finite = math.isfinite(parse_float(text))
    except ValueError:
        is_finite = False
    return "not a number that a float can hold" if is_finite else "not a finite decimal number"


def is_missing(text: str) -> bool:
    """Return True if a cell says that its value is missing."""
    return text.strip().lower() in MISSING


def is_missing_value(value: object) -> bool:
    """Return True for a missing value of an array or data frame: None, NaN, or pandas.NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def is_date(text: str) -> bool:
    """Return True if a cell is a date, possibly with a time."""
    return DATE.fullmatch(text.strip()) is not None


def has_decimal_comma(text: str) -> bool:
    """Return True if a cell is a number with a decimal comma, such as 36,6."""
    return DECIMAL_COMMA.fullmatch(text.strip()) is not None


def category(text: str) -> str:
    """Return the name of a category.

    Case and repeated whitespace do not distinguish two, nor does a decimal point after a code:
    pandas writes 1 as 1.0 if the column has missing values.
    """
    name = " ".join(text.split()).casefold()
    code = INTEGER.fullmatch(name)
    return name if code is None else code[1]
