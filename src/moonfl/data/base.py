"""What a data set is to the rest of the package."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .augment import Preparation


class Examples(NamedTuple):
    x: Tensor  # as stored, [N, ...]; uint8 for pixels
    y: Tensor  # labels, int64, [N]


@dataclass(frozen=True)
class Dataset:
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    preparation: Preparation
    columns: dict[str, NDArray[np.generic]] = field(default_factory=dict)  # of train: what natural parties are made by
