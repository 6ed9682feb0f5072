"""model.pt2: the model as a program of torch.export, and the check that both files are correct."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import RunError, first_line
from ..experiment import CUSTOM_MODEL
from ..kernels.convpool import ConvReluPool
from ..models.base import Model, with_memory_format
from ..trained_model import SAMPLES, Blueprint
from .artifact import PROGRAM, WEIGHTS, Artifact
from .weights import load_model, read

# Largest accepted difference, relative to the largest value. Native layers and those of torch
# differ by rounding, about 1e-6 to 1e-5.
TOLERANCE = 1e-4


class Pair(nn.Module):
    """A model that returns a plain tuple: to load a program with an Output, moonfl is needed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, logits = self.model(x)
        return z, logits


def write_program(path: Path, artifact: Artifact) -> None:
    """Write model.pt2."""
    blueprint = artifact.blueprint
    trained = Pair(blueprint.deployed(artifact.params)).cpu().eval()
    model = with_memory_format(trained, torch.contiguous_format)
    for part in model.modules():
        if isinstance(part, Model | ConvReluPool):
            part.native = False
    # The example input is stored in the file, so it must not be a sample of the data.
    example = torch.zeros(2, *blueprint.shape, dtype=blueprint.dtype)
    batch = torch.export.Dim("batch")
    try:
        with _no_warnings():
            program = torch.export.export(
                model, (example,), dynamic_shapes=({0: batch},), strict=False
            )
            for node in program.graph.nodes:
                node.meta.pop("stack_trace", None)  # it has paths of this machine
            torch.export.save(program, path)
    except Exception as error:  # user code may raise anything
        raise RunError(
            f"torch.export cannot export model={artifact.experiment.model}: {first_line(error)}"
        ) from None


@torch.no_grad()
def check_files(folder: Path, artifact: Artifact) -> tuple[str, float]:
    """Load both files and compare them with the network that the run evaluated.

    Return a description of the samples, and the largest difference of z and logits.
    """
    blueprint = artifact.blueprint
    network = blueprint.network(artifact.params).cpu()
    if blueprint.samples is None:
        kind = "random inputs"
        samples = _random_inputs(blueprint)
    else:
        kind = "samples of the data"
        number = min(SAMPLES, len(blueprint.samples))
        samples = blueprint.samples[torch.arange(number)].cpu()
    models = _load_files(folder, artifact)
    largest = 0.0
    for rows in (torch.arange(1), torch.arange(len(samples))):
        expected = network(blueprint.preparation.batch(samples, rows))
        for name, model in models.items():
            gap = _difference(expected, model(samples[rows]))
            if not gap <= TOLERANCE:  # also true if it is NaN
                raise RunError(
                    f"{name} is not the run's model: it differs by {gap:.1e}, "
                    f"more than {TOLERANCE:g}"
                )
            largest = max(largest, gap)
    return f"{len(samples)} {kind}, one alone and all at once", largest


def _load_files(folder: Path, artifact: Artifact) -> dict[str, nn.Module]:
    """Load the models of an export as a user does."""
    path = folder / WEIGHTS
    try:
        with _no_warnings():
            if artifact.experiment.model == CUSTOM_MODEL:
                _, params = read(path)
                weights = artifact.blueprint.deployed(params).cpu()
            else:
                weights = load_model(path, artifact.experiment.model)
            program = torch.export.load(folder / PROGRAM).module()
    except Exception as error:  # user code may raise anything
        raise RunError(f"an exported file cannot be loaded: {first_line(error)}") from None
    return {WEIGHTS: weights, PROGRAM: program}


def _difference(expected: tuple[Tensor, ...], actual: tuple[Tensor, ...]) -> float:
    """Return the largest difference, relative to the largest expected value or to 1."""
    differences = []
    for a, b in zip(expected, actual, strict=True):
        differences.append((a - b).abs().max() / a.abs().max().clamp(min=1))
    return float(torch.stack(differences).max())


def _random_inputs(blueprint: Blueprint) -> Tensor:
    """Return samples to check an export with, if the data cannot be read."""
    rng = torch.Generator().manual_seed(0)
    shape = (SAMPLES, *blueprint.shape)
    if blueprint.dtype.is_floating_point:
        return torch.randn(shape, generator=rng, dtype=blueprint.dtype)
    high = 256 if blueprint.dtype == torch.uint8 else 2  # token ids: every vocabulary has two
    return torch.randint(high, shape, generator=rng, dtype=blueprint.dtype)


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress warnings of torch that are meant for its developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
