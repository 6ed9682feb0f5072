"""The library's front door."""

from collections.abc import Callable
from pathlib import Path

from .engines.embedded import Embedded
from .experiment import Experiment
from .federation import run as run_federation
from .record import Fact, Recorder, Result, new_directory
from .task import make_task


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    force: bool = False,
    watch: Callable[[Fact], None] = lambda fact: None,
) -> Result:
    """Run an experiment; with `out`, keep its facts in that directory. `watch` is called with each round's facts."""
    task = make_task(experiment)
    directory = None if out is None else new_directory(Path(out), force)
    recorder = Recorder(experiment, task, directory, watch)
    server = run_federation(experiment, task, Embedded(experiment, task), recorder)
    return Result(experiment, recorder.facts, server.params | server.buffers, directory)
