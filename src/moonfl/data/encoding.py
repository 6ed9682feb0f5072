"""Imputation and one-hot encoding of tables, with statistics over all parties.

A row is stored as one float64 per column: the value of a numeric column, the number of a category,
or NaN where the value is missing. `Encoding.apply` turns stored rows into the input of the network.

A party shares counts and sums only (`ColumnSummary`): how many values a column has, their mean and
sum of squared deviations, and how often each category occurs. `learn_encoding` merges them.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError
from ..runs.schema import ColumnRecord, EncodedColumnRecord, EncodingRecord

Impute = Literal["refuse", "mean", "indicator"]
UNKNOWN = -1.0  # the number of a category that the encoding does not have
MAX_CATEGORIES = 1000  # of a column; more of them are text or identifiers
# What an encoded feature is computed from:
VALUE, CATEGORY, ABSENCE = 0, 1, 2


class Column(NamedTuple):
    """A column of stored rows."""

    name: str
    categories: tuple[str, ...] | None = None  # None: numeric, or without any value

    @property
    def kind(self) -> str:
        """Return the kind of the column, for messages."""
        return "numbers" if self.categories is None else "categories"


class ColumnSummary(NamedTuple):
    """What a party shares about a column of its training rows."""

    number: int  # of values that are present
    missing: int
    mean: float = 0.0  # of a numeric column
    squared_deviations: float = 0.0  # sum of squared deviations from the mean
    counts: dict[str, int] | None = None  # rows of each category; None: numeric


@dataclass(frozen=True)
class EncodedColumn:
    """How a column becomes features."""

    name: str
    mean: float = 0.0  # of a numeric column
    std: float = 1.0
    categories: tuple[str, ...] | None = None  # None: numeric
    shares: tuple[float, ...] = ()  # of each category among the values that are present
    indicator: bool = False  # whether a feature says that the value is missing


class Plan(NamedTuple):
    """The features as tensors: what each is computed from."""

    source: Tensor  # the column of each feature
    kind: Tensor  # VALUE, CATEGORY or ABSENCE
    code: Tensor  # the number of the category
    fill: Tensor  # the feature where the value is missing


@dataclass(frozen=True)
class Encoding:
    """The features of a table: imputed numbers, one-hot categories, indicators."""

    impute: Impute
    columns: tuple[EncodedColumn, ...]
    features: tuple[str, ...] = field(init=False, compare=False)  # names of the encoded features

    def __post_init__(self) -> None:
        names: list[str] = []
        for column in self.columns:
            names += _feature_names(column)
        object.__setattr__(self, "features", tuple(names))

    def apply(self, x: Tensor) -> Tensor:
        """Return the features of stored rows [B, columns]."""
        return _features(x, _cached_plan(self, x.dtype, x.device))

    def scales(self) -> tuple[Tensor, Tensor]:
        """Return mean and std to standardise numbers with; other features stay 0 or 1."""
        mean: list[float] = []
        std: list[float] = []
        for column in self.columns:
            others = len(_feature_names(column)) - (column.categories is None)
            if column.categories is None:
                mean.append(column.mean)
                std.append(column.std)
            mean += [0.0] * others
            std += [1.0] * others
        return torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)

    def to_record(self) -> EncodingRecord:
        """Return the encoding as plain values, for files and messages."""
        columns = [
            EncodedColumnRecord(
                name=column.name,
                mean=column.mean,
                std=column.std,
                categories=None if column.categories is None else list(column.categories),
                shares=list(column.shares),
                indicator=column.indicator,
            )
            for column in self.columns
        ]
        return EncodingRecord(impute=self.impute, columns=columns)


def from_record(record: EncodingRecord) -> Encoding:
    """Return the encoding of a record; `Encoding.to_record` is the inverse."""
    columns = []
    for column in record.columns:
        categories = None if column.categories is None else tuple(column.categories)
        if len(categories or ()) != len(column.shares) or column.std <= 0:
            raise InputError(
                f"the encoding of column '{column.name}' must have one share per category and a "
                "standard deviation above 0"
            )
        columns.append(
            EncodedColumn(
                name=column.name,
                mean=column.mean,
                std=column.std,
                categories=categories,
                shares=tuple(column.shares),
                indicator=column.indicator,
            )
        )
    if not columns:
        raise InputError("the encoding has no columns")
    return Encoding(record.impute, tuple(columns))


def _feature_names(column: EncodedColumn) -> list[str]:
    """Return the names of the features of a column."""
    if column.categories is None:
        names = [column.name]
    else:
        names = [f"{column.name}={category}" for category in column.categories]
    if column.indicator:
        names.append(f"{column.name} is missing")
    return names


class Encode(nn.Module):
    """An encoding as a module, for models that are used without moonfl."""

    def __init__(self, encoding: Encoding, dtype: torch.dtype) -> None:
        super().__init__()
        plan = _plan(encoding, dtype, torch.device("cpu"))
        for name, values in plan._asdict().items():
            self.register_buffer(name, values, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of stored rows."""
        return _features(x, Plan(*(self.get_buffer(name) for name in Plan._fields)))


