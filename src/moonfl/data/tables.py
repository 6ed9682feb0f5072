"""Anybody's tables: a .csv file with a header, a column of labels, perhaps one of parties, numbers in the others."""

import csv
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InputError, unknown
from .augment import AS_STORED
from .base import Dataset, Examples, Reading

LARGEST = float(np.finfo(np.float32).max)
MANY = 1000  # more classes than this are numbers that somebody measured


class Table(NamedTuple):
    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]  # where each row ends in the file

    def column(self, name: str) -> list[str]:
        k = self.header.index(name)
        return [row[k].strip() for row in self.rows]


def read_csv(path: Path, reading: Reading, one_party: bool = False) -> Dataset:
    """One file, or a folder with train.csv and, if there is a test set, test.csv; that of `one_party` may lack the
    column of the parties.
    """
    if path.is_dir():
        train_path, test_path = path / "train.csv", path / "test.csv"
        if not train_path.exists():
            raise InputError(
                f"{path} has no train.csv; set data_dir to a .csv file or to a folder with train.csv"
            )
        tables = [read_table(p, reading) for p in (train_path, test_path) if p.exists()]
    else:
        tables = [read_table(path, reading)]
    given = reading.column if reading.column in tables[0].header else None
    if reading.column is not None and given is None and not one_party:
        raise unknown(f"column of {tables[0].path}", reading.column, tables[0].header)
    features = [n for n in tables[0].header if n not in {reading.label, given, *reading.ignore}]
    if not features:
        raise InputError(
            f"{tables[0].path} has no column beside {', '.join(tables[0].header)}: nothing to learn from"
        )
    for table in tables[1:]:
        for name in features:
            if name not in table.header:
                raise unknown(f"column of {table.path}", name, table.header)
    classes = reading.classes or class_names(tables, reading.label)
    train, *test = (_examples(table, features, reading.label, classes) for table in tables)
    columns, *held = (
        {given: np.array(_filled(t, given))} if given in t.header else {} for t in tables
    )
    test_columns = held[0] if held else {}
    return Dataset(
        train, test[0] if test else None, classes, AS_STORED, columns, test_columns, tuple(features)
    )


def read_table(path: Path, reading: Reading) -> Table:
    """The cells, each row with as many as the header."""
    rows, lines = [], []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
            header = [name.strip() for name in next(reader, [])]
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(reader.line_num)
                    if len(row) != len(header):
                        raise InputError(
                            f"{path}, line {lines[-1]} has {len(row)} cells, the header has {len(header)}"
                        )
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a table in text (CSV): {error}") from None
    if not rows:
        raise InputError(f"{path} has no rows below its header")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path} has more than one column '{twice}'")
    for name, how in (
        (reading.label, "the column of the classes is named by label=NAME"),
        *((n, "") for n in reading.ignore),
    ):
        if name not in header:
            raise unknown(f"column of {path}", name, header, how)
    return Table(path, header, rows, lines)


def class_names(tables: list[Table], label: str) -> tuple[str, ...]:
    """All labels that occur: numbers by their size, words by the alphabet; in one order, whatever the file's."""
    found = {value for table in tables for value in _filled(table, label)}
    rows = sum(len(table.rows) for table in tables)
    if len(found) > MANY or (len(found) > 20 and len(found) > rows / 2):
        raise InputError(
            f"{tables[0].path}: column '{label}' has {len(found)} different values in {rows} rows; labels are classes, "
            "not measurements"
        )
    names = sorted(found)
    if not all(map(_is_finite, names)):
        return tuple(names)
    names.sort(key=float)
    twice = next(
        (pair for pair in itertools.pairwise(names) if float(pair[0]) == float(pair[1])), None
    )
    if twice is not None:
        raise InputError(
            f"{tables[0].path}: column '{label}' has {twice[0]} and {twice[1]}, one number in two spellings; use one"
        )
    return tuple(names)


def _filled(table: Table, name: str) -> list[str]:
    values = table.column(name)
    if "" in values:
        raise InputError(
            f"{table.path}, line {table.lines[values.index('')]}: column '{name}' is empty"
        )
    return values


def _examples(table: Table, features: list[str], label: str, classes: tuple[str, ...]) -> Examples:
    number = {name: k for k, name in enumerate(classes)}
    labels = _filled(table, label)
    for row, value in enumerate(labels):
        if value not in number:
            error = unknown("class", value, classes)
            raise InputError(f"{table.path}, line {table.lines[row]}, column '{label}': {error}")
    x = np.stack([_numbers(table, name) for name in features], axis=1)
    return Examples(torch.from_numpy(x), torch.tensor([number[value] for value in labels]))


def _numbers(table: Table, name: str) -> NDArray[np.float32]:
    values = table.column(name)
    for row, text in enumerate(values):
        if not _is_finite(text):
            what = f"'{text}', not a number, or too large a one" if text else "empty"
            raise InputError(
                f"{table.path}, line {table.lines[row]}: column '{name}' is {what}; mend it, or leave the column out "
                f"with ignore={name}"
            )
    return np.array(values, dtype=np.float64).astype(np.float32)


def _is_finite(text: str) -> bool:
    """Whether it is a number that float32 can hold."""
    try:
        return abs(float(text)) <= LARGEST
    except ValueError:
        return False
