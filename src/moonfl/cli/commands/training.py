"""`moonfl run`, `moonfl resume` and `moonfl export`."""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ... import exports
from ...api.experiments import Execution, resume_run, start_run
from ...api.named_runs import complete_run, ended_run, run_name
from ...data.base import Dataset
from ...data.checks import dataset_warnings
from ...data.datasets import locate
from ...data.locations import directory
from ...errors import (
    DivergenceError,
    InputError,
    Interrupted,
    RunError,
    RunExistsError,
    first_names,
    notify,
    plural,
    quoted,
)
from ...experiment import Experiment, user_code
from ...report.runs import Run
from ...report.seed_summary import seeds_summary, summarise_seeds
from ...runs.choices import implementation_choices
from ...runs.directory import (
    holds_run,
    is_being_replaced,
    is_run_over_sites,
    read_experiment,
)
from ...runs.index import SETTINGS, read_toml
from ...runs.progress import Progress
from ...runs.recovery import Hints, recovery_hints
from ...runs.result import Result, ignore
from ...runs.summary import summarise_result
from ...task import Task, make_task, read, with_derived_settings
from ..directories import claim_directory
from ..experiments import describe, select_experiment
from ..signals import Terminated
from .checking import check_hint

USER_DATA = ("csv", "npz", "folder", "hub")
MAX_RUNS = 10  # runs of a folder that an error lists
HINTS = Hints(
    exists="`moonfl resume {run}` resumes it, --force replaces it, another --out keeps it",
    previous="`moonfl resume {run} --previous` resumes from the previous checkpoint",
    restart="`moonfl run {run}/experiment.toml --out {run} --force` starts the run again",
)
SEED_HINTS = replace(HINTS, changed="use another --out, or --force, which repeats all seeds")


def run(args: argparse.Namespace) -> None:
    """Run an experiment and print its result."""
    name, exp = select_experiment(args.words, args.trust)
    if args.seeds is None:
        check_new(args.out, force=args.force)
    data = read_data(exp, args.words)
    task = make_task(exp, data)
    exp = with_derived_settings(exp, task)
    notify(describe(exp))
    if exp.dataset in USER_DATA:
        notify(describe_task(task))
        for finding in dataset_warnings(data, exp.reading, {}):
            notify(f"moonfl: {finding}")
    for key, choice in implementation_choices(exp, task).items():
        notify(f"  {key}: {choice}")
    if args.seeds is not None:
        run_seeds(exp, task, args)
        return
    out = run_directory(args.out, name)
    with Progress(exp.rounds, shows_lr=exp.has_schedule) as progress:
        result = train(
            out,
            lambda: start_run(
                exp, out, force=args.force, task=task, options=options(args, progress)
            ),
        )
    print_result(result, args.json)


def read_data(exp: Experiment, words: list[str]) -> Dataset:
    """Read the data; if a table has several errors, say how to list them all."""
    try:
        return read(exp)
    except InputError as error:
        hint = check_hint(exp, words)
        if not hint:
            raise
        raise InputError(f"{error}{hint}") from None


def describe_task(task: Task) -> str:
    """Describe what was read: rows, features, outputs and parties."""
    training = sum(len(examples.y) for examples in task.all_parties())
    held_out = sum(len(examples.y) for examples in task.held_out.values())
    shape = "x".join(map(str, task.test.x.shape[1:]))
    encoding = task.preparation.encoding
    encoded = "" if encoding is None else f" ({len(encoding.features)} after encoding)"
    return (
        f"read {training} training and {held_out} held-out samples, {shape} features{encoded}, "
        f"{task.objective.measure.count_outputs(len(task.classes))}, "
        f"{plural(len(task.parties), 'party', 'parties')}"
    )


def run_seeds(exp: Experiment, task: Task, args: argparse.Namespace) -> None:
    """Run an experiment with several seeds and print mean and standard deviation."""
    folder = Path("runs" if args.out is None else args.out)
    if (folder / SETTINGS).exists():
        raise InputError(
            f"{folder} holds a run; with --seeds, --out is the folder that contains the runs, such "
            f"as {folder.parent / 'study'}"
        )
    hint = "the same command resumes it"
    runs: list[Run] = []
    diverged: list[int] = []
    try:
        for seed in range(exp.seed, exp.seed + args.seeds):
            finished = run_seed(replace(exp, seed=seed), task, folder, args)
            if finished is None:
                diverged.append(seed)
            else:
                runs.append(finished)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {hint}") from None
    except Terminated:
        raise Terminated(f"terminated; {hint}") from None
    except RunError as error:
        raise RunError(f"{error}; {hint}") from None
    if runs:
        values = seeds_summary(runs, diverged)
        print(json.dumps(values) if args.json else summarise_seeds(runs))
        if exp.dp.is_private and not args.json:
            print(summarise_privacy(exp, runs))
    if diverged:
        raise RunError(
            f"{len(diverged)} of {args.seeds} runs diverged, with seed "
            f"{', '.join(map(str, diverged))}; the mean does not include them"
        )


def summarise_privacy(exp: Experiment, runs: list[Run]) -> str:
    """Describe the guarantee of each of several runs on the same data, and what voids it."""
    rounds = max(len(run.rounds) for run in runs)
    guarantee = exp.dp.guarantee(exp.sample_fraction, rounds)
    lines = [
        f"privacy of one party with all its samples after round {rounds}: {guarantee} for the "
        "model of each run; it does not hold for the records in the run directories"
    ]
    number = len(runs)
    if number > 1:
        total = replace(
            guarantee, epsilon=number * guarantee.epsilon, delta=number * guarantee.delta
        )
        lines.append(
            "epsilons and deltas of models of the same data add up: whoever sees all "
            f"{number} models has at most {total}"
        )
    caution = exp.dp.caution()
    if caution:
        lines.append(caution)
    return "\n".join(lines)


