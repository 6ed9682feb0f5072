"""model.pt2: the model as a program of torch.export, and the proof that it is the run's model."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import RunError
from ..experiment import CUSTOM_MODEL
from ..kernels.convpool import ConvReluPool
from ..models.base import Model, with_memory_format
from ..trained_model import SAMPLES, Blueprint
from .weights import PROGRAM, WEIGHTS, Artifact, load_model, read

TOLERANCE = 1e-4  # of the largest number; native and torch's layers differ by rounding, about 1e-6 to 1e-5 of it


class Pair(nn.Module):
    """With a plain pair in the place of an Output, whose class would have to be there to load the program."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, logits = self.model(x)
        return z, logits


def write_program(path: Path, artifact: Artifact) -> None:
    made = artifact.blueprint
    model = with_memory_format(
        Pair(made.deployed(artifact.params)).cpu().eval(), torch.contiguous_format
    )
    for part in model.modules():
        if isinstance(part, Model | ConvReluPool):
            part.native = False
    zeros = torch.zeros(
        2, *made.shape, dtype=made.dtype
    )  # it is kept in the file, so it must be nobody's sample
    try:
        with quiet():
            batch = torch.export.Dim("batch")
            program = torch.export.export(
                model, (zeros,), dynamic_shapes=({0: batch},), strict=False
            )
            for node in program.graph.nodes:
                node.meta.pop("stack_trace", None)  # paths of this machine
            torch.export.save(program, path)
    except Exception as error:  # somebody's own model may be anything
        raise RunError(
            f"torch.export cannot take model={artifact.experiment.model}: {first_line(error)}"
        ) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What torch says to those who develop it is not for those who use it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@torch.no_grad()
def check(folder: Path, artifact: Artifact) -> tuple[str, float]:
    """Load both files and compare them with the run's own evaluation: on what, and the largest difference."""
    made, exp = artifact.blueprint, artifact.experiment
    own = made.network(artifact.params).cpu()
    x, kind = (
        (random_inputs(made), "random inputs")
        if made.samples is None
        else (made.samples, "samples of the data")
    )
    x = x[torch.arange(min(SAMPLES, len(x)))].cpu()
    try:
        with quiet():
            weights = (
                made.deployed(read(folder / WEIGHTS)[1]).cpu()
                if exp.model == CUSTOM_MODEL
                else load_model(folder / WEIGHTS, exp.model)
            )
            program = torch.export.load(folder / PROGRAM).module()
    except Exception as error:  # whatever is wrong with it
        raise RunError(f"what was written cannot be loaded back: {first_line(error)}") from None
    largest = 0.0
    for rows in (torch.arange(1), torch.arange(len(x))):
        wanted = own(made.preparation.batch(x, rows))
        for name, model in ((WEIGHTS, weights), (PROGRAM, program)):
            gap = difference(wanted, model(x[rows]))
            if not gap <= TOLERANCE:  # so that a NaN is refused
                raise RunError(
                    f"{name} is not the run's model: it differs by {gap:.1e}, more than {TOLERANCE:g}"
                )
            largest = max(largest, gap)
    return f"{len(x)} {kind}, one alone and all at once", largest


def difference(wanted: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> float:
    """The largest, as a share of the largest number, or of 1 where all are smaller."""
    gaps = [
        (a - b).abs().max() / a.abs().max().clamp(min=1) for a, b in zip(wanted, found, strict=True)
    ]
    return float(torch.stack(gaps).max())


def random_inputs(made: Blueprint) -> Tensor:
    rng, shape = torch.Generator().manual_seed(0), (SAMPLES, *made.shape)
    if made.dtype.is_floating_point:
        return torch.randn(shape, generator=rng, dtype=made.dtype)
    high = 256 if made.dtype == torch.uint8 else 2  # words: every vocabulary has two
    return torch.randint(high, shape, generator=rng, dtype=made.dtype)
