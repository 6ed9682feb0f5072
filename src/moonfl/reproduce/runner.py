"""`moonfl reproduce`: run what is missing of a table or figure of the paper, and set it beside the paper's numbers."""

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..api import experiments as api
from ..data.datasets import load, place
from ..data.locations import directory
from ..errors import DivergenceError, InputError, notify, unknown
from ..experiment import Experiment, part_name, to_toml
from ..report.build import write as write_report
from ..report.groups import SMALL_SCALE
from ..report.labels import DATASETS as NAMES
from ..report.partition import heat_map
from ..report.runs import Run, read_run
from ..report.tables import Table, csv_text, markdown, plain_text
from ..runs.directory import DIVERGED, SETTINGS, is_being_replaced
from ..runs.files import atomic, write_atomically
from ..task import make_partition
from . import figures, tables
from .targets import DATASETS, TARGETS, Entry, Target, experiments, small


def silent(rounds: int) -> contextlib.AbstractContextManager[api.Watch]:
    """Show no progress."""
    return contextlib.nullcontext(lambda fact: None)


@dataclass(frozen=True)
class Options:
    out: Path
    data_dir: str = "data"
    dataset: str | None = None
    model: str | None = None
    seeds: int = 3
    rounds: int | None = None
    small: bool = False
    workers: int | None = None
    progress: Callable[[int], contextlib.AbstractContextManager[api.Watch]] = (
        silent  # number of rounds -> display
    )


def reproduce(name: str, options: Options, tell: Callable[[str], None] = print) -> None:
    """Every table of a target (or of all) in `options.out`, told as it is known."""
    names = list(TARGETS) if name == "all" else [name]
    if options.dataset is not None and options.dataset not in DATASETS:
        raise unknown("data set of the paper", options.dataset, DATASETS)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {options.out} cannot be made: {error.strerror}") from None
    if name != "all" and name not in TARGETS:
        raise unknown("target", name, [*TARGETS, "all"])
    wanted = [
        (name, dataset, [adapted(e, options) for e in TARGETS[name].entries(dataset)])
        for name in names
        for dataset in datasets(name, options, required=len(names) == 1)
    ]
    for needed in dict.fromkeys(
        exp.dataset for _, _, entries in wanted for exp in experiments(entries)
    ):
        place(needed, directory(options.data_dir))  # all data are there before the first run
    for name, dataset, entries in wanted:
        for table in made(name, dataset, entries, options):
            write_atomically(options.out / f"{table.name}.md", markdown(table))
            write_atomically(options.out / f"{table.name}.csv", csv_text(table))
            tell(plain_text(table) + "\n")


def datasets(name: str, options: Options, required: bool = True) -> list[str]:
    """Of a target, as far as asked for; at small scale all of them are digits, so one is enough."""
    of_target = TARGETS[name].datasets
    if options.dataset is None:
        return list(of_target[:1] if options.small else of_target)
    if options.dataset not in of_target and required:
        raise unknown(f"data set of {name}", options.dataset, of_target)
    return [options.dataset] if options.dataset in of_target else []


