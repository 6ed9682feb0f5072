"""Adam and AdamW for local training, as in torch.optim.

Kingma, Ba, Adam: A Method for Stochastic Optimization, ICLR 2015. https://arxiv.org/abs/1412.6980
Loshchilov, Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
https://arxiv.org/abs/1711.05101
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..settings import setting
from .base import LocalOptimizer, Slots, StepOptions


@dataclass(frozen=True)
class Adam(LocalOptimizer):
    """w = w - lr m' / (sqrt(v') + eps), with the bias-corrected moments m' and v' of the gradient.

    Weight decay is added to the gradient.
    """

    fused_step: ClassVar[Callable[..., Any]] = torch._fused_adam_

    beta1: float = setting(0.9, "decay of the first moment", low=0, below=1)
    beta2: float = setting(0.999, "decay of the second moment", low=0, below=1)
    eps: float = setting(1e-8, "added to the root of the second moment", above=0)

    def init(self, param: Tensor) -> Slots:
        steps = torch.zeros((), dtype=torch.float32, device=param.device)
        return torch.zeros_like(param), torch.zeros_like(param), steps

    def step(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        slots: list[Slots],
        options: StepOptions,
    ) -> None:
        first, second, steps = (list(column) for column in zip(*slots, strict=True))
        torch._foreach_add_(steps, 1)
        type(self).fused_step(
            weights,
            gradients,
            first,
            second,
            [],
            steps,
            lr=options.lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=options.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w = (1 - lr decay) w before the step of Adam."""

    fused_step: ClassVar[Callable[..., Any]] = torch._fused_adamw_
