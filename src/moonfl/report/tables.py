"""One Table value; as plain text, Markdown and CSV. People get rounded numbers, CSV gets all digits."""

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .statistics import MeanStd

NONE = "–"


@dataclass(frozen=True)
class Column:
    name: str
    show: Callable[[Any], str] = str

    def text(self, value: Any) -> str:
        if value is None or value == ():
            return NONE
        if isinstance(value, tuple):
            return ", ".join(self.text(v) for v in value)
        if isinstance(value, MeanStd):
            return self.show(value.mean) + (
                "" if value.std is None else f" ± {self.beside(value.std, value.mean)}"
            )
        return value if isinstance(value, str) else self.show(value)

    def number(self, value: Any) -> Any:
        """With all digits, in the unit that people see it in."""
        hundredths = self.show in (percent, points) and isinstance(value, int | float)
        return round(100 * value, 10) if hundredths else value

    def beside(self, deviation: float, mean: float) -> str:
        """As many places as the mean has."""
        return (
            significant_digits(deviation, mean)
            if self.show is significant_digits
            else self.show(deviation).lstrip("+")
        )


@dataclass(frozen=True)
class Table:
    name: str  # of its files
    title: str
    columns: tuple[Column, ...]
    rows: list[tuple[Any, ...]]  # text, a number, a Spread, a tuple of numbers, or None
    note: str = ""
    marked: frozenset[tuple[int, int]] = frozenset()  # cells (row, column) to stand out
    folded: bool = False  # long: closed on the page until asked for

    def cells(self) -> list[list[str]]:
        return [[c.text(v) for c, v in zip(self.columns, row, strict=True)] for row in self.rows]

    def numeric(self, k: int) -> bool:
        return self.columns[k].show is not str


def plain_text(table: Table) -> str:
    """Aligned columns, for a terminal."""
    rows = [[c.name for c in table.columns], *table.cells()]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(w) if table.numeric(k) else cell.ljust(w)
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([table.title, "", *lines, *([table.note] if table.note else [])])


def markdown(table: Table) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    body = [
        [f"**{cell}**" if (i, k) in table.marked else cell for k, cell in enumerate(row)]
        for i, row in enumerate(table.cells())
    ]
    rule = (
        "|"
        + "|".join("---:" if table.numeric(k) else "---" for k in range(len(table.columns)))
        + "|"
    )
    add_title = [f"**{table.title}**", "", line([c.name for c in table.columns]), rule]
    return (
        "\n".join([*add_title, *map(line, body), *(["", table.note] if table.note else [])]) + "\n"
    )


def csv_text(table: Table) -> str:
    """A Spread becomes two columns, the mean and the deviation."""
    spreads = {
        k
        for k in range(len(table.columns))
        if any(isinstance(row[k], MeanStd) for row in table.rows)
    }
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            name
            for k, c in enumerate(table.columns)
            for name in ([c.name, f"{c.name}: deviation"] if k in spreads else [c.name])
        ]
    )
    for row in table.rows:
        writer.writerow(
            [
                cell
                for k, (c, v) in enumerate(zip(table.columns, row, strict=True))
                for cell in raw(c, v, k in spreads)
            ]
        )
    return out.getvalue()


def raw(column: Column, value: Any, two: bool) -> list[Any]:
    if isinstance(value, MeanStd):
        return [column.number(value.mean), column.number(value.std)]
    if isinstance(value, tuple):
        value = "; ".join("" if v is None else str(column.number(v)) for v in value)
    return [column.number(value), None] if two else [column.number(value)]


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def points(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # no minus before a zero


def integer(value: float) -> str:
    return f"{value:,.0f}"


def significant_digits(value: float, like: float | None = None) -> str:
    """Three that count, or as many places as three of `like` take."""
    byte_size = abs(value if like is None else like)
    places = (
        0 if byte_size >= 99.95 or byte_size == 0 else min(6, 2 - math.floor(math.log10(byte_size)))
    )
    return f"{value:,.{places}f}"


def byte_size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:#.3g} {unit}".replace(". ", " ")
        value /= 1000
    return f"{value:,.1f} TB"
