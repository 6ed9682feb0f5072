"""Per-FedAvg: the gradient after a step, on problems where it can be written out."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from helpers.equality import same
from helpers.problems import TINY, gaussians, make_party, quadratics, train, with_algorithm
from moonfl.algorithms import MOON, FedAvg, PerFedAvg
from moonfl.errors import InputError
from moonfl.experiment import Experiment, override
from moonfl.types import Batch

A = [1.0, 4.0]
B = [0.0, 1.0]
LR = 0.05
STEPS = 10
BASE = Experiment(
    parties=2, rounds=60, epochs=STEPS, batch_size=8, lr=LR, momentum=0.0, weight_decay=0.0
)


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_the_fixed_point(alpha: float) -> None:
    """The gradient of a/2 (w - b)^2 after a step is a (1 - alpha a) (w - b).

    K steps move party i from w to b_i + s_i (w - b_i) with s_i = (1 - lr a_i (1 - alpha a_i))^K.
    The mean of the parties stays at sum (1 - s_i) b_i / sum (1 - s_i).
    """
    task = quadratics(A, B, [8, 8])
    exp = replace(BASE, algorithm=PerFedAvg(alpha=alpha), finetune=1)
    w = float(train(exp, task).params["w"])
    weights = [1 - (1 - LR * a * (1 - alpha * a)) ** STEPS for a in A]
    expected = sum(v * b for v, b in zip(weights, B, strict=True)) / sum(weights)
    assert w == pytest.approx(expected, abs=1e-5)
    fedavg = float(train(replace(BASE, algorithm=FedAvg()), task).params["w"])
    assert abs(w - fedavg) > 0.005


def test_the_gradient_is_taken_after_the_step() -> None:
    model = gaussians().build()
    batch = Batch(torch.randn(6, 1, 1, 6), torch.tensor([0, 1, 2, 0, 1, 2]), torch.arange(6))
    PerFedAvg(alpha=0.3).local_loss(make_party())(model, batch).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    F.cross_entropy(model(batch.x).logits, batch.y).backward()
    with torch.no_grad():
        for param in model.parameters():
            param -= 0.3 * param.grad
    model.zero_grad()
    F.cross_entropy(model(batch.x).logits, batch.y).backward()
    for name, param in model.named_parameters():
        assert torch.allclose(param.grad, gradients[name], atol=1e-6), name


def test_it_changes_the_global_model() -> None:
    task = gaussians()
    fedavg = train(with_algorithm(TINY, "fedavg"), task)
    assert not same(fedavg.params, train(with_algorithm(TINY, PerFedAvg(alpha=0.1)), task).params)


def test_it_needs_fine_tuning_and_does_not_compose() -> None:
    with pytest.raises(InputError, match="perfedavg needs finetune; set it, as in finetune=1"):
        override(Experiment(), ["algorithm=perfedavg"])
    with pytest.raises(InputError, match="Per-FedAvg cannot be composed: it replaces the whole"):
        MOON() + PerFedAvg()
