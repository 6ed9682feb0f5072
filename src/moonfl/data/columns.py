"""Columns of tables, from text or data frames to stored rows: kinds, categories, problems."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, displayed, first_names, notify
from .base import Reading
from .cells import (
    BOOLEANS,
    FLOAT32_MAX,
    category,
    cell_problem,
    has_decimal_comma,
    is_date,
    is_missing,
    is_missing_value,
    is_number,
    parse_number,
)
from .encoding import UNKNOWN, Column, Encoding

MAX_LISTED = 5  # columns or categories that a note lists
FEW_VALUES = 20  # so many distinct values are categories, however few rows there are
FEW_ROWS = 5  # with more rows than this, values that are all distinct are identifiers
MAX_LENGTH = 100  # characters of a category
Cells = list[str] | NDArray[np.float64]  # text, or numbers with NaN where a value is missing


@dataclass(frozen=True)
class RawTable:
    """The cells of the feature columns of one table or data frame."""

    cells: dict[str, Cells]  # by column
    rows: int
    place: Callable[[int], str]  # where a row is, for messages
    location: str  # the table itself
    omission: str = "leave the column out with ignore={name}"

    def omit(self, name: str) -> str:
        """Return how a column is left out, for messages."""
        return self.omission.format(name=name)


class Rules(NamedTuple):
    """What is done with missing values and categories, from the settings of an experiment."""

    impute: str  # "refuse", or how missing values are replaced
    encode: str  # "refuse" or "onehot"
    categorical: tuple[str, ...]  # columns whose numbers are codes

    @property
    def encodes(self) -> bool:
        """Return True if tables are stored as rows that are encoded."""
        return self.impute != "refuse" or self.encode != "refuse"


def rules_of(reading: Reading) -> Rules:
    """Return the rules for missing values and categories."""
    return Rules(reading.impute, reading.encode, reading.categorical)


def read_columns(
    tables: Sequence[RawTable], names: Sequence[str], rules: Rules
) -> tuple[tuple[Column, ...], list[NDArray[np.float64]]]:
    """Return the columns that all tables have in common, and the stored rows of each table."""
    for name in rules.categorical:
        if name not in names:
            raise InputError(
                f"categorical={name}: there is no feature column '{name}'; the columns are "
                f"{', '.join(names)}"
            )
    columns = []
    rows = [np.empty((table.rows, len(names))) for table in tables]
    for k, name in enumerate(names):
        column, parts = _read_values(tables, name, rules)
        columns.append(column)
        for x, values in zip(rows, parts, strict=True):
            x[:, k] = values
    return tuple(columns), rows


def _read_values(
    tables: Sequence[RawTable], name: str, rules: Rules
) -> tuple[Column, list[NDArray[np.float64]]]:
    """Return a column, and its stored values in each table."""
    if name not in rules.categorical:
        with contextlib.suppress(ValueError):  # of a cell that is missing, or is not a number
            return Column(name), [_numbers(table.cells[name]) for table in tables]
    column = read_column(tables, name, rules)
    return column, [store(table.cells[name], column.categories) for table in tables]


def _numbers(cells: Cells) -> NDArray[np.float64]:
    """Return the values of a column; a cell that is not a number is a ValueError."""
    if isinstance(cells, list):
        return np.array([parse_number(text) for text in cells], dtype=np.float64)
    if np.isnan(cells).any():
        raise ValueError("a value is missing")
    return cells


def read_column(tables: Sequence[RawTable], name: str, rules: Rules) -> Column:
    """Return the kind and the categories of a column; a cell that does not fit is an error."""
    if rules.impute == "refuse":
        _check_complete(tables, name)
    if name not in rules.categorical:
        if all(_is_numeric(table.cells[name]) for table in tables):
            return Column(name)
        _check_text(tables, name, rules)
    if rules.encode == "refuse":
        raise _no_categories(tables, name)
    counts = _count_categories(tables, name)
    _check_categories(tables, name, counts)
    return Column(name, tuple(sorted(counts)))


def _check_complete(tables: Sequence[RawTable], name: str) -> None:
    """Raise an InputError if a value is missing."""
    for table in tables:
        row = first_missing(table.cells[name])
        if row is not None:
            raise InputError(
                f"{table.place(row)}: column '{name}' is {_shown(table.cells[name], row)}; add "
                "impute=mean (the mean over all parties) or impute=indicator (the same, with a "
                f"feature that marks missing values), or correct it, or {table.omit(name)}"
            )


def first_missing(cells: Cells) -> int | None:
    """Return the first row without a value, or None."""
    if isinstance(cells, list):
        return next((row for row, text in enumerate(cells) if is_missing(text)), None)
    missing = np.flatnonzero(np.isnan(cells))
    return int(missing[0]) if len(missing) > 0 else None


def _shown(cells: Cells, row: int) -> str:
    """Return a cell as it is shown in a message about a missing value."""
    text = cells[row].strip() if isinstance(cells, list) else "NaN"
    return f"'{text}', a missing value" if text else "empty"


def _is_numeric(cells: Cells) -> bool:
    """Return True if all values are numbers, or all of them are true or false."""
    if not isinstance(cells, list):
        return True
    present = {text.strip() for text in cells if not is_missing(text)}
    if all(text.lower() in BOOLEANS for text in present):
        return True
    return all(map(is_number, present))


def _check_text(tables: Sequence[RawTable], name: str, rules: Rules) -> None:
    """Raise an InputError if a column has dates, decimal commas, or both numbers and text."""
    advice = f"or {tables[0].omit(name)}"
    for table in tables:
        cells = table.cells[name]
        if not isinstance(cells, list):
            continue
        for row, text in enumerate(cells):
            place = f"{table.place(row)}: column '{name}' is '{displayed(text.strip())}'"
            if is_date(text):
                raise InputError(
                    f"{place}, a date; replace it by a number such as an age or a number of days, "
                    f"{advice}"
                )
            if has_decimal_comma(text):
                raise InputError(
                    f"{place}, with a decimal comma; write a decimal point as in 36.6, {advice}"
                )
    number = _first_cell(tables, name, is_number)
    other = _first_cell(tables, name, lambda cell: not is_number(cell))
    if number is not None and other is not None:
        place, cell = other
        option = "" if rules.encode == "onehot" else "encode=onehot "
        raise InputError(
            f"{place}: column '{name}' is '{displayed(cell)}', {cell_problem(cell)}, but other "
            f"rows have numbers such as {number[1]}; correct it, or if all of them are codes add "
            f"{option}categorical={name}, {advice}"
        )


def _first_cell(
    tables: Sequence[RawTable], name: str, fits: Callable[[str], bool]
) -> tuple[str, str] | None:
    """Return the place and text of the first present cell that fits."""
    for table in tables:
        cells = table.cells[name]
        for row in range(table.rows):
            text = _text(cells, row)
            if not is_missing(text) and fits(text):
                return table.place(row), text
    return None


def _text(cells: Cells, row: int) -> str:
    """Return a cell as text; integers have no decimal point."""
    if isinstance(cells, list):
        return cells[row].strip()
    value = float(cells[row])
    return str(int(value)) if value.is_integer() else str(value)


def _no_categories(tables: Sequence[RawTable], name: str) -> InputError:
    """Return the error for a column of text where encode=refuse."""
    cell = _first_cell(tables, name, lambda cell: True)
    place, text = cell or (tables[0].place(0), "")
    return InputError(
        f"{place}: column '{name}' is '{displayed(text)}', {cell_problem(text)}; add encode=onehot "
        f"if the column has categories, otherwise correct it, or {tables[0].omit(name)}"
    )


def _count_categories(tables: Sequence[RawTable], name: str) -> dict[str, int]:
    """Return how many rows of all tables have each category."""
    counts: dict[str, int] = {}
    for table in tables:
        cells = table.cells[name]
        for row in range(table.rows):
            text = _text(cells, row)
            if not is_missing(text):
                key = category(text)
                counts[key] = counts.get(key, 0) + 1
    return counts


def _check_categories(tables: Sequence[RawTable], name: str, counts: dict[str, int]) -> None:
    """Refuse a column that looks like an identifier or like text."""
    rows = sum(counts.values())
    longest = max(counts, key=len, default="")
    if looks_like_identifier(len(counts), rows):
        raise InputError(
            f"{tables[0].location}: column '{name}' has {len(counts)} distinct values in {rows} "
            f"rows and looks like an identifier or text; {tables[0].omit(name)}"
        )
    if len(longest) > MAX_LENGTH or not all(key.isprintable() for key in counts):
        raise InputError(
            f"{tables[0].location}: column '{name}' has values of more than {MAX_LENGTH} "
            f"characters or with unprintable ones; {tables[0].omit(name)}"
        )


def looks_like_identifier(distinct: int, rows: int) -> bool:
    """Return True if most values of a column are distinct."""
    all_distinct = distinct == rows > FEW_ROWS
    return all_distinct or (distinct > FEW_VALUES and distinct > rows / 2)


def store(cells: Cells, categories: tuple[str, ...] | None) -> NDArray[np.float64]:
    """Return a column as it is stored: values or numbers of categories, NaN where missing."""
    if categories is None:
        if not isinstance(cells, list):
            return cells
        return np.array([_value(text) for text in cells], dtype=np.float64)
    number = {name: float(k) for k, name in enumerate(categories)}
    stored = np.full(len(cells), np.nan)
    for row in range(len(cells)):
        text = _text(cells, row) if not _is_nan(cells, row) else ""
        if not is_missing(text):
            stored[row] = number.get(category(text), UNKNOWN)
    return stored


def _is_nan(cells: Cells, row: int) -> bool:
    return not isinstance(cells, list) and bool(np.isnan(cells[row]))


def _value(text: str) -> float:
    """Return the value of a numeric cell, NaN if it is missing."""
    if is_missing(text):
        return float("nan")
    boolean = BOOLEANS.get(text.strip().lower())
    return parse_number(text) if boolean is None else boolean


def encode_cells(table: RawTable, encoding: Encoding) -> NDArray[np.float64]:
    """Return the rows of a table as a model with this encoding takes them.

    A category that the encoding does not have becomes UNKNOWN: none of the known ones. The user is
    notified of it.
    """
    x = np.empty((table.rows, len(encoding.columns)))
    notes: list[str] = []
    for k, column in enumerate(encoding.columns):
        cells = table.cells[column.name]
        if encoding.impute == "refuse":
            _check_complete([table], column.name)
        if column.categories is None:
            check_numeric(table, column.name, "the model was trained on numbers")
        x[:, k] = store(cells, column.categories)
        if column.categories is not None:
            unknown = np.flatnonzero(x[:, k] == UNKNOWN)
            if len(unknown) > 0:
                known = first_names(column.categories, MAX_LISTED)
                notes.append(
                    f"column '{column.name}' in {len(unknown)} of {table.rows} rows, such as "
                    f"'{_text(cells, int(unknown[0]))}' (it knows {known})"
                )
    if notes:
        notify(
            f"moonfl: {table.location}: categories that the model does not know, and treats as "
            f"none of those it knows: {first_names(notes, MAX_LISTED)}"
        )
    return x


def check_numeric(table: RawTable, name: str, reason: str) -> None:
    """Raise an InputError for the first cell that is not a number; `reason` is why it must be."""
    if _is_numeric(table.cells[name]):
        return
    cell = _first_cell([table], name, lambda cell: not is_number(cell))
    place, text = cell or (table.place(0), "")
    raise InputError(
        f"{place}: column '{name}' is '{displayed(text)}', {cell_problem(text)}; {reason}"
    )


def is_frame(data: object) -> bool:
    """Return True for a data frame, such as one of pandas or polars."""
    return hasattr(data, "columns") and hasattr(data, "__getitem__") and hasattr(data, "shape")


def column_names(frame: Any) -> tuple[str, ...]:
    """Return the names of a data frame's columns."""
    return tuple(str(name).strip() for name in frame.columns)


