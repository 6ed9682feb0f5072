"""FedLC: its loss compared with its formula, which includes the true class in the sum."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.problems import LABELS, loss_of, random_logits
from moonfl.algorithms import FedLC


def formula(logits: Tensor, counts: list[int], tau: float) -> float:
    """Compute -log(e^(f_y - tau n_y^(-1/4)) / sum_c e^(f_c - tau n_c^(-1/4)))."""
    total = 0.0
    for row, y in zip(logits.tolist(), LABELS.tolist(), strict=True):
        calibrated = {c: row[c] - tau * n ** (-1 / 4) for c, n in enumerate(counts) if n > 0}
        total -= calibrated[y] - math.log(sum(math.exp(f) for f in calibrated.values()))
    return total / len(LABELS)


@pytest.mark.parametrize("counts", [[81, 1, 16], [16, 2, 0]])
def test_the_formula(counts: list[int]) -> None:
    logits = random_logits()
    loss = loss_of(FedLC(tau=0.7), logits, counts)
    assert float(loss) == pytest.approx(formula(logits, counts, 0.7), rel=1e-5)


def test_the_loss_has_a_lower_bound() -> None:
    """Without the true class in the sum the loss would fall with the true logit forever."""
    logits = 1000 * F.one_hot(LABELS, 3).float()
    assert float(loss_of(FedLC(), logits, [81, 1, 16])) == 0


def test_equal_counts_have_no_effect() -> None:
    logits = random_logits()
    loss = loss_of(FedLC(tau=2.0), logits, [5, 5, 5])
    assert float(loss) == pytest.approx(float(F.cross_entropy(logits, LABELS)), rel=1e-6)


def test_a_rarer_class_gets_a_larger_margin() -> None:
    """The party must push the logit of a rare class further above the others."""
    logits = torch.zeros(4, 3)
    rare_second = F.cross_entropy(logits, LABELS)
    assert loss_of(FedLC(), logits, [1000, 1000, 10]) < rare_second
    assert loss_of(FedLC(), logits, [10, 10, 1000]) > rare_second


def test_a_missing_class_has_no_gradient() -> None:
    logits = random_logits().requires_grad_()
    loss_of(FedLC(), logits, [3, 1, 0]).backward()
    assert bool((logits.grad[:, 2] == 0).all())
    assert bool((logits.grad[:, :2] != 0).all())
