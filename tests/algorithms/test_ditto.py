"""Ditto: the second model of each party, against closed forms and next to other methods."""

from dataclasses import replace

import pytest
import torch

from helpers.equality import same
from helpers.problems import (
    TINY,
    MemoryRecorder,
    gaussians,
    make_party,
    quadratics,
    train,
    with_algorithm,
)
from moonfl.algorithms import Algorithm, Ditto, FedAvg, FedRep, FedSAM, compose
from moonfl.engines.embedded import Embedded
from moonfl.errors import InputError
from moonfl.experiment import Experiment, override
from moonfl.federation import run
from moonfl.runs.states import States
from moonfl.types import Batch, Phase

A = [1.0, 4.0]
B = [0.0, 1.0]
LR = 0.05
STEPS = 10
BASE = Experiment(
    parties=2, rounds=40, epochs=STEPS, batch_size=8, lr=LR, momentum=0.0, weight_decay=0.0
)


def solve(algorithm: Algorithm, **changes) -> tuple[float, list[float]]:
    """Train on quadratics and return w and each party's v."""
    task = quadratics(A, B, [8, 8])
    exp = replace(BASE, algorithm=algorithm, **changes)
    states = States()
    server = run(exp, task, Embedded(exp, task, states), MemoryRecorder())
    label = "v" if isinstance(algorithm, Ditto) else "ditto/v"
    own = [float(states.load(i, before=exp.rounds)[label]["w"]) for i in range(2)]
    return float(server.params["w"]), own


@pytest.mark.parametrize("lam", [0.5, 3.0])
def test_v_reaches_the_minimum_of_its_objective(lam: float) -> None:
    """The minimum of a/2 (v - b)^2 + lam/2 (v - w)^2 is (a b + lam w) / (a + lam)."""
    w, own = solve(Ditto(lam=lam))
    assert w == pytest.approx(solve_fedavg(), abs=1e-6)
    expected = [(a * b + lam * w) / (a + lam) for a, b in zip(A, B, strict=True)]
    assert own == pytest.approx(expected, abs=1e-5)


def solve_fedavg() -> float:
    return float(train(replace(BASE, algorithm=FedAvg()), quadratics(A, B, [8, 8])).params["w"])


def test_without_the_pull_a_party_trains_alone() -> None:
    """K steps of one party move it from v to b + (1 - lr a)^K (v - b), whatever the others do."""
    _, own = solve(Ditto(lam=0), rounds=3)
    expected = [b + (1 - LR * a) ** (3 * STEPS) * (0 - b) for a, b in zip(A, B, strict=True)]
    assert own == pytest.approx(expected, abs=1e-6)


def test_a_strong_pull_keeps_v_at_the_global_model() -> None:
    before, _ = solve(Ditto(lam=1e4), lr=1e-4, rounds=20)  # what the parties get in round 21
    assert before > 0.02
    _, own = solve(Ditto(lam=1e4), lr=1e-4, rounds=21)
    assert own == pytest.approx([before, before], abs=1e-3)
    _, free = solve(Ditto(lam=0), lr=1e-1, rounds=5)
    assert abs(free[0] - free[1]) > 0.5


def test_the_loss_is_the_formula() -> None:
    model = gaussians().build()
    start = {name: p.detach().clone() + 0.1 for name, p in model.named_parameters()}
    party = make_party(global_params=start)
    batch = Batch(torch.randn(5, 1, 1, 6), torch.tensor([0, 1, 2, 0, 1]), torch.arange(5))
    main = Phase(loss=lambda model, batch: torch.zeros(()))
    sent, own = Ditto(lam=0.7).phases(party, main)
    assert sent is main
    distance = sum(((p - start[name]) ** 2).sum() for name, p in model.named_parameters())
    supervised = torch.nn.functional.cross_entropy(model(batch.x).logits, batch.y)
    expected = supervised + 0.35 * distance
    assert float(own.loss(model, batch)) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("name", ["moon", "fedprox", "scaffold", "feddyn", "fednova", "fedexp"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_global_model_is_that_of_the_other_method(name: str, batch_norm: bool) -> None:
    task = gaussians(batch_norm=batch_norm)
    alone = train(with_algorithm(TINY, name), task)
    both = train(with_algorithm(TINY, f"{name}+ditto"), task)
    assert same(alone.params, both.params)
    assert same(alone.buffers, both.buffers)


def test_v_follows_the_global_model_of_the_other_method() -> None:
    """SCAFFOLD reaches the optimum of the mean loss, 0.8, which FedAvg misses."""
    exp = override(BASE, ["algorithm=scaffold+ditto", "lam=1"])
    w, own = solve(exp.algorithm)
    assert w == pytest.approx(0.8, abs=2e-3)
    expected = [(a * b + w) / (a + 1) for a, b in zip(A, B, strict=True)]
    assert own == pytest.approx(expected, abs=2e-3)


def test_a_party_that_has_not_trained_has_the_global_model() -> None:
    assert Ditto().own_model({}) == {}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Experiment(algorithm=Ditto(), personal="output"), "remove personal"),
        (lambda: Experiment(algorithm=Ditto(), finetune=2), "remove finetune"),
        (lambda: compose(Ditto(), FedRep()), "Ditto and FedRep cannot be composed: Ditto trains"),
        (lambda: compose(Ditto(), FedSAM()), "FedSAM cannot be composed"),
        (lambda: override(Experiment(), ["algorithm=ditto", "lam=-1"]), "lam must be"),
    ],
)
def test_what_makes_no_sense_is_refused(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()
