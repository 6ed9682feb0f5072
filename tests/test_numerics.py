"""A run does not depend on the global settings of torch and numpy, and leaves them unchanged."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, results_of, stop_after
from moonfl.numerics import standard_settings

X = np.random.default_rng(0).normal(size=(600, 12)) * 3 + 5
Y = (X[:, 0] + X[:, 1] > 10).astype(int)
PARTIES = [(X[k::3], Y[k::3]) for k in range(3)]
QUICK = moonfl.Experiment(parties=3, rounds=2, epochs=1, algorithm=moonfl.MOON(mu=1))


class Net(nn.Module):
    """A user's model, with parameters that torch's default settings create."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 8))
        self.register_buffer("shift", torch.full((12,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + self.shift)


@contextlib.contextmanager
def setting(change, restore) -> Iterator[None]:
    change()
    try:
        yield
    finally:
        restore()


SETTINGS = {
    "meta device": lambda: setting(
        lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)
    ),
    "meta context": lambda: torch.device("meta"),
    "float64": lambda: setting(
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    ),
    "bfloat16": lambda: setting(
        lambda: torch.set_default_dtype(torch.bfloat16),
        lambda: torch.set_default_dtype(torch.float32),
    ),
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "deterministic": lambda: setting(
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "matmul precision": lambda: setting(
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "no mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "no denormals": lambda: setting(
        lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)
    ),
    "numpy errors": lambda: np.errstate(all="raise"),
    "one thread": lambda: setting(
        lambda: torch.set_num_threads(1), lambda: torch.set_num_threads(2)
    ),
    "three threads": lambda: setting(
        lambda: torch.set_num_threads(3), lambda: torch.set_num_threads(2)
    ),
}
by_setting = pytest.mark.parametrize("name", SETTINGS)


def state() -> tuple[object, ...]:
    """Return the global settings that a run might change."""
    return (
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        float(torch.tensor(1e-310, dtype=torch.float64, device="cpu") * 1.0),
        np.geterr(),
        torch.get_num_threads(),
    )


def federate(workers: int) -> moonfl.Result:
    return moonfl.federate(Net, PARTIES, rounds=2, epochs=1, batch_size=16, workers=workers)


@pytest.fixture(scope="module")
def expected() -> dict[str, moonfl.Result]:
    return {"federate": federate(1), "run": moonfl.run(QUICK, workers=1)}


@by_setting
@pytest.mark.parametrize("workers", [1, 2])
def test_federate_is_bit_identical(
    name: str, workers: int, expected: dict[str, moonfl.Result]
) -> None:
    context: AbstractContextManager[object] = SETTINGS[name]()
    with context:
        before = state()
        result = federate(workers)
        assert state() == before
    assert same(results_of(result), results_of(expected["federate"]))


@by_setting
def test_run_resume_export_and_load_are_bit_identical(
    name: str, expected: dict[str, moonfl.Result], tmp_path: Path
) -> None:
    context: AbstractContextManager[object] = SETTINGS[name]()
    samples = expected["run"].blueprint.samples
    assert isinstance(samples, Tensor)
    with context:
        before = state()
        with pytest.raises(StopError):
            moonfl.run(QUICK, tmp_path / "run", workers=1, watch=stop_after(1))
        result = moonfl.resume(tmp_path / "run", workers=1)
        moonfl.export(tmp_path / "run")
        loaded = moonfl.load_model(tmp_path / "run" / "export")
        model = result.model
        assert state() == before
    assert same(results_of(result), results_of(expected["run"]))
    with torch.no_grad():
        z = expected["run"].model(samples).z
        assert torch.equal(loaded(samples).z, z)
        assert torch.equal(model(samples).z, z)


def test_a_model_of_inference_tensors_is_trained() -> None:
    torch.manual_seed(0)
    model = Net()
    with torch.inference_mode():
        torch.manual_seed(0)
        frozen = Net()
        result = moonfl.federate(frozen, PARTIES, rounds=1, epochs=1, workers=1)
    other = moonfl.federate(model, PARTIES, rounds=1, epochs=1, workers=1)
    assert same(results_of(result), results_of(other))


def test_threads_share_the_settings_of_the_process() -> None:
    entered = threading.Event()
    leave = threading.Event()

    def other() -> None:
        with standard_settings():
            entered.set()
            leave.wait(60)
            dtypes.append(torch.get_default_dtype())

    dtypes: list[torch.dtype] = []
    thread = threading.Thread(target=other)
    torch.set_default_dtype(torch.float64)
    try:
        with standard_settings():
            thread.start()
            assert entered.wait(60)
        assert torch.get_default_dtype() == torch.float32  # the other thread still needs it
        leave.set()
        thread.join(60)
        assert dtypes == [torch.float32]
        assert torch.get_default_dtype() == torch.float64
    finally:
        leave.set()
        torch.set_default_dtype(torch.float32)