def run_seed(exp: Experiment, task: Task, folder: Path, args: argparse.Namespace) -> Run | None:
    """Return the finished run of one seed, after training what is missing; None if it diverged."""
    out = folder / run_name(exp)
    ended = None if args.force else ended_run(exp, out, task=task, hints=SEED_HINTS)
    if ended is not None and ended.diverged:
        notify(f"seed {exp.seed} diverged before: {out}")
        return None
    if ended is not None:
        notify(f"seed {exp.seed} is finished: {out}")
        return ended
    notify(f"seed {exp.seed}: {out}")
    with Progress(exp.rounds, shows_lr=exp.has_schedule) as progress:
        try:
            return complete_run(
                exp,
                out,
                force=args.force,
                task=task,
                options=options(args, progress),
                hints=HINTS,
            )
        except DivergenceError as error:
            notify(f"moonfl: {error}")
            return None


def resume(args: argparse.Namespace) -> None:
    """Resume an interrupted run and print its result."""
    out = Path(args.directory)
    check_holds_run(out)
    exp = read_experiment(out, trust=args.trust)
    if not is_run_over_sites(out):
        check_data_present(exp, out, args.data_dir)
    notify(describe(exp))
    with Progress(exp.rounds, shows_lr=exp.has_schedule) as progress:
        result = train(
            out,
            lambda: resume_run(
                out,
                previous=args.previous,
                data_dir=args.data_dir,
                options=options(args, progress),
            ),
        )
    if progress.shown == 0:
        early = "at most " if exp.patience is not None else ""
        rounds = f"{len(result.rounds)} of {early}{plural(exp.rounds, 'round')}"
        notify(f"{out} is already finished, {rounds}")
    print_result(result, args.json)


def export(args: argparse.Namespace) -> None:
    """Write the trained model of a run to files."""
    written = exports.export(
        args.directory,
        out=args.out,
        party=args.party,
        best=args.best,
        data_dir=args.data_dir,
        force=args.force,
        trust=args.trust,
    )
    print(f"{written.model}, is in {written.directory}")
    print(
        f"checked on {written.checked}: z and logits of both files differ from the run's by at "
        f"most {written.difference:.0e} of their largest value (allowed: {exports.TOLERANCE:.0e})"
    )


def options(args: argparse.Namespace, progress: Progress | None) -> Execution:
    """Return the options of the execution: workers, memory for states, progress."""
    return Execution(
        workers=args.workers,
        state_memory=args.state_memory,
        watch=progress or ignore,
        before_analysis=progress.before_analysis if progress else ignore,
        trust=args.trust,
        track=args.track,
    )


def run_directory(out: str | None, name: str) -> Path:
    """Return the directory that the user chose, or a new one in runs/."""
    return claim_directory(Path("runs"), name) if out is None else Path(out)


def check_new(out: str | None, *, force: bool) -> None:
    """Refuse the directory of another run, before the data of the new one are read."""
    if out is None or force or not holds_run(Path(out)):
        return
    with recovery_hints(HINTS, quoted(out)):
        raise RunExistsError(f"{out} already holds a run")


def check_holds_run(out: Path) -> None:
    """Refuse a folder that holds no run; list the runs in it."""
    if holds_run(out) or is_being_replaced(out):
        return
    runs = [quoted(path.parent) for path in sorted(out.glob(f"*/{SETTINGS}"))]
    if runs:
        listed = first_names(runs, MAX_RUNS)
        raise InputError(f"{out} holds no run itself, but contains some; pass one of {listed}")


def check_data_present(exp: Experiment, out: Path, data_dir: str | None) -> None:
    """Check that the data of a run are where the run read them, relative to the current folder."""
    path = directory(exp.data_dir if data_dir is None else data_dir)
    hint = (
        f"the path is relative to the current folder: `moonfl resume {quoted(out)} --data-dir DIR` "
        "reads the data from DIR"
    )
    try:
        locate(exp.dataset, path)
    except InputError as error:
        raise InputError(f"{error}; {hint}") from None
    is_user_file = exp.dataset in ("folder", "npz", "csv")
    if is_user_file and not path.exists():
        raise InputError(f"the data of the run, {path}, do not exist; {hint}")


def train(out: Path, work: Callable[[], Result]) -> Result:
    """Call `work`; if it fails or is interrupted, add to the error how to resume the run."""
    try:
        with recovery_hints(HINTS, quoted(out)):
            return work()
    except KeyboardInterrupt:
        raise Interrupted(with_hint("interrupted", out, resume_hint(out))) from None
    except Terminated:
        raise Terminated(with_hint("terminated", out, resume_hint(out))) from None
    except DivergenceError:
        raise  # it would diverge again
    except RunError as error:
        raise RunError(with_hint(str(error), out, resume_hint(out))) from None


def resume_hint(out: Path) -> str:
    """Return how to resume the run in a directory, whose code the user has just executed."""
    path = out / SETTINGS
    trust = " --trust" if path.exists() and user_code(read_toml(path)) else ""
    return f"`moonfl resume {quoted(out)}{trust}` resumes from the last finished round"


def with_hint(message: str, out: Path, hint: str) -> str:
    """Append the hint to the message if there is a run to resume."""
    return f"{message}; {hint}" if (out / SETTINGS).exists() else message


def print_result(result: Result, as_json: bool) -> None:
    """Print the result for a person, or as one JSON object."""
    print(json.dumps(result.summary()) if as_json else summarise_result(result))
