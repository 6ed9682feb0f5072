"""Tables: the values `Table` and `Column`, and how they become plain text, Markdown or CSV.

`align` is the only code of the package that lines up columns of text; every command that prints a
table calls it. People read rounded numbers, the CSV files contain all digits. The columns of the
report's tables of results are listed in result_tables.py.
"""

import csv
import html
import io
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

MISSING = "–"
# Where a spreadsheet may begin a cell: at the start, and after a separator of any locale.
# What starts there with one of these characters is a formula, unless it is a number.
FORMULA = re.compile(
    r"(^|[;,|\t\r\n])(\s*)(?=[=+\-@＝＋－＠])"
    r"(?!\s*[+\-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+\-]?\d+)?\s*(?:$|[;,|\t\r\n]))"
)
MARKUP = re.compile(r"([\\`*\[\]|~]|\b_|_\b)")  # characters that Markdown interprets
GAP = "  "  # between two columns of plain text


class Markdown(str):
    """Text of a table that is Markdown already; it must not contain names from run files."""


@dataclass(frozen=True)
class MeanStd:
    """A cell of a table: the mean of some values with their standard deviation."""

    mean: float
    std: float | None  # with n - 1 in the denominator; None for a single value
    count: int


@dataclass(frozen=True)
class Interval:
    """A cell of a table: the lower and upper end of an interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Column:
    """A column of a table: its header and how its values are printed."""

    name: str
    format: Callable[[Any], str] = str
    optional: bool = False  # left out of tables in which no row has a value for it

    @property
    def numeric(self) -> bool:
        """Return True if the column contains numbers, which are aligned to the right."""
        return self.format is not str

    def text(self, value: Any) -> str:
        """Return a value of this column as people read it: rounded, with its standard deviation."""
        if value is None or value == ():
            return MISSING
        if isinstance(value, str):
            return value
        if isinstance(value, tuple):
            return ", ".join(self.text(item) for item in value)
        if isinstance(value, MeanStd):
            return self.mean_and_std(value)
        if isinstance(value, Interval):
            return f"{self.format(value.low)} to {self.format(value.high)}"
        return self.format(value)

    def mean_and_std(self, value: MeanStd) -> str:
        """Return `mean ± standard deviation` with the same number of decimals."""
        mean = self.format(value.mean)
        if value.std is None:
            return mean
        if self.format is significant_digits:
            return f"{mean} ± {significant_digits(value.std, like=value.mean)}"
        return f"{mean} ± {self.format(value.std).lstrip('+')}"

    def number(self, value: Any) -> Any:
        """Return a value with all digits, in the unit of the column."""
        if self.format in (percent, points, interval_end) and isinstance(value, int | float):
            return round(100 * value, 10)
        return value


@dataclass(frozen=True)
class Table:
    """A table of a report, independent of the format it is written in."""

    name: str  # of its files
    title: str
    columns: tuple[Column, ...]
    rows: list[tuple[Any, ...]]  # text, a number, MeanStd, Interval, tuple (by seed), None
    note: str = ""
    highlighted: frozenset[tuple[int, int]] = frozenset()  # cells (row, column)
    collapsed: bool = False  # long tables are collapsed on the page

    def cells(self) -> list[list[str]]:
        """Return the text of every cell, row by row."""
        return [
            [column.text(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def header(self) -> list[str]:
        """Return the names of the columns."""
        return [column.name for column in self.columns]

    def without_empty_columns(self) -> "Table":
        """Return the table without the optional columns that have no value in any row."""
        filled = [
            k
            for k, column in enumerate(self.columns)
            if not column.optional or any(row[k] is not None for row in self.rows)
        ]
        return self.select(filled)

    def select(self, numbers: Sequence[int]) -> "Table":
        """Return the table with only these columns."""
        positions = {k: position for position, k in enumerate(numbers)}
        cells = {(i, positions[k]) for i, k in self.highlighted if k in positions}
        return replace(
            self,
            columns=tuple(self.columns[k] for k in numbers),
            rows=[tuple(row[k] for k in numbers) for row in self.rows],
            highlighted=frozenset(cells),
        )


def align(
    rows: Sequence[Sequence[object]], *, right: Collection[int] = (), min_width: int = 0
) -> str:
    """Return the rows as lines of text with aligned columns.

    `right` contains the indices of the columns that are aligned to the right.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(min_width, *map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        cells = [
            cell.rjust(width) if k in right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines)


def plain_text(table: Table) -> str:
    """Return the table with aligned columns, for a terminal."""
    numeric = {k for k, column in enumerate(table.columns) if column.numeric}
    parts = [table.title, "", align([table.header(), *table.cells()], right=numeric)]
    if table.note:
        parts.append(table.note)
    return "\n".join(parts)


def markdown(table: Table) -> str:
    """Return the table in Markdown; highlighted cells are bold."""
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    header = [markdown_text(cell) for cell in table.header()]
    title = markdown_text(table.title)
    lines = [f"**{title}**", "", markdown_row(header), f"|{'|'.join(rules)}|"]
    for i, row in enumerate(table.cells()):
        cells = []
        for k, cell in enumerate(row):
            text = markdown_text(cell)
            cells.append(f"**{text}**" if (i, k) in table.highlighted else text)
        lines.append(markdown_row(cells))
    if table.note:
        lines += ["", markdown_text(table.note)]
    return "\n".join(lines) + "\n"


def markdown_row(cells: list[str]) -> str:
    """Return one line of a Markdown table; the cells are Markdown."""
    return f"| {' | '.join(cells)} |"


def markdown_text(text: str) -> str:
    """Return text that Markdown shows as it is: no HTML, no links, no images, one line.

    Names of classes, parties and folders may come from somebody else.
    """
    if isinstance(text, Markdown):
        return text.replace("|", "\\|")
    line = re.sub(r"\s*[\r\n]\s*", " ", text)
    return html.escape(MARKUP.sub(r"\\\1", line), quote=False)


def csv_text(table: Table) -> str:
    """Return the table as CSV; a mean with its standard deviation takes two columns."""
    with_std = {
        k for row in table.rows for k, value in enumerate(row) if isinstance(value, MeanStd)
    }
    header: list[str] = []
    for k, column in enumerate(table.columns):
        header.append(column.name)
        if k in with_std:
            header.append(f"{column.name}: std")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_value(name) for name in header])
    for row in table.rows:
        cells: list[Any] = []
        for k, (column, value) in enumerate(zip(table.columns, row, strict=True)):
            cells += csv_cells(column, value, with_std=k in with_std)
        writer.writerow([csv_value(cell) for cell in cells])
    return text.getvalue()


