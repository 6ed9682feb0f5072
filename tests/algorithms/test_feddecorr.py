"""FedDecorr: its term compared with the formula of the paper."""

import math

import pytest
import torch

from moonfl.algorithms.feddecorr import decorrelation


def correlation(a: list[float], b: list[float]) -> float:
    """Return Pearson's correlation coefficient in plain Python."""
    mean_a = sum(a) / len(a)
    mean_b = sum(b) / len(b)
    covariance = sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True))
    variance_a = sum((p - mean_a) ** 2 for p in a)
    variance_b = sum((q - mean_b) ** 2 for q in b)
    return covariance / math.sqrt(variance_a * variance_b)


def representations(samples: int, dimensions: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(samples, dimensions, generator=rng, dtype=torch.float64)


def test_the_formula() -> None:
    """||K||_F^2 / d^2, where K_ij is the correlation of dimensions i and j over the batch."""
    z = representations(7, 4) * torch.tensor([1.0, 5.0, 0.1, 2.0]) + 3
    columns = z.T.tolist()
    expected = sum(correlation(a, b) ** 2 for a in columns for b in columns) / 4**2
    assert float(decorrelation(z)) == pytest.approx(expected, rel=1e-5)


def test_the_limits() -> None:
    """Equal dimensions give 1, and uncorrelated ones 1/d."""
    column = representations(9, 1)
    assert float(decorrelation(column.repeat(1, 5))) == pytest.approx(1)
    orthogonal = torch.tensor([[1.0, 1, 1, -1, -1, -1], [1, -1, 0, 1, -1, 0], [1, 1, -2, 1, 1, -2]])
    assert float(decorrelation(orthogonal.T)) == pytest.approx(1 / 3)


def test_a_gradient_step_decorrelates() -> None:
    z = representations(16, 3).cumsum(1).requires_grad_()
    before = decorrelation(z)
    before.backward()
    assert decorrelation(z.detach() - 0.1 * z.grad) < before


def test_a_constant_dimension_has_a_finite_gradient() -> None:
    """Without a projection head z comes from a ReLU, and a unit may be 0 for all samples."""
    z = representations(8, 3)
    z[:, 1] = 0
    z.requires_grad_()
    decorrelation(z).backward()
    assert bool(torch.isfinite(z.grad).all())
    assert bool((z.grad[:, 1] == 0).all())


def test_a_single_sample_has_no_correlations() -> None:
    assert float(decorrelation(representations(1, 3))) == 0
