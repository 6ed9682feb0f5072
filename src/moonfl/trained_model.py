"""The trained model, ready for use: it takes samples as they are stored and returns (z, logits).

During training and evaluation a network receives samples that are already prepared (scaled and
normalised). A `TrainedModel` includes this preparation. A `Blueprint` builds both from weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from . import tree
from .data.augment import Preparation, is_pixels
from .data.encoding import Encode
from .data.images import Images
from .errors import InputError
from .numerics import standard_settings
from .types import Output, Params

SAMPLES = 100  # number of test samples stored with a result, to check an export on


class TrainedModel(nn.Module):
    """A network with the preparation of its samples."""

    def __init__(self, model: nn.Module, blueprint: "Blueprint") -> None:
        """Wrap a network of this blueprint."""
        super().__init__()
        self.model = model
        self.shape = blueprint.shape
        self.dtype = blueprint.dtype
        self.classes = blueprint.classes
        self.features = blueprint.features
        self.task = blueprint.task
        preparation = blueprint.preparation
        self.preparation = preparation if is_pixels(self.dtype, len(self.shape)) else None
        self.encoding = preparation.encoding
        self.encode: nn.Module = nn.Identity()
        if self.encoding is not None:
            self.encode = Encode(self.encoding, self.dtype)

    def forward(self, x: Tensor) -> Output:
        if not isinstance(x, Tensor):
            raise InputError(
                f"the model takes a tensor, got {type(x).__name__}; pass "
                "torch.as_tensor(x), or use moonfl.predict, which takes arrays and data frames"
            )
        # Without this check pixels that were already divided by 255 would be scaled twice.
        if x.dtype != self.dtype or x.shape[1:] != self.shape:
            raise InputError(
                f"the model takes samples as they are stored, {describe(self.dtype, self.shape)}, "
                f"got {describe(x.dtype, tuple(x.shape[1:]))}"
            )
        if self.preparation is not None:
            x = self.preparation.normalise(x)
        output: Output = self.model(self.encode(x))
        return output


@dataclass(frozen=True)
class Blueprint:
    """The network without its weights, and the samples that it takes."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a stored sample
    dtype: torch.dtype
    classes: tuple[str, ...]
    preparation: Preparation
    samples: Tensor | Images | None = field(default=None, repr=False)  # a few stored samples
    features: tuple[str, ...] = ()  # column names of a table, in the order of a sample
    task: str = "classification"  # or "regression" or "multilabel"

    @standard_settings()
    def network(self, params: Params) -> nn.Module:
        """Return the network with these weights, for samples that are already prepared."""
        return tree.load(tree.build_module(self.build), params).eval()

    def deployed(self, params: Params) -> TrainedModel:
        """Return the trained model with these weights, for samples as they are stored."""
        return TrainedModel(self.network(params), self).eval()


def describe(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Describe a batch of samples, as in "uint8 [B, 3, 32, 32]"."""
    sizes = ", ".join(map(str, ("B", *shape)))
    return f"{str(dtype).removeprefix('torch.')} [{sizes}]"
