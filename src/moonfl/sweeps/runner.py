"""`moonfl sweep`: run all settings of a grid, or trials, and select one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InputError, notify
from ..experiment import Experiment
from ..report.tables import plain_text
from ..runs.directory import locked
from ..runs.index import SETTINGS
from ..task import DatasetCache
from ..trackers.table import check_trackers
from .execution import MakeExecution, execute, missing_runs, read_runs, side_by_side
from .results import (
    TEST_WARNING,
    Outcome,
    Select,
    as_json,
    best,
    draw,
    outcome,
    score_table,
    summarise,
    write_results,
)
from .space import Axis, MakeExperiment, grid, read_space

VALIDATION = 0.1  # share of the training samples that select, unless the experiment sets one


@dataclass(frozen=True)
class Options:
    """How a sweep is executed."""

    out: Path
    execution: MakeExecution  # of one run
    seeds: int = 1
    select: Select = "validation"
    trials: int | None = None  # None: the whole grid
    jobs: int | None = None  # runs at a time; None: one per core
    workers: int | None = None
    track: Sequence[str] = ()
    json: bool = False


def sweep(words: list[str], make: MakeExperiment, options: Options) -> None:
    """Complete the runs of a sweep, write table and figure, and print the selected setting."""
    common, axes = read_space(words)
    check_trackers(options.track)
    make = with_validation(make, options.select)
    prepare_folder(options.out)
    if options.select == "test":
        notify(f"moonfl: warning: {TEST_WARNING}")
    if options.trials is None:
        outcomes = run_grid(common, axes, make, options)
    else:
        from .trials import run_trials

        with locked(options.out):  # a second sweep would take its trials for those of a killed one
            outcomes = run_trials(common, axes, make, options)
    report(outcomes, axes, options)


def with_validation(make: MakeExperiment, select: Select) -> MakeExperiment:
    """Return a function that makes experiments with validation samples, if these select."""

    def make_validated(words: list[str]) -> Experiment:
        exp = make(words)
        if select == "test" or exp.validation is not None:
            return exp
        if exp.dp.is_private:
            raise InputError(
                "a sweep selects a setting on validation samples of the parties, which dp does not "
                "cover; use --select test with public data"
            )
        return replace(exp, validation=VALIDATION)

    return make_validated


def prepare_folder(out: Path) -> None:
    """Create the folder of a sweep."""
    if (out / SETTINGS).exists():
        raise InputError(
            f"{out} holds a run; --out of a sweep is the folder that contains its runs, such as "
            f"{out.parent / 'sweep'}"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder {out} cannot be created: {error.strerror}; choose another with --out"
        ) from None


def run_grid(
    common: list[str], axes: list[Axis], make: MakeExperiment, options: Options
) -> list[Outcome]:
    """Complete the runs of all settings and return their outcomes."""
    settings = grid(common, axes, make)
    first = settings[0].experiment
    count = side_by_side(first, options.jobs, options.workers)
    notify(
        f"{len(settings)} settings with {options.seeds} seed{'s' if options.seeds > 1 else ''} "
        f"each, {count} run{'s' if count > 1 else ''} at a time, in {options.out}"
    )
    if options.select == "validation":
        notify(
            f"  selection: on {first.validation:g} of each party's training samples "
            "(validation), which the test score does not see"
        )
    datasets = DatasetCache()
    jobs = missing_runs(settings, options.seeds, options.out, datasets)
    execute(jobs, count, options.execution)
    outcomes = []
    for setting in settings:
        runs, diverged = read_runs(setting, options.seeds, options.out, datasets)
        outcomes.append(outcome(setting, runs, diverged, options.select))
    return outcomes


def report(outcomes: list[Outcome], axes: list[Axis], options: Options) -> None:
    """Write table and figure, and print the table and the selected setting."""
    selected = best(outcomes)
    table = score_table(outcomes, selected, options.select)
    picture = None
    if options.trials is None:
        picture = draw(axes, outcomes, selected, options.select)
    paths = write_results(table, picture, options.out)
    if options.json:
        print(as_json(outcomes, selected, options.select))
        return
    print(plain_text(replace(table, note="")))
    print(summarise(outcomes, selected, options.select))
    print(
        f"written: {', '.join(map(str, paths))}; `moonfl report {options.out}` shows the runs with "
        "their test scores, by which no setting may be selected"
    )
