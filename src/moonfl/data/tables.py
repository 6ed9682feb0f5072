"""User-supplied tables: .csv files with a header, a column of labels, and feature columns.

One column may name the party of each row. Missing values and categories are refused, unless they
are encoded (encoding.py).
"""

import csv
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError, unknown
from .arrays import check_classification, regression_target
from .augment import AS_STORED
from .base import Columns, Dataset, Examples, Reading
from .cells import is_number
from .columns import (
    Cells,
    RawTable,
    check_numeric,
    first_missing,
    read_columns,
    rules_of,
    store,
)
from .encoding import Column
from .locations import check_file
from .targets import CLASSIFICATION, make_targets

MAX_LINE = 2**26  # characters; a longer line is not one of a table
MAX_CLASSES = 1000  # more distinct labels than this are measurements
DELIMITERS = ",;\t"
QUOTED = re.compile(r'"[^"]*"')


class Table(NamedTuple):
    """The cells of a .csv file, or of another table, as text."""

    path: Path
    header: dict[str, int]  # name of a column -> its position
    rows: list[list[str]]
    lines: Sequence[int]  # the line of the file on which each row ends, or the number of the row
    unit: str = "line"  # what `lines` counts

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        k = self.header[name]
        return [row[k].strip() for row in self.rows]

    def place(self, row: int) -> str:
        """Return where a row is, for error messages."""
        return f"{self.path}, {self.unit} {self.lines[row]}"

    def features(self, names: Sequence[str]) -> RawTable:
        """Return the cells of feature columns."""
        cells: dict[str, Cells] = {name: self.column(name) for name in names}
        return RawTable(
            cells=cells,
            rows=len(self.rows),
            place=self.place,
            location=str(self.path),
        )


def read_csv(path: Path, reading: Reading, one_party: bool = False) -> Dataset:
    """Read a .csv file, or a folder with train.csv and optionally test.csv.

    With `one_party` all rows belong to one party, so the column of parties may be missing.
    """
    return dataset_of_tables(read_tables(path, reading), reading, one_party)


def dataset_of_tables(tables: list[Table], reading: Reading, one_party: bool = False) -> Dataset:
    """Convert the training table and, if there is one, the test table to a dataset."""
    train_table = tables[0]
    party_column = reading.column if reading.column in train_table.header else None
    if reading.column is not None and party_column is None and not one_party:
        raise unknown(f"column of {train_table.path}", reading.column, train_table.header)
    if reading.holdout_by is not None and reading.holdout_by not in train_table.header:
        raise unknown(f"column of {train_table.path}", reading.holdout_by, train_table.header)
    names = [name for name in (party_column, reading.holdout_by) if name is not None]
    features = feature_names(tables, {*reading.labels, *names, *reading.ignore})
    classes = column_names(tables, reading)
    labels = [labels_of(table, reading, classes) for table in tables]
    stored_columns, rows = _read_rows(tables, features, reading)
    examples = [Examples(torch.from_numpy(x), y) for x, y in zip(rows, labels, strict=True)]
    columns = [group_columns(table, names) for table in tables]
    has_test = len(tables) > 1
    return Dataset(
        train=examples[0],
        test=examples[1] if has_test else None,
        classes=classes,
        preparation=AS_STORED,
        columns=columns[0],
        test_columns=columns[1] if has_test else {},
        features=tuple(features),
        table=stored_columns,
    )


def _read_rows(
    tables: list[Table], features: list[str], reading: Reading
) -> tuple[tuple[Column, ...] | None, list[NDArray[np.float64]]]:
    """Return the feature columns, if rows are to be encoded, and the rows of each table."""
    rules = rules_of(reading)
    cells = [table.features(features) for table in tables]
    columns, rows = read_columns(cells, features, rules)
    return columns if rules.encodes else None, rows


def read_tables(path: Path, reading: Reading) -> list[Table]:
    """Return the training table and, if there is one, the test table."""
    tables = _read_tables(path, reading)
    check_ignored(tables[0].path, tables[0].header, reading)
    return tables


