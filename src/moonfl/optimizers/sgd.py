"""SGD with momentum, Nesterov momentum and weight decay, as in torch.optim.SGD."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import LocalOptimizer, Slots, StepOptions


@dataclass(frozen=True)
class SGD(LocalOptimizer):
    """v = r v + g + decay w; w = w - lr v, or with nesterov w = w - lr (g + decay w + r v).

    The step is the function that torch.optim.SGD calls. The class would load torch's compiler,
    which takes over a second per process, and the checks around the function take longer than the
    step of a small model.
    """

    uses_momentum: ClassVar[bool] = True

    def init(self, param: Tensor) -> Slots:
        return (torch.zeros_like(param),)

    def step(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        slots: list[Slots],
        options: StepOptions,
    ) -> None:
        torch._fused_sgd_(
            weights,
            gradients,
            [velocity for (velocity,) in slots] if options.momentum else [],
            weight_decay=options.weight_decay,
            momentum=options.momentum,
            lr=options.lr,
            dampening=0.0,
            nesterov=options.nesterov,
            maximize=False,
            is_first_step=False,
        )
