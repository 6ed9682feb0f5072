"""Server optimizers, compared with their formulas for a scalar over three rounds."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.problems import TINY, gaussians, quadratics, train
from moonfl.algorithms import MOON, FedAvg
from moonfl.experiment import Experiment
from moonfl.federation import aggregate, init_server
from moonfl.server_optimizers import Adagrad, Adam, Momentum, Yogi
from moonfl.types import Update


def trajectory(server, targets: list[float], start: float = 1.0) -> list[float]:
    """Return the server's weights if the aggregated model of round t is targets[t]."""
    w = {"w": torch.tensor([start], dtype=torch.float64)}
    state = server.init(w)
    weights = []
    for target in targets:
        w, state = server.step(w, {"w": torch.tensor([target], dtype=torch.float64)}, state)
        weights.append(float(w["w"]))
    return weights


TARGETS = [0.5, 0.7, -0.2]


@pytest.mark.parametrize("damped", [True, False])
def test_momentum(damped: bool) -> None:
    b = 0.7
    lr = 0.5
    w = 1.0
    v = 0.0
    damping = 1 - b if damped else 1.0
    expected = []
    for target in TARGETS:
        v = b * v + damping * (w - target)
        w = w - lr * v
        expected.append(w)
    server = Momentum(momentum=b, damped=damped, lr=lr)
    assert trajectory(server, TARGETS) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [Adam, Yogi])
def test_adam_and_yogi(kind: type[Adam]) -> None:
    lr, b1, b2, tau = 0.1, 0.9, 0.99, 0.01
    w = 1.0
    m = 0.0
    v = tau**2
    expected = []
    for target in TARGETS:
        d = target - w
        m = b1 * m + (1 - b1) * d
        if kind is Adam:
            v = b2 * v + (1 - b2) * d * d
        else:
            v = v - (1 - b2) * d * d * math.copysign(1, v - d * d)
        w = w + lr * m / (math.sqrt(v) + tau)
        expected.append(w)
    assert trajectory(kind(lr=lr, beta1=b1, beta2=b2, tau=tau), TARGETS) == pytest.approx(expected)


@pytest.mark.parametrize("b1", [0.0, 0.9])
def test_adagrad(b1: float) -> None:
    lr, tau = 0.1, 0.01
    w = 1.0
    m = 0.0
    v = tau**2
    expected = []
    for target in TARGETS:
        d = target - w
        m = b1 * m + (1 - b1) * d
        v = v + d * d
        w = w + lr * m / (math.sqrt(v) + tau)
        expected.append(w)
    assert trajectory(Adagrad(lr=lr, beta1=b1, tau=tau), TARGETS) == pytest.approx(expected)


def test_the_steps_of_adagrad_shrink() -> None:
    """If every change is d, step t is about lr/sqrt(t)."""
    w = {"w": torch.zeros(1, dtype=torch.float64)}
    server = Adagrad(lr=0.1, tau=1e-6)
    state = server.init(w)
    for t in range(1, 6):
        before = float(w["w"])
        w, state = server.step(w, {"w": w["w"] + 2}, state)
        assert float(w["w"]) - before == pytest.approx(0.1 / math.sqrt(t), rel=1e-4)


def test_momentum_zero_is_the_average() -> None:
    assert trajectory(Momentum(momentum=0.0), TARGETS) == pytest.approx(TARGETS)


@pytest.mark.parametrize("server", [Momentum(momentum=0.5), Momentum(momentum=0.5, damped=False)])
def test_momentum_has_the_fixed_point_of_fedavg(server: Momentum) -> None:
    """Momentum changes the trajectory, not the fixed point."""
    task = quadratics([1.0, 4.0], [0.0, 1.0], [8, 8])
    exp = Experiment(
        parties=2, rounds=80, epochs=5, batch_size=8, lr=0.05, momentum=0, algorithm=FedAvg()
    )
    average = train(exp, task).params["w"]
    momentum = train(replace(exp, server=server), task).params["w"]
    assert float(momentum) == pytest.approx(float(average), abs=1e-4)


def test_buffers_are_averaged_and_keep_their_type() -> None:
    """The server optimizer updates trainable parameters only.

    BatchNorm's statistics are averaged, and its counter stays an integer.
    """
    exp = replace(TINY, algorithm=MOON(), server=Momentum(momentum=0.9))
    task = gaussians(batch_norm=True)
    server = init_server(exp, task)
    assert set(server.optimizer_state["v"]) == set(server.params)
    updates = [
        Update(
            party=i,
            params=server.params,
            buffers={k: torch.full_like(v, value) for k, v in server.buffers.items()},
            num_samples=samples,
            num_steps=1,
        )
        for i, (value, samples) in enumerate([(1, 10), (5, 30)])
    ]
    after = aggregate(exp, server, updates, t=0).buffers
    counters = [k for k, v in after.items() if not v.is_floating_point()]
    assert counters
    for name, value in after.items():
        assert value.dtype == server.buffers[name].dtype
        assert torch.equal(value, torch.full_like(value, 4))


def test_the_average_is_weighted_by_the_number_of_samples() -> None:
    exp = replace(TINY, algorithm=FedAvg())
    task = gaussians()
    server = init_server(exp, task)
    updates = [
        Update(
            party=i,
            params={k: torch.full_like(v, value) for k, v in server.params.items()},
            buffers={},
            num_samples=samples,
            num_steps=steps,
        )
        for i, (value, samples, steps) in enumerate([(1.0, 10, 99), (5.0, 30, 1), (1e9, 50, 0)])
    ]
    # The third party could not train, so its update is ignored.
    after = aggregate(exp, server, updates, t=0).params
    assert all(torch.equal(v, torch.full_like(v, 4.0)) for v in after.values())


def test_a_round_in_which_no_party_could_train_does_not_change_the_server() -> None:
    server = init_server(TINY, gaussians())
    update = Update(
        party=0, params=server.params, buffers=server.buffers, num_samples=1, num_steps=0
    )
    assert aggregate(TINY, server, [update], t=0) is server
