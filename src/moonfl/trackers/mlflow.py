"""MLflow: one MLflow run per run, in the store that MLflow's environment variables name.

By default that is the database `mlflow.db` in the current folder, and the experiment `moonfl`.
MLflow has no histograms: it gets the minimum, mean and maximum over the parties. The tracking URI
may contain a password, so only the id of the MLflow run is stored in the run directory.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from ..runs.schema import TrackerRecord
from .base import PROJECT, Status, TrackedRun, Tracker
from .metrics import RoundMetrics

STATUSES = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
MAX_BATCH = 100  # params that MLflow accepts in one request
STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "min": min,
    "mean": statistics.fmean,
    "max": max,
}


class MLflow(Tracker):
    """Logs metrics, parameters and the report to an MLflow run."""

    def start(self, run: TrackedRun, stored: TrackerRecord | None) -> TrackerRecord:
        """Create an MLflow run, or continue the stored one."""
        self.client = MlflowClient()
        self.last: dict[str, int] = {}  # the last round of each metric that MLflow has
        if stored is not None and self._continue(stored.id):
            self.id = stored.id
            return TrackerRecord(id=self.id, rounds=min(self.last.values(), default=0))
        self.id = self._create(run)
        return TrackerRecord(id=self.id, rounds=0)

    def _continue(self, run_id: str) -> bool:
        """Find out which metrics an existing run has; return False if it does not exist."""
        try:
            metrics = self.client.get_run(run_id).data.metrics
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        for key in metrics:
            history = self.client.get_metric_history(run_id, key)
            self.last[key] = max(metric.step for metric in history)
        self.client.set_terminated(run_id, "RUNNING")
        return True

    def _create(self, run: TrackedRun) -> str:
        """Create a run with the settings as parameters, and return its id."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            try:
                experiment_id = self.client.create_experiment(name)
            except MlflowException:  # another process was faster
                experiment = self.client.get_experiment_by_name(name)
        if experiment is not None:
            experiment_id = experiment.experiment_id
        created = self.client.create_run(experiment_id, run_name=run.name)
        run_id = str(created.info.run_id)
        params = [Param(key, str(value)) for key, value in run.settings.items()]
        for first in range(0, len(params), MAX_BATCH):
            self.client.log_batch(run_id, params=params[first : first + MAX_BATCH])
        tags = [RunTag("directory", str(run.directory.resolve())), RunTag("group", run.group)]
        self.client.log_batch(run_id, tags=tags)
        return run_id

    def log(self, round: int, metrics: RoundMetrics) -> None:
        """Log the metrics of a round that MLflow does not have, in one request."""
        values = dict(metrics.values)
        for key, by_party in metrics.parties.items():
            for name, function in STATISTICS.items():
                values[f"parties/{key}/{name}"] = function(by_party)
        self._log({k: v for k, v in values.items() if self.last.get(k, 0) < round}, round)

    def _log(self, values: Mapping[str, float], round: int) -> None:
        now = int(1000 * time.time())
        metrics = [Metric(key, float(value), now, round) for key, value in values.items()]
        if metrics:
            self.client.log_batch(self.id, metrics=metrics)
            self.last |= dict.fromkeys(values, round)

    def finish(self, summary: Mapping[str, float], report: Path) -> None:
        """Log the final metrics, and the report as artifacts."""
        values = {f"final/{key}": value for key, value in summary.items()}
        last = max(self.last.values(), default=0)
        self._log({key: value for key, value in values.items() if key not in self.last}, last)
        self.client.log_artifacts(self.id, str(report), "report")

    def close(self, status: Status) -> None:
        """Set the status of the MLflow run."""
        self.client.set_terminated(self.id, STATUSES[status])