def adapted(entry: Entry, options: Options) -> Entry:
    """An entry with the options put in; what the paper reads after a round that is not run is read after the last."""
    trials = {label: adapt(exp, options) for label, exp in entry.trials.items()}
    at = entry.at
    if at is not None and options.small:
        at = max(3, at // 10)
    paper = entry.paper
    if at is not None and options.rounds is not None and at > options.rounds:
        at, paper = options.rounds, ""
    (exp, *_) = trials.values()
    column = re.sub(r"^\d+ parties", f"{exp.parties} parties", entry.column)
    column = re.sub(r"\d+ a round", f"{exp.parties_per_round()} a round", column)
    column = re.sub(r"^E = \d+", f"E = {exp.epochs}", column)
    return replace(
        entry,
        trials=trials,
        at=at,
        paper=paper,
        column=re.sub(r"\d+ rounds$", f"{at} rounds", column),
    )


def distinct(entries: list[Entry]) -> list[Entry]:
    """Without those that options have made the same as one before."""
    first: dict[object, Entry] = {}
    for e in entries:
        first.setdefault((e.row, e.column, e.at, *e.trials.items()), e)
    return list(first.values())


def adapt(exp: Experiment, options: Options) -> Experiment:
    exp = replace(small(exp) if options.small else exp, data_dir=options.data_dir)
    if options.model is not None:
        exp = replace(exp, model=options.model)
    return (
        replace(exp, rounds=options.rounds) if options.rounds and exp.algorithm.federated else exp
    )


def made(name: str, dataset: str, entries: list[Entry], options: Options) -> Iterator[Table]:
    """The runs of one target on one data set, then its tables; figures go straight to files."""
    target, stem = TARGETS[name], f"{name}-{'small' if options.small else dataset}"
    stem += "".join(
        f"-{value}{unit}"
        for value, unit in ((options.model, ""), (options.rounds, "rounds"))
        if value
    )
    if target.kind in ("statistics", "distributions"):
        yield from partitions(target, stem, entries, options)
        return
    on = f"digits in place of {NAMES[dataset]}" if options.small else NAMES[dataset]
    other = tables.setting(name, dataset, entries, options.small)
    entries, seeds = distinct(entries), seeds_of(target, options)
    runs = all_runs(entries, seeds, stem, options)
    for picture in figures.pictures(
        target, stem, " · ".join(filter(None, (on, other))), entries, runs, options.small
    ):
        for suffix, data in (("svg", picture.svg.encode()), ("png", picture.png)):
            with atomic(options.out / f"{picture.name}.{suffix}") as path:
                path.write_bytes(data)
        notify(f"{options.out / picture.name}.png and .svg have the figure")
    paths = [run.path for of_seed in runs.values() for run in of_seed.values()]
    if target.kind == "curves" and paths:
        notify(f"{write_report(paths, options.out / stem)} has all of these runs")
    title = f"{target.where}, {on}: {target.title}{f' ({other})' if other else ''}"
    for table in tables.tables(target, stem, title, entries, runs, options.small):
        yield replace(
            table, note="; ".join(filter(None, (table.note, tables.diverged(entries, runs, seeds))))
        )


def seeds_of(target: Target, options: Options) -> int:
    return min(options.seeds, target.seeds or options.seeds)


def all_runs(entries: list[Entry], seeds: int, stem: str, options: Options) -> tables.Runs:
    wanted = [(exp, seed) for exp in experiments(entries) for seed in range(seeds)]
    runs: tables.Runs = {}
    for number, (exp, seed) in enumerate(wanted, 1):
        run = complete(replace(exp, seed=seed), options, f"{stem}, run {number} of {len(wanted)}")
        runs.setdefault(exp, {}).update({seed: run} if run is not None else {})
    return runs


def complete(exp: Experiment, options: Options, where: str) -> Run | None:
    """The run of an experiment: kept if it is finished, resumed if it is not, started if it is not there.

    None: it diverged, which its directory says, for it would again.
    """
    out = options.out / "runs" / name_of(exp)
    if (out / DIVERGED).exists():
        return None
    started = (out / SETTINGS).exists() or is_being_replaced(out)
    if (out / SETTINGS).exists() and (run := read_run(out)).finished:
        return run
    notify(f"{where}: {out.name}")
    with options.progress(exp.rounds) as progress:
        try:
            if started:
                api.resume(out, data_dir=exp.data_dir, workers=options.workers, watch=progress)
            else:
                api.run(exp, out, workers=options.workers, watch=progress)
        except DivergenceError as error:
            notify(f"moonfl: {error}; the tables say so")
            return None
    return read_run(out)


def name_of(exp: Experiment) -> str:
    """The same for the same experiment, wherever its data are."""
    mark = hashlib.sha256(to_toml(replace(exp, data_dir="data", seed=0)).encode()).hexdigest()[:8]
    step = "" if part_name(exp.server) == "average" else f"-{part_name(exp.server)}"
    return f"{exp.dataset}-{part_name(exp.algorithm)}{step}-{mark}-seed{exp.seed}"


def partitions(
    target: Target, stem: str, entries: list[Entry], options: Options
) -> Iterator[Table]:
    """What needs no training: who has which samples."""
    for exp in experiments(entries):
        data = load(exp.dataset, directory(exp.data_dir))
        parts = make_partition(exp, data)
        if target.kind == "statistics":
            sizes = parts.sizes()
            ours = [
                f"{sizes.mean():,.0f} ± {sizes.std():,.0f}",
                f"{len(data.test.y) if data.test is not None else 0:,}",
            ]
            yield tables.statistics(stem, entries, ours, options.small)
            continue
        counts = parts.counts(data.train.y.numpy(), len(data.classes))
        note = f" ({SMALL_SCALE})" if options.small else ""
        name = options.out / f"{stem}-beta{exp.beta:g}"
        for suffix in ("png", "svg"):
            heat_map(
                counts,
                data.classes,
                f"{exp.dataset}, beta {exp.beta:g}{note}",
                Path(f"{name}.{suffix}"),
            )
        notify(f"{name}.png and .svg have the heat map")


def check(name: str | None) -> str:
    if name is None:
        raise InputError(
            f"name a target, or all: {', '.join(TARGETS)}; `moonfl reproduce --list` tells what they are"
        )
    return name
