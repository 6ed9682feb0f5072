"""MOON's contrastive loss, in native code as one node in torch's graph, or in torch.

Forward: the cosines of z and every other representation in native code, then torch's cross-entropy
of cosines / tau with the first of them as the label. Sums are added in the order of torch, so that
the loss and its gradient have the same bits as the formula in torch.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .chain import refuse_second_derivative
from .library import library

WIDTHS = range(8, 512, 4)  # of z: torch adds other sums in another order
MOST_OTHERS = 4  # the same for the sum over these
aten = torch.ops.aten


def model_contrastive(z: Tensor, z_glob: Tensor, z_prev: list[Tensor], tau: float) -> Tensor:
    """Return Eq. 3 of MOON, -log(e^{p/tau} / (e^{p/tau} + sum e^{n/tau})), averaged over the batch.

    p = cos(z, z_glob), n = cos(z, z_prev) for each previous model; all z are [B, D]. The loss is 0
    without negatives.
    """
    loss = contrast(z, [z_glob, *z_prev], tau)
    if loss is not None:
        return loss
    others = torch.stack([z_glob, *z_prev], dim=1)  # [B, 1 + k, D], the positive pair first
    logits = F.cosine_similarity(z[:, None], others, dim=2) / tau  # [B, 1 + k]
    return F.cross_entropy(logits, logits.new_zeros(len(z), dtype=torch.long))


def contrast(z: Tensor, others: Sequence[Tensor], tau: float) -> Tensor | None:
    """Return the mean over the batch of -log(e^{c_0/tau} / sum_i e^{c_i/tau}).

    c_i is the cosine of z and others[i], all [B, D]. Return None if torch must compute it.
    """
    native = library()
    if native is None or not all(_is_supported(z, other) for other in (z, *others)):
        return None
    if not 0 < len(others) <= MOST_OTHERS or any(other.requires_grad for other in others):
        return None
    apply: Callable[..., Tensor] = _Contrast.apply
    return apply(native, tau, z, *others)


def _is_supported(z: Tensor, other: Tensor) -> bool:
    """Return True if the native code can compare z with another representation."""
    if other.dtype is not torch.float32 or not other.is_cpu or other.dim() != 2:
        return False
    return other.shape == z.shape and len(z) > 0 and z.shape[1] in WIDTHS


class _Contrast(torch.autograd.Function):
    """The loss as a differentiable function of z."""

    @staticmethod
    def forward(ctx: Any, native: ctypes.CDLL, tau: float, z: Tensor, *others: Tensor) -> Tensor:
        """Return the loss."""
        n, d = z.shape
        count = len(others)
        z = z.contiguous()
        rows = [other.contiguous() for other in others]
        cosines = torch.empty((n, count), dtype=torch.float32)
        units = torch.empty((n, 1 + count, d), dtype=torch.float32)
        norms = torch.empty(n, dtype=torch.float32)
        addresses = array("q", [row.data_ptr() for row in rows])
        native.moonfl_cosines(
            z.data_ptr(),
            addresses.buffer_info()[0],
            count,
            n,
            d,
            cosines.data_ptr(),
            units.data_ptr(),
            norms.data_ptr(),
        )
        log_p = torch.log_softmax(cosines / tau, dim=1)
        positive = torch.zeros(n, dtype=torch.long)
        ctx.native = native
        ctx.tau = tau
        ctx.save_for_backward(z, units, norms, log_p, positive)
        return F.nll_loss(log_p, positive)

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of z."""
        refuse_second_derivative()
        z, units, norms, log_p, positive = (tensor.contiguous() for tensor in ctx.saved_tensors)
        n, vectors, d = units.shape
        mean = 1  # the reduction of nll_loss, by ATen's number
        total = torch.tensor(float(n), dtype=torch.float32)
        grad = aten.nll_loss_backward(loss_grad, log_p, positive, None, mean, -100, total)
        grad = aten._log_softmax_backward_data(grad, log_p, 1, torch.float32) / ctx.tau
        dz = torch.empty_like(z)
        status = ctx.native.moonfl_cosines_backward(
            z.data_ptr(),
            units.data_ptr(),
            norms.data_ptr(),
            grad.data_ptr(),
            vectors - 1,
            n,
            d,
            dz.data_ptr(),
        )
        if status != 0:
            raise MemoryError(f"no memory for the gradients of {n} samples")
        return None, None, dz, *(None for _ in range(vectors - 1))
