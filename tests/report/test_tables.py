"""Tables as plain text and CSV: alignment, missing values, and the formats of numbers."""

import pytest

from moonfl.report.tables import (
    Column,
    Interval,
    MeanStd,
    Table,
    align,
    byte_size,
    csv_text,
    integer,
    interval_end,
    percent,
    points,
    significant_digits,
)


def test_align_pads_every_column_to_its_widest_cell() -> None:
    rows = [("name", "runs", "note"), ("a", 7, "x"), ("longer", 1234, "")]
    assert align(rows, right={1}).split("\n") == [
        "name    runs  note",
        "a          7  x",
        "longer  1234",
    ]
    assert align([("a", "b")], right={0, 1}, min_width=3) == "  a    b"
    assert align([]) == ""


def test_optional_columns_without_values_are_left_out() -> None:
    columns = (Column("method"), Column("f1", percent, optional=True), Column("seeds", integer))
    table = Table("name", "title", columns, [("a", None, 1), ("b", None, None)])
    assert table.without_empty_columns().cells() == [["a", "1"], ["b", "–"]]
    filled = Table("name", "title", columns, [("a", None, 1), ("b", 0.5, 2)])
    assert filled.without_empty_columns() == filled


def test_a_mean_with_its_standard_deviation_takes_two_columns_of_a_csv_file() -> None:
    columns = (Column("method"), Column("accuracy, %", percent), Column("by seed", points))
    rows = [("a", MeanStd(0.5, 0.25, 2), (0.1, None)), ("b", 0.75, ())]
    table = Table("name", "title", columns, rows)
    assert csv_text(table).splitlines() == [
        'method,"accuracy, %","accuracy, %: std",by seed',
        "a,50.0,25.0,10.0; ",
        "b,75.0,,",
    ]
    assert table.cells() == [["a", "50.0 ± 25.0", "+10.0, –"], ["b", "75.0", "–"]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999.4, "999 B"),
        (999.5, "1.00 kB"),
        (27_200_000, "27.2 MB"),
        (123_000_000_000, "123 GB"),
        (2.5e12, "2.5 TB"),
    ],
)
def test_byte_size(value: float, text: str) -> None:
    assert byte_size(value) == text


def test_significant_digits() -> None:
    assert significant_digits(0.012345) == "0.0123"
    assert significant_digits(12345.6) == "12,346"
    assert significant_digits(0) == "0"
    assert significant_digits(1.23456, like=100) == "1"
    assert points(-0.0001) == "+0.0"


def test_an_interval_keeps_the_sign_of_its_ends() -> None:
    column = Column("95 % interval", interval_end)
    assert column.text(Interval(-0.034, 0.14)) == "-3.4 to +14.0"
    assert column.text(Interval(-0.0003, 0.0004)) == "-0.03 to +0.04"
    assert column.text(Interval(0.0, 0.0)) == "+0.0 to +0.0"
    table = Table("name", "title", (column,), [(Interval(-0.5, 0.25),), (None,)])
    assert csv_text(table).splitlines() == ["95 % interval", "-50.0; 25.0", '""']
