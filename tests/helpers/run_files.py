"""Run directories of believable facts, made without training."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
END = {"moon": 0.69, "fedavg": 0.66, "fedprox": 0.668, "scaffold": 0.672, "solo": 0.46}
OWN: dict[str, dict[str, Any]] = {"moon": {"mu": 5.0, "tau": 0.5}, "fedprox": {"mu": 0.01}}


def make_run(
    path: Path, algorithm: str = "moon", seed: int = 0, rounds: int = 30, **settings: Any
) -> Path:
    """`mu=1` and `scale="small"` are settings as in experiment.toml; `done=12` leaves the run unfinished."""
    done = settings.pop("done", rounds)
    own = {k: settings.pop(k, v) for k, v in OWN.get(algorithm, {}).items()}
    if algorithm == "solo":
        rounds = done = 1
    values = {
        "dataset": "cifar10",
        "model": "simple-cnn",
        "head": True,
        "partition": "dirichlet",
        "parties": 10,
        "beta": 0.5,
    }
    values |= {
        "sample_fraction": 1.0,
        "rounds": rounds,
        "epochs": 10,
        "lr": 0.01,
        "seed": seed,
        "partition_seed": 0,
    } | settings
    tables = {
        "algorithm": {"name": algorithm} | own,
        "server": {"name": "average"},
        "versions": {"moonfl": "0.1.0", "torch": "2.13.0"},
        "choices": {"aggregation": "by number of samples"},
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    for name, table in tables.items():
        lines += [
            "",
            f"[{name}]",
            *(f"{key} = {json.dumps(value)}" for key, value in table.items()),
        ]
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text("\n".join(lines) + "\n")
    random = np.random.default_rng(
        [seed, len(algorithm), int(1000 * values["beta"]), int(10 * own.get("mu", 0))]
    )
    counts = partition(int(values["parties"]), float(values["beta"]))
    end = (
        END.get(algorithm, 0.65)
        + 0.006 * random.standard_normal()
        - 0.05 / (1 + 10 * values["beta"])
    )
    facts = [one_round(t, end, algorithm, counts, random) for t in range(1, done + 1)]
    (path / "rounds.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    (path / "partition.json").write_text(
        json.dumps({"classes": CLASSES, "counts": counts.tolist()})
    )
    if done == rounds:
        (path / "final.json").write_text(json.dumps(at_the_end(end, algorithm, counts, random)))
    return path


def partition(parties: int, beta: float) -> np.ndarray:
    random = np.random.default_rng([parties, int(1000 * beta)])
    return (
        np.array([random.multinomial(5000, random.dirichlet([beta] * parties)) for _ in CLASSES]).T
        + 3
    )


def one_round(
    t: int, end: float, algorithm: str, counts: np.ndarray, random: np.random.Generator
) -> dict[str, Any]:
    speed = {"moon": 7.0, "scaffold": 5.0}.get(algorithm, 6.0)
    accuracy = end if algorithm == "solo" else end - (end - 0.1) * math.exp(-(t - 1) / speed)
    factor = {"moon": 1.9, "solo": 30.0}.get(algorithm, 1.0)
    parties = []
    for i, samples in enumerate(counts.sum(axis=1).tolist()):
        drift = (
            (2.0 if algorithm == "moon" else 2.6)
            * (0.4 + math.exp(-t / 20))
            * (1 + 0.15 * random.standard_normal())
        )
        own = {
            "seconds": samples / 2400 * factor,
            "cpu_seconds": samples / 2500 * factor,
            "drift": drift,
        }
        sent = 0 if algorithm == "solo" else 1_360_000 * (2 if algorithm == "scaffold" else 1)
        parties.append(
            {"party": i, "samples": samples, "steps": samples // 64 * 10, "loss": 1.2, **own}
        )
        parties[-1] |= {"bytes_down": sent, "bytes_up": sent}
    fact = {
        "round": t,
        "accuracy": float(np.clip(accuracy + 0.008 * random.standard_normal(), 0.05, 1)),
        "loss": 1.0,
    }
    fact |= {"macro_f1": 0.98 * fact["accuracy"], "balanced_accuracy": 0.99 * fact["accuracy"]}
    if algorithm == "solo":
        each = {
            f"party-{i}": float(np.clip(end + 0.05 * random.standard_normal(), 0, 1))
            for i in range(len(counts))
        }
        fact |= {
            "accuracy": float(np.mean(list(each.values()))),
            "accuracy_std": float(np.std(list(each.values()))),
            "accuracies": each,
        }
    sums = {key: sum(p[key] for p in parties) for key in ("bytes_down", "bytes_up", "cpu_seconds")}
    return (
        fact
        | sums
        | {"seconds": sums["cpu_seconds"] / 1.8 * (1 + 0.05 * random.random()), "parties": parties}
    )


def at_the_end(
    end: float, algorithm: str, counts: np.ndarray, random: np.random.Generator
) -> dict[str, Any]:
    kinds = len(CLASSES)
    confusion = []
    for k in range(kinds):
        right = float(
            np.clip(end + 0.13 * math.sin(2.1 * k) + 0.02 * random.standard_normal(), 0.05, 0.97)
        )
        others = random.dirichlet([0.6] * (kinds - 1)) * (1 - right)
        confusion.append(random.multinomial(1000, np.insert(others, k, right)).tolist())
    parties = []
    for i, samples in enumerate(counts.sum(axis=1).tolist()):
        own = {"accuracy": float(np.clip(end + 0.08 * random.standard_normal(), 0, 1))}
        own |= {
            "similarity": 0.93 - 0.06 * random.random(),
            "distance": 0.8 + 0.2 * random.random(),
        }
        parties.append(
            {"party": i, "samples": samples}
            | (own if algorithm != "solo" else {**own, "similarity": None, "distance": None})
        )
    labels = random.integers(0, kinds, 1000)
    angles = 2 * np.pi * labels / kinds
    points = 30 * np.stack([np.cos(angles), np.sin(angles)], axis=1) + 7 * random.standard_normal(
        (1000, 2)
    )
    return {
        "confusion": confusion,
        "parties": parties,
        "tsne": {"points": points.round(3).tolist(), "labels": labels.tolist()},
    }


def comparison(folder: Path, rounds: int = 30, **settings: Any) -> Path:
    """MOON, FedAvg and SCAFFOLD over three seeds, SOLO over one."""
    for algorithm in ("moon", "fedavg", "scaffold"):
        for seed in range(3):
            make_run(folder / f"{algorithm}-{seed}", algorithm, seed, rounds, **settings)
    make_run(folder / "solo-0", "solo", 0, **settings)
    return folder
