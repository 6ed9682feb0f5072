"""Weights & Biases: one W&B run per run, configured by W&B's environment variables.

WANDB_MODE=offline stores it in the folder `wandb` of the run directory; `wandb sync` uploads it
later. A killed process loses rounds that W&B had not yet written, so a resumed run asks the server,
or reads the offline files, which rounds there are.
"""

import multiprocessing
import os
import struct
import uuid
from collections.abc import Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path

import wandb
from wandb.proto import wandb_internal_pb2

from ..runs.schema import TrackerRecord
from .base import PROJECT, Status, TrackedRun, Tracker
from .metrics import RoundMetrics

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}
FINISH_TIMEOUT = 60  # seconds to wait for uploads at the end; `wandb sync` uploads the rest
# The offline files have the format of LevelDB's logs: blocks of parts with a header of CRC, length
# and kind. A record is one complete part, or several from a first to a last one.
FILE_HEADER = 7
PART_HEADER = struct.Struct("<IHB")
BLOCK = 32768
COMPLETE, LAST = 1, 4


class WeightsAndBiases(Tracker):
    """Logs metrics, histograms, settings and the report to a W&B run."""

    def start(self, run: TrackedRun, stored: TrackerRecord | None) -> TrackerRecord:
        """Start a W&B run, or continue the one with the stored id."""
        run_id = uuid.uuid4().hex[:12] if stored is None else stored.id
        folder = Path(os.environ.get("WANDB_DIR", run.directory))
        rounds = 0
        if stored is not None:
            rounds = stored.rounds if stored.closed else last_offline_round(folder, run_id)
        if multiprocessing.parent_process() is not None:
            # Such a process ends without calling W&B's exit handler, which waits for its service.
            Finalize(None, wandb.teardown, exitpriority=0)
        settings = wandb.Settings(console="off")
        if "WANDB_FINISH_TIMEOUT" not in os.environ:
            settings.finish_timeout = FINISH_TIMEOUT
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", run.name),
            group=os.environ.get("WANDB_RUN_GROUP", run.group),
            config=dict(run.settings),
            id=run_id,
            dir=str(folder),
            resume="allow",
            reinit="create_new",
            settings=settings,
        )
        # The server knows the next step of a run that it has.
        return TrackerRecord(id=run_id, rounds=max(rounds, self.run.step - 1, 0))

    def log(self, round: int, metrics: RoundMetrics) -> None:
        """Log the metrics of a round, with a histogram over the parties of each of theirs."""
        values: dict[str, object] = dict(metrics.values)
        for key, by_party in metrics.parties.items():
            values[f"parties/{key}"] = wandb.Histogram(by_party)
        self.run.log(values, step=round, commit=True)

    def finish(self, summary: Mapping[str, float], report: Path) -> None:
        """Log the final metrics, and the report as an artifact."""
        self.run.summary.update({f"final/{key}": value for key, value in summary.items()})
        artifact = wandb.Artifact(f"report-{self.run.id}", type="report")
        artifact.add_dir(str(report))
        self.run.log_artifact(artifact)

    def close(self, status: Status) -> None:
        """Wait until everything is written and end the W&B run."""
        self.run.finish(exit_code=EXIT_CODES[status])


def last_offline_round(folder: Path, run_id: str) -> int:
    """Return the last round in the offline files of a W&B run; 0 if there is none."""
    rounds = [0]
    for path in offline_files(folder, run_id):
        for record in offline_records(path):
            if record.WhichOneof("record_type") == "history":
                rounds.append(record.history.step.num)
    return max(rounds)


def offline_files(folder: Path, run_id: str) -> list[Path]:
    """Return the offline files of a W&B run, the oldest first.

    W&B appends a number to the name of a folder that another of the same second has.
    """
    return sorted(folder.glob(f"wandb/offline-run-*-{run_id}*/run-{run_id}.wandb"))


def offline_records(path: Path) -> Iterator[wandb_internal_pb2.Record]:
    """Yield the complete records of an offline file; the end may be missing."""
    data = path.read_bytes()
    position = FILE_HEADER
    parts = b""
    while position + PART_HEADER.size <= len(data):
        rest_of_block = BLOCK - position % BLOCK
        if rest_of_block < PART_HEADER.size:
            position += rest_of_block
            continue
        _, length, kind = PART_HEADER.unpack_from(data, position)
        position += PART_HEADER.size
        if position + length > len(data):
            return
        parts += data[position : position + length]
        position += length
        if kind in (COMPLETE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record
