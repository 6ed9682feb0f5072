"""FedExP: the server's learning rate compared with the formula of the paper."""

import pytest
import torch

from helpers.equality import same
from helpers.problems import quadratics, train
from moonfl import tree
from moonfl.algorithms import FedAvg, FedExP
from moonfl.experiment import Experiment
from moonfl.types import Server, Update


def update(party: int, w: list[float], samples: int) -> Update:
    params = {"w": torch.tensor(w, dtype=torch.float64)}
    return Update(party=party, params=params, buffers={}, num_samples=samples, num_steps=1)


def combine(algorithm: FedAvg | FedExP, start: list[float], updates: list[Update]) -> list[float]:
    server = Server(params={"w": torch.tensor(start, dtype=torch.float64)})
    return algorithm.combine(server, updates, 2, tree.mean).params["w"].tolist()


def test_the_formula() -> None:
    """w + eta d with eta = max(1, sum p_i ||d_i||^2 / (2 (||d||^2 + epsilon)))."""
    start = [1.0, -1.0]
    models = [[3.0, 0.0], [0.0, 3.0]]
    samples = [10, 30]
    epsilon = 0.25
    p = [0.25, 0.75]
    changes = [[model[k] - start[k] for k in range(2)] for model in models]
    d = [sum(p[i] * changes[i][k] for i in range(2)) for k in range(2)]
    squares = [c[0] ** 2 + c[1] ** 2 for c in changes]
    eta = (p[0] * squares[0] + p[1] * squares[1]) / (2 * (d[0] ** 2 + d[1] ** 2 + epsilon))
    assert eta < 1
    updates = [update(i, models[i], samples[i]) for i in range(2)]
    assert combine(FedExP(epsilon=epsilon), start, updates) == combine(FedAvg(), start, updates)

    models = [[3.0, 0.0], [-1.5, -1.0]]
    changes = [[model[k] - start[k] for k in range(2)] for model in models]
    d = [sum(p[i] * changes[i][k] for i in range(2)) for k in range(2)]
    squares = [c[0] ** 2 + c[1] ** 2 for c in changes]
    eta = (p[0] * squares[0] + p[1] * squares[1]) / (2 * (d[0] ** 2 + d[1] ** 2 + epsilon))
    assert eta > 1
    updates = [update(i, models[i], samples[i]) for i in range(2)]
    expected = [start[k] + eta * d[k] for k in range(2)]
    assert combine(FedExP(epsilon=epsilon), start, updates) == pytest.approx(expected)


def test_parties_that_agree_are_averaged() -> None:
    """If all changes are equal, the quotient is below 1/2."""
    updates = [update(i, [2.0, 0.5], 10) for i in range(3)]
    assert combine(FedExP(epsilon=0), [0.0, 0.0], updates) == [2.0, 0.5]


@pytest.mark.parametrize("epsilon", [0.0, 0.001])
def test_changes_that_cancel_leave_the_model_unchanged(epsilon: float) -> None:
    updates = [update(0, [2.0, -1.0], 10), update(1, [0.0, 3.0], 10)]
    assert combine(FedExP(epsilon=epsilon), [1.0, 1.0], updates) == [1.0, 1.0]


@pytest.mark.parametrize("epsilon", [0.0, 0.001])
def test_parties_that_do_not_move_leave_the_model_unchanged(epsilon: float) -> None:
    updates = [update(i, [1.0, 1.0], 10) for i in range(3)]
    assert combine(FedExP(epsilon=epsilon), [1.0, 1.0], updates) == [1.0, 1.0]


def test_changes_that_cancel_do_not_blow_up() -> None:
    """Without epsilon the learning rate would be infinite."""
    updates = [update(0, [1.0, 0.0], 10), update(1, [-1.0, 0.0], 10)]
    assert combine(FedExP(), [0.0, 0.0], updates) == [0.0, 0.0]


def test_extrapolation_reaches_a_common_optimum_faster() -> None:
    """The overparametrised case of the paper: all parties share an optimum."""
    task = quadratics([0.1, 0.1, 8.0], [1.0, 1.0, 1.0], [8, 8, 8])
    exp = Experiment(parties=3, rounds=6, epochs=20, batch_size=8, lr=0.1, momentum=0.0)
    distances = []
    for algorithm in (FedAvg(), FedExP()):
        server = train(Experiment(**{**vars(exp), "algorithm": algorithm}), task)
        distances.append(abs(float(server.params["w"]) - 1))
    assert distances[1] <= distances[0]


def test_a_large_epsilon_is_bit_identical_to_fedavg() -> None:
    task = quadratics([1.0, 4.0], [0.0, 1.0], [8, 24])
    exp = Experiment(parties=2, rounds=5, epochs=3, batch_size=8, lr=0.05)
    fedavg = train(Experiment(**{**vars(exp), "algorithm": FedAvg()}), task)
    fedexp = train(Experiment(**{**vars(exp), "algorithm": FedExP(epsilon=1e9)}), task)
    assert same(fedavg.params, fedexp.params)
