"""Fixed points of the algorithms on quadratics: party i minimises a_i/2 (w - b_i)^2."""

from dataclasses import replace

import pytest

from helpers.problems import MemoryRecorder, mean_variate, quadratics, train
from moonfl.algorithms import MOON, Algorithm, FedAvg, FedDyn, FedNova, FedProx, Scaffold
from moonfl.algorithms.fednova import effective_steps
from moonfl.engines.embedded import Embedded
from moonfl.errors import InputError
from moonfl.experiment import Experiment
from moonfl.federation import init_server, run, sample_parties
from moonfl.local import Workbench, local_update
from moonfl.optimizers import Step
from moonfl.server_optimizers import Momentum

A = [1.0, 4.0]
B = [0.0, 1.0]
OPTIMUM = 0.8  # of the unweighted mean of the losses: sum a_i b_i / sum a_i
LR = 0.05
STEPS = 10  # one batch per epoch, so ten epochs are ten steps
BASE = Experiment(
    parties=2, rounds=40, epochs=STEPS, batch_size=8, lr=LR, momentum=0.0, weight_decay=0.0
)


def solve(algorithm, sizes=(8, 8), **changes) -> float:
    """Train and return the final w."""
    task = quadratics(A, B, list(sizes))
    return float(train(replace(BASE, algorithm=algorithm, **changes), task).params["w"])


def fedavg_point(sizes: tuple[int, int], mu: float = 0.0) -> float:
    """Return the fixed point of FedAvg (mu = 0) or FedProx.

    K steps move party i from w to t_i + s_i (w - t_i), where s_i = (1 - lr (a_i + mu))^K. The mean
    of the parties does not change at sum v_i b_i / sum v_i, where
    v_i = p_i a_i / (a_i + mu) (1 - s_i): the proximal term pulls to w, not to 0.
    """
    weights = [
        n * a / (a + mu) * (1 - (1 - LR * (a + mu)) ** STEPS) for n, a in zip(sizes, A, strict=True)
    ]
    return weighted_mean(weights)


def weighted_mean(weights: list[float]) -> float:
    """Return the weighted mean of the optima b_i."""
    return sum(w * b for w, b in zip(weights, B, strict=True)) / sum(weights)


@pytest.mark.parametrize("sizes", [(8, 8), (8, 24)])
def test_fedavg_converges_to_its_biased_fixed_point(sizes: tuple[int, int]) -> None:
    # With a batch as large as the larger party, every party takes one step per epoch.
    w = solve(FedAvg(), sizes, batch_size=24)
    assert w == pytest.approx(fedavg_point(sizes), abs=1e-5)
    assert abs(fedavg_point((8, 8)) - OPTIMUM) > 0.1


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_fedprox_converges_to_its_biased_fixed_point(mu: float) -> None:
    assert solve(FedProx(mu=mu)) == pytest.approx(fedavg_point((8, 8), mu), abs=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 10, 20])
