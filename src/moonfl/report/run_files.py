"""Read the files of a run directory. Errors name the file, the line and the wrong value.

The types and ranges of JSON values are declared in moonfl.runs.schema; checks that involve several
values are in run_checks.py.
"""

from pathlib import Path
from typing import TypeVar

from ..runs.index import read_text
from ..runs.schema import RoundRecord, decode
from .run_checks import check_round

T = TypeVar("T")


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
