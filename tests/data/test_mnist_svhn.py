"""Readers of MNIST, Fashion-MNIST, EMNIST (IDX files) and SVHN (MATLAB files)."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

import moonfl
from helpers.published_files import idx, plain, write_idx, write_svhn
from moonfl.data import compression
from moonfl.data.base import Reading
from moonfl.data.datasets import load
from moonfl.data.matlab import read_arrays
from moonfl.data.mnist import EMNIST_CLASSES, IDX_FILES, emnist_files
from moonfl.errors import InputError
from moonfl.experiment import Experiment


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize(
    ("pack", "suffix"), [(plain, ""), (gzip.compress, ".gz"), (gzip.compress, "")]
)
def test_idx_files_plain_and_gzipped(
    name: str, pack: Callable[[bytes], bytes], suffix: str, tmp_path: Path
) -> None:
    images = write_idx(tmp_path / name, pack=pack, suffix=suffix)
    data = load(name, tmp_path)
    assert data.train.x.shape == (60, 1, 28, 28)
    assert data.train.x.dtype == torch.uint8
    assert np.array_equal(data.train.x[:, 0].numpy(), images)
    assert data.train.y[:12].tolist() == [*range(10), 0, 1]
    assert len(data.test.y) == 20
    assert len(data.classes) == 10
    assert data.classes[9] == ("9" if name == "mnist" else "ankle boot")


def test_emnist_is_transposed_and_letters_start_at_1(tmp_path: Path) -> None:
    images = write_idx(tmp_path / "emnist", emnist_files("letters"), labels=range(1, 27))
    data = load("emnist", tmp_path, Reading(split="letters"))
    assert np.array_equal(data.train.x[:, 0].numpy(), images.transpose(0, 2, 1))
    assert data.train.y[:26].tolist() == list(range(26))
    assert data.classes[:2] == ("A", "B")
    with pytest.raises(InputError, match=r"emnist-balanced-train-images-idx3-ubyte is missing"):
        load("emnist", tmp_path)


def test_the_splits_of_emnist_have_their_classes() -> None:
    """The numbers of classes in Table II of the paper."""
    expected = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10}
    assert {name: len(classes) for name, classes in EMNIST_CLASSES.items()} == expected | {
        "mnist": 10
    }


def test_split_belongs_to_emnist() -> None:
    assert Experiment(dataset="emnist", split="letters").reading.split == "letters"
    with pytest.raises(InputError, match="split belongs to dataset=emnist, not to dataset=mnist"):
        Experiment(dataset="mnist", split="letters")
    with pytest.raises(InputError, match="split must be balanced or byclass"):
        Experiment(dataset="emnist", split="all")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "first bytes are missing"),
        (b"PK00" * 10, "not an IDX file of bytes with 3 dimensions: its first bytes are 50 4b"),
        (idx(np.zeros((60, 28, 28)))[:-1], "should have 47040 values of shape"),
        (gzip.compress(idx(np.zeros((60, 28, 28))), mtime=0)[:-20], "is damaged"),
        (idx(np.zeros((59, 28, 28))), "59 images .* but 60 labels"),
    ],
)
def test_damaged_idx_files(content: bytes, message: str, tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / IDX_FILES[0]).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load("mnist", tmp_path)


def test_labels_out_of_range(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", labels=range(1, 11))
    with pytest.raises(InputError, match="must hold labels from 0 to 9, it has 1 to 10"):
        load("mnist", tmp_path)


def test_svhn(tmp_path: Path) -> None:
    images = write_svhn(tmp_path / "svhn")
    data = load("svhn", tmp_path)
    assert data.train.x.shape == (60, 3, 32, 32)
    assert np.array_equal(data.train.x[7].numpy(), images[:, :, :, 7].transpose(2, 0, 1))
    assert data.train.y[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]  # the file has 10 for 0


def test_damaged_svhn(tmp_path: Path) -> None:
    write_svhn(tmp_path / "svhn")
    path = tmp_path / "svhn" / "train_32x32.mat"
    for values, message in (
        ({"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))}, r"does not hold bytes X"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.zeros((2, 1))}, "labels from 1 to 10"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1))}, "has 2 images"),
    ):
        savemat(path, values)
        with pytest.raises(InputError, match=message):
            load("svhn", tmp_path)
    path.write_bytes(b"MATLAB?" * 100)
    with pytest.raises(InputError, match="is not a MATLAB file"):
        load("svhn", tmp_path)


def test_a_matlab_file_that_crashed_scipy(tmp_path: Path) -> None:
    """One byte, in the type of the values, was enough to end the process."""
    write_svhn(tmp_path / "svhn")
    path = tmp_path / "svhn" / "train_32x32.mat"
    images = np.zeros((32, 32, 3, 2), np.uint8)
    savemat(path, {"X": images, "y": np.ones((2, 1), np.uint8)})
    content = bytearray(path.read_bytes())
    content[185] = 255
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not a MATLAB file .*unknown type"):
        load("svhn", tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "i8", "f4", "f8"])
def test_matlab_arrays_are_those_of_scipy(compressed: bool, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    arrays = {"X": np.arange(24).reshape(2, 3, 4).astype(dtype), "y": np.ones((1, 1), dtype)}
    savemat(path, arrays, do_compression=compressed)
    result = read_arrays(path.read_bytes())
    assert list(result) == ["X", "y"]
    for name, values in result.items():
        assert values.dtype == arrays[name].dtype
        assert np.array_equal(values, arrays[name])


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_BYTES", 1000)
    write_idx(tmp_path / "mnist", pack=gzip.compress, suffix=".gz")
    with pytest.raises(InputError, match="more than 1,000 bytes after decompression"):
        load("mnist", tmp_path)


def test_a_run_on_images_of_mnist(tmp_path: Path) -> None:
    """One and two workers give the same model."""
    write_idx(tmp_path / "mnist")
    exp = Experiment(dataset="mnist", data_dir=str(tmp_path), parties=2, rounds=1, epochs=1)
    first, second = (moonfl.run(exp, workers=workers).models for workers in (1, 2))
    for name, values in first["global"].items():
        assert torch.equal(values, second["global"][name])
