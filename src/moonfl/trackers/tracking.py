"""Tracking of one run: starts its trackers, feeds them, and isolates the run from their failures.

A tracker that fails is reported once and left out for the rest of the run. trackers.json in the run
directory has the id of each tracker's run, so that a resumed run continues it: rounds that the
tracker lacks are logged from the records, and rounds that it has are not logged again.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import InputError, first_line, notify
from ..experiment import Experiment, to_dict
from ..report.build import write as write_report
from ..report.runs import flatten
from ..runs.directory import TRACKERS_FILE
from ..runs.files import write_atomically
from ..runs.index import read_file
from ..runs.result import Result
from ..runs.schema import RoundRecord, TrackersRecord, decode, encode
from .base import Status, TrackedRun, Tracker
from .metrics import is_number, round_metrics
from .table import make_tracker


class Tracking:
    """The trackers of a run."""

    def __init__(self, exp: Experiment, directory: Path) -> None:
        self.run = TrackedRun(directory, flatten(to_dict(exp)))
        self.trackers: dict[str, Tracker] = {}
        self.record = TrackersRecord(trackers={})

    def start(self, names: Sequence[str], records: Sequence[RoundRecord]) -> None:
        """Start the trackers and log the rounds of a resumed run that they lack."""
        with self._reported("the file of trackers"):
            self.record = read_trackers(self.run.directory)
        for name in names:
            stored = self.record.trackers.get(name)
            if stored is not None and stored.finished:
                continue  # a finished run was resumed, or its last rounds are repeated
            with self._reported(name):
                tracker = make_tracker(name)
                self.record.trackers[name] = tracker.start(self.run, stored)
                self.trackers[name] = tracker
        self._save()
        for record in records:
            self._log(record)
        self._save()

    def log(self, record: RoundRecord) -> None:
        """Log a round."""
        self._log(record)
        self._save()

    def finish(self, result: Result) -> None:
        """Log the final metrics and the report."""
        if not self.trackers:
            return
        summary = {key: value for key, value in result.summary().items() if is_number(value)}
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder)
            with self._reported("the report"):
                write_report([self.run.directory], report)
            for name, tracker in list(self.trackers.items()):
                with self._reported(name):
                    tracker.finish(summary, report)
                    self.record.trackers[name].finished = True
        self._save()

    def close(self, status: Status) -> None:
        """Close the trackers."""
        for name, tracker in list(self.trackers.items()):
            with self._reported(name):
                tracker.close(status)
                self.record.trackers[name].closed = True
        self._save()
        self.trackers.clear()

    def _log(self, record: RoundRecord) -> None:
        """Log a round with the trackers that do not have it."""
        metrics = round_metrics(record)
        for name, tracker in list(self.trackers.items()):
            entry = self.record.trackers[name]
            if entry.rounds < record.round:
                with self._reported(name):
                    tracker.log(record.round, metrics)
                    entry.rounds = record.round

    def _save(self) -> None:
        """Store the ids of the trackers' runs and the rounds that they have."""
        if self.trackers:
            with self._reported("the file of trackers"):
                write_atomically(self.run.directory / TRACKERS_FILE, encode(self.record))

    @contextlib.contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Report any exception in this block once, and drop the tracker with this name."""
        try:
            yield
        except Exception as error:
            failed = self.trackers.pop(name, None)
            notify(
                f"moonfl: tracking with {name} failed ({first_line(error)}); the run continues "
                "without it"
            )
            if failed is not None:
                with contextlib.suppress(Exception):
                    failed.close("failed")


@contextlib.contextmanager
def tracking(
    names: Sequence[str],
    exp: Experiment,
    directory: Path | None,
    records: Sequence[RoundRecord],
) -> Iterator[Tracking | None]:
    """Track a run inside this block; None if there is nothing to track."""
    if not names or directory is None:
        yield None
        return
    trackers = Tracking(exp, directory)
    status: Status = "interrupted"
    try:
        trackers.start(names, records)
        yield trackers
        status = "finished"
    except Exception:
        status = "failed"
        raise
    finally:
        trackers.close(status)


def read_trackers(directory: Path) -> TrackersRecord:
    """Return what the run directory stores about trackers."""
    path = directory / TRACKERS_FILE
    if not path.exists():
        return TrackersRecord(trackers={})
    try:
        return decode(read_file(path), TrackersRecord, path.name)
    except InputError as error:
        raise InputError(f"{path} is damaged ({error}): the trackers start new runs") from None
