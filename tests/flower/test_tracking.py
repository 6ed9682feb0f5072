"""Trackers of runs over sites: they write at the server."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers.flower_deployment import Deployment
from moonfl import InputError
from moonfl.cli.commands.flower import _config
from moonfl.cli.parser import parse


def steps(run: Path) -> list[int]:
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    return [event.step for event in events.Scalars("accuracy")]


def test_a_run_over_sites_is_tracked_and_continued(deployment: Deployment) -> None:
    untracked = deployment.serve()
    deployment.out = deployment.folder / "tracked"
    tracked = deployment.serve(track="tensorboard")
    assert [record.loss for record in tracked.rounds] == [r.loss for r in untracked.rounds]
    assert steps(deployment.out) == [1, 2, 3]
    deployment.out = deployment.folder / "run"
    deployment.serve(track="tensorboard", resume=True)  # a finished run is copied
    assert steps(deployment.out) == [1, 2, 3]


def test_wrong_trackers_are_refused_before_a_run_starts(deployment: Deployment) -> None:
    with pytest.raises(InputError, match="unknown tracker 'tensorbord'; did you mean tensorboard"):
        deployment.serve(track="tensorbord")
    assert not deployment.out.exists()


def test_the_command_line_names_the_trackers(deployment: Deployment) -> None:
    words = ["flower", "run", str(deployment.folder)]
    assert "track" not in _config(parse(words), deployment.exp)  # older deployments lack the key
    tracked = [*words, "--track", "tensorboard", "--track", "mlflow"]
    assert _config(parse(tracked), deployment.exp)["track"] == "tensorboard,mlflow"