def _features(x: Tensor, plan: Plan) -> Tensor:
    """Return the features of stored rows."""
    values = x[:, plan.source]
    is_category = (values == plan.code).to(x.dtype)
    features = torch.where(plan.kind == VALUE, values, is_category)
    return torch.where(values.isnan(), plan.fill, features)


@functools.lru_cache(maxsize=16)
def _cached_plan(encoding: Encoding, dtype: torch.dtype, device: torch.device) -> Plan:
    return _plan(encoding, dtype, device)


def _plan(encoding: Encoding, dtype: torch.dtype, device: torch.device) -> Plan:
    """Return the tensors that `Encoding.apply` computes with."""
    source: list[int] = []
    kind: list[int] = []
    code: list[float] = []
    fill: list[float] = []
    for k, column in enumerate(encoding.columns):
        if column.categories is None:
            parts = [(VALUE, 0.0, column.mean)]
        else:
            shares = enumerate(column.shares)
            parts = [(CATEGORY, float(number), share) for number, share in shares]
        if encoding.impute == "refuse":
            parts = [(part[0], part[1], float("nan")) for part in parts]
        if column.indicator:
            parts.append((ABSENCE, float("inf"), 1.0))  # no stored number is infinite
        for part in parts:
            source.append(k)
            kind.append(part[0])
            code.append(part[1])
            fill.append(part[2])
    return Plan(
        source=torch.tensor(source, device=device),
        kind=torch.tensor(kind, device=device),
        code=torch.tensor(code, dtype=dtype, device=device),
        fill=torch.tensor(fill, dtype=dtype, device=device),
    )


def summarise(x: Tensor, columns: Sequence[Column]) -> list[ColumnSummary]:
    """Return what a party shares about the columns of its training rows."""
    values = x.cpu().double().numpy()
    summaries = []
    for k, column in enumerate(columns):
        is_present = ~np.isnan(values[:, k])
        present = np.ascontiguousarray(values[is_present, k])
        missing = len(values) - len(present)
        if column.categories is None:
            mean = float(present.mean()) if len(present) > 0 else 0.0
            squared_deviations = float(np.square(present - mean).sum())
            summaries.append(ColumnSummary(len(present), missing, mean, squared_deviations))
        else:
            names, counts = np.unique(present.astype(np.int64), return_counts=True)
            by_name = {column.categories[i]: int(n) for i, n in zip(names, counts, strict=True)}
            summaries.append(ColumnSummary(len(present), missing, counts=by_name))
    return summaries


def merge_summaries(parts: Sequence[ColumnSummary]) -> ColumnSummary:
    """Merge what the parties share about a column, in the given order.

    Means and squared deviations are merged as in moments.py. A party without values does not
    decide whether the column is numeric.
    """
    missing = sum(part.missing for part in parts)
    parts = [part for part in parts if part.number > 0]
    number = sum(part.number for part in parts)
    if any(part.counts is not None for part in parts):
        counts: Counter[str] = Counter()
        for part in parts:
            counts.update(part.counts or {})
        return ColumnSummary(number, missing, counts=dict(sorted(counts.items())))
    total, mean, squared_deviations = 0, 0.0, 0.0
    for part in parts:
        joint = total + part.number
        difference = part.mean - mean
        mean += difference * (part.number / joint)
        between = difference * difference * (total * (part.number / joint))
        squared_deviations += part.squared_deviations + between
        total = joint
    return ColumnSummary(number, missing, mean, squared_deviations)


def learn_encoding(
    names: Sequence[str],
    parties: Sequence[Sequence[ColumnSummary]],
    impute: Impute,
    min_category: int,
) -> Encoding:
    """Return the encoding of a table from what the parties share about its columns."""
    columns = []
    for k, name in enumerate(names):
        parts = [party[k] for party in parties]
        kinds = {part.counts is None for part in parts if part.number > 0}
        if len(kinds) > 1:
            raise mixed_kinds(name)
        columns.append(_encode_column(name, merge_summaries(parts), impute, min_category))
    return Encoding(impute, tuple(columns))


def _omit(name: str) -> str:
    """Return how a column is left out, for messages."""
    return f"leave it out with ignore={name} (drop it from data frames)"


def columns_of(encoding: Encoding) -> tuple[Column, ...]:
    """Return the columns of rows that are stored for an encoding."""
    return tuple(Column(column.name, column.categories) for column in encoding.columns)