def csv_cells(column: Column, value: Any, *, with_std: bool) -> list[Any]:
    """Return the one or two CSV cells of a value."""
    if isinstance(value, MeanStd):
        return [column.number(value.mean), column.number(value.std)]
    if isinstance(value, Interval):
        value = (value.low, value.high)
    if isinstance(value, tuple):
        items = ["" if item is None else str(column.number(item)) for item in value]
        value = "; ".join(items)
    return [column.number(value), None] if with_std else [column.number(value)]


def csv_value(value: Any) -> Any:
    """Return a cell that no spreadsheet executes: an apostrophe before what looks like a formula.

    Numbers stay numbers, also those in text, such as -0.5.
    """
    return FORMULA.sub(r"\1\2'", value) if isinstance(value, str) else value


def percent(value: float) -> str:
    """Return a share as a percentage with one decimal, without the sign %."""
    return f"{100 * value:.1f}"


def points(value: float) -> str:
    """Return a difference of two shares in percentage points, with its sign."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # adding 0.0 turns -0.0 into 0.0


def interval_end(value: float) -> str:
    """Return the end of an interval in points; two decimals where one would hide its sign."""
    text = points(value)
    return f"{100 * value:+.2f}" if text == "+0.0" and value else text


def signed_digits(value: float) -> str:
    """Return a difference with three significant digits and its sign."""
    text = significant_digits(value)
    return text if text.startswith("-") else f"+{text}"


def integer(value: float) -> str:
    """Return a number without decimals and with thousands separators."""
    return f"{value:,.0f}"


def significant_digits(value: float, like: float | None = None) -> str:
    """Return a number with three significant digits, or with as many decimals as `like` gets."""
    magnitude = abs(value if like is None else like)
    if magnitude >= 99.95 or magnitude == 0:
        return f"{value:,.0f}"
    if magnitude < 1e-4:
        return f"{value:.2e}"
    decimals = 2 - math.floor(math.log10(magnitude))
    return f"{value:,.{decimals}f}"


def byte_size(value: float) -> str:
    """Return a number of bytes in the unit that suits it, with three significant digits."""
    if abs(value) < 999.5:
        return f"{value:.0f} B"
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if abs(value) < 999.5:
            return f"{value:#.3g} {unit}".replace(". ", " ")
    return f"{value / 1000:,.1f} TB"
