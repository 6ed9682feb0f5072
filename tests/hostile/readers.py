"""What is read: every reader of files from others. A new reader is one entry of READERS."""

import contextlib
import functools
import gzip
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import torch
from PIL import Image
from scipy.io import savemat

import moonfl
from helpers.equality import same
from helpers.problems import (
    TABLE,
    write_cifar10,
    write_cifar100,
    write_images,
    write_patients,
    write_tiny_imagenet,
)
from moonfl import Experiment, InputError
from moonfl.cli import main
from moonfl.data.base import Dataset, Reading
from moonfl.data.datasets import load
from moonfl.data.images import Images
from moonfl.data.mnist import IDX_FILES, emnist_files
from moonfl.experiment import from_toml, to_toml
from moonfl.exports.source import from_directory
from moonfl.flower.site import read_config
from moonfl.presets import PRESETS
from moonfl.runs import checkpoint
from moonfl.runs.directory import read_experiment, read_partition, read_rounds
from moonfl.runs.index import CHECKPOINT, STATES, hash_file, read_file, sha256
from moonfl.runs.site_states import SiteStates

from .harness import Reader

SMALL = Experiment(parties=2, rounds=2, epochs=1, validation=0.2, out_dim=8)
BY_SITE = Reading(label="outcome", column="site")
ENCODED = Reading(
    label="outcome", column="hospital", ignore=("patient",), impute="indicator", encode="onehot"
)
MESSAGE_LINES = 3  # of a command that fails: the error, after notes such as the data location


def dataset(
    name: str, write: Callable[[Path], object], reading: Reading | None = None, cases: int = 400
) -> Reader:
    """Return the reader of a dataset that is the input folder, or a file `data` in it."""

    def read(folder: Path) -> Dataset:
        path = folder / "data" if name in ("csv", "npz", "folder", "hub") else folder
        data = load(name, path, reading)
        for examples in (data.train, data.test):
            if examples is not None and isinstance(examples.x, Images):
                examples.x.check()
        return data

    def write_data(folder: Path) -> None:
        write(folder)

    return Reader(write=write_data, read=read, check=check_dataset, cases=cases)


def check_dataset(data: Dataset, expected: Dataset) -> None:
    """Check that samples, labels, names and columns fit together."""
    classes = len(data.classes)
    assert classes >= 1
    assert all(name.isprintable() for name in data.classes), data.classes
    for examples, columns in ((data.train, data.columns), (data.test, data.test_columns)):
        if examples is None:
            continue
        x, y = examples
        assert len(x) == len(y) >= 1, (len(x), len(y))
        assert y.dtype == torch.int64, y.dtype
        assert 0 <= int(y.min()) <= int(y.max()) < classes, (y.min(), y.max(), classes)
        if not isinstance(x, Images):
            missing = (
                x.isnan() if data.table is not None else torch.zeros(x.shape, dtype=torch.bool)
            )
            assert bool((torch.isfinite(x.float()) | missing).all()), "not finite"
        assert all(len(values) == len(y) for values in columns.values()), "columns"


def write_table(folder: Path) -> None:
    (folder / "data").write_text(TABLE)


def write_patient_table(folder: Path) -> None:
    write_patients(folder / "data", rows=10)


def write_tables(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "train.csv").write_text(TABLE)
    (folder / "data" / "test.csv").write_text("outcome,sex,age,site\nill,1,50,A\n")


def write_arrays(folder: Path) -> None:
    """Write arrays of every kind: signals, strings as labels, a test part and a column."""
    rng = np.random.default_rng(0)
    names = np.array(["a", "b"])
    with open(folder / "data", "wb") as file:
        np.savez(
            file,
            x=rng.normal(size=(12, 5)),
            y=names[np.arange(12) % 2],
            x_test=rng.normal(size=(4, 5)),
            y_test=names[np.arange(4) % 2],
            classes=names,
            person=np.arange(12) % 3,
        )


def write_image_arrays(folder: Path) -> None:
    x = np.arange(8 * 3 * 6 * 6, dtype=np.uint8).reshape(8, 3, 6, 6)
    with open(folder / "data", "wb") as file:
        np.savez_compressed(file, x=x, y=np.arange(8) % 2)


def write_image_folder(folder: Path) -> None:
    """Write an image of every accepted format."""
    write_images(folder / "data", count=1)
    for k, extension in enumerate(("jpg", "bmp", "gif", "tif", "webp", "ppm")):
        path = folder / "data" / ("red", "blue")[k % 2] / f"{k}.{extension}"
        Image.linear_gradient("L").resize((20, 20)).convert("RGB").save(path)


