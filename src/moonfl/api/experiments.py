"""Run an experiment and resume a run: moonfl.run and moonfl.resume."""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path

import torch

from ..engines import Engine, check_workers, make_engine
from ..errors import InputError, notify
from ..experiment import Experiment, Trust
from ..federation import run as run_federation
from ..numerics import standard_settings
from ..personal import deployed
from ..runs import checkpoint
from ..runs.checkpoint import Checkpoint
from ..runs.choices import implementation_choices
from ..runs.directory import (
    check_data,
    finish_replacement,
    is_run_over_sites,
    locked,
    new_directory,
    read_experiment,
    read_partition,
    read_rounds,
    record_divergence,
    roll_back,
    update_code,
    update_versions,
)
from ..runs.index import CHECKPOINT
from ..runs.progress import Progress, in_notebook
from ..runs.recorder import Recorder
from ..runs.recovery import IN_PYTHON, recovery_hints
from ..runs.result import Result, Watch, ignore
from ..runs.schema import RoundRecord
from ..runs.states import States
from ..runs.stopping import is_finished
from ..task import Task, check_task, make_task, with_derived_settings, with_noise
from ..trackers.table import check_trackers
from ..trackers.tracking import tracking
from ..types import Params, Server

EngineFactory = Callable[[Experiment, Task, States], Engine]


@dataclass(frozen=True)
class Execution:
    """How a run is executed; none of it changes the result."""

    workers: int | None = None  # processes that train parties; None: one per core
    state_memory: int | None = None  # bytes of party states in memory; None: a quarter of the free
    watch: Watch = ignore  # called with the record of each round
    before_analysis: Watch = ignore  # called with the last record, before the final analysis
    engine: EngineFactory | None = None  # trains elsewhere than in processes of this machine
    trust: Trust = False  # whether code that only a run directory names may be executed
    track: str | Sequence[str] = ()  # names of trackers that the metrics are copied to
    progress: bool = False  # whether the progress is shown, in addition to `watch`

    def check(self) -> None:
        """Check the types and ranges of what the user passed."""
        check_workers(self.workers)
        memory = self.state_memory
        if memory is not None and not (isinstance(memory, Real) and memory >= 0):
            raise InputError(f"state_memory must be a number of bytes >= 0, got {memory!r}")
        if not callable(self.watch):
            raise InputError(
                "watch must be a function that takes the record of a round, such as print, "
                f"got {self.watch!r}"
            )
        if self.engine is not None and not callable(self.engine):
            raise InputError(f"engine must be a function that returns one, got {self.engine!r}")
        check_trackers(self.track)

    def make_engine(self, exp: Experiment, task: Task, states: States) -> Engine:
        """Return the engine of a run."""
        if self.engine is not None:
            return self.engine(exp, task, states)
        return make_engine(exp, task, self.workers, states)


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    force: bool = False,
    workers: int | None = None,
    state_memory: int | None = None,
    task: Task | None = None,
    watch: Watch = ignore,
    engine: EngineFactory | None = None,
    track: str | Sequence[str] = (),
    progress: bool | None = None,
) -> Result:
    """Run an experiment and return its result.

    - `out`: the run directory; None: the run is not stored.
    - `force`: replace an existing run in `out`.
    - `workers`: the number of processes that train parties, by default one per core. It does not
      change the results.
    - `state_memory`: the number of bytes above which party states are stored on disk, by default
      a quarter of the free memory. It does not change the results.
    - `task`: what `make_task` returned for the experiment, if it is available.
    - `watch`: a function that is called with the record of each round.
    - `engine`: a function that creates an engine which trains elsewhere than in processes of this
      machine.
    - `track`: "tensorboard", "wandb" or "mlflow", or several of them: metrics are copied there. It
      needs `out`, and does not change the results.
    - `progress`: show a progress bar, or one line per round if stderr is no terminal; None: in
      notebooks only.

    Runs in several threads of a process take turns, one party at a time; to run in parallel they
    need processes.
    """
    if not isinstance(experiment, Experiment):
        raise InputError(
            f"moonfl.run takes an Experiment, got {experiment!r}; pass moonfl.Experiment(...), or "
            "a preset as PRESETS['digits-moon'].experiment from moonfl.presets"
        )
    options = Execution(
        workers=workers,
        state_memory=state_memory,
        watch=watch,
        engine=engine,
        track=track,
        progress=in_notebook() if progress is None else progress,
    )
    with recovery_hints(IN_PYTHON, out):
        return start_run(experiment, out, force=force, task=task, options=options)


