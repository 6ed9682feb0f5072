"""Flower's simulation: errors of a method, and failures of Ray."""

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import moonfl
from helpers.flower_deployment import (
    QUICK,
    run_simulated,
)
from moonfl import RunError
from moonfl.flower.simulation import simulate


@dataclass(frozen=True)
class Faulty(moonfl.FedAvg):
    """A method whose hook raises."""

    def finish(self, party: Any, trained: Any, steps: int) -> Any:
        raise KeyError("nowhere")


def test_a_simulation_reports_errors_of_a_method(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"KeyError: 'nowhere' \(test_simulation\.py, line \d+\)"):
        run_simulated(replace(QUICK, algorithm=Faulty()), tmp_path / "run")


@dataclass(frozen=True)
class Undeclared(moonfl.FedAvg):
    """A method that sends a tensor which it does not declare."""

    def finish(self, party: Any, trained: Any, steps: int) -> Any:
        return {}, {"norm": {"a": torch.ones(1)}}


def test_a_method_must_declare_what_it_sends(tmp_path: Path) -> None:
    sent = "it sends params, buffers, extra/norm, expected params, buffers"
    reason = f"{sent}; a method declares in extra_like"
    with pytest.raises(RunError, match=reason):
        run_simulated(replace(QUICK, algorithm=Undeclared()), tmp_path / "run")


def test_a_failed_simulation_ends_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Ray does not start, or after Ctrl-C, no server thread and no lock are left."""
    before = set(threading.enumerate())
    for error, raised in (
        (RuntimeError("no room"), RunError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):

        def fail(*args: object, error: BaseException = error, **kwargs: object) -> None:
            time.sleep(0.5)
            raise error

        monkeypatch.setattr("flwr.server.superlink.fleet.vce.start_vce", fail)
        with pytest.raises(raised):
            simulate(QUICK, tmp_path / "run", force=True)
        end = time.monotonic() + 20
        while set(threading.enumerate()) - before and time.monotonic() < end:
            time.sleep(0.05)
        assert not set(threading.enumerate()) - before
    moonfl.run(QUICK, tmp_path / "run", force=True, workers=1)
