"""Small problems: tasks with a known solution, small tasks, and files of datasets."""

import pickle
import random
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from moonfl.algorithms import Algorithm, FedAvg
from moonfl.components import build_component
from moonfl.data.augment import Preparation
from moonfl.data.base import Examples
from moonfl.engines.embedded import Embedded
from moonfl.experiment import Experiment, override
from moonfl.federation import run
from moonfl.models.base import Model
from moonfl.objectives.classification import Tally
from moonfl.presets import PRESETS
from moonfl.runs.schema import RoundRecord
from moonfl.task import Task
from moonfl.types import Batch, Output, Party, Server

AS_STORED = Preparation(mean=(0.0,), std=(1.0,), scale=1.0)
LABELS = torch.tensor([0, 1, 0, 1])
TINY = Experiment(parties=4, rounds=3, epochs=2, batch_size=32, out_dim=16)


class MemoryRecorder:
    """A recorder that stores the round records and the updates in memory."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self.updates: list[list] = []

    def log(self, record, server, updates, *, last: bool) -> None:
        self.records.append(record)
        self.updates.append(updates)

    def metrics(self) -> list[dict]:
        """Return the round records without times, which are equal for equal runs."""
        timed = ("seconds", "cpu_seconds", "parties")
        return [{k: v for k, v in r.items() if k not in timed} for r in self.records]


def train(exp: Experiment, task: Task) -> Server:
    """Train in this process and return the server after the last round."""
    return run(exp, task, Embedded(exp, task), MemoryRecorder())


def mean_variate(exp: Experiment, engine: Embedded) -> float:
    """Return the mean over all parties of SCAFFOLD's c_i for the model `Point`."""
    states = [engine.states.load(i, before=exp.rounds) for i in range(exp.parties)]
    return sum(float(state["c_i"]["w"]) for state in states if state) / exp.parties


class Point(nn.Module):
    """A model with one scalar parameter, w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Output:
        w = self.w.expand(len(x), 1)
        return Output(w, w)


class Quadratics(Task):
    """A task in which party i has copies of (a_i, b_i) and minimises a_i/2 (w - b_i)^2."""

    def supervised(self, logits: Tensor, batch: Batch) -> Tensor:
        a, b = batch.x.flatten(1).T  # each [B]
        return (a / 2 * (logits[:, 0] - b) ** 2).mean()

    def evaluate_chunks(self, model: nn.Module, numbers: range) -> list[Tally]:
        return [Tally(0.0, [1], [1], [0], {})]

    def evaluate_party(self, model: nn.Module, party: int) -> dict[str, Tally]:
        return {"test": Tally(0.0, [1], [1], [0], {party: (0, 1)})}


def quadratics(curvatures: list[float], centres: list[float], sizes: list[int]) -> Task:
    """Return the task `Quadratics` for curvatures a_i, centres b_i and numbers of samples."""
    parties = []
    for a, b, n in zip(curvatures, centres, sizes, strict=True):
        x = torch.tensor([a, b]).repeat(n, 1).view(n, 1, 1, 2)
        parties.append(Examples(x, torch.zeros(n, dtype=torch.long)))
    return Quadratics(
        build=Point, parties=parties, test=parties[0], preparation=AS_STORED, batch_norm=False
    )


def gaussians(
    sizes: tuple[int, ...] = (40, 30, 20, 33), batch_norm: bool = False, classes: int = 3
) -> Task:
    """Return a task of clusters in six dimensions for a small network.

    The classes are distributed unevenly over the parties.
    """
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, 6, generator=rng) * 2

    def examples(n: int, shift: int) -> Examples:
        y = (torch.arange(n) // 7 + shift) % classes
        return Examples((centres[y] + torch.randn(n, 6, generator=rng)).view(n, 1, 1, 6), y)

    def build() -> nn.Module:
        norm = nn.BatchNorm1d(8) if batch_norm else nn.Identity()
        return Model(
            nn.Sequential(nn.Flatten(), nn.Linear(6, 8), norm, nn.ReLU()), 8, classes, out_dim=5
        )

    parties = [examples(n, i) for i, n in enumerate(sizes)]
    return Task(
        build=build,
        parties=parties,
        test=examples(50, 0),
        preparation=AS_STORED,
        batch_norm=batch_norm,
        classes=tuple(map(str, range(classes))),
    )


def with_algorithm(exp: Experiment, algorithm: str | Algorithm) -> Experiment:
    """Return the experiment with an algorithm or `a+b`. SOLO has one round of all parties."""
    if isinstance(algorithm, str):
        algorithm = build_component("algorithm", {"name": algorithm})
    if not algorithm.federated:
        exp = replace(exp, rounds=1, sample_fraction=1)
    missing = {key: v for key, v in algorithm.requires.items() if getattr(exp, key) is None}
    changes = [f"{key}={example}" for key, example in missing.items()]
    required = override(replace(exp, algorithm=FedAvg()), changes)
    return replace(required, algorithm=algorithm)


def make_party(**changes: Any) -> Party:
    """Return what an algorithm sees of a party that has no state, samples or models."""
    fields: dict[str, Any] = {
        "id": 0,
        "state": {},
        "global_params": {},
        "global_buffers": {},
        "shared": {},
        "lr": 0.1,
        "momentum": 0.0,
        "supervised": lambda logits, batch: F.cross_entropy(logits, batch.y),
        "frozen": lambda params: None,
        "class_counts": torch.ones(1),
        "outputs": lambda params: iter([]),
        "effective_steps": float,
    }
    return Party(**{**fields, **changes})


def random_logits() -> Tensor:
    """Return logits of as many samples as LABELS, for three classes."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(len(LABELS), 3, generator=rng)


