"""The table of the fields of a round record in the documentation, compared with the schema."""

import re

from helpers.documents import ROOT
from moonfl.runs.schema import PartyRecord, RoundRecord

PAGE = ROOT / "docs" / "how-to" / "evaluate-and-export.md"
HEADING = "## Metrics of a round\n"


def rows() -> list[list[str]]:
    """Return the fields that the first cell and the rest of each row name in code style."""
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [line.strip("| ").split(" | ", maxsplit=1) for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_table_has_every_field_once() -> None:
    fields = [name for first, _ in rows() for name in names(first)]
    assert sorted(fields) == sorted(RoundRecord.__struct_fields__)


def test_the_row_of_parties_has_every_field_of_a_party() -> None:
    (meaning,) = [meaning for first, meaning in rows() if first == "`parties`"]
    assert sorted(names(meaning)) == sorted(PartyRecord.__struct_fields__)
