"""The options of `moonfl reproduce`, and how they change the paper's entries."""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import unknown
from ..experiment import Experiment
from ..runs.result import Watch
from .targets import DATASETS, TARGETS, Entry, Target, shrink


def silent(rounds: int) -> contextlib.AbstractContextManager[Watch]:
    """Return a progress display that shows nothing."""
    return contextlib.nullcontext(lambda record: None)


@dataclass(frozen=True)
class Options:
    """What the user asked for: where to write, which runs, and how they differ from the paper."""

    out: Path
    data_dir: str = "data"
    dataset: str | None = None  # None: all datasets of the target
    model: str | None = None  # None: the paper's
    seeds: int = 3
    rounds: int | None = None  # None: as many as in the paper
    small: bool = False  # seconds instead of hours, on digits
    workers: int | None = None
    # returns the progress display of a run with so many rounds
    progress: Callable[[int], contextlib.AbstractContextManager[Watch]] = silent


def check_dataset(options: Options) -> None:
    """Raise an InputError if the requested dataset is not one of the paper's."""
    if options.dataset is not None and options.dataset not in DATASETS:
        raise unknown("dataset of the paper", options.dataset, DATASETS)


def selected_datasets(name: str, options: Options, required: bool) -> list[str]:
    """Return the requested datasets of a target.

    At small scale every dataset is replaced by digits, so one is enough. A dataset that the
    target does not have is an error if `required`, and gives an empty list otherwise.
    """
    available = TARGETS[name].datasets
    if options.dataset is None:
        return list(available[:1] if options.small else available)
    if options.dataset in available:
        return [options.dataset]
    if required:
        raise unknown(f"dataset of {name}", options.dataset, available)
    return []


def seed_count(target: Target, options: Options) -> int:
    """Return how many seeds of a target are run."""
    return min(options.seeds, target.max_seeds or options.seeds)


def apply_options(entry: Entry, options: Options) -> Entry:
    """Return the entry with the options applied to its experiments.

    If the paper reads the accuracy after a round that is not run, the last round is read instead
    and the paper's number is left out.
    """
    trials = {label: change_experiment(exp, options) for label, exp in entry.trials.items()}
    at_round, paper = entry.at_round, entry.paper
    if at_round is not None and options.small:
        at_round = max(3, at_round // 10)
    if at_round is not None and options.rounds is not None and at_round > options.rounds:
        at_round, paper = options.rounds, ""
    first = next(iter(trials.values()))
    column = describe_column(entry.column, first, at_round)
    return replace(entry, trials=trials, at_round=at_round, paper=paper, column=column)


def change_experiment(exp: Experiment, options: Options) -> Experiment:
    """Return the experiment with scale, data directory, model and rounds as requested."""
    if options.small:
        exp = shrink(exp)
    exp = replace(exp, data_dir=options.data_dir)
    if options.model is not None:
        exp = replace(exp, model=options.model)
    if options.rounds and exp.algorithm.federated:
        exp = replace(exp, rounds=options.rounds)
    return exp


def describe_column(column: str, exp: Experiment, at_round: int | None) -> str:
    """Return the column's name with the parties, epochs and rounds that are actually used."""
    column = re.sub(r"^\d+ parties", f"{exp.parties} parties", column)
    column = re.sub(r"\d+ per round", f"{exp.parties_per_round()} per round", column)
    column = re.sub(r"^E = \d+", f"E = {exp.epochs}", column)
    return re.sub(r"\d+ rounds$", f"{at_round} rounds", column)


def distinct(entries: list[Entry]) -> list[Entry]:
    """Return the entries without duplicates; options can make different entries equal."""
    first: dict[object, Entry] = {}
    for entry in entries:
        first.setdefault((entry.row, entry.column, entry.at_round, *entry.trials.items()), entry)
    return list(first.values())
