"""Tests of MOON's contrastive loss in native code: against the formula, and against torch."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moonfl.kernels import contrast as contrast_module
from moonfl.kernels import library as kernels
from moonfl.kernels.contrast import contrast, model_contrastive

TAU = 0.5
SHAPES = [(64, 256, 1), (1, 8, 1), (33, 84, 2), (16, 508, 3), (5, 20, 0)]  # batch, width, negatives


@pytest.fixture(params=["avx512", "avx2", "base"])
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Limit the native code to each instruction set."""
    native = kernels.library()
    assert native is not None
    best = kernels.in_use()
    native.moonfl_choose(request.param.encode())
    yield
    native.moonfl_choose(best.encode())


def vectors(shape: tuple[int, int, int], case: str) -> tuple[Tensor, list[Tensor]]:
    """Return z and the representations that it is compared with."""
    n, d, negatives = shape
    rng = torch.Generator().manual_seed(n + d)
    z = 3 * torch.randn(n, d, generator=rng)
    others = [torch.randn(n, d, generator=rng) for _ in range(1 + negatives)]
    if case == "zero vectors":
        z[0] = 0
        others[-1][-1] = 0
    elif case == "tiny vectors":  # shorter than the smallest divisor
        z[0] *= 1e-12
    elif case == "equal vectors":
        others[0] = z.clone()
    return z, others


def loss_and_gradient(z: Tensor, others: list[Tensor], mu: float = 5.0) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    loss = mu * model_contrastive(z, others[0], others[1:], TAU)
    return loss.detach(), torch.autograd.grad(loss, z)[0]


def written_out(z: Tensor, others: list[Tensor]) -> Tensor:
    """Return Eq. 3 as it is written, with the smallest divisor of torch's cosine."""
    similarities = []
    for other in others:
        lengths = [x.square().sum(1).clamp_min(1e-60).sqrt().clamp_min(1e-8) for x in (z, other)]
        similarities.append((z * other).sum(1) / lengths[0] / lengths[1] / TAU)
    exponentials = torch.stack(similarities).exp()
    return -(exponentials[0] / exponentials.sum(0)).log().mean()


@pytest.mark.parametrize("case", ["random", "zero vectors", "tiny vectors", "equal vectors"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("instructions")
def test_bit_identical_to_torch(
    shape: tuple[int, int, int], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, others = vectors(shape, case)
    assert contrast(z, others, TAU) is not None
    native = loss_and_gradient(z, others)
    monkeypatch.setattr(contrast_module, "contrast", lambda *_: None)
    expected = loss_and_gradient(z, others)
    assert torch.equal(native[0], expected[0])
    assert torch.equal(native[1], expected[1])


@pytest.mark.parametrize("case", ["random", "equal vectors"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("instructions")
def test_close_to_the_formula_in_float64(shape: tuple[int, int, int], case: str) -> None:
    z, others = vectors(shape, case)
    loss, gradient = loss_and_gradient(z, others, mu=1.0)
    exact_z = z.double().requires_grad_()
    exact = written_out(exact_z, [other.double() for other in others])
    (exact_gradient,) = torch.autograd.grad(exact, exact_z)
    assert loss.item() == pytest.approx(exact.item(), rel=2e-6, abs=1e-7)
    scale = 1 / (TAU * len(z) * z.norm(dim=1, keepdim=True))  # largest possible gradient
    assert ((gradient - exact_gradient).abs() / scale).max() < 1e-6


@pytest.mark.usefixtures("instructions")
def test_zero_vectors_have_a_finite_gradient_and_the_cosine_zero() -> None:
    z, others = torch.zeros(3, 16), [torch.ones(3, 16), torch.zeros(3, 16)]
    loss, gradient = loss_and_gradient(z, others, mu=1.0)
    assert loss.item() == pytest.approx(torch.tensor(2.0).log().item())
    assert gradient.isfinite().all()


def test_not_a_number_spreads_to_its_sample_only() -> None:
    z, others = vectors((4, 16, 1), "random")
    z[1, 3] = float("nan")
    loss, gradient = loss_and_gradient(z, others)
    assert loss.isnan()
    assert gradient.isnan().any(dim=1).tolist() == [False, True, False, False]


def test_any_layout() -> None:
    z, others = vectors((16, 64, 1), "random")
    expected = loss_and_gradient(z, others)
    turned = [x.t().contiguous().t() for x in (z, *others)]
    actual = loss_and_gradient(turned[0], turned[1:])
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])


def test_gradient_flows_through_what_computed_z() -> None:
    z, others = vectors((16, 64, 1), "random")
    weight = torch.eye(64).requires_grad_()
    loss = model_contrastive(z @ weight, others[0], others[1:], TAU)
    (gradient,) = torch.autograd.grad(loss, weight)
    assert gradient.abs().max() > 0
    with torch.no_grad():
        assert torch.equal(model_contrastive(z, others[0], others[1:], TAU), loss)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((4, 512, 1), torch.float32),  # torch adds long sums in another order
        ((4, 10, 1), torch.float32),
        ((4, 4, 1), torch.float32),
        ((4, 16, 4), torch.float32),
        ((4, 16, 1), torch.float64),
    ],
)
def test_other_inputs_are_left_to_torch(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    z, others = vectors(shape, "random")
    z = z.to(dtype).requires_grad_()
    others = [other.to(dtype) for other in others]
    assert contrast(z, others, TAU) is None
    cosines = torch.stack([F.cosine_similarity(z, other) for other in others], dim=1)
    expected = F.cross_entropy(cosines / TAU, torch.zeros(len(z), dtype=torch.long))
    assert torch.allclose(model_contrastive(z, others[0], others[1:], TAU), expected, rtol=1e-6)


def test_representations_with_a_gradient_are_left_to_torch() -> None:
    z, others = vectors((4, 16, 1), "random")
    others[0].requires_grad_()
    assert contrast(z, others, TAU) is None
    (gradient,) = torch.autograd.grad(model_contrastive(z, others[0], others[1:], TAU), others[0])
    assert gradient.abs().max() > 0


def test_second_derivative_is_refused() -> None:
    z, others = vectors((4, 16, 1), "random")
    z.requires_grad_()
    loss = model_contrastive(z, others[0], others[1:], TAU)
    with pytest.raises(RuntimeError, match="no second derivative; set MOONFL_KERNELS=torch"):
        torch.autograd.grad(loss, z, create_graph=True)
