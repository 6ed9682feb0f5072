"""Configuration and fixtures of all tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Waiting OpenMP threads must not keep a core busy that another test process needs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import pytest
import torch
from threadpoolctl import threadpool_limits

from moonfl.runs import analysis

pytest_plugins = ["helpers.custom"]  # the fixture `module`
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")
torch.set_num_threads(1)
threadpool_limits(1)  # scikit-learn and numpy; there is one test process per core


@pytest.fixture(autouse=True, scope="session")
def _few_points() -> None:
    """Skip the t-SNE, which takes longer than a small run. test_analysis.py tests it."""
    analysis.POINTS = 3


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a temporary folder the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _temporary_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove the modules that a test wrote and imported: others may have the same name."""
    before = set(sys.modules)
    folder = str(tmp_path_factory.getbasetemp())
    yield
    for name in sys.modules.keys() - before:
        path = getattr(sys.modules[name], "__file__", None) or ""
        if path.startswith(folder):
            del sys.modules[name]
