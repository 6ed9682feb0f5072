"""Run directories as values: find them, read their files, and check them.

A run may be unfinished or written by an older version; what it lacks is left out of the report.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..measures import is_evaluated
from ..runs.index import DIVERGED, FINAL, PARTITION, ROUNDS, SETTINGS, check_run, read_toml
from ..runs.schema import FinalRecord, PartitionRecord, RoundRecord
from ..runs.stopping import absences, is_finished
from ..settings import RENAMED
from .run_checks import (
    Settings,
    check_evaluations,
    check_final,
    check_partition,
    check_settings,
    require,
)
from .run_files import read_record, read_rounds

TIMES = ("seconds", "cpu_seconds")  # fields of a record that differ when a run is repeated


@dataclass(frozen=True)
class Run:
    """A run that is read from its directory, up to the last round that was evaluated."""

    path: Path
    settings: Settings  # flat: "rounds", "algorithm.mu", ...
    versions: dict[str, str]
    code: dict[str, str]  # hash of the file of user-supplied code, by dotted path
    choices: dict[str, str]  # implementation choices
    rounds: list[RoundRecord]
    partition: PartitionRecord | None
    final: FinalRecord  # empty for a run without final.json
    diverged: bool = False

    @property
    def seed(self) -> int:
        """Return the seed; 0 if the run does not name one."""
        return int(self.settings.get("seed", 0))

    @property
    def federated(self) -> bool:
        """Return True if the parties trained one model together.

        A centralised run has one party; in SOLO every party ends with its own model and accuracy.
        """
        last = self.rounds[-1]
        has_one_model = last.accuracy_std is None and last.score_std is None
        return self.settings.get("parties") != 1 and has_one_model

    @property
    def finished(self) -> bool:
        """Return True if the run has all of its rounds or stopped early."""
        rounds = int(self.settings["rounds"])
        return is_finished(rounds, self.settings.get("patience"), self.rounds)

    @property
    def stopped_early(self) -> bool:
        """Return True if the run ended because validation accuracy did not improve."""
        return self.finished and len(self.rounds) < int(self.settings["rounds"])

    @cached_property
    def absences(self) -> dict[int, list[int]]:
        """Return the rounds that were evaluated without some parties, with these parties."""
        return absences(self.rounds)

    @property
    def status(self) -> str:
        """Return how far a run got that is not finished."""
        if self.diverged and self.rounds:
            return f"diverged after round {len(self.rounds)}"
        if self.diverged:
            return "diverged in its first round"
        return "is unfinished" if self.rounds else "has no finished round yet"


def first_difference(run: Run, other: Run) -> int | None:
    """Return the first round in which two runs have different results; None if there is none.

    Times are not compared, nor are fields that only one of the runs recorded.
    """
    for record, counterpart in zip(run.rounds, other.rounds, strict=False):
        values, others = results_of(record), results_of(counterpart)
        if any(values[name] != others[name] for name in values.keys() & others.keys()):
            return record.round
    return None


def results_of(record: RoundRecord) -> dict[str, object]:
    """Return the fields of a round record and of its parties that are not times."""
    values = {name: record[name] for name in record if name not in (*TIMES, "parties")}
    for number, party in enumerate(record.parties or []):
        values |= {f"{number}.{name}": party[name] for name in party if name not in TIMES}
    return values


def load_runs(paths: list[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs in or below the paths, and notes on those without a finished round.

    Of these, only runs that diverged are returned: they count against a method.
    """
    directories = find_runs(paths)
    if not directories:
        names = ", ".join(map(str, paths))
        raise InputError(f"no run in {names}; a run is a folder that contains {SETTINGS}")
    runs: list[Run] = []
    notes: list[str] = []
    for path in directories:
        run = read_run(path)
        if run.rounds or run.diverged:
            runs.append(run)
        if not run.rounds:
            notes.append(f"{run.path} {run.status} and is left out.")
    if not any(run.rounds for run in runs):
        raise InputError(f"there is no finished round to show: {' '.join(notes)}")
    return runs, notes


def find_runs(paths: list[Path]) -> list[Path]:
    """Return each run directory in or below the paths once, in the order of paths and names."""
    directories: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(
                f"{path} is not a folder; name run directories, or folders that contain some"
            )
        for folder, subfolders, files in os.walk(path):
            subfolders.sort()
            if SETTINGS in files:
                subfolders.clear()
                directories.setdefault(Path(folder).resolve(), Path(folder))
    return list(directories.values())


def read_run(path: Path) -> Run:
    """Return the run in a directory.

    All values are checked here, so that nothing else in the report has to handle damaged files.
    """
    toml, partition_file = path / SETTINGS, path / PARTITION
    check_run(path, (SETTINGS, PARTITION, ROUNDS, FINAL))
    values = read_toml(toml)
    versions = text_table(values.pop("versions", {}), "versions", toml)
    code = text_table(values.pop("code", {}), "code", toml)
    choices = text_table(values.pop("choices", {}), "choices", toml)
    settings = {RENAMED.get(key, key): value for key, value in flatten(values).items()}
    check_settings(settings, str(toml))
    partition = read_record(partition_file, PartitionRecord)
    if partition is not None:
        check_partition(partition, str(partition_file))
    final = read_record(path / FINAL, FinalRecord) or FinalRecord()
    classes = None if partition is None else partition.classes
    check_final(final, classes, str(path / FINAL))
    return Run(
        path=path,
        settings=settings,
        versions=versions,
        code=code,
        choices=choices,
        rounds=evaluated_rounds(read_rounds(path / ROUNDS), settings, str(path / ROUNDS)),
        partition=partition,
        final=final,
        diverged=(path / DIVERGED).exists(),
    )


def evaluated_rounds(
    records: list[RoundRecord], settings: Settings, location: str
) -> list[RoundRecord]:
    """Return the records up to the last round that was evaluated, after checking them."""
    check_evaluations(records, settings, location)
    while records and not is_evaluated(records[-1]):
        records.pop()
    return records


def flatten(values: dict[str, Any]) -> Settings:
    """Return settings with the keys of tables joined, as in `algorithm.mu`."""
    settings: Settings = {}
    for key, value in values.items():
        if isinstance(value, dict):
            settings |= {f"{key}.{inner}": item for inner, item in flatten(value).items()}
        else:
            settings[key] = value
    return settings


def text_table(value: Any, key: str, path: Path) -> dict[str, str]:
    """Return a table of experiment.toml that is not a setting, with its values as text."""
    require(isinstance(value, dict), str(path), f"[{key}] must be a table", value)
    return {str(name): str(text) for name, text in value.items()}
