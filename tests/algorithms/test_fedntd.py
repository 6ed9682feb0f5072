"""FedNTD: its term compared with the formula of the paper."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.problems import TINY, gaussians, with_algorithm
from moonfl.algorithms import FedAvg, FedNTD
from moonfl.algorithms.fedntd import not_true_distillation
from moonfl.engines.embedded import Embedded
from moonfl.federation import init_server

Y = torch.tensor([0, 3, 1])


def random_logits(seed: int, classes: int = 4) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(3, classes, generator=rng, dtype=torch.float64)


def formula(logits: Tensor, logits_glob: Tensor, y: Tensor, tau: float) -> float:
    """Compute sum over c != y of p_glob(c) log(p_glob(c) / p(c)), the mean over the samples."""

    def softmax(row: list[float], true: int) -> dict[int, float]:
        exponentials = {c: math.exp(f / tau) for c, f in enumerate(row) if c != true}
        return {c: e / sum(exponentials.values()) for c, e in exponentials.items()}

    total = 0.0
    for row, row_glob, true in zip(logits.tolist(), logits_glob.tolist(), y.tolist(), strict=True):
        p = softmax(row, true)
        p_glob = softmax(row_glob, true)
        total += sum(p_glob[c] * math.log(p_glob[c] / p[c]) for c in p)
    return total / len(y)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_the_formula(tau: float) -> None:
    logits = random_logits(0)
    logits_glob = random_logits(1)
    loss = not_true_distillation(logits, logits_glob, Y, tau)
    assert float(loss) == pytest.approx(formula(logits, logits_glob, Y, tau))


def test_the_true_class_has_no_effect() -> None:
    logits = random_logits(0).requires_grad_()
    logits_glob = random_logits(1)
    loss = not_true_distillation(logits, logits_glob, Y, 1.0)
    loss.backward()
    assert bool((logits.grad.gather(1, Y[:, None]) == 0).all())
    changed = logits.detach().scatter(1, Y[:, None], 9.0)
    changed_glob = logits_glob.scatter(1, Y[:, None], -9.0)
    assert float(not_true_distillation(changed, changed_glob, Y, 1.0)) == float(loss.detach())


def test_equal_models_and_two_classes_give_zero() -> None:
    logits = random_logits(0)
    assert float(not_true_distillation(logits, logits, Y, 1.0)) == 0
    two = torch.tensor([0, 1, 1])
    loss = not_true_distillation(random_logits(0, 2), random_logits(1, 2), two, 1.0)
    assert float(loss) == 0


def test_the_first_step_of_a_round_is_that_of_fedavg() -> None:
    """The term has its minimum where the local model is the global one."""
    task = gaussians()
    exp = replace(TINY, epochs=1, batch_size=64)
    server = init_server(exp, task)
    fedavg, one_step, two_steps = (
        Embedded(other, task).train(server, [0], 0)[0].params
        for other in (
            with_algorithm(replace(exp, epochs=2), FedAvg()),
            with_algorithm(exp, FedNTD(weight=50.0)),
            with_algorithm(replace(exp, epochs=2), FedNTD(weight=50.0)),
        )
    )
    fedavg_step = Embedded(with_algorithm(exp, FedAvg()), task).train(server, [0], 0)[0].params
    for name, value in fedavg_step.items():
        torch.testing.assert_close(one_step[name], value)
    assert any(not torch.allclose(two_steps[name], value) for name, value in fedavg.items())