def write_saved_images(folder: Path) -> None:
    """Write images as the library `datasets` saves them, with a test split and a column."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["a", "b"]),
            "person": datasets.Value("string"),
        }
    )
    images = [Image.new("RGB", (6, 6), (k, 9, 200)) for k in range(6)]
    content = {"image": images, "label": [0, 1] * 3, "person": ["p", "q", "r"] * 2}
    split = datasets.Dataset.from_dict(content, features=features)
    splits = datasets.DatasetDict({"train": split, "test": split})
    splits.save_to_disk(folder / "data", num_proc=None)


def write_saved_table(folder: Path) -> None:
    content = {"age": [30, 40, 50, 60], "dose": [0.1, 0.2, 0.3, 0.4], "label": ["a", "b"] * 2}
    datasets.Dataset.from_dict(content).save_to_disk(folder / "data")


def write_saved_patients(folder: Path) -> None:
    """Save a table with missing values and categories as the library `datasets` does."""
    path = folder / "data.csv"
    write_patients(path, rows=10)
    table = datasets.Dataset.from_pandas(pandas.read_csv(path), preserve_index=False)
    path.unlink()
    table.save_to_disk(folder / "data")


def write_idx(folder: Path, name: str, files: tuple[str, ...], compressed: bool) -> None:
    """Write small images and labels in the files of MNIST or EMNIST."""
    (folder / name).mkdir()
    for k, file in enumerate(files):
        values = np.arange(10, dtype=np.uint8)
        if k % 2 == 0:
            values = np.broadcast_to(values[:, None, None], (10, 28, 28))
        header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
        content = header + values.tobytes()
        if compressed:
            content = gzip.compress(content, mtime=0)
        (folder / name / f"{file}{'.gz' if compressed else ''}").write_bytes(content)


def write_svhn(folder: Path) -> None:
    (folder / "svhn").mkdir()
    images = np.arange(32 * 32 * 3 * 10, dtype=np.uint8).reshape(32, 32, 3, 10)
    labels = np.arange(1, 11, dtype=np.uint8).reshape(10, 1)
    for name, compressed in (("train", True), ("test", False)):
        path = folder / "svhn" / f"{name}_32x32.mat"
        savemat(path, {"X": images, "y": labels}, do_compression=compressed)


def write_experiment(folder: Path) -> None:
    preset = next(iter(PRESETS.values())).experiment
    notes = {"versions": {"moonfl": "0.1.0"}, "choices": {"aggregation": "mean"}}
    (folder / "experiment.toml").write_text(to_toml(preset, notes))


def write_site(folder: Path) -> None:
    text = 'party = 1\nname = "Bonn"\ndata = "data.npz"\nholdout = 0.2\nsecret = "x"\n'
    (folder / "site.toml").write_text(text)


@functools.cache
def trained_run() -> Path:
    """Train a small run once per process and return its folder."""
    folder = Path(tempfile.mkdtemp(prefix="moonfl-hostile-"))
    moonfl.run(SMALL, folder / "run", workers=1)
    moonfl.export(folder / "run", folder / "export")
    return folder


def write_run(folder: Path) -> None:
    shutil.copytree(trained_run() / "run", folder / "run")


def write_export(folder: Path) -> None:
    path = trained_run() / "export" / "model.safetensors"
    shutil.copy(path, folder / path.name)


def write_site_state(folder: Path) -> None:
    state = {"previous": {"w": torch.arange(6.0)}, "control": {"w": torch.ones(2, 3)}}
    SiteStates(folder).save(0, 1, state, None)


def rehash(folder: Path) -> None:
    """Write the hashes of changed files into the index and the log, as an attacker would."""
    run = folder / "run"
    log = run / CHECKPOINT / STATES
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OSError):
        rehash_log(log)
    for path in (run / CHECKPOINT).glob("round-*.json"):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OSError):
            index = json.loads(read_file(path))
            for name in index["files"]:
                index["files"][name] = hash_file(run / name, index["rounds"])
            for entry in (index["server"], index["chosen"]):
                entry["sha256"] = sha256(run / CHECKPOINT / entry["file"])
            start = read_file(log)[: index["states"]["size"]]
            index["states"]["sha256"] = hashlib.sha256(start).hexdigest()
            path.write_text(json.dumps(index))


def rehash_log(path: Path) -> None:
    """Write the hashes of changed states into the log."""
    lines = []
    for text in read_file(path).splitlines():
        line = json.loads(text)
        state = path.with_name(f"party-{line['party']}-round-{line['round']}.safetensors")
        if state.exists():
            line["sha256"] = sha256(state)
        lines.append(json.dumps(line))
    path.write_text("".join(f"{line}\n" for line in lines))


def read_checkpoint(folder: Path) -> object:
    """Read all files that resume reads."""
    run = folder / "run"
    exp = read_experiment(run)
    saved = checkpoint.read(run / CHECKPOINT, exp)
    records = read_rounds(run, saved.rounds if saved else 0)
    return exp, saved, records, read_partition(run)


def check_model(model: Any, expected: Any) -> None:
    """Check that a loaded model can be used as its header says."""
    z, logits = model(torch.zeros(2, *model.shape, dtype=model.dtype))
    assert len(z) == len(logits) == 2


def command(*words: str) -> Callable[[Path], str]:
    """Return a reader that is a command of moonfl; "{}" stands for the input folder.

    It raises InputError with what the command prints to stderr if the exit status is not 0. Other
    exceptions, which a user would see as a traceback, pass.
    """

    def read(folder: Path) -> str:
        output, errors = io.StringIO(), io.StringIO()
        arguments = [word.format(folder) for word in words]
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = main(arguments)
        lines = [line for line in errors.getvalue().splitlines() if line.strip()]
        if status == 0:
            return output.getvalue()
        assert status in (1, 2), f"exit status {status}"
        assert len(lines) <= MESSAGE_LINES, lines
        assert lines[-1].startswith("moonfl: "), lines
        raise InputError(lines[-1])

    return read


def check_printed(text: str, expected: str) -> None:
    """Check that a command's output cannot control a terminal."""
    assert all(character.isprintable() or character in "\n\t" for character in text)


