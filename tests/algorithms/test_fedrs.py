"""FedRS: its loss compared with the formula of the paper."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.problems import LABELS, loss_of, random_logits
from moonfl.algorithms import FedRS


def formula(logits: Tensor, scales: list[float]) -> float:
    """Compute -log(e^(a_y f_y) / sum_c e^(a_c f_c))."""
    total = 0.0
    for row, y in zip(logits.tolist(), LABELS.tolist(), strict=True):
        scaled = [a * f for a, f in zip(scales, row, strict=True)]
        total -= scaled[y] - math.log(sum(math.exp(f) for f in scaled))
    return total / len(LABELS)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_formula(alpha: float) -> None:
    logits = random_logits()
    loss = loss_of(FedRS(alpha=alpha), logits, [7, 2, 0])
    assert float(loss) == pytest.approx(formula(logits, [1.0, 1.0, alpha]), rel=1e-5)


def test_a_party_with_all_classes_has_the_supervised_loss() -> None:
    logits = random_logits()
    assert loss_of(FedRS(alpha=0.1), logits, [7, 2, 1]).equal(F.cross_entropy(logits, LABELS))


def test_alpha_restricts_the_gradient_of_missing_classes() -> None:
    """At logits of 0 the gradient of a missing class is proportional to alpha."""
    gradients = []
    for alpha in (0.0, 0.5, 1.0):
        logits = torch.zeros(4, 3, requires_grad=True)
        loss_of(FedRS(alpha=alpha), logits, [3, 1, 0]).backward()
        gradients.append(logits.grad[:, 2])
    assert bool((gradients[0] == 0).all())
    torch.testing.assert_close(gradients[1], gradients[2] / 2)
    assert bool((gradients[2] > 0).all())
