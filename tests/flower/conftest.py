"""Fixtures of the tests over Flower messages."""

from pathlib import Path

import pytest

from helpers.flower_deployment import MOON3, Deployment, table_experiment
from helpers.problems import TABLE


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """Return a deployment with three sites that train MOON on digits."""
    return Deployment(tmp_path / "federation", MOON3)


@pytest.fixture
def table_deployment(tmp_path: Path) -> Deployment:
    """Return a deployment whose sites have tables, which are standardised."""
    exp = table_experiment(tmp_path, TABLE, 3, "rounds=1")
    return Deployment(tmp_path / "federation", exp)
