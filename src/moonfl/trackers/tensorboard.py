"""TensorBoard: event files in the folder `tensorboard` of the run directory.

`tensorboard --logdir DIR` shows all runs below DIR. TensorBoard has no artifacts, so the tables of
the report become texts and its figures images.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from ..runs.schema import TrackerRecord
from .base import Status, TrackedRun, Tracker
from .metrics import RoundMetrics

FOLDER = "tensorboard"
EVENTS = "events.out.tfevents.*"


class TensorBoard(Tracker):
    """Writes scalars, histograms, hyperparameters, texts and images to event files."""

    def start(self, run: TrackedRun, stored: TrackerRecord | None) -> TrackerRecord:
        """Open a new event file; TensorBoard ignores later rounds of the files before it."""
        self.run = run
        self.rounds = 0
        folder = run.directory / FOLDER
        if stored is None:
            for path in folder.glob(EVENTS):  # of a run that this one replaces
                path.unlink()
        else:
            self.rounds = stored.rounds
            wait_for_new_name(folder)
        purge = self.rounds + 1 if stored is not None else None
        self.writer = SummaryWriter(str(folder), purge_step=purge)
        if stored is None:
            lines = [f"| `{key}` | `{value}` |" for key, value in run.settings.items()]
            self.writer.add_text("settings", "\n".join(["| key | value |", "|---|---|", *lines]))
        self.writer.flush()
        return TrackerRecord(id=FOLDER, rounds=self.rounds)

    def log(self, round: int, metrics: RoundMetrics) -> None:
        """Write the metrics of a round."""
        for key, value in metrics.values.items():
            self.writer.add_scalar(key, value, round)
        for key, values in metrics.parties.items():
            self.writer.add_histogram(f"parties/{key}", np.array(values, dtype=float), round)
        self.writer.flush()
        self.rounds = round

    def finish(self, summary: Mapping[str, float], report: Path) -> None:
        """Write hyperparameters with the final metrics, and the report as texts and images."""
        final = {f"final/{key}": value for key, value in summary.items()}
        self.writer.add_hparams(dict(self.run.settings), final, run_name=".")
        for path in sorted(report.glob("*.md")):
            text = path.read_text(encoding="utf-8")
            self.writer.add_text(f"report/{path.stem}", text, self.rounds)
        for path in sorted(report.glob("*.png")):
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            self.writer.add_image(f"report/{path.stem}", pixels, self.rounds, dataformats="HWC")

    def close(self, status: Status) -> None:
        """Write what is pending and close the event file."""
        self.writer.close()


def wait_for_new_name(folder: Path) -> None:
    """Wait until no event file has the current second in its name.

    TensorBoard reads files in the order of their names, so that of a resumed run must come last.
    """
    seconds = {int(path.name.split(".")[3]) for path in folder.glob(EVENTS)}
    while int(time.time()) in seconds:
        time.sleep(0.05)