def unlearned_encoding(columns: Sequence[Column]) -> Encoding:
    """Return an encoding that keeps the numbers of categories as they are, without statistics."""
    encoded = []
    for name, categories in columns:
        shares = tuple(0.0 for _ in categories or ())
        encoded.append(EncodedColumn(name=name, categories=categories, shares=shares))
    return Encoding("mean", tuple(encoded))


def mixed_kinds(name: str) -> InputError:
    """Return the error for a column that is numeric at some parties and text at others."""
    return InputError(
        f"column '{name}' has numbers at some parties and categories at others; if the numbers are "
        f"codes, add categorical={name}; otherwise correct it, or {_omit(name)}"
    )


def is_constant(std: Tensor, mean: Tensor) -> Tensor:
    """Return True for features whose standard deviation is no more than rounding."""
    smallest = math.sqrt(torch.finfo(torch.float64).tiny)
    return std <= 1e-12 * mean.abs().clamp(min=smallest)


def _encode_column(
    name: str, summary: ColumnSummary, impute: Impute, min_category: int
) -> EncodedColumn:
    """Return the encoding of one column."""
    if summary.number == 0:
        raise InputError(
            f"column '{name}' has no values in the training rows of any party; {_omit(name)}"
        )
    indicator = impute == "indicator" and summary.missing > 0
    if summary.counts is None:
        std = float(np.sqrt(summary.squared_deviations / summary.number))
        scales = (torch.tensor(value, dtype=torch.float64) for value in (std, summary.mean))
        return EncodedColumn(
            name=name,
            mean=summary.mean,
            std=1.0 if is_constant(*scales) else std,
            indicator=indicator,
        )
    frequent = {key: n for key, n in summary.counts.items() if n >= min_category}
    if not frequent:
        raise InputError(
            f"no category of column '{name}' occurs in {min_category} or more training rows "
            f"(min_category); if it is an identifier or text, {_omit(name)}"
        )
    if len(frequent) > MAX_CATEGORIES:
        raise InputError(
            f"column '{name}' has {len(frequent)} categories, allowed are {MAX_CATEGORIES}; "
            f"{_omit(name)}, or increase min_category"
        )
    return EncodedColumn(
        name=name,
        categories=tuple(frequent),
        shares=tuple(n / summary.number for n in frequent.values()),
        indicator=indicator,
    )


def recode(x: Tensor, columns: Sequence[Column], encoding: Encoding) -> Tensor:
    """Return stored rows with the columns and the numbers of categories of an encoding."""
    positions = {column.name: k for k, column in enumerate(columns)}
    recoded = []
    for target in encoding.columns:
        k = positions[target.name]
        values = x[:, k]
        categories = columns[k].categories
        is_empty = bool(values.isnan().all())
        if not is_empty and (categories is None) != (target.categories is None):
            raise mixed_kinds(target.name)
        if categories is not None and target.categories is not None:
            values = _renumber(values, categories, target.categories)
        recoded.append(values)
    return torch.stack(recoded, dim=1)


def _renumber(values: Tensor, before: tuple[str, ...], after: tuple[str, ...]) -> Tensor:
    """Return the numbers of categories in another list of categories."""
    number = {name: float(k) for k, name in enumerate(after)}
    numbers = [number.get(name, UNKNOWN) for name in before]
    table = torch.tensor([*numbers, UNKNOWN], dtype=values.dtype, device=values.device)
    is_missing = values.isnan()
    known = values.masked_fill(is_missing | (values < 0), len(before)).long()
    return torch.where(is_missing, values, table[known])


def decode(x: Tensor, columns: Sequence[Column]) -> list[list[str]]:
    """Return stored rows as cells of a table; a missing value is an empty cell."""
    decoded = []
    for k, column in enumerate(columns):
        values = x[:, k].double().tolist()
        names = column.categories
        cells = []
        for value in values:
            if value != value:
                cells.append("")
            else:
                cells.append(repr(value) if names is None else names[int(value)])
        decoded.append(cells)
    return [list(row) for row in itertools.zip_longest(*decoded)]


def to_column_records(summaries: Sequence[ColumnSummary]) -> list[ColumnRecord]:
    """Return summaries as part of a site's description."""
    return [
        ColumnRecord(
            number=summary.number,
            missing=summary.missing,
            mean=summary.mean,
            squares=summary.squared_deviations,
            counts=summary.counts,
        )
        for summary in summaries
    ]


def from_column_records(records: Sequence[ColumnRecord]) -> list[ColumnSummary]:
    """Return the summaries in a site's description."""
    return [
        ColumnSummary(record.number, record.missing, record.mean, record.squares, record.counts)
        for record in records
    ]