def resume(
    directory: str | Path,
    *,
    previous: bool = False,
    data_dir: str | None = None,
    workers: int | None = None,
    state_memory: int | None = None,
    task: Task | None = None,
    watch: Watch = ignore,
    engine: EngineFactory | None = None,
    trust: bool = False,
    track: str | Sequence[str] = (),
    progress: bool | None = None,
) -> Result:
    """Resume an interrupted run (bit-identical); `previous`: from the checkpoint before the newest.

    A finished run is read, not run again. `data_dir`: the new location of data that were moved.
    `trust`: execute the method or model that experiment.toml names, if it is not part of moonfl and
    is not imported yet. `track`: copy metrics to trackers, as in `run`; their runs are continued.
    `progress`: show the progress, as in `run`.
    """
    options = Execution(
        workers=workers,
        state_memory=state_memory,
        watch=watch,
        engine=engine,
        trust=trust,
        track=track,
        progress=in_notebook() if progress is None else progress,
    )
    with recovery_hints(IN_PYTHON, directory):
        return resume_run(
            directory, previous=previous, data_dir=data_dir, task=task, options=options
        )


@standard_settings()
def start_run(
    experiment: Experiment,
    out: str | Path | None,
    *,
    force: bool = False,
    task: Task | None,
    options: Execution,
) -> Result:
    """Run an experiment like `run`, without recovery hints in errors."""
    if out is not None:
        check_directory("out", out)
    options.check()
    if options.track and out is None:
        raise InputError("track needs a run directory; pass out=DIR")
    task = make_task(experiment) if task is None else task
    check_task(experiment, task)
    exp = with_derived_settings(experiment, task)
    task.check_images()
    task.notify_duplicates()
    with contextlib.ExitStack() as stack:
        directory = None
        if out is not None:
            choices = implementation_choices(exp, task)
            directory = stack.enter_context(new_directory(Path(out), force, exp, task, choices))
        recorder = Recorder(
            exp,
            task,
            watch=options.watch,
            before_analysis=options.before_analysis,
            directory=directory,
            states=States(options.state_memory, directory and directory / CHECKPOINT),
        )
        return _train(recorder, options, None)


@standard_settings()
def resume_run(
    directory: str | Path,
    *,
    previous: bool = False,
    data_dir: str | None = None,
    task: Task | None = None,
    options: Execution,
) -> Result:
    """Resume a run like `resume`, without recovery hints in errors."""
    check_directory("directory", directory)
    options.check()
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError(f"{directory} holds no run: there is no such folder")
    if options.engine is None and is_run_over_sites(directory):
        raise InputError(
            f"{directory} is a run over Flower sites; "
            f"`moonfl flower run DEPLOYMENT --out {directory} --resume` resumes it"
        )
    with locked(directory):
        finish_replacement(directory)
        exp = read_experiment(directory, trust=options.trust)
        if data_dir is not None:
            exp = replace(exp, data_dir=data_dir)
        if task is None:
            task = make_task(exp, dtype=stored_dtype(directory))
        exp = with_task_location(exp, task)
        check_task(exp, task)
        folder = directory / CHECKPOINT
        saved = checkpoint.read(folder, exp, previous)
        check_same_model(directory, saved, *task.init_shared(exp.seed))
        records = read_rounds(directory, saved.rounds if saved else 0)
        task.check_images()
        check_data(directory, exp, task)
        if not is_finished(exp.rounds, exp.patience, records):
            with_noise(exp)  # is set; without the accountant the last round would fail
            announce_changes(directory, exp, len(records) + 1)
        folder.mkdir(exist_ok=True)
        selected = None
        if saved is not None and saved.selected is not None:
            selected = deployed(exp, saved.selected)
        roll_back(directory, records, exp, selected)
        states = States(options.state_memory, folder)
        outdated = checkpoint.clean(folder)
        if saved is not None:
            states.restore(saved.parties, saved.log_size, outdated)
        recorder = Recorder(
            exp,
            task,
            watch=options.watch,
            before_analysis=options.before_analysis,
            directory=directory,
            states=states,
            records=records,
            selected_models=selected,
        )
        return _train(recorder, options, saved)


