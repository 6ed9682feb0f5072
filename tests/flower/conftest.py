"""Fixtures of the tests over Flower messages."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.flower_deployment import MOON3, Deployment
from helpers.problems import TABLE
from moonfl import Experiment
from moonfl.experiment import override


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """Return a deployment with three sites that train MOON on digits."""
    return Deployment(tmp_path / "federation", MOON3)


@pytest.fixture
def table_deployment(tmp_path: Path) -> Deployment:
    """Return a deployment whose sites have tables, which are standardised."""
    (tmp_path / "t.csv").write_text(TABLE)
    words = [
        "dataset=csv",
        f"data_dir={tmp_path / 't.csv'}",
        "label=outcome",
        "column=site",
        "rounds=1",
        "epochs=1",
    ]
    exp = replace(override(Experiment(), words), parties=3)
    return Deployment(tmp_path / "federation", exp)
