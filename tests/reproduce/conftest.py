"""Fixtures for the tests of `moonfl reproduce`."""

from dataclasses import replace
from pathlib import Path

import pytest

from moonfl.data.base import Examples
from moonfl.data.datasets import DATASETS
from moonfl.data.digits import read_digits


@pytest.fixture(autouse=True)
def _few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the digits dataset by just enough samples for the 20 parties of small scale."""
    digits = read_digits()
    train = Examples(digits.train.x[:300], digits.train.y[:300])
    test = Examples(digits.test.x[:60], digits.test.y[:60])
    few = replace(digits, train=train, test=test)
    source = replace(DATASETS["digits"], read=lambda folder, reading: few)
    monkeypatch.setitem(DATASETS, "digits", source)


@pytest.fixture(scope="session")
def small_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the runs that the targets share."""
    return tmp_path_factory.mktemp("small")
