"""Shared by all tests."""

import os
import sys
from collections.abc import Iterator

os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # threads that wait leave the core to the other test processes

import hypothesis
import pytest
import torch
from threadpoolctl import threadpool_limits

from moonfl.runs import analysis

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")
torch.set_num_threads(1)
threadpool_limits(1)  # likewise scikit-learn's and numpy's: there is a test process for every core


@pytest.fixture(autouse=True, scope="session")
def _few_points() -> None:
    """A t-SNE takes longer than a small run, and of three points there is none; test_analysis.py makes some."""
    analysis.POINTS = 3


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test wrote and imported is gone with it: another may write a module of the same name."""
    before, folder = set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    for name in sys.modules.keys() - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]
