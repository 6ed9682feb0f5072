"""Digits: 1,797 images of 8x8 pixels that are part of scikit-learn; nothing is downloaded."""

import numpy as np
import torch

from .augment import Preparation
from .base import Dataset, Examples

PREPARATION = Preparation(mean=(0.0,), std=(1.0,), scale=16.0)


def read_digits() -> Dataset:
    """Return the dataset with a fixed split: four fifths for training, one fifth for testing."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = digits.images[order].astype(np.uint8)  # values 0 to 16
    x = torch.from_numpy(images).unsqueeze(1)  # [N, 1, 8, 8]
    y = torch.from_numpy(digits.target[order].astype(np.int64))
    cut = len(y) * 4 // 5
    return Dataset(
        train=Examples(x[:cut], y[:cut]),
        test=Examples(x[cut:], y[cut:]),
        classes=tuple(str(name) for name in digits.target_names),
        preparation=PREPARATION,
    )
