"""Digits: 1,797 images of 8x8 pixels that come with scikit-learn; nothing is downloaded."""

import numpy as np
import torch

from .augment import Preparation
from .base import Dataset, Examples

PREPARATION = Preparation(mean=(0.0,), std=(1.0,), scale=16.0)


def read_digits() -> Dataset:
    """Four fifths train, one fifth test, by a split that never changes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    x = torch.from_numpy(digits.images[order].astype(np.uint8)).unsqueeze(
        1
    )  # [N, 1, 8, 8], values 0 to 16
    y = torch.from_numpy(digits.target[order].astype(np.int64))
    cut = len(y) * 4 // 5
    classes = tuple(str(name) for name in digits.target_names)
    return Dataset(Examples(x[:cut], y[:cut]), Examples(x[cut:], y[cut:]), classes, PREPARATION)
