"""Checks of user-supplied data for `moonfl check` and `moonfl run`: every problem, with advice."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from ..errors import InputError, first_names
from .base import Array, Dataset, Reading
from .cells import category, is_missing, is_number, parse_number
from .columns import FEW_ROWS, RawTable, Rules, looks_like_identifier, read_column, rules_of
from .folder import find_images
from .images import Images
from .tables import Table, feature_names, read_tables

ERROR: Literal["error"] = "error"  # prevents a run
WARNING: Literal["warning"] = "warning"
FEW_SAMPLES = 10  # a party with fewer is mentioned
MAX_LINES = 5  # lines that a message lists
PERMISSIVE = Rules(impute="mean", encode="onehot", categorical=())


class Finding(NamedTuple):
    """A problem, with its place and advice."""

    severity: Literal["error", "warning"]
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}"


def list_problems(dataset: str, path: Path, reading: Reading) -> list[Finding]:
    """Return the problems of a table or a folder of images that its reader does not list."""
    try:
        if dataset == "csv":
            return table_problems(read_tables(path, reading), reading)
        if dataset == "folder":
            return image_problems(path)
    except InputError:  # the reader reports it
        pass
    return []


def table_problems(tables: list[Table], reading: Reading) -> list[Finding]:
    """Return the problems of the training table and, if there is one, the test table."""
    findings: list[Finding] = []
    names = [name for name in (reading.column, reading.holdout_by) if name is not None]
    for table in tables:
        for name in (*reading.labels, *names):
            if name in table.header:
                findings += _empty_cells(table, name)
    features = feature_names(tables, {*reading.labels, *names, *reading.ignore})
    raw = [table.features(features) for table in tables]
    for name in features:
        findings += _column_problems(raw, name, rules_of(reading))
    findings += _duplicate_rows(tables[0], features)
    return findings


def _empty_cells(table: Table, name: str) -> list[Finding]:
    """Return the rows without a label, party or group."""
    cells = table.column(name)
    rows = [row for row, text in enumerate(cells) if not text]
    if rows:
        text = f"column '{name}' is empty; fill it in, or remove the row"
        return [Finding(ERROR, f"{_places(table, rows)}: {text}")]
    return []


def _places(table: Table, rows: list[int]) -> str:
    """Return the lines of some rows."""
    lines = [str(table.lines[row]) for row in rows]
    return f"{table.path}, line {first_names(lines, MAX_LINES)}"


def _column_problems(tables: list[RawTable], name: str, rules: Rules) -> list[Finding]:
    """Return the problems of a feature column."""
    errors = []
    allowed = rules._replace(categorical=tuple(set(rules.categorical) & {name}))
    for attempt in (allowed, PERMISSIVE._replace(categorical=allowed.categorical)):
        try:
            read_column(tables, name, attempt)
        except InputError as error:
            errors.append(str(error))
    findings = [Finding(ERROR, text) for text in dict.fromkeys(errors)]
    cells = [text for table in tables for text in table.cells[name] if isinstance(text, str)]
    present = [text for text in cells if not is_missing(text)]
    missing = Counter(text for text in cells if is_missing(text))
    place = f"{tables[0].location}: column '{name}'"
    if missing and rules.impute != "refuse":
        spellings = ", ".join(f"'{text}' {count} times" for text, count in missing.items())
        findings.append(Finding(WARNING, f"{place} has missing values: {spellings}"))
    distinct = set(present)
    if len(distinct) == 1 and not missing:
        text = f"{place} has the same value in all rows; leave it out with ignore={name}"
        findings.append(Finding(WARNING, text))
    are_integers = all(text.lstrip("+-").isdigit() for text in distinct)
    if are_integers and looks_like_identifier(len(distinct), len(present)) and not errors:
        text = f"{place} has {len(distinct)} distinct integers and may be an identifier; if so, "
        findings.append(Finding(WARNING, f"{text}leave it out with ignore={name}"))
    if errors:
        return findings
    has_codes = name in rules.categorical
    if has_codes or not all(map(is_number, distinct)):
        findings += similar_names(f"{place} has", distinct, "they are one category")
    if has_codes:
        findings += _equal_codes(place, distinct)
    return findings


def _equal_codes(place: str, cells: set[str]) -> list[Finding]:
    """Return codes that are one number, but different categories: 1 and 01."""
    names = {category(text) for text in cells if is_number(text)}
    findings = []
    for group in _groups_by(names, parse_number):
        text = f"{place} has {group}, one number but different categories; use one spelling"
        findings.append(Finding(WARNING, text))
    return findings


def _duplicate_rows(table: Table, features: list[str]) -> list[Finding]:
    """Return how many rows are identical to another one."""
    positions = [table.header[name] for name in features]
    counts = Counter(tuple(row[k].strip() for k in positions) for row in table.rows)
    repeated = sum(count - 1 for count in counts.values())
    if repeated == 0:
        return []
    text = f"{table.path}: {repeated} rows have the features of another row; remove duplicates, or "
    return [Finding(WARNING, f"{text}hold out whole groups with holdout_by=COLUMN")]


def similar_names(place: str, names: Iterable[str], advice: str) -> list[Finding]:
    """Return names that differ only in case, whitespace or the decimal point of a code."""
    difference = "which differ only in case, whitespace or a decimal point"
    return [
        Finding(WARNING, f"{place} {group}, {difference}; {advice}")
        for group in _groups_by(names, category)
    ]


def _groups_by(names: Iterable[str], key: Callable[[str], object]) -> list[str]:
    """Return the lists of names that have the same key, where there are several."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name in sorted(names):
        groups[key(name)].append(f"'{name}'")
    return [", ".join(group) for group in groups.values() if len(group) > 1]


