"""`moonfl reproduce`: run the missing experiments of a target and write its tables and figures."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..api import experiments as api
from ..api.named_runs import REPEAT_HINTS, complete_run, read_ended_run, run_name
from ..data.datasets import locate
from ..data.locations import directory
from ..errors import DivergenceError, InputError, notify, unknown
from ..experiment import Experiment
from ..report.build import write as write_report
from ..report.groups import SMALL_SCALE
from ..report.labels import DATASET_NAMES
from ..report.partition import heat_map
from ..report.report_files import write_picture
from ..report.runs import Run
from ..report.tables import Table, csv_text, markdown, plain_text
from ..runs.files import write_atomically
from ..task import DatasetCache, make_partition, make_task
from . import figures, tables
from .options import (
    Options,
    apply_options,
    check_dataset,
    distinct,
    seed_count,
    selected_datasets,
)
from .targets import TARGETS, Entry, Target, experiments

__all__ = ["Options", "reproduce", "run_name"]


@dataclass(frozen=True)
class Job:
    """One target on one dataset, with the options applied to its entries."""

    name: str
    dataset: str
    entries: list[Entry]

    @property
    def target(self) -> Target:
        return TARGETS[self.name]


def reproduce(name: str | None, options: Options) -> None:
    """Write and print the tables of a target, or of "all" targets."""
    check_dataset(options)
    names = target_names(name)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror
        raise InputError(f"the folder {options.out} cannot be created: {reason}") from None
    jobs = list_jobs(names, options)
    check_data(jobs, options)
    datasets = DatasetCache()
    for job in jobs:
        for table in job_tables(job, options, datasets):
            write_atomically(options.out / f"{table.name}.md", markdown(table))
            write_atomically(options.out / f"{table.name}.csv", csv_text(table))
            print(plain_text(table) + "\n")


def target_names(name: str | None) -> list[str]:
    """Return the targets that a name stands for."""
    if name is None:
        raise InputError(
            f"name a target: {', '.join(TARGETS)} or all; `moonfl reproduce --list` describes them"
        )
    if name == "all":
        return list(TARGETS)
    if name not in TARGETS:
        raise unknown("target", name, [*TARGETS, "all"])
    return [name]


def list_jobs(names: list[str], options: Options) -> list[Job]:
    """Return one job per target and dataset."""
    jobs = []
    for name in names:
        for dataset in selected_datasets(name, options, required=len(names) == 1):
            entries = [apply_options(entry, options) for entry in TARGETS[name].entries(dataset)]
            jobs.append(Job(name, dataset, entries))
    return jobs


def check_data(jobs: list[Job], options: Options) -> None:
    """Check before the first run that the data of all runs exist."""
    entries = [entry for job in jobs for entry in job.entries]
    for dataset in dict.fromkeys(exp.dataset for exp in experiments(entries)):
        locate(dataset, directory(options.data_dir))


def job_tables(job: Job, options: Options, datasets: DatasetCache) -> Iterator[Table]:
    """Run the experiments of a job, write its figures, and yield its tables."""
    if job.target.kind in ("statistics", "distributions"):
        yield from partition_tables(job, options, datasets)
        return
    stem = file_stem(job, options)
    data = DATASET_NAMES[job.dataset]
    if options.small:
        data = f"digits in place of {data}"
    difference = tables.difference_to_paper(job.name, job.dataset, job.entries, options.small)
    entries = distinct(job.entries)
    seeds = seed_count(job.target, options)
    runs = collect_runs(entries, seeds, stem, options, datasets)
    subtitle = " · ".join(filter(None, (data, difference)))
    for picture in figures.pictures(job.target, stem, subtitle, entries, runs, small=options.small):
        write_picture(picture, options.out)
        notify(f"figure: {options.out / picture.name}.png and .svg")
    paths = [run.path for by_seed in runs.values() for run in by_seed.values()]
    if job.target.kind == "curves" and paths:
        notify(f"report of these runs: {write_report(paths, options.out / stem)}")
    title = f"{job.target.reference}, {data}: {job.target.title}"
    if difference:
        title += f" ({difference})"
    divergence_note = tables.divergence_note(entries, runs, seeds)
    for table in tables.tables(job.target, stem, title, entries, runs, small=options.small):
        yield replace(table, note="; ".join(filter(None, (table.note, divergence_note))))


def file_stem(job: Job, options: Options) -> str:
    """Return the name of a job's files without suffix; it names what differs from the paper."""
    parts = [job.name, "small" if options.small else job.dataset]
    if options.model:
        parts.append(options.model)
    if options.rounds:
        parts.append(f"{options.rounds}rounds")
    return "-".join(parts)


def collect_runs(
    entries: list[Entry], seeds: int, stem: str, options: Options, datasets: DatasetCache
) -> tables.Runs:
    """Return the finished runs of all entries by experiment and seed."""
    experiments_to_run = [(exp, seed) for exp in experiments(entries) for seed in range(seeds)]
    runs: tables.Runs = {}
    for number, (exp, seed) in enumerate(experiments_to_run, 1):
        label = f"{stem}, run {number} of {len(experiments_to_run)}"
        run = finish_run(replace(exp, seed=seed), options, label, datasets)
        by_seed = runs.setdefault(exp, {})
        if run is not None:
            by_seed[seed] = run
    return runs


def finish_run(exp: Experiment, options: Options, label: str, datasets: DatasetCache) -> Run | None:
    """Return the finished run of an experiment; start or resume it if necessary.

    Return None if it diverged. Its directory records that, since it would diverge again. Published
    data and moonfl's own methods are behind the name of a run, so that ended runs are not compared.
    """
    out = options.out / "runs" / run_name(exp)
    ended = read_ended_run(out)
    if ended is not None:
        return None if ended.diverged else ended
    notify(f"{label}: {out.name}")
    with options.progress(exp.rounds) as progress:
        execution = api.Execution(workers=options.workers, watch=progress)
        try:
            task = None  # a run that is resumed may need its samples in another dtype
            if not out.exists():
                task = make_task(exp, datasets.read(exp))
            return complete_run(exp, out, task=task, options=execution, hints=REPEAT_HINTS)
        except DivergenceError as error:
            notify(f"moonfl: {error}; the tables mark it as diverged")
            return None


def partition_tables(job: Job, options: Options, datasets: DatasetCache) -> Iterator[Table]:
    """Yield the table of a target that needs no training, or write its heat maps."""
    stem = file_stem(job, options)
    for exp in experiments(job.entries):
        data = datasets.read(exp)
        partition = make_partition(exp, data)
        if job.target.kind == "statistics":
            sizes = partition.sizes()
            test = len(data.test.y) if data.test is not None else 0
            ours = [f"{sizes.mean():,.0f} ± {sizes.std():,.0f}", f"{test:,}"]
            yield tables.statistics(stem, job.entries, ours, options.small)
        else:
            counts = partition.counts(data.train.y.numpy(), len(data.classes))
            path = options.out / f"{stem}-beta{exp.beta:g}"
            write_heat_map(exp, counts, data.classes, path)


def write_heat_map(
    exp: Experiment, counts: NDArray[np.int64], classes: tuple[str, ...], path: Path
) -> None:
    """Write a heat map of the samples per party and class as PNG and SVG."""
    title = f"{exp.dataset}, beta {exp.beta:g}"
    if exp.scale == "small":
        title += f" ({SMALL_SCALE})"
    for suffix in ("png", "svg"):
        heat_map(counts, classes, title, Path(f"{path}.{suffix}"))
    notify(f"heat map: {path}.png and .svg")
