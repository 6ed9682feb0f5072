"""Tables as plain text and CSV: alignment, missing values, and the formats of numbers."""

import csv
import io

import pytest

from moonfl.report.tables import (
    Column,
    Interval,
    MeanStd,
    Table,
    align,
    byte_size,
    csv_text,
    csv_value,
    integer,
    interval_end,
    markdown,
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


def test_selected_columns_keep_their_highlighted_cells() -> None:
    columns = (Column("a"), Column("b"), Column("c"))
    highlighted = frozenset({(0, 0), (0, 2)})
    table = Table("name", "title", columns, [("1", "2", "3")], highlighted=highlighted)
    selected = table.select([1, 2])
    assert selected.header() == ["b", "c"]
    assert selected.cells() == [["2", "3"]]
    assert selected.highlighted == {(0, 1)}


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
    ("value", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1+cmd", "'+1+cmd"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "\t'=1"),
        (" =1", " '=1"),
        ("＝1", "'＝1"),
        ("a;=1", "a;'=1"),
        ("a\n=1", "a\n'=1"),
        ("-0.5", "-0.5"),
        ("+1.5e-3", "+1.5e-3"),
        ("-0.5; +2; ", "-0.5; +2; "),
        ("mu=1, tau=0.5", "mu=1, tau=0.5"),
        ("tiny-imagenet", "tiny-imagenet"),
        (-0.5, -0.5),
        (None, None),
    ],
)
def test_a_spreadsheet_executes_no_cell(value: object, cell: object) -> None:
    assert csv_value(value) == cell
    if isinstance(value, str):
        table = Table("name", "title", (Column(value),), [(value,)])
        assert list(csv.reader(io.StringIO(csv_text(table), newline=""))) == [[cell], [cell]]


def test_markdown_shows_names_as_they_are() -> None:
    hostile = "<script>alert(1)</script> ![x](http://a) `c` a|b\n# d & e"
    safe = r"&lt;script&gt;alert(1)&lt;/script&gt; !\[x\](http://a) \`c\` a\|b # d &amp; e"
    table = Table(
        name="name",
        title=hostile,
        columns=(Column(hostile), Column("b")),
        rows=[(hostile, "tiny_images")],
        note=hostile,
        highlighted=frozenset({(0, 0)}),
    )
    assert markdown(table).splitlines() == [
        f"**{safe}**",
        "",
        f"| {safe} | b |",
        "|---|---|",
        f"| **{safe}** | tiny_images |",
        "",
        safe,
    ]


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
    assert significant_digits(1.2345e-9) == "1.23e-09"
    assert significant_digits(0.00012345) == "0.000123"
    assert significant_digits(1.23456, like=100) == "1"
    assert points(-0.0001) == "+0.0"


def test_an_interval_keeps_the_sign_of_its_ends() -> None:
    column = Column("95 % interval", interval_end)
    assert column.text(Interval(-0.034, 0.14)) == "-3.4 to +14.0"
    assert column.text(Interval(-0.0003, 0.0004)) == "-0.03 to +0.04"
    assert column.text(Interval(0.0, 0.0)) == "+0.0 to +0.0"
    table = Table("name", "title", (column,), [(Interval(-0.5, 0.25),), (None,)])
    assert csv_text(table).splitlines() == ["95 % interval", "-50.0; 25.0", '""']
