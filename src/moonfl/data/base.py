"""The types of a dataset: examples, classes, columns, and options for reading files."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from .augment import Preparation
from .encoding import Column
from .images import Images

Array = NDArray[np.generic]  # of any dtype
Columns = dict[str, Array]  # name -> one value per sample


class Examples(NamedTuple):
    """Samples and their labels."""

    x: Tensor | Images  # as stored, [N, ...]; images are uint8 [N, C, H, W]
    # class indices, int64 [N]; of a regression numbers, float64 [N, targets]; labels that are 0 or
    # 1, float32 [N, labels]
    y: Tensor

    def take(self, rows: Tensor) -> "Examples":
        """Return the examples with these indices."""
        rows = rows.to(self.y.device)
        x = self.x.take(rows) if isinstance(self.x, Images) else self.x[rows]
        return Examples(x, self.y[rows])

    def with_dtype(self, dtype: torch.dtype) -> "Examples":
        """Return the examples with float samples of this dtype; images and token ids stay."""
        if isinstance(self.x, Images) or not self.x.dtype.is_floating_point:
            return self
        return Examples(self.x.to(dtype), self.y)

    def to(self, device: str | torch.device) -> "Examples":
        """Return the examples on a device."""
        return Examples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Reading:
    """Options for reading user-supplied files."""

    label: str = "label"  # the column of a table that holds the classes
    task: str = "classification"  # or "regression" or "multilabel", see targets.py
    column: str | None = None  # the column whose values are the parties
    ignore: tuple[str, ...] = ()  # columns that are not features
    classes: tuple[str, ...] = ()  # names of all classes, if the files may lack some
    holdout_by: str | None = None  # the column whose groups are held out as a whole
    image_size: int | None = None  # side in pixels to which images are resized
    split: str | None = None  # of EMNIST
    subset: str | None = None  # of a dataset of the Hugging Face hub
    impute: Literal["refuse", "mean", "indicator"] = "refuse"  # missing values of a table
    encode: Literal["refuse", "onehot"] = "refuse"  # categories of a table
    categorical: tuple[str, ...] = ()  # columns of a table whose numbers are codes

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the columns of a table that are predicted; several are separated by commas."""
        if self.task == "classification":
            return (self.label,)
        return tuple(name.strip() for name in self.label.split(",") if name.strip())


@dataclass(frozen=True)
class Dataset:
    """A dataset before it is partitioned."""

    train: Examples
    test: Examples | None  # None: a share of each party's samples is held out
    classes: tuple[str, ...]
    preparation: Preparation
    columns: Columns = field(default_factory=dict)  # of train; partition=column uses one of them
    test_columns: Columns = field(default_factory=dict)  # of test, if it has them
    features: tuple[str, ...] = ()  # names of a table's feature columns, in the order of x
    table: tuple[Column, ...] | None = None  # if x are rows that are encoded, see encoding.py

    def __post_init__(self) -> None:
        check_names("a class", self.classes)
        check_names("a column", self.features)
        check_names("a column", tuple(self.columns))

    def with_dtype(self, dtype: torch.dtype) -> "Dataset":
        """Return the dataset with float samples of this dtype; images and token ids stay."""
        test = None if self.test is None else self.test.with_dtype(dtype)
        return replace(self, train=self.train.with_dtype(dtype), test=test)


def check_names(owner: str, names: tuple[str, ...]) -> None:
    """Check that names can be shown in files, tables and terminals: printable, and all distinct.

    `owner` is what has the names, such as "a class".
    """
    for name in names:
        if not name.isprintable():
            raise InputError(
                f"{owner} has the name {name!r}: names must be printable and on one line"
            )
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(
                f"{owner} has the name '{name}', and so has another; names must differ"
            )
