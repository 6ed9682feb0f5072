"""Every method keeps its tensors on the device of the model, tested without an accelerator.

On torch's `meta` device tensors have shapes and no values, and an operation on tensors of two
devices fails as it would on an accelerator. What needs values is replaced in this test.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.problems import TINY, gaussians, with_algorithm
from moonfl import local
from moonfl.algorithms import ALGORITHMS, MOON, FedAvg
from moonfl.engines.embedded import Embedded
from moonfl.federation import aggregate, init_server
from moonfl.task import Task
from moonfl.types import Party, Term


def to_cpu(tensor: Tensor) -> Tensor:
    """Return zeros in place of values that the device does not have."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what needs values: copies to the CPU, class counts, the fused optimizer step."""
    monkeypatch.setattr(Tensor, "cpu", to_cpu)
    monkeypatch.setattr(torch, "bincount", lambda y, minlength: y.new_empty(minlength))

    def check_gradients(optimizer: object, params: list[Tensor], *state: object) -> None:
        assert all(p.grad is None or p.grad.device == p.device for p in params)

    monkeypatch.setattr(local, "take_step", check_gradients)


def on_meta(task: Task) -> Task:
    """Return the task with model and data on the `meta` device."""
    return replace(
        task,
        build=lambda: task.build().to("meta"),
        parties=[party.to("meta") for party in task.parties],
    )


@pytest.mark.usefixtures("meta")
@pytest.mark.parametrize("epochs", [1, 2])  # with two, outputs of frozen models are cached
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, MOON(contrast="l2"), MOON(negatives=2)])
def test_every_method_trains_on_one_device(algorithm, batch_norm: bool, epochs: int) -> None:
    exp = replace(with_algorithm(TINY, algorithm), device="meta", epochs=epochs)
    task = on_meta(gaussians(batch_norm=batch_norm))
    server = init_server(exp, task)
    engine = Embedded(exp, task)
    for t in range(2):  # in the second round parties have a state
        updates = engine.train(server, [0, 1], t)
        server = aggregate(exp, server, updates, t=0)
        for update in updates:
            assert all(value.device.type == "cpu" for value in update.params.values())


class Mixed(FedAvg):
    """A method that multiplies the output of the model by a tensor on the CPU."""

    def term(self, party: Party) -> Term:
        return lambda output, batch, w: (output.z * torch.ones(output.z.shape[1])).sum()


@pytest.mark.usefixtures("meta")
def test_a_method_that_mixes_devices_is_found() -> None:
    exp = replace(with_algorithm(TINY, Mixed()), device="meta")
    task = on_meta(gaussians())
    with pytest.raises(RuntimeError, match="device"):
        Embedded(exp, task).train(init_server(exp, task), [0], 0)
