"""The trackers by name, and the check that their libraries are installed. Does not import torch."""

import importlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..errors import InputError, first_line, unknown
from .base import Tracker


@dataclass(frozen=True)
class Entry:
    """Where a tracker is defined, and the library that it needs."""

    target: str  # module of this package and class
    library: str  # the module to import; `pip install 'moonfl[NAME]'` installs it


TRACKERS = {
    "tensorboard": Entry("tensorboard:TensorBoard", "tensorboard"),
    "wandb": Entry("wandb:WeightsAndBiases", "wandb"),
    "mlflow": Entry("mlflow:MLflow", "mlflow"),
}


def check_trackers(track: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of trackers, each once, and check that their libraries are installed."""
    if isinstance(track, str):
        track = (track,)
    if not isinstance(track, Collection) or not all(isinstance(name, str) for name in track):
        raise InputError(
            f"track must be the name of a tracker ({', '.join(TRACKERS)}) or a list of names, "
            f"got {track!r}"
        )
    names = tuple(dict.fromkeys(track))
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        library = TRACKERS[name].library
        try:
            importlib.import_module(library)
        except Exception as error:  # an installed library may fail in any way
            raise InputError(
                f"track={name} needs the library {library}, which cannot be imported "
                f"({first_line(error)}); install it with pip install 'moonfl[{name}]', or run "
                "without tracking"
            ) from None
    return names


def make_tracker(name: str) -> Tracker:
    """Return a new tracker."""
    module, _, cls = TRACKERS[name].target.partition(":")
    tracker: Tracker = getattr(importlib.import_module(f".{module}", __package__), cls)()
    return tracker