def read_model_of_run(folder: Path) -> object:
    """Find the model that export would write."""
    with contextlib.redirect_stderr(io.StringIO()):
        return from_directory(folder / "run", None, True, None, trust=False).params


def check_state(state: Any, expected: Any) -> None:
    """Check that a state is a state: tensors by label and name."""
    assert all(isinstance(t, torch.Tensor) for params in state.values() for t in params.values())


def check_checkpoint(value: Any, expected: Any) -> None:
    """Check that an unforged checkpoint is the one that was written."""
    _, saved, records, _ = value
    assert saved is None or len(records) == saved.rounds
    if saved is not None and saved.rounds == expected[1].rounds:
        assert same(saved.server.params, expected[1].server.params), "other weights"
        if saved.selected is not None:
            assert same(saved.selected.params, expected[1].selected.params), "other best weights"


RUN = Reader(write=write_run, read=read_checkpoint, check=check_checkpoint, cases=1200)
READERS: dict[str, Reader] = {
    "csv": dataset("csv", write_table, BY_SITE, cases=1500),
    "csv with categories": dataset("csv", write_patient_table, ENCODED),
    "csv folder": dataset("csv", write_tables, BY_SITE),
    "npz": dataset("npz", write_arrays, Reading(column="person"), cases=1500),
    "npz of images": dataset("npz", write_image_arrays),
    "image folder": dataset("folder", write_image_folder, cases=2500),
    "resized image folder": dataset("folder", write_image_folder, Reading(image_size=8)),
    "cifar10": dataset("cifar10", lambda folder: write_cifar10(folder, per_file=2), cases=1000),
    "cifar100": dataset("cifar100", lambda folder: write_cifar100(folder, 4, 2), cases=1000),
    "tiny-imagenet": dataset("tiny-imagenet", lambda folder: write_tiny_imagenet(folder, 2, 2)),
    "mnist": dataset("mnist", lambda folder: write_idx(folder, "mnist", IDX_FILES, False)),
    "emnist": dataset(
        "emnist",
        lambda folder: write_idx(folder, "emnist", emnist_files("digits"), True),
        Reading(split="digits"),
    ),
    "svhn": dataset("svhn", write_svhn, cases=1000),
    "hub images": dataset("hub", write_saved_images, Reading(column="person"), cases=1000),
    "hub table": dataset("hub", write_saved_table, cases=1000),
    "hub encoded table": dataset("hub", write_saved_patients, ENCODED, cases=1000),
    "experiment": Reader(
        write=write_experiment,
        read=lambda folder: from_toml(folder / "experiment.toml"),
        check=lambda exp, expected: to_toml(exp),
        cases=1500,
    ),
    "site.toml": Reader(write=write_site, read=lambda folder: read_config(folder / "site.toml")),
    "site state": Reader(
        write=write_site_state,
        read=lambda folder: SiteStates(folder).load(0, 1),
        check=check_state,
        cases=800,
    ),
    "checkpoint": RUN,
    "forged checkpoint": replace(
        RUN, finish=rehash, check=lambda value, expected: None, cases=1200
    ),
    "model of a run": replace(
        RUN, read=read_model_of_run, check=lambda params, expected: None, finish=rehash, cases=300
    ),
    "moonfl compare": Reader(
        write=write_run,
        read=command("compare", "{}/run"),
        check=check_printed,
        finish=rehash,
        cases=600,
    ),
    "moonfl resume": Reader(
        write=write_run,
        read=command("resume", "{}/run", "--workers", "1"),
        check=check_printed,
        finish=rehash,
        cases=200,
    ),
    "exported model": Reader(
        write=write_export, read=moonfl.load_model, check=check_model, cases=1000
    ),
    "moonfl partition": Reader(
        write=write_table,
        read=command(
            "partition",
            "dataset=csv",
            "data_dir={}/data",
            "label=outcome",
            "partition=column",
            "column=site",
            "--out",
            "{}/partition.svg",
        ),
        check=check_printed,
        cases=300,
    ),
}