def image_problems(folder: Path) -> list[Finding]:
    """Return the image files that cannot be decoded."""
    findings = []
    for path in find_images(folder):
        try:
            Images([path], (1, 1), resize=True).check()
        except InputError as error:
            findings.append(Finding(ERROR, f"{error}; replace or remove the file"))
    return findings


def dataset_warnings(data: Dataset, reading: Reading, party_sizes: dict[str, int]) -> list[Finding]:
    """Return what is suspicious about data that can be read. This is cheap."""
    findings = similar_names("there are the classes", data.classes, "correct the labels")
    if data.train.y.dim() == 1 and not data.train.y.is_floating_point():
        findings += _class_warnings(data)
    for column in (reading.column, reading.holdout_by):
        if column in data.columns:
            findings += _group_warnings(column, data.columns[column])
    findings += _row_numbers(data)
    for name, size in party_sizes.items():
        if size < FEW_SAMPLES:
            text = f"party {name} has {size} samples, of which some are held out"
            findings.append(Finding(WARNING, text))
    return findings


def _row_numbers(data: Dataset) -> list[Finding]:
    """Return the columns of a table that number its rows, such as the index of a data frame."""
    x = data.train.x
    if isinstance(x, Images) or len(x) <= FEW_ROWS:
        return []
    findings = []
    for k, name in enumerate(data.features):
        if bool((x[1:, k] - x[:-1, k] == 1).all()):
            text = (
                f"column '{name}' numbers the rows, and reveals the labels if they are sorted by "
            )
            findings.append(Finding(WARNING, f"{text}them; leave it out with ignore={name}"))
    return findings


def _group_warnings(column: str, values: Array) -> list[Finding]:
    """Return warnings about the names of parties or groups."""
    names, counts = np.unique(values.astype(np.str_), return_counts=True)
    place = f"column '{column}'"
    findings = similar_names(f"{place} has", names.tolist(), "they are different parties or groups")
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        findings += _missing_name(place, name, count)
    return findings


def _missing_name(place: str, name: str, samples: int) -> list[Finding]:
    """Return a warning about a name that usually stands for a missing value."""
    if not is_missing(name):
        return []
    text = f"{place} has '{name}' in {samples} training samples, and it is used as a name; if it "
    return [Finding(WARNING, f"{text}stands for a missing value, remove these samples")]


def _class_warnings(data: Dataset) -> list[Finding]:
    """Return warnings about classes without samples, or for samples without a label."""
    findings = []
    train = np.bincount(data.train.y.cpu().numpy(), minlength=len(data.classes))
    for name, count in zip(data.classes, train.tolist(), strict=True):
        findings += _missing_name("the label", name, count)
    if (train > 0).sum() == 1:
        only = data.classes[int(train.argmax())]
        text = f"all training samples have the class '{only}'; a classifier needs two classes"
        findings.append(Finding(WARNING, text))
    if train[0] == 0 and data.classes[0] == "0":
        text = "labels start at 1, so class 0 has no samples; number the classes from 0"
        findings.append(Finding(WARNING, text))
    if data.test is not None:
        for k in torch.unique(data.test.y).tolist():
            if train[k] == 0:
                text = f"test samples have the class '{data.classes[k]}', training samples do not"
                findings.append(Finding(WARNING, text))
    return findings