def test_scaffold_reaches_the_optimum(momentum: float, steps: int) -> None:
    rounds = {1: 80, 2: 40, 10: 40, 20: 60}[steps]
    w = solve(Scaffold(), momentum=momentum, epochs=steps, rounds=rounds)
    assert w == pytest.approx(OPTIMUM, abs=2e-3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_reaches_the_optimum_with_sampling(momentum: float) -> None:
    w = solve(Scaffold(), momentum=momentum, sample_fraction=0.5, rounds=300)
    assert w == pytest.approx(OPTIMUM, abs=1e-3)


def test_scaffold_c_is_the_mean_of_the_c_i() -> None:
    task = quadratics([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 3.0], [8, 8, 16, 16])
    exp = replace(
        BASE, algorithm=Scaffold(), parties=4, sample_fraction=0.5, rounds=9, momentum=0.9
    )
    engine = Embedded(exp, task)
    server = run(exp, task, engine, MemoryRecorder())
    mean = mean_variate(exp, engine)
    assert float(server.shared["c"]["w"]) == pytest.approx(mean, abs=1e-5)
    assert mean != 0


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_feddyn_reaches_the_optimum(alpha: float) -> None:
    assert solve(FedDyn(alpha=alpha), epochs=40, rounds=40) == pytest.approx(OPTIMUM, abs=1e-3)


def test_feddyn_reaches_the_optimum_with_sampling() -> None:
    w = solve(FedDyn(alpha=1.0), epochs=20, rounds=150, sample_fraction=0.5)
    assert w == pytest.approx(OPTIMUM, abs=2e-2)


@pytest.mark.parametrize(
    ("algorithm", "epochs"),
    [(Scaffold(), STEPS), (Scaffold() + FedProx(mu=0.5), STEPS), (FedDyn(alpha=1.0), 40)],
    ids=lambda value: getattr(value, "label", None),
)
def test_control_variates_reach_the_optimum_with_clipping(
    algorithm: Algorithm, epochs: int
) -> None:
    """What clip removes in the first rounds is sent later: parties store what the server counts.

    The server's variate stays the mean of those of the parties. If parties stored their unclipped
    differences, the fixed points would be 0.435, 0.466 and 0.68.
    """
    task = quadratics(A, B, [8, 8])
    exp = replace(BASE, algorithm=algorithm, epochs=epochs, clip=0.3)
    recorder = MemoryRecorder()
    server = run(exp, task, Embedded(exp, task), recorder)
    distances = [max(u.metrics["drift"] for u in updates) for updates in recorder.updates]
    assert distances[0] > exp.clip > distances[-1]
    assert float(server.params["w"]) == pytest.approx(OPTIMUM, abs=1e-3)


def test_fednova_with_equal_steps_is_fedavg() -> None:
    assert solve(FedNova(), momentum=0.9) == pytest.approx(solve(FedAvg(), momentum=0.9), abs=1e-5)


def test_fednova_removes_the_bias_of_unequal_steps() -> None:
    """Compare FedAvg and FedNova for parties that take 1 and 4 steps per round.

    They have 8 and 32 samples in batches of 8. As lr goes to 0, FedAvg weights party i by
    n_i K_i a_i, and FedNova by n_i a_i, which are the weights of the objective.
    """
    changes = {"lr": 1e-3, "epochs": 1, "rounds": 700, "batch_size": 8}
    sizes = (8, 32)
    steps = (1, 4)
    true = weighted_mean([n * a for n, a in zip(sizes, A, strict=True)])
    biased = weighted_mean([n * k * a for n, k, a in zip(sizes, steps, A, strict=True)])
    assert solve(FedNova(), sizes, **changes) == pytest.approx(true, abs=5e-3)
    assert solve(FedAvg(), sizes, **changes) == pytest.approx(biased, abs=5e-3)
    assert abs(true - biased) > 0.02


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": FedProx(mu=5.0) + FedNova()},
        {"algorithm": FedProx(mu=5.0), "aggregation": "fednova"},
    ],
    ids=["algorithm", "aggregation"],
)
def test_fednova_removes_the_bias_of_unequal_steps_with_a_proximal_term(changes: dict) -> None:
    """The a_i of the proximal case, with the learning rate of the round.

    The parties take 4 and 16 steps, and the optimum is 0.5. With the a_i of a loss without proximal
    term the fixed point would be 0.26.
    """
    task = quadratics([0.2, 0.05], [0.0, 1.0], [8, 32])
    exp = replace(
        BASE,
        epochs=4,
        lr=0.02,
        momentum=0.9,
        schedule=Step(every=20, gamma=0.5),
        server=Momentum(momentum=0.0, lr=10.0),
        **changes,
    )
    assert float(train(exp, task).params["w"]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(), FedProx(mu=5.0), FedDyn(alpha=5.0), FedProx(mu=2.0) + FedDyn(alpha=3.0)],
    ids=lambda algorithm: algorithm.label,
)
def test_a_constant_gradient_moves_the_weights_by_lr_a(algorithm: Algorithm) -> None:
    task = quadratics([1e-5], [1e5], [8])
    exp = replace(BASE, algorithm=algorithm, parties=1, momentum=0.9)
    update, _ = local_update(
        exp, task, Workbench(task.build), init_server(exp, task), state=None, party=0, t=0
    )
    expected = LR * exp.effective_steps(STEPS, t=0)
    assert float(update.params["w"]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "changes", [{"algorithm": FedProx(mu=40.0) + FedNova()}, {"aggregation": "fednova"}]
)
def test_fednova_refuses_to_divide_by_zero_steps(changes: dict) -> None:
    """With lr mu = 2 an even number of steps ends where it began."""
    with pytest.raises(InputError, match=r"number of steps, which is 0: .* fedprox\.mu"):
        solve(**{"algorithm": FedProx(mu=40.0), "rounds": 1, **changes})


def test_effective_steps_are_the_sum_of_the_weights_of_the_gradients() -> None:
    """With momentum r, the k-th of K gradients has the weight 1 + r + ... + r^(K-k)."""
    for r in (0.0, 0.5, 0.9):
        for steps in (1, 2, 7, 50):
            expected = sum(r**j for k in range(1, steps + 1) for j in range(steps - k + 1))
            assert effective_steps(steps, r) == pytest.approx(expected)


def test_centralised_training_is_an_experiment_with_one_party() -> None:
    task = quadratics([2.0], [3.0], [8])
    server = train(replace(BASE, parties=1, algorithm=FedAvg()), task)
    assert float(server.params["w"]) == pytest.approx(3.0, abs=1e-5)


def test_moon_with_scalar_representations_is_fedavg() -> None:
    """The contrastive loss has no gradient: the similarity of scalars is always +1 or -1."""
    assert solve(MOON(mu=5.0)) == pytest.approx(solve(FedAvg()), abs=1e-5)


def test_sampling_depends_on_the_seed_only() -> None:
    exp = replace(BASE, parties=100, sample_fraction=0.2)
    draws = [sample_parties(exp, t) for t in range(50)]
    assert draws == [sample_parties(exp, t) for t in range(50)]
    assert all(len(set(d)) == 20 and d == sorted(d) for d in draws)
    assert len({i for d in draws for i in d}) == 100
    assert draws != [sample_parties(replace(exp, seed=1), t) for t in range(50)]
