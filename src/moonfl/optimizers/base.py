"""LocalOptimizer: the base class of the optimizers that parties train with, and one step of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import RunError

Slots = tuple[Tensor, ...]  # what an optimizer remembers of one parameter, such as its velocity


class StepOptions(NamedTuple):
    """The settings of an experiment that every local step of a round uses."""

    lr: float  # the scheduled learning rate of the round
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    grad_clip: float | None = None  # largest norm of the gradient over all parameters


@dataclass(frozen=True)
class LocalOptimizer:
    """Changes the weights of a party in every batch. Its fields are the hyperparameters.

    Nothing is stored on `self`: what must survive a step is in the slots of each parameter. They
    are created anew in every round.
    """

    label: ClassVar[str] = "LocalOptimizer"  # as papers write it; by default the class name
    uses_momentum: ClassVar[bool] = False  # whether it uses the settings momentum and nesterov

    def __init_subclass__(cls) -> None:
        """Set the default label."""
        if "label" not in vars(cls):
            cls.label = cls.__name__

    def init(self, param: Tensor) -> Slots:
        """Return the slots of a parameter before the first step of a round."""
        return ()

    def step(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        slots: list[Slots],
        options: StepOptions,
    ) -> None:
        """Change weights and slots in place. The lists have one entry per parameter.

        All weights have the same dtype. Parameters without a gradient are left out.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step")


@torch.no_grad()
def take_step(
    optimizer: LocalOptimizer,
    params: Sequence[Tensor],
    slots: list[Slots],
    options: StepOptions,
) -> None:
    """Clip the gradients if required, then take a step for all parameters that have one."""
    groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor], list[Slots]]] = {}
    for param, own_slots in zip(params, slots, strict=True):
        if param.grad is not None:
            if param.grad.is_sparse:
                raise RunError(
                    "the model has a sparse gradient, which local optimizers do not support; "
                    "create its nn.Embedding with sparse=False"
                )
            weights, gradients, group_slots = groups.setdefault(param.dtype, ([], [], []))
            weights.append(param)
            gradients.append(param.grad)
            group_slots.append(own_slots)
    if options.grad_clip is not None:
        nn.utils.clip_grad_norm_(params, options.grad_clip)
    for weights, gradients, group_slots in groups.values():
        optimizer.step(weights, gradients, group_slots, options)
