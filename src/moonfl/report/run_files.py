"""Read the files of a run directory. Errors name the file, the line and the wrong value.

The types and ranges of JSON values are declared in moonfl.runs.schema; checks that involve several
values are in run_checks.py.
"""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError
from ..runs.index import read_file
from ..runs.schema import RoundRecord, decode
from .run_checks import check_round

T = TypeVar("T")


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8."""
    try:
        return read_file(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}"
        ) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # not TOML, or too many digits or levels
        raise InputError(f"{path} is not valid TOML: {error}") from None


def read_record(path: Path, kind: type[T]) -> T | None:
    """Return the record in a JSON file; None if there is no such file."""
    if not path.exists():
        return None
    return decode(read_text(path), kind, str(path))


def read_rounds(path: Path) -> list[RoundRecord]:
    """Return the round records of rounds.jsonl, one per line.

    A last line without a line break was interrupted while it was written and is ignored.
    """
    if not path.exists():
        return []
    records = []
    lines = read_text(path).split("\n")[:-1]
    for number, line in enumerate(lines, 1):
        location = f"{path}, line {number}"
        record = decode(line, RoundRecord, location)
        check_round(record, number, location)
        records.append(record)
    return records