def _read_tables(path: Path, reading: Reading) -> list[Table]:
    """Return the tables of a file or folder; their columns are complete."""
    if not path.is_dir():
        return [read_table(path, reading)]
    train_path = path / "train.csv"
    test_path = path / "test.csv"
    if not train_path.exists():
        raise InputError(
            f"{path} has no train.csv; set data_dir to a .csv file or to a folder with train.csv"
        )
    tables = [read_table(train_path, reading)]
    if test_path.exists():
        tables.append(read_table(test_path, reading))
    return tables


def feature_names(tables: list[Table], excluded: set[str]) -> list[str]:
    """Return the columns of the training table that are features; every table must have them."""
    train_table = tables[0]
    features = [name for name in train_table.header if name not in excluded]
    if not features:
        raise InputError(
            f"{train_table.path} has no feature columns: its only columns are "
            f"{', '.join(train_table.header)}"
        )
    for table in tables[1:]:
        for name in features:
            if name not in table.header:
                raise unknown(f"column of {table.path}", name, table.header)
    return features


def group_columns(table: Table, names: list[str]) -> Columns:
    """Return those of the columns of parties and groups that the table has."""
    return {name: np.array(_non_empty(table, name)) for name in names if name in table.header}


def read_table(path: Path, reading: Reading) -> Table:
    """Read the cells of a .csv file and check its columns."""
    table = read_cells(path)
    check_columns(path, table.header, reading)
    return table


def check_columns(path: Path, names: Collection[str], reading: Reading) -> None:
    """Check that all columns have names, and that those of the classes exist."""
    for k, name in enumerate(names):
        if not name:
            raise InputError(
                f"{path}: column {k + 1} has no name; name it, or remove it. If it is the index of "
                "a pandas data frame, write the table with to_csv(path, index=False)"
            )
    for label in reading.labels:
        if label not in names:
            raise InputError(f"{unknown(f'column of {path}', label, names)}{_label_hint(reading)}")


def check_ignored(path: Path, names: Collection[str], reading: Reading) -> None:
    """Check that the columns to ignore exist, so that a misspelt one does not become a feature."""
    for name in reading.ignore:
        if name not in names:
            raise unknown(f"column of {path}", name, names)


def _label_hint(reading: Reading) -> str:
    """Return how the columns to predict are set."""
    if reading.task != CLASSIFICATION:
        return "; set the columns to predict with label=NAME or label=A,B,C"
    hint = "; set the column of the classes with label=NAME"
    if "," in reading.label:
        hint += "; several columns need task=multilabel or task=regression"
    return hint


def read_cells(path: Path) -> Table:
    """Read the cells of a .csv file that has at least one row."""
    check_file(path)
    try:
        table = _parse(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not a text table (CSV) in UTF-8: {error}; save it as UTF-8"
        ) from None
    except csv.Error as error:
        raise InputError(f"{path} is not a text table (CSV): {error}") from None
    if not table.rows:
        raise InputError(f"{path} has no rows below its header")
    return table


def _parse(path: Path) -> Table:
    """Read the file; its delimiter occurs most often in the header, outside of quoted names."""
    rows: list[list[str]] = []
    lines: list[int] = []
    with open(path, encoding="utf-8-sig", newline="") as file:
        text = _lines(path, file)
        header_lines = _header_lines(text)
        unquoted = QUOTED.sub("", "".join(header_lines))
        delimiter = max(DELIMITERS, key=unquoted.count)
        reader = csv.reader(itertools.chain(header_lines, text), delimiter=delimiter, strict=True)
        header = _positions(path, next(reader, []))
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{path}, line {reader.line_num} has {len(row)} cells, "
                    f"the header has {len(header)}; correct the line"
                )
            rows.append(row)
            lines.append(reader.line_num)
    return Table(path, header, rows, lines)


