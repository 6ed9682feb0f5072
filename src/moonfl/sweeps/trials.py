"""Trials: Optuna proposes settings, and stops runs that are worse than the median of the others.

Trials run one after the other, because each proposal depends on the results before it. The sampler
of trial k is seeded with (seed, k) and sees completed trials only. A sweep that was killed
therefore repeats the same proposals, and finds what it has trained in the same run directories.

A setting may be proposed again, or be trained already by another sweep. If the runs of all seeds
have ended, their score counts: stopping the trial would save nothing.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.named_runs import REPEAT_HINTS, ended_run, read_ended_run
from ..errors import InputError, first_line, notify
from ..experiment import fingerprint
from ..report.runs import Run, read_run
from ..runs.directory import is_readable_run
from ..runs.schema import RoundRecord
from ..task import DatasetCache
from .execution import Job, setting_jobs, train
from .results import Outcome, Select, count_settings, outcome, selection_score
from .space import (
    Axis,
    MakeExperiment,
    Range,
    Setting,
    Values,
    count_combinations,
    make_setting,
)

if TYPE_CHECKING:
    import optuna

    from .runner import Options

STORAGE = "optuna.db"
STARTUP_TRIALS = 4  # completed trials before the first one is stopped
WARMUP = 0.2  # share of the rounds in which no trial is stopped
DIGITS = 4  # significant digits of floats from a range
HINTS = replace(
    REPEAT_HINTS,
    changed=(
        f"remove {{run}} and {STORAGE} in the same folder and repeat the command to start the run "
        "again, or use another --out"
    ),
)


class PrunedError(Exception):
    """A trial that is worse than the median of the completed ones in the same round."""

    def __init__(self, round: int) -> None:
        super().__init__(f"stopped after round {round}")


def import_optuna() -> Any:
    """Return Optuna, or raise an error that says how to install it."""
    try:
        import optuna
    except Exception as error:  # an installed library may fail in any way
        raise InputError(
            f"--trials needs the library optuna, which cannot be imported ({first_line(error)}); "
            "install it with pip install 'moonfl[tune]', or sweep a grid without --trials"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def run_trials(
    common: list[str], axes: list[Axis], make: MakeExperiment, options: "Options"
) -> list[Outcome]:
    """Complete the trials and return their outcomes, in their order."""
    optuna = import_optuna()
    assert options.trials is not None
    first = make_setting(first_values(axes), common, make)
    study = open_study(optuna, options.out, study_name(first, common, axes, options))
    finished = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    for stale in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(stale.number, state=optuna.trial.TrialState.FAIL)  # of a killed sweep
    datasets = DatasetCache()
    outcomes = [
        stored_outcome(stored, common, make, options, datasets)
        for stored in study.get_trials(states=finished)
    ][: options.trials]
    seed = first.experiment.seed
    warmup = round(WARMUP * first.experiment.rounds)
    study.pruner = optuna.pruners.MedianPruner(STARTUP_TRIALS, warmup)
    combinations = count_combinations(axes)
    while len(outcomes) < options.trials:
        if count_settings(outcomes) == combinations:
            notify(
                f"all {combinations} combinations have been tried in {len(outcomes)} of "
                f"{options.trials} trials: the others would repeat them"
            )
            break
        number = len(outcomes)
        study.sampler = optuna.samplers.TPESampler(seed=trial_seed(seed, number))
        trial = study.ask()
        values = {axis.key: suggest(trial, axis) for axis in axes}
        trial.set_user_attr("values", values)
        setting = make_setting(values, common, make)
        notify(f"trial {number + 1} of {options.trials}: {setting.label}")
        entry = run_trial(setting, trial, options, datasets)
        trial.set_user_attr("status", entry.status)
        if entry.score is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, signed(entry.score, entry.measure.higher_is_better))
        outcomes.append(entry)
    return outcomes


def open_study(library: Any, out: Path, name: str) -> "optuna.Study":
    """Return the study of this sweep, from the database in its folder."""
    study: optuna.Study = library.create_study(
        storage=database_url((out / STORAGE).resolve()),
        study_name=name,
        direction="maximize",
        load_if_exists=True,
    )
    return study


def database_url(path: Path) -> str:
    """Return the URL of a database in a file, quoted as the installed SQLAlchemy reads it."""
    from sqlalchemy import URL  # which Optuna requires

    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def study_name(first: Setting, common: list[str], axes: list[Axis], options: "Options") -> str:
    """Return a name that changes with everything that the proposals depend on."""
    identity = repr((fingerprint(first.experiment), sorted(common), axes))
    identity += repr((options.seeds, options.select))
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def first_values(axes: list[Axis]) -> dict[str, str]:
    """Return one value of each key, to check the settings before the first trial."""
    return {axis.key: axis.values[0] if isinstance(axis, Values) else axis.low for axis in axes}


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of the sampler of one trial."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def suggest(trial: "optuna.Trial", axis: Axis) -> str:
    """Return the value of a key that the sampler proposes, as on the command line."""
    if isinstance(axis, Values):
        return trial.suggest_categorical(axis.key, axis.values)
    return suggest_number(trial, axis)


def suggest_number(trial: "optuna.Trial", axis: Range) -> str:
    """Return a number from a range; floats have few digits, so that names stay readable."""
    if axis.is_integer:
        return str(trial.suggest_int(axis.key, int(axis.low), int(axis.high), log=axis.log))
    value = trial.suggest_float(axis.key, float(axis.low), float(axis.high), log=axis.log)
    rounded = float(f"{value:.{DIGITS}g}")
    return repr(min(max(rounded, float(axis.low)), float(axis.high)))


def signed(value: float, higher_is_better: bool) -> float:
    """Return a value that is larger for better models."""
    return value if higher_is_better else -value


def stored_outcome(
    trial: Any,
    common: list[str],
    make: MakeExperiment,
    options: "Options",
    datasets: DatasetCache,
) -> Outcome:
    """Return the outcome of a trial that was completed before, with the same data and code."""
    setting = make_setting(trial.user_attrs["values"], common, make)
    jobs = setting_jobs(setting, options.seeds, options.out, datasets)
    ended = [ended_run(job.experiment, job.out, task=job.task, hints=HINTS) for job in jobs]
    if trial.user_attrs["status"]:
        return Outcome(setting, status=trial.user_attrs["status"])
    runs = {}
    for job, run in zip(jobs, ended, strict=True):
        if run is None or run.diverged:
            raise InputError(
                f"{job.out} belongs to a completed trial and is missing or unfinished; restore it, "
                f"or remove {options.out / STORAGE} to repeat all trials"
            )
        runs[job.experiment.seed] = run
    return outcome(setting, runs, [], options.select)


def run_trial(
    setting: Setting, trial: "optuna.Trial", options: "Options", datasets: DatasetCache
) -> Outcome:
    """Run all seeds of a trial. The first seed decides whether it is stopped."""
    runs: dict[int, Run] = {}
    jobs = setting_jobs(setting, options.seeds, options.out, datasets)
    for number, job in enumerate(jobs):
        ended = ended_run(job.experiment, job.out, task=job.task, hints=HINTS)
        watch = watcher(trial, jobs, options.select) if number == 0 else None
        try:
            if watch is not None:
                for record in stored_rounds(job.out):
                    watch(record)
            run = ended or complete(job, options, watch)
        except PrunedError as error:
            return Outcome(setting, status=str(error))
        if run.diverged:
            return Outcome(setting, status=f"diverged with seed {job.experiment.seed}")
        runs[job.experiment.seed] = run
    return outcome(setting, runs, [], options.select)


def watcher(
    trial: "optuna.Trial", jobs: Sequence[Job], select: Select
) -> Callable[[RoundRecord], None]:
    """Return a function that reports each round to Optuna and stops a trial that falls behind.

    A trial whose runs have all ended is not stopped.
    """

    def watch(record: RoundRecord) -> None:
        score = selection_score(record, select)
        if score is None:
            return
        trial.report(signed(score.value, score.measure.higher_is_better), record.round)
        if trial.should_prune() and any(read_ended_run(job.out) is None for job in jobs):
            raise PrunedError(record.round)

    return watch


def stored_rounds(out: Path) -> list[RoundRecord]:
    """Return the rounds of a run that was started before."""
    if not is_readable_run(out):
        return []
    return read_run(out).rounds


def complete(job: Job, options: "Options", watch: Callable[[RoundRecord], None] | None) -> Run:
    """Train the run of a job to its end and return it."""
    with options.execution(job.experiment, True) as execution:
        progress = execution.watch

        def both(record: RoundRecord) -> None:
            progress(record)
            if watch is not None:
                watch(record)

        train(job, replace(execution, watch=both))
    return read_run(job.out)
