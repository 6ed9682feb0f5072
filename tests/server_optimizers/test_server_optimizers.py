"""Server steps against their formulas, written out for one number over three rounds."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.problems import TINY, gaussians, quadratics, train
from moonfl.algorithms import MOON, FedAvg
from moonfl.experiment import Experiment
from moonfl.federation import aggregate, init_server
from moonfl.server_optimizers import Adam, Momentum, Yogi
from moonfl.types import Update


def walk(server, targets: list[float], start: float = 1.0) -> list[float]:
    """Where the server goes when round t's combined model is targets[t]."""
    w = {"w": torch.tensor([start], dtype=torch.float64)}
    memory, seen = server.init(w), []
    for target in targets:
        w, memory = server.step(w, {"w": torch.tensor([target], dtype=torch.float64)}, memory)
        seen.append(float(w["w"]))
    return seen


TARGETS = [0.5, 0.7, -0.2]


@pytest.mark.parametrize("damped", [True, False])
def test_momentum(damped: bool) -> None:
    b, lr, w, v, expected = 0.7, 0.5, 1.0, 0.0, []
    for target in TARGETS:
        v = b * v + ((1 - b) if damped else 1.0) * (w - target)
        w = w - lr * v
        expected.append(w)
    assert walk(Momentum(momentum=b, damped=damped, lr=lr), TARGETS) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [Adam, Yogi])
def test_fedopt(kind: type[Adam]) -> None:
    lr, b1, b2, tau = 0.1, 0.9, 0.99, 0.01
    w, m, v, expected = 1.0, 0.0, tau**2, []
    for target in TARGETS:
        d = target - w
        m = b1 * m + (1 - b1) * d
        v = (
            b2 * v + (1 - b2) * d * d
            if kind is Adam
            else v - (1 - b2) * d * d * math.copysign(1, v - d * d)
        )
        w = w + lr * m / (math.sqrt(v) + tau)
        expected.append(w)
    assert walk(kind(lr=lr, beta1=b1, beta2=b2, tau=tau), TARGETS) == pytest.approx(expected)


def test_momentum_zero_is_the_average() -> None:
    assert walk(Momentum(momentum=0.0), TARGETS) == pytest.approx(TARGETS)


@pytest.mark.parametrize("server", [Momentum(momentum=0.5), Momentum(momentum=0.5, damped=False)])
def test_momentum_ends_where_fedavg_ends(server: Momentum) -> None:
    """It changes the way, not the fixed point."""
    task = quadratics([1.0, 4.0], [0.0, 1.0], [8, 8])
    exp = Experiment(
        parties=2, rounds=80, epochs=5, batch_size=8, lr=0.05, momentum=0, algorithm=FedAvg()
    )
    plain, other = (train(e, task).params["w"] for e in (exp, replace(exp, server=server)))
    assert float(other) == pytest.approx(float(plain), abs=1e-4)


def test_buffers_are_averaged_and_keep_their_type_under_every_server() -> None:
    """The step moves trainable parameters; BatchNorm's statistics are the mean, its counter stays an integer."""
    exp, task = (
        replace(TINY, algorithm=MOON(), server=Momentum(momentum=0.9)),
        gaussians(batch_norm=True),
    )
    server = init_server(exp, task)
    assert set(server.optimizer_state["v"]) == set(server.params)
    updates = [
        Update(
            i,
            server.params,
            {k: torch.full_like(v, value) for k, v in server.buffers.items()},
            samples,
            1,
        )
        for i, (value, samples) in enumerate([(1, 10), (5, 30)])
    ]
    after = aggregate(exp, server, updates).buffers
    counters = [k for k, v in after.items() if not v.is_floating_point()]
    assert counters
    for name, value in after.items():
        assert value.dtype == server.buffers[name].dtype
        assert torch.equal(value, torch.full_like(value, 4))


def test_weights_are_numbers_of_samples() -> None:
    exp, task = replace(TINY, algorithm=FedAvg()), gaussians()
    server = init_server(exp, task)
    updates = [
        Update(
            i, {k: torch.full_like(v, value) for k, v in server.params.items()}, {}, samples, steps
        )
        for i, (value, samples, steps) in enumerate([(1.0, 10, 99), (5.0, 30, 1), (1e9, 50, 0)])
    ]
    after = aggregate(exp, server, updates).params  # the third could not train and has no say
    assert all(torch.equal(v, torch.full_like(v, 4.0)) for v in after.values())


def test_a_round_in_which_nobody_could_train_changes_nothing() -> None:
    exp, task = TINY, gaussians()
    server = init_server(exp, task)
    assert aggregate(exp, server, [Update(0, server.params, server.buffers, 1, 0)]) is server
