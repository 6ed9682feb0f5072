"""Run directories: found, read, checked. A run may be old or unfinished; what it lacks is left out."""

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..runs.schema import RoundRecord, convert
from ..runs.stopping import is_finished
from . import run_checks
from .run_checks import Fact
from .run_files import read_json, read_rounds, read_toml

TEXTS = ("versions", "choices")  # tables of experiment.toml that are not settings


@dataclass(frozen=True)
class Run:
    path: Path
    settings: Fact  # flat: "rounds", "algorithm.mu", ...
    versions: dict[str, str]
    choices: dict[str, str]
    rounds: list[Fact]
    partition: Fact | None
    final: Fact
    diverged: bool = False

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    @property
    def federated(self) -> bool:
        """Whether its parties met: of those that do not, as in SOLO, each ends with a model and an accuracy."""
        return self.settings.get("parties") != 1 and "accuracy_std" not in self.rounds[-1]

    @property
    def finished(self) -> bool:
        records = convert(self.rounds, list[RoundRecord], str(self.path))
        return is_finished(int(self.settings["rounds"]), self.settings.get("patience"), records)

    @property
    def shortfall(self) -> str:
        """Of a run that is not finished: what it is."""
        if self.diverged:
            return (
                f"diverged after round {len(self.rounds)}"
                if self.rounds
                else "diverged in its first round"
            )
        return "is unfinished" if self.rounds else "has no finished round yet"

    @property
    def stopped_early(self) -> bool:
        return self.finished and len(self.rounds) < int(self.settings["rounds"])


def load_runs(paths: list[Path]) -> tuple[list[Run], list[str]]:
    """Every run in or under the paths that has a finished round, and notes on those that have none."""
    found = find_runs(paths)
    if not found:
        raise InputError(
            f"no run in {', '.join(map(str, paths))}; a run is a folder with experiment.toml in it"
        )
    runs = [read_run(path) for path in found]
    kept = [run for run in runs if run.rounds]
    empty = [f"{run.path} {run.shortfall} and is left out." for run in runs if not run.rounds]
    if not kept:
        raise InputError(f"there is no finished round to show: {' '.join(empty)}")
    return kept, empty


def find_runs(paths: list[Path]) -> list[Path]:
    """Run directories, in order of the paths and then of their names; each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(
                f"{path} is not a folder; give run directories, or folders that hold some"
            )
        for folder, inner, files in os.walk(path):
            inner.sort()
            if "experiment.toml" in files:
                inner.clear()
                found.setdefault(Path(folder).resolve(), Path(folder))
    return list(found.values())


def read_run(path: Path) -> Run:
    """Every fact is checked here, once: nothing that is computed from a run meets a damaged one."""
    noted, dealt, last = path / "experiment.toml", path / "partition.json", path / "final.json"
    values = read_toml(noted)
    texts = {key: run_checks.texts(values.pop(key, {}), key, noted) for key in TEXTS}
    settings: Fact = {}
    for key, value in values.items():
        settings |= (
            {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
        )
    run_checks.settings(settings, noted)
    partition, final = read_json(dealt), read_json(last) or {}
    if partition is not None:
        run_checks.partition(partition, dealt)
    run_checks.final(final, (partition or {}).get("classes"), last)
    rounds, diverged = read_rounds(path / "rounds.jsonl"), (path / "diverged.txt").exists()
    return Run(
        path, settings, **texts, rounds=rounds, partition=partition, final=final, diverged=diverged
    )
