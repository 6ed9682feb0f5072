"""Write run directories with plausible values, without training, and edit those of runs."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FINAL_ACCURACY = {"moon": 0.69, "fedavg": 0.66, "fedprox": 0.668, "scaffold": 0.672, "solo": 0.46}
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "moon": {"mu": 5.0, "tau": 0.5},
    "fedprox": {"mu": 0.01},
}
MODEL_BYTES = 1_360_000


@dataclass(frozen=True)
class Source:
    """What the values of a run are drawn from."""

    algorithm: str
    accuracy: float  # at the end
    counts: np.ndarray  # [parties, classes]
    random: np.random.Generator

    @property
    def solo(self) -> bool:
        return self.algorithm == "solo"

    @property
    def samples(self) -> list[int]:
        """Return the number of samples of each party."""
        return [int(number) for number in self.counts.sum(axis=1)]


def make_run(
    path: Path, algorithm: str = "moon", seed: int = 0, rounds: int = 30, **settings: Any
) -> Path:
    """Write a run directory.

    `mu=1` and `scale="small"` are settings as in experiment.toml; `done=12` leaves the run
    unfinished.
    """
    done = settings.pop("done", rounds)
    defaults = HYPERPARAMETERS.get(algorithm, {})
    hyperparameters = {key: settings.pop(key, value) for key, value in defaults.items()}
    if algorithm == "solo":
        rounds = done = 1
    values = {
        "dataset": "cifar10",
        "model": "simple-cnn",
        "head": True,
        "partition": "dirichlet",
        "parties": 10,
        "beta": 0.5,
        "sample_fraction": 1.0,
        "rounds": rounds,
        "epochs": 10,
        "lr": 0.01,
        "seed": seed,
        "partition_seed": 0,
    } | settings
    path.mkdir(parents=True)
    write_settings(path, values, {"name": algorithm} | hyperparameters)
    beta = values["beta"]
    random = np.random.default_rng(
        [seed, len(algorithm), int(1000 * beta), int(10 * hyperparameters.get("mu", 0))]
    )
    accuracy = FINAL_ACCURACY.get(algorithm, 0.65)
    accuracy += 0.006 * random.standard_normal() - 0.05 / (1 + 10 * beta)
    counts = partition(int(values["parties"]), float(beta))
    source = Source(algorithm, accuracy, counts, random)
    records = [round_record(t, source) for t in range(1, done + 1)]
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    partition_record = {"classes": CLASSES, "counts": counts.tolist()}
    (path / "partition.json").write_text(json.dumps(partition_record))
    if done == rounds:
        (path / "final.json").write_text(json.dumps(final_record(source)))
    return path


def write_settings(path: Path, settings: dict[str, Any], algorithm: dict[str, Any]) -> None:
    """Write experiment.toml."""
    tables = {
        "algorithm": algorithm,
        "server": {"name": "average"},
        "versions": {"moonfl": "0.1.0", "torch": "2.13.0"},
        "choices": {"aggregation": "by number of samples"},
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    (path / "experiment.toml").write_text("\n".join(lines) + "\n")


def partition(parties: int, beta: float) -> np.ndarray:
    """Return samples per party and class; no party is without a class."""
    random = np.random.default_rng([parties, int(1000 * beta)])
    columns = [random.multinomial(5000, random.dirichlet([beta] * parties)) for _ in CLASSES]
    return np.array(columns).T + 3


def round_record(t: int, source: Source) -> dict[str, Any]:
    """Return the values of one line of rounds.jsonl."""
    parties = [party_record(t, i, source) for i in range(len(source.counts))]
    speed = {"moon": 7.0, "scaffold": 5.0}.get(source.algorithm, 6.0)
    accuracy = source.accuracy
    if not source.solo:
        accuracy -= (accuracy - 0.1) * math.exp(-(t - 1) / speed)
    accuracy = float(np.clip(accuracy + 0.008 * source.random.standard_normal(), 0.05, 1))
    record: dict[str, Any] = {
        "round": t,
        "accuracy": accuracy,
        "loss": 1.0,
        "macro_f1": 0.98 * accuracy,
        "balanced_accuracy": 0.99 * accuracy,
    }
    if source.solo:
        record |= model_accuracies(source)
    for key in ("bytes_down", "bytes_up", "cpu_seconds"):
        record[key] = sum(party[key] for party in parties)
    record["seconds"] = record["cpu_seconds"] / 1.8 * (1 + 0.05 * source.random.random())
    record["parties"] = parties
    return record


def party_record(t: int, party: int, source: Source) -> dict[str, Any]:
    """Return the values of one party in one round."""
    samples = source.samples[party]
    scale = 2.0 if source.algorithm == "moon" else 2.6
    noise = 1 + 0.15 * source.random.standard_normal()
    slowdown = {"moon": 1.9, "solo": 30.0}.get(source.algorithm, 1.0)
    models = {"solo": 0, "scaffold": 2}.get(source.algorithm, 1)
    return {
        "party": party,
        "samples": samples,
        "steps": samples // 64 * 10,
        "loss": 1.2,
        "seconds": samples / 2400 * slowdown,
        "cpu_seconds": samples / 2500 * slowdown,
        "drift": scale * (0.4 + math.exp(-t / 20)) * noise,
        "bytes_down": models * MODEL_BYTES,
        "bytes_up": models * MODEL_BYTES,
    }


def model_accuracies(source: Source) -> dict[str, Any]:
    """Return the accuracies of the models of SOLO, one per party."""
    accuracies = {
        f"party-{i}": share(source.accuracy + 0.05 * source.random.standard_normal())
        for i in range(len(source.counts))
    }
    values = list(accuracies.values())
    return {
        "accuracy": float(np.mean(values)),
        "accuracy_std": float(np.std(values)),
        "accuracies": accuracies,
    }


def share(value: float) -> float:
    """Return the value limited to the range from 0 to 1."""
    return float(np.clip(value, 0, 1))


def final_record(source: Source) -> dict[str, Any]:
    """Return the values of final.json."""
    count = len(CLASSES)
    random = source.random
    confusion = []
    for k in range(count):
        correct = source.accuracy + 0.13 * math.sin(2.1 * k) + 0.02 * random.standard_normal()
        correct = float(np.clip(correct, 0.05, 0.97))
        others = random.dirichlet([0.6] * (count - 1)) * (1 - correct)
        confusion.append(random.multinomial(1000, np.insert(others, k, correct)).tolist())
    parties = []
    for i, samples in enumerate(source.samples):
        record = {
            "party": i,
            "samples": samples,
            "accuracy": share(source.accuracy + 0.08 * random.standard_normal()),
            "similarity": 0.93 - 0.06 * random.random(),
            "distance": 0.8 + 0.2 * random.random(),
        }
        if source.solo:
            record |= {"similarity": None, "distance": None}
        parties.append(record)
    labels = random.integers(0, count, 1000)
    angles = 2 * np.pi * labels / count
    centres = 30 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = centres + 7 * random.standard_normal((1000, 2))
    return {
        "confusion": confusion,
        "parties": parties,
        "tsne": {"points": points.round(3).tolist(), "labels": labels.tolist()},
    }


def comparison(folder: Path, rounds: int = 30, **settings: Any) -> Path:
    """Write runs of MOON, FedAvg and SCAFFOLD with three seeds, and of SOLO with one."""
    for algorithm in ("moon", "fedavg", "scaffold"):
        for seed in range(3):
            make_run(folder / f"{algorithm}-{seed}", algorithm, seed, rounds, **settings)
    make_run(folder / "solo-0", "solo", 0, **settings)
    return folder


def remove_hashes(run: Path) -> None:
    """Remove the hashes of a run's files from its checkpoints, as in runs of version 0.1."""
    for path in (run / "checkpoint").glob("round-*.json"):
        index = json.loads(path.read_text())
        index.pop("files", None)
        path.write_text(json.dumps(index))