def check_directory(key: str, directory: object) -> None:
    """Check that a value names a directory."""
    if not isinstance(directory, str | os.PathLike) or directory == "":
        raise InputError(f"{key} must be the path of a directory, got {directory!r}")


def with_task_location(exp: Experiment, task: Task) -> Experiment:
    """Return the experiment with the device and the location of the data that a task was made for.

    Both may change when a run is resumed: they do not affect the result.
    """
    if not isinstance(task, Task) or task.experiment is None:
        return exp
    return replace(exp, device=task.experiment.device, data_dir=task.experiment.data_dir)


def stored_dtype(directory: Path) -> torch.dtype | None:
    """Return float32 if a run began with such samples; older versions read all floats as float32.

    Return None for samples of any other type, which are read as they are stored.
    """
    return torch.float32 if read_partition(directory).dtype == "float32" else None


def announce_changes(directory: Path, exp: Experiment, next_round: int) -> None:
    """Store and print which software versions and user-supplied code changed since a run began."""
    changes = update_versions(directory, next_round)
    if changes:
        notify(
            f"moonfl: {', '.join(changes)} since the run began; "
            "the result may differ in the last digits"
        )
    for name in update_code(directory, exp, next_round):
        notify(
            f"moonfl: the file that defines {name} has changed since the run began; rounds from "
            f"{next_round} on are trained with the new code"
        )


def check_same_model(
    directory: Path, saved: Checkpoint | None, params: Params, buffers: Params
) -> None:
    """Check that the model has the weights and buffers of the checkpoint."""
    if saved is None:
        return
    old: Server = saved.server
    if shapes(old.params) != shapes(params) or shapes(old.buffers) != shapes(buffers):
        raise InputError(
            f"the weights or buffers of the model have other shapes than those in {directory}; "
            "pass the model that the run was started with"
        )


def shapes(params: Params) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in params.items()}


def _train(recorder: Recorder, options: Execution, saved: Checkpoint | None) -> Result:
    """Run the remaining rounds."""
    exp = recorder.exp
    server = saved.server if saved else None
    with contextlib.ExitStack() as stack:
        engine = None
        if server is None or not is_finished(exp.rounds, exp.patience, recorder.records):
            engine = options.make_engine(exp, recorder.task, recorder.states)
            stack.enter_context(contextlib.closing(engine))
            stack.enter_context(record_divergence(recorder.directory))
        trackers = stack.enter_context(
            tracking(check_trackers(options.track), exp, recorder.directory, recorder.records)
        )
        if trackers is not None:
            recorder.watch = both(trackers.log, recorder.watch)
        if engine is not None:
            if options.progress:
                show_progress(recorder, stack)
            server = run_federation(exp, recorder.task, engine, recorder, server)
        assert server is not None
        result = recorder.result(server)
        if trackers is not None:
            trackers.finish(result)
        return result


def show_progress(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Show the progress of a run until the stack is closed."""
    exp = recorder.exp
    progress = stack.enter_context(Progress(exp.rounds, shows_lr=exp.has_schedule))
    recorder.watch = both(recorder.watch, progress)
    recorder.before_analysis = both(recorder.before_analysis, progress.before_analysis)


def both(first: Watch, second: Watch) -> Watch:
    """Return a function that passes the record of a round to both functions, in this order."""

    def watch(record: RoundRecord) -> None:
        first(record)
        second(record)

    return watch
