"""What a data set is to the rest of the package."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from .augment import Preparation
from .images import Images


class Examples(NamedTuple):
    x: (
        Tensor | Images
    )  # as stored, [N, ...]; uint8 [N, C, H, W] for pixels; Images are read when they are needed
    y: Tensor  # labels, int64, [N]

    def take(self, rows: Tensor) -> "Examples":
        rows = rows.to(self.y.device)
        return Examples(
            self.x.take(rows) if isinstance(self.x, Images) else self.x[rows], self.y[rows]
        )

    def to(self, device: str | torch.device) -> "Examples":
        return Examples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Reading:
    """How the files of a user are to be read."""

    label: str = "label"  # the column of a table that holds the classes
    column: str | None = None  # the one whose values are the parties
    ignore: tuple[str, ...] = ()  # those that are neither
    classes: tuple[str, ...] = ()  # where a file may lack some
    image_size: int | None = None  # pixels a side that images are brought to


@dataclass(frozen=True)
class Dataset:
    train: Examples
    test: Examples | None  # None: a part of each party's samples is held out
    classes: tuple[str, ...]
    preparation: Preparation
    columns: dict[str, NDArray[np.generic]] = field(
        default_factory=dict
    )  # of train: what natural parties are made by
    test_columns: dict[str, NDArray[np.generic]] = field(
        default_factory=dict
    )  # likewise of test, where it says
    features: tuple[
        str, ...
    ] = ()  # the columns of a table that are learned from, in the order they have in x


def check_names(what: str, names: tuple[str, ...]) -> None:
    """Names stand in files, tables and on terminals: each in one line, and each once."""
    odd = next((name for name in names if not name.isprintable()), None)
    if odd is not None:
        raise InputError(
            f"{what} has the name {odd!r}: names are of letters, signs and spaces in one line"
        )
    twice = (
        next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    )
    if twice is not None:
        raise InputError(f"{what} has the name '{twice}', and so has another")
