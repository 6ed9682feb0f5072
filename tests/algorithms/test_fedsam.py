"""FedSAM: gradients at the perturbed weights, BatchNorm and dropout."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.equality import same
from helpers.problems import TINY, gaussians, make_party, quadratics, train, with_algorithm
from moonfl import tree
from moonfl.algorithms import FedAvg, FedSAM
from moonfl.experiment import Experiment
from moonfl.models.base import Model
from moonfl.task import make_task
from moonfl.types import Batch


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def backward(algorithm: FedAvg | FedSAM, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return the gradient that local training uses; draws of random numbers start at one seed."""
    model.zero_grad()
    torch.manual_seed(0)
    algorithm.local_loss(make_party())(model, batch).backward()
    return gradients(model)


@pytest.mark.parametrize("kind", ["small", "native"])
def test_the_gradient_is_that_at_the_perturbed_weights(kind: str) -> None:
    """grad l(w + rho g/||g||), computed by moving the weights there."""
    task = gaussians() if kind == "small" else make_task(Experiment(dataset="digits"))
    rho = 0.3
    rows = torch.arange(16)
    data = task.parties[0]
    batch = Batch(task.preparation.batch(data.x, rows), data.y[rows], rows)
    model = task.build().train()
    before = tree.copy(tree.params_of(model))
    found = backward(FedSAM(rho=rho), model, batch)
    assert same(before, tree.copy(tree.params_of(model)))
    g = backward(FedAvg(), model, batch)
    norm = math.sqrt(sum(float(v.double().square().sum()) for v in g.values()))
    tree.load(model, {k: v + rho * g[k] / norm for k, v in before.items()})
    expected = backward(FedAvg(), model, batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found["output.weight"], g["output.weight"], rtol=1e-2)


def test_one_step_on_a_quadratic() -> None:
    """w - lr a (w + rho sign(g) - b) with g = a (w - b)."""
    task = quadratics([2.0], [3.0], [8])
    exp = Experiment(parties=1, rounds=1, epochs=1, batch_size=8, lr=0.1, momentum=0.0)
    exp = replace(exp, weight_decay=0.0, algorithm=FedSAM(rho=0.5))
    w = float(train(exp, task).params["w"])
    assert w == pytest.approx(0 - 0.1 * 2 * (0 + 0.5 * -1 - 3))


def test_the_optimum_of_a_quadratic_stays_within_rho() -> None:
    task = quadratics([2.0], [3.0], [8])
    exp = Experiment(parties=1, rounds=20, epochs=10, batch_size=8, lr=0.1, momentum=0.0)
    w = float(train(replace(exp, algorithm=FedSAM(rho=0.1)), task).params["w"])
    assert w == pytest.approx(3.0, abs=0.1)


def test_a_gradient_of_zero_is_no_error() -> None:
    model = nn.Linear(2, 2, bias=False)
    constant = make_party(supervised=lambda logits, batch: 0 * logits.sum())

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor):
            z = self.inner(x)
            return type("Pair", (), {"logits": z})

    x = torch.ones(3, 2)
    loss = FedSAM().local_loss(constant)(Logits(), Batch(x, torch.zeros(3).long(), x))
    loss.backward()
    assert float(loss) == 0
    assert bool((model.weight.grad == 0).all())


def test_batch_norm_is_updated_once_at_the_unperturbed_weights() -> None:
    task = gaussians(batch_norm=True)
    exp = replace(TINY, rounds=1, epochs=1, batch_size=64)
    sam = train(with_algorithm(exp, FedSAM(rho=0.5)), task)
    fedavg = train(with_algorithm(exp, FedAvg()), task)
    assert same(sam.buffers, fedavg.buffers)
    assert not same(sam.params, fedavg.params)


def test_both_passes_have_the_same_dropout_masks() -> None:
    """With a tiny rho the gradient is therefore that of FedAvg."""
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 64), nn.Dropout(0.5))
    model = Model(encoder, 64, 3, head=False)
    batch = Batch(torch.randn(32, 6), torch.arange(32) % 3, torch.arange(32))
    fedavg = backward(FedAvg(), model, batch)
    sam = backward(FedSAM(rho=1e-6), model, batch)
    torch.testing.assert_close(sam, fedavg, rtol=1e-3, atol=1e-5)
    torch.manual_seed(2)
    model.zero_grad()
    F.cross_entropy(model(batch.x).logits, batch.y).backward()
    assert not torch.allclose(gradients(model)["output.weight"], fedavg["output.weight"], rtol=1e-2)
