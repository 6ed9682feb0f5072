"""The interface of a tracker, and what it learns of a run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..runs.schema import TrackerRecord
from .metrics import RoundMetrics

PROJECT = "moonfl"  # project or experiment of the tracker, unless its environment names another
Status = Literal["finished", "failed", "interrupted"]
Value = str | int | float | bool


@dataclass(frozen=True)
class TrackedRun:
    """A run as its trackers see it."""

    directory: Path
    settings: Mapping[str, Value]  # flat: "rounds", "algorithm.mu", ...

    @property
    def name(self) -> str:
        """Return the name of the run: that of its directory."""
        return self.directory.resolve().name

    @property
    def group(self) -> str:
        """Return the name of the folder with this run, which all runs of a sweep share."""
        return self.directory.resolve().parent.name


class Tracker(ABC):
    """Copies a run to one library. Every method may raise any exception."""

    @abstractmethod
    def start(self, run: TrackedRun, stored: TrackerRecord | None) -> TrackerRecord:
        """Start a run of the tracker, or continue the stored one.

        Return its id and how many rounds it has for certain; the following ones will be logged.
        A run that the tracker no longer has is started anew.
        """

    @abstractmethod
    def log(self, round: int, metrics: RoundMetrics) -> None:
        """Log a round, durably enough that it survives the end of this process."""

    @abstractmethod
    def finish(self, summary: Mapping[str, float], report: Path) -> None:
        """Log the final metrics and the report, a folder with report.html."""

    @abstractmethod
    def close(self, status: Status) -> None:
        """Write what is pending and release processes and files."""