def _header_lines(lines: Iterator[str]) -> list[str]:
    """Return the first line, and the following ones if a quoted name continues there."""
    header = []
    quotes = 0
    for line in lines:
        header.append(line)
        quotes += line.count('"')
        if quotes % 2 == 0:
            break
    return header


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """Yield the lines of a file; an endless line is an InputError."""
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise InputError(
                f"{path} is not a text table (CSV): it has a line of {MAX_LINE:,} or more "
                "characters"
            )
        yield line


def _positions(path: Path, names: list[str]) -> dict[str, int]:
    """Return the position of each column of a header."""
    positions: dict[str, int] = {}
    for k, name in enumerate(name.strip() for name in names):
        if name in positions:
            column = f"column '{name}'" if name else "column without a name"
            raise InputError(f"{path} has more than one {column}; rename one of them")
        positions[name] = k
    return positions


def class_names(tables: list[Table], label: str) -> tuple[str, ...]:
    """Return all labels that occur: numbers in ascending, others in alphabetical order."""
    values: set[str] = set()
    for table in tables:
        values.update(_non_empty(table, label))
    names = sorted(values)
    _check_classes(tables, label, names)
    if not all(is_number(name) for name in names):
        return tuple(names)
    names.sort(key=float)
    for first, second in itertools.pairwise(names):
        if float(first) == float(second):
            raise InputError(
                f"{tables[0].path}: column '{label}' has {first} and {second}, "
                "one number in two spellings; use one of them"
            )
    return tuple(names)


def _check_classes(tables: list[Table], label: str, names: list[str]) -> None:
    """Raise an InputError if the labels look like the target of a regression."""
    location = f"{tables[0].path}: column '{label}'"
    samples = sum(len(table.rows) for table in tables)
    check_classification(location, len(names), samples, names[0])
    if len(names) > MAX_CLASSES:
        description = f"{len(names)} distinct values in {samples} samples"
        raise regression_target(location, description, names[0])


def _non_empty(table: Table, name: str) -> list[str]:
    """Return the cells of a column; an empty one is an InputError."""
    values = table.column(name)
    if "" in values:
        raise _no_label(table, values.index(""), name)
    return values


def _no_label(table: Table, row: int, name: str) -> InputError:
    """Return the error for a row without a label, party or group."""
    text = table.column(name)[row]
    value = f"'{text}', a missing value" if text else "empty"
    return InputError(
        f"{table.place(row)}: the cell of column '{name}' is {value}; fill it in, or remove the row"
    )


def column_names(tables: list[Table], reading: Reading) -> tuple[str, ...]:
    """Return the names of the classes; of another task, the columns that are predicted."""
    if reading.task == CLASSIFICATION:
        return reading.classes or class_names(tables, reading.label)
    if reading.classes:
        raise InputError(
            f"with task={reading.task} the names are those of the columns, "
            f"label={reading.label}; remove classes"
        )
    return reading.labels


def labels_of(table: Table, reading: Reading, classes: tuple[str, ...]) -> Tensor:
    """Return the class index of every row; of another task, its targets."""
    if reading.task == CLASSIFICATION:
        return class_indices(table, reading.label, classes)
    targets = table.features(reading.labels)
    columns = []
    for name in reading.labels:
        row = first_missing(targets.cells[name])
        if row is not None:
            raise _no_label(table, row, name)
        check_numeric(targets, name, f"task={reading.task} predicts numbers")
        columns.append(store(targets.cells[name], None))
    values = np.array(columns).T
    return make_targets(f"column {reading.label} of {table.path}", values, reading.task, classes)


def class_indices(table: Table, label: str, classes: tuple[str, ...]) -> Tensor:
    """Return the index of the class of every row."""
    index = {name: k for k, name in enumerate(classes)}
    labels = _non_empty(table, label)
    for row, value in enumerate(labels):
        if value not in index:
            error = unknown("class", value, classes)
            raise InputError(f"{table.place(row)}, column '{label}': {error}")
    return torch.tensor([index[value] for value in labels])