def frame_table(frame: Any, location: str) -> RawTable:
    """Return the cells of a data frame; `location` names it in messages."""
    names = column_names(frame)
    if len(set(names)) < len(names):
        raise InputError(f"{location} has two columns of the same name; rename one of them")
    cells: dict[str, Cells] = {}
    for name, key in zip(names, frame.columns, strict=True):
        cells[name] = _frame_cells(frame[key], f"{location}, column '{name}'")
    return RawTable(
        cells=cells,
        rows=int(frame.shape[0]),
        place=lambda row: f"{location}, row {row}",
        location=location,
        omission="drop the column '{name}' from the data frames",
    )


def _frame_cells(series: Any, location: str) -> Cells:
    """Return the cells of a column of a data frame: numbers as they are, others as in a file."""
    values = series.to_numpy()
    if values.dtype.kind == "b":
        return [str(value) for value in values.tolist()]
    if values.dtype.kind in "iuf":
        numbers: NDArray[np.float64] = values.astype(np.float64)
        limit = FLOAT32_MAX if values.dtype.kind == "f" else 2.0**53
        if bool((np.abs(numbers) > limit).any()):
            raise InputError(
                f"{location} has numbers that a float cannot hold; correct or remove them"
            )
        return numbers
    if values.dtype.kind == "M":
        raise InputError(
            f"{location} has dates; replace them by numbers such as an age or a number of days, or "
            "drop the column"
        )
    return [_cell_text(value, location) for value in series.to_list()]


def _cell_text(value: object, location: str) -> str:
    """Return a value of a data frame as the cell of a table."""
    if is_missing_value(value):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int | float | np.integer | np.floating):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    raise _unknown_value(value, location)


def _unknown_value(value: object, location: str) -> InputError:
    """Return the error for a value that is neither a number nor a string."""
    kind = type(value).__name__
    advice = "drop the column, or replace it by numbers or strings"
    if hasattr(value, "isoformat"):
        advice = "replace it by a number such as an age or a number of days"
    return InputError(f"{location} has a value of type {kind}; {advice}")