def loss_of(algorithm: Algorithm, logits: Tensor, counts: list[int]) -> Tensor:
    """Return the local loss, for LABELS, of a party with these class counts."""
    term = algorithm.term(make_party(class_counts=torch.tensor(counts)))
    assert term is not None
    batch = Batch(logits, LABELS, torch.arange(len(LABELS)))
    return F.cross_entropy(logits, LABELS) + term(Output(logits, logits), batch, {})


def write_cifar10(data_dir: Path, per_file: int = 20) -> None:
    """Write random images in the layout of CIFAR-10."""
    folder = data_dir / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        pixels = rng.integers(0, 256, (per_file, 3072), dtype=np.uint8)
        content = {
            b"data": pixels,
            b"labels": [i % 10 for i in range(per_file)],
            b"batch_label": b"written by a test",
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def write_cifar100(data_dir: Path, train: int = 400, test: int = 100) -> None:
    """Write random images in the layout of CIFAR-100."""
    folder = data_dir / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, total in (("train", train), ("test", test)):
        fine = [i % 100 for i in range(total)]
        pixels = rng.integers(0, 256, (total, 3072), dtype=np.uint8)
        content = {b"data": pixels, b"fine_labels": fine, b"coarse_labels": [y % 20 for y in fine]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = [f"class {k}".encode() for k in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=2))


def write_tiny_imagenet(data_dir: Path, classes: int = 3, per_class: int = 8) -> None:
    """Write JPEG images in the layout of Tiny-ImageNet.

    The first image of each class is grey, the others are RGB. The order of the validation labels
    differs from that of the file names.
    """
    folder = data_dir / "tiny-imagenet-200"
    wnids = [f"n{k:08}" for k in range(classes)]
    annotations = []
    for k, wnid in enumerate(wnids):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        (folder / "val" / "images").mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            if i == 0:
                image = Image.new("L", (64, 64), 60 * k)
            else:
                image = Image.new("RGB", (64, 64), (60 * k, 10 * i, 200))
            image.save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
        name = f"val_{classes - k}.JPEG"
        Image.new("RGB", (64, 64), (60 * k, 0, 200)).save(folder / "val" / "images" / name)
        annotations.append(f"{name}\t{wnid}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(annotations))
    words = [f"{wnid}\tthing {k}, object\n" for k, wnid in enumerate(wnids)]
    (folder / "words.txt").write_text("".join(words))


def write_user_data(folder: Path) -> None:
    """Write data as users have them: a table, a folder of images, and arrays of signals."""
    rows = [
        f"{20 + i % 50},{i % 7},{'ABC'[i % 3]},{'ill' if i % 50 > 25 else 'well'}\n"
        for i in range(90)
    ]
    (folder / "patients.csv").write_text("age,marker,hospital,outcome\n" + "".join(rows))
    write_images(folder / "photographs", count=20)
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = rng.normal(size=(60, 40, 3)) + y[:, None, None]
    np.savez(folder / "motion.npz", x=x, y=y, person=np.arange(60) % 3)


def write_hapt(path: Path, people: int = 12, each: int = 24) -> None:
    """Write windows of motion signals in the format of the HAPT example.

    The frequency of a signal depends on the activity, its amplitude on the person.
    """
    rng = np.random.default_rng(0)
    time = np.arange(128)
    subject = np.repeat(np.arange(1, people + 1), each)
    y = np.tile(np.arange(6), people * each // 6)
    wave = np.sin(time * (1 + y[:, None]) / 10) * (1 + subject[:, None] / 10)
    x = (wave[:, :, None] + 0.1 * rng.normal(size=(len(y), 128, 6))).astype(np.float32)
    np.savez(path, x=x, y=y, subject=subject)


def write_images(
    folder: Path, parties: tuple[str, ...] = (), count: int = 6, side: int = 20
) -> Path:
    """Write slightly different red and blue squares into one folder per class and party."""
    for party_folder in [folder / party for party in parties] or [folder]:
        for name, colour in (("blue", (0, 0, 200)), ("red", (200, 0, 0))):
            (party_folder / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                image = Image.new("RGB", (side, side), tuple(c + i for c in colour))
                image.save(party_folder / name / f"{i:03}.png")
    return folder


def interruptible(command: list[str], **more) -> subprocess.Popen:
    """Start a process that SIGINT interrupts.

    Tests that run in the background ignore SIGINT, and their child processes would inherit this.
    """
    return subprocess.Popen(
        command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **more
    )


def shorten(monkeypatch: pytest.MonkeyPatch, solo: int, others: int | None = None) -> None:
    """Reduce the epochs of the presets: `solo` of SOLO, `others` (None: unchanged) of the rest."""
    for name, preset in list(PRESETS.items()):
        epochs = others if preset.experiment.algorithm.federated else solo
        short = preset.experiment if epochs is None else replace(preset.experiment, epochs=epochs)
        monkeypatch.setitem(PRESETS, name, replace(preset, experiment=short))


TABLE = "age,sex,site,outcome\n" + "".join(
    f"{20 + i % 50},{i % 2},{'ABC'[i % 3]},{'ill' if i % 50 > 25 else 'well'}\n" for i in range(120)
)  # a CSV file of patients at three sites


def write_patients(path: Path, rows: int = 60) -> Path:
    """Write a table as hospitals have them.

    It has missing values in several spellings, categories in inconsistent case, a boolean column,
    codes, an identifier, and three hospitals of which one has a category of its own.
    """
    rng = random.Random(0)
    lines = ["patient,hospital,age,sex,crp,stage,smoker,blood,outcome"]
    for k in range(3 * rows):
        hospital = ("North", "East", "South")[k % 3]
        age = rng.gauss(60 if hospital == "North" else 50, 10)
        sex = rng.choice(["female", "Female", "male", "MALE "])
        crp = rng.expovariate(0.1)
        ill = age + crp + (5 if sex.strip().lower() == "male" else 0) > 65
        cells = [
            f"p{k:04}",
            hospital,
            "" if k % 11 == 3 else f"{age:.1f}",
            "NA" if k % 13 == 4 else sex,
            "NaN" if k % 7 == 5 else f"{crp:.3f}",
            str(rng.choice([1, 2, 3])),
            rng.choice(["true", "false", "n/a"]),
            "zero" if hospital == "South" and k % 4 == 0 else rng.choice(["A", "B", "AB"]),
            "ill" if ill else "healthy",
        ]
        lines.append(",".join(cells))
    path.write_text("\n".join([*lines, ""]))
    return path
