"""The trained model for those who use it: samples as they are stored in, z and logits out."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from . import tree
from .data.augment import Preparation, is_pixels
from .data.images import Images
from .errors import InputError
from .types import Output, Params

SAMPLES = 100  # of the test set, kept with a model to compare by


class TrainedModel(nn.Module):
    """The preparation of samples, then the network."""

    def __init__(
        self, model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, preparation: Preparation
    ) -> None:
        """`shape` and `dtype` are those of a sample as it is stored."""
        super().__init__()
        self.model, self.shape, self.dtype = model, shape, dtype
        self.preparation = preparation if is_pixels(dtype, len(shape)) else None

    def forward(self, x: Tensor) -> Output:
        if (
            x.dtype != self.dtype or x.shape[1:] != self.shape
        ):  # pixels divided by 255 would be prepared twice
            raise InputError(
                f"the model takes samples as they are stored, {described(self.dtype, self.shape)}, "
                f"not {described(x.dtype, tuple(x.shape[1:]))}"
            )
        made: Output = self.model(x if self.preparation is None else self.preparation.normalise(x))
        return made


@dataclass(frozen=True)
class Blueprint:
    """What makes a model of its weights: the network's builder, and what a sample is to it."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a sample as it is stored
    dtype: torch.dtype
    classes: tuple[str, ...]
    preparation: Preparation
    samples: Tensor | Images | None = field(
        default=None, repr=False
    )  # a few as stored; None: none are at hand
    features: tuple[str, ...] = ()  # the columns of a table, in the order they have in a sample

    def network(self, params: Params) -> nn.Module:
        """As the run evaluates it: for samples that are prepared."""
        return tree.load(tree.build_module(self.build), params).eval()

    def deployed(self, params: Params) -> TrainedModel:
        return TrainedModel(self.network(params), self.shape, self.dtype, self.preparation).eval()


def described(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} [{', '.join(map(str, ('B', *shape)))}]"
