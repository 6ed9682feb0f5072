"""Runs in directories that are named by their settings."""

import shutil
from pathlib import Path

import moonfl
from moonfl import Experiment
from moonfl.api.named_runs import finished_run

QUICK = Experiment(rounds=1, epochs=1, parties=2)


def test_a_run_that_is_being_replaced_is_not_read(tmp_path: Path) -> None:
    """Its settings are still there, but the next command replaces it."""
    run = tmp_path / "run"
    assert finished_run(run) is None
    moonfl.run(QUICK, run, workers=1)
    assert finished_run(run) is not None
    (run / ".new").mkdir()
    shutil.copy(run / "experiment.toml", run / ".new")
    assert finished_run(run) is None
