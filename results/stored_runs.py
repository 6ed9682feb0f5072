"""The runs behind the results pages: copy finished runs into results/, read them, look them up."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import tomli_w

from moonfl.components import component_name, parts_of
from moonfl.experiment import Experiment, from_toml, override
from moonfl.presets import PRESETS
from moonfl.report.labels import format_value
from moonfl.report.runs import Run, find_runs, read_run
from moonfl.reproduce.runner import run_name
from moonfl.reproduce.tables import Runs
from moonfl.reproduce.targets import TARGETS, Entry, experiments
from moonfl.runs.index import DIVERGED, read_toml
from moonfl.runs.schema import Record, encode

HERE = Path(__file__).parent
DATASET = "cifar10"
# the methods outside of moonfl that stored runs have
SCAFFOLD_VARIANTS = tuple(
    f"scaffold_variants:{name}"
    for name in (
        "RandomStart",
        "MeanOverSampled",
        "CorrectionAfterStep",
        "RandomStartMeanOverSampled",
        "NIIDBench",
    )
)
SEEDS = range(3)
FIELDS = (
    "round",
    "accuracy",
    "accuracy_std",
    "accuracies",
    "party_accuracy",
    "party_accuracy_std",
    "party_accuracy_worst",
    "global_score",
    "global_party_score",
    "global_party_score_worst",
    "loss",
    "seconds",
    "cpu_seconds",
    "bytes_down",
    "bytes_up",
)


def store(source: Path, folder: str | None = None) -> None:
    """Copy the finished and the diverged runs in `source` to results/, a few kilobytes per run.

    They go to `folder`, by default to the folder of their dataset. Settings, versions and the
    fields of the round records that the page needs are stored; for the runs of the motivation's
    figure also the t-SNE.
    """
    tsne_names = {run_name(exp) for exp in experiments(TARGETS["tsne"].entries(DATASET))}
    for path in find_runs([source]):
        run = read_run(path)
        if not run.finished and not (run.diverged and run.rounds):
            print(f"not stored: {path} {run.status}")
            continue
        exp = experiment_of(run)
        out = HERE / (folder or exp.dataset) / run_name(exp)
        if out.name in tsne_names and run.final.tsne is None:
            print(f"not stored: {path} has no t-SNE: finish it with `moonfl resume`")
            continue
        out.mkdir(parents=True, exist_ok=True)
        write_settings(run, out)
        write_rounds(run, out)
        (out / DIVERGED).unlink(missing_ok=True)  # of a run that this one replaces
        if run.diverged:
            (out / DIVERGED).write_bytes((run.path / DIVERGED).read_bytes())
        if out.name in tsne_names:
            write_json(out / "final.json", {"tsne": shorten(as_json(run.final.tsne))})
            write_json(out / "partition.json", as_json(run.partition))
        print(f"stored {path} in {out}")


def write_settings(run: Run, out: Path) -> None:
    """Write the settings and versions of a run without the location of its data."""
    settings = read_toml(run.path / "experiment.toml") | {"data_dir": "data"}
    (out / "experiment.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")


def write_rounds(run: Run, out: Path) -> None:
    """Write the round records of a run with the fields that the page needs."""
    lines = []
    for record in run.rounds:
        values = {key: shorten(record[key]) for key in FIELDS if key in record}
        lines.append(json.dumps(values, separators=(",", ":")) + "\n")
    (out / "rounds.jsonl").write_text("".join(lines), encoding="utf-8")


def as_json(record: Record | None) -> object:
    """Return a record as the values of its JSON."""
    return None if record is None else json.loads(encode(record))


def write_json(path: Path, value: object) -> None:
    """Write a value as compact JSON."""
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n", encoding="utf-8")


def shorten(value: object) -> object:
    """Return the value with six significant digits.

    Accuracies lose nothing: they are multiples of 1/10,000.
    """
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shorten(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def load(folder: str) -> dict[str, Run]:
    """Return the stored runs of a folder of results/ by name."""
    runs = [read_run(path) for path in find_runs([HERE / folder])]
    return {run_name(experiment_of(run)): run for run in runs}


def experiment_of(run: Run) -> Experiment:
    """Return the experiment of a run."""
    return from_toml(run.path / "experiment.toml", trust=SCAFFOLD_VARIANTS)


def divergence(run: Run) -> str:
    """Return in which round the run diverged, for a table."""
    return f"diverges in round {len(run.rounds) + 1}"


def runs_of(entries: list[Entry], stored: dict[str, Run], seeds: Iterable[int] = SEEDS) -> Runs:
    """Return the stored runs of these entries by experiment and seed."""
    runs: Runs = {}
    for exp in experiments(entries):
        names = {seed: run_name(replace(exp, seed=seed)) for seed in seeds}
        by_seed = {seed: stored[name] for seed, name in names.items() if name in stored}
        if by_seed:
            runs[exp] = by_seed
    return runs


def target_runs(
    target: str, stored: dict[str, Run], seeds: Iterable[int] = SEEDS
) -> tuple[list[Entry], Runs]:
    """Return the entries of a target that have a stored run, and these runs.

    Rows with several settings get the same ones, so that no row has a choice that another lacks.
    """
    entries = TARGETS[target].entries(DATASET)
    runs = runs_of(entries, stored, seeds)
    started = [e for e in entries if any(exp in runs for exp in e.trials.values())]
    choices = [e.trials for e in started if len(e.trials) > 1]
    shared = {label for trials in choices for label in trials}
    for trials in choices:
        shared &= {label for label, exp in trials.items() if exp in runs}
    selected = []
    for entry in started:
        trials = entry.trials
        if len(trials) > 1:
            trials = {label: exp for label, exp in trials.items() if label in shared}
        if trials:
            selected.append(replace(entry, trials=trials))
    return selected, runs


def command(exp: Experiment) -> str:
    """Return the shortest command that runs this experiment: a preset and the changed settings."""
    candidates = []
    for name, preset in PRESETS.items():
        base = preset.experiment
        kind = type(base.algorithm)
        is_part = any(isinstance(part, kind) for part in parts_of(exp.algorithm))
        if base.dataset == exp.dataset and is_part:
            changes = changed_settings(exp, base)
            candidates.append([name, *(f"{key}={value}" for key, value in changes.items())])
    return " ".join(["moonfl run", *min(candidates, key=len)])


def changed_settings(exp: Experiment, base: Experiment) -> dict[str, str]:
    """Return the settings in which an experiment differs from another, except its data_dir."""
    changes = {}
    for kind in ("algorithm", "server"):
        name = component_name(getattr(exp, kind))
        if name != component_name(getattr(base, kind)):
            changes[kind] = name
    base = override(base, [f"{key}={name}" for key, name in changes.items()])
    parts = parts_of(exp.algorithm)
    for part, base_part in zip(parts, parts_of(base.algorithm), strict=True):
        prefix = "" if len(parts) == 1 else f"{component_name(part)}."
        for key, value in differences(part, base_part).items():
            changes[f"{prefix}{key}"] = value
    for key, value in differences(exp.server, base.server).items():
        changes[f"server.{key}"] = value
    for key, value in differences(exp, base).items():
        if key not in ("algorithm", "server", "data_dir"):
            changes[key] = value
    return changes


def differences(value: object, base: object) -> dict[str, str]:
    """Return the fields of a dataclass that differ from another of its kind."""
    return {
        key: format_value(item) for key, item in vars(value).items() if item != getattr(base, key)
    }
