"""Check values of run files against each other, and the settings in experiment.toml.

Types and ranges of single values in JSON files are checked by moonfl.runs.schema. A damaged file is
reported in one sentence, before anything is computed from it.
"""

import re
import reprlib
import sys
from typing import Any

from ..errors import InputError
from ..measures import is_evaluated
from ..runs.schema import (
    LARGEST,
    MEASURE_KEYS,
    PRINTABLE,
    Embedding,
    FinalRecord,
    PartitionRecord,
    RoundRecord,
)

Settings = dict[str, Any]  # flat: "rounds", "algorithm.mu", ...
LARGEST_FLOAT = sys.float_info.max
REQUIRED = ("algorithm.name", "dataset", "rounds")
INTEGERS = {  # with their smallest value
    "rounds": 1,
    "parties": 1,
    "patience": 1,
    "seed": 0,
    "evaluate_every": 1,
    "finetune": 1,
}
TEXTS = ("algorithm.name", "server.name", "dataset", "partition", "scale")


def require(valid: bool, location: str, expected: str, value: object) -> None:
    """Raise an error that states what was expected and what was found, unless `valid`."""
    if not valid:
        raise InputError(f"{location}: {expected}, got {reprlib.repr(value)}")


def is_number(value: object, low: float = -LARGEST, high: float = LARGEST) -> bool:
    """Return True for an int or float between two limits; a bool is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def check_settings(settings: Settings, location: str) -> None:
    """Check that all settings can be shown, and those that reports compute with are valid.

    The settings of a method that is not known here may have any value.
    """
    for key in REQUIRED:
        if key not in settings:
            raise InputError(f"{location} has no setting {key}; it was not written by a moonfl run")
    for key, value in settings.items():
        check_setting(key, value, location)


def check_setting(key: str, value: object, location: str) -> None:
    """Check one setting."""
    if key in INTEGERS:
        low = INTEGERS[key]
        valid = isinstance(value, int) and is_number(value, low, LARGEST_FLOAT)
        require(valid, location, f"{key} must be an integer >= {low}", value)
    elif key == "beta" or isinstance(value, float) or type(value) is int:
        valid = is_number(value, -LARGEST_FLOAT, LARGEST_FLOAT)
        require(valid, location, f"{key} must be a finite number", value)
    elif key in TEXTS or isinstance(value, str):
        valid = isinstance(value, str) and re.match(PRINTABLE, value) is not None
        require(valid, location, f"{key} must be printable text", value)


def check_evaluations(records: list[RoundRecord], settings: Settings, location: str) -> None:
    """Check that every round has an accuracy that should have one, by `evaluate_every`."""
    every = int(settings.get("evaluate_every", 1))
    for record in records:
        is_due = record.round % every == 0 or record.round == settings["rounds"]
        if is_due and not is_evaluated(record):
            raise InputError(
                f"{location}, line {record.round}: object missing required field "
                f"{' or '.join(MEASURE_KEYS)}"
            )


def check_round(record: RoundRecord, number: int, location: str) -> None:
    """Check that a record is that of round `number`, and that its counts are possible."""
    require(record.round == number, location, f"round must be {number}", record.round)
    for party, (correct, total) in (record.sites or {}).items():
        expected = f"sites: party {party} must have at most {total} correct predictions"
        require(record.rmse is not None or correct <= total, location, expected, correct)


def check_partition(record: PartitionRecord, location: str) -> None:
    """Check that every class has a name and a column of counts."""
    columns = check_counts(record.counts, "counts", location)
    expected = f"classes must be {columns} names, as many as counts has columns"
    require(len(record.classes) == columns, location, expected, record.classes)


def check_final(record: FinalRecord, classes: list[str] | None, location: str) -> None:
    """Check the confusion matrix against the names of the classes, and points against labels."""
    if record.confusion is not None:
        rows = len(record.confusion)
        columns = check_counts(record.confusion, "confusion", location)
        size = rows if classes is None else len(classes)
        expected = f"confusion must have {size} x {size} entries"
        require(rows == columns == size, location, expected, (rows, columns))
    if record.tsne is not None:
        check_embedding(record.tsne, location)


def check_embedding(embedding: Embedding, location: str) -> None:
    """Check that there are as many points as labels."""
    count = len(embedding.labels)
    for name in ("points", "local"):
        length = len(getattr(embedding, name))
        expected = f"tsne.{name} must have {count} points, as many as there are labels"
        require(length in (0, count), location, expected, length)


def check_counts(table: list[list[int]], name: str, location: str) -> int:
    """Check that a table of counts is rectangular and not all 0; return its number of columns."""
    lengths = {len(row) for row in table}
    valid = len(lengths) == 1 and any(map(any, table))
    expected = f"{name} must be a table of counts with rows of one length, not all 0"
    require(valid, location, expected, table)
    return lengths.pop()
