"""Tests of the readers of published datasets, with valid and damaged files."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.problems import write_cifar10, write_cifar100, write_tiny_imagenet
from moonfl.data.base import Examples
from moonfl.data.datasets import load
from moonfl.data.digits import PREPARATION
from moonfl.data.loader import batches
from moonfl.errors import InputError


def test_digits() -> None:
    data = load("digits", Path("nowhere"))
    assert data.train.x.shape == (1437, 1, 8, 8)
    assert len(data.test.y) == 360
    x = PREPARATION.normalise(data.train.x)
    assert float(x.min()) == 0
    assert float(x.max()) == 1


def test_cifar10(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    data = load("cifar10", tmp_path)
    assert data.train.x.shape == (100, 3, 32, 32)
    assert data.train.x.dtype == torch.uint8
    assert data.train.y[:3].tolist() == [0, 1, 2]
    raw = pickle.loads((tmp_path / "cifar-10-batches-py" / "data_batch_2").read_bytes())[b"data"]
    assert np.array_equal(data.train.x[20].flatten().numpy(), raw[0])
    assert data.classes[3] == "cat"


def test_cifar10_written_by_python_2(tmp_path: Path) -> None:
    """The published files are pickles of Python 2, with the old name of a numpy module."""
    write_cifar10(tmp_path)
    for path in (tmp_path / "cifar-10-batches-py").iterdir():
        path.write_bytes(
            path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        )
    assert len(load("cifar10", tmp_path).train.y) == 100


def test_cifar100(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    data = load("cifar100", tmp_path)
    assert len(data.classes) == 100
    assert data.train.y[:3].tolist() == [0, 1, 2]
    assert len(np.unique(data.columns["coarse_label"])) == 20


def test_tiny_imagenet(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path)
    data = load("tiny-imagenet", tmp_path)
    assert data.train.x.shape == (24, 3, 64, 64)
    assert data.classes == ("thing 0", "thing 1", "thing 2")
    grey, colour = data.train.x[0], data.train.x[1]
    assert torch.equal(grey[0], grey[1])
    assert not torch.equal(colour[0], colour[2])
    assert data.test.y.tolist() == [0, 1, 2]
    assert (
        data.test.x[:, 0].float().mean(dim=(1, 2)) - torch.tensor([0.0, 60.0, 120.0])
    ).abs().max() < 5


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code ran')",))


def test_a_pickle_cannot_run_code(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    with pytest.raises(InputError, match="data_batch_1 is not a CIFAR file"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((2, 9), np.uint8), b"labels": [1, 2]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.float32), b"labels": [1, 2]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, "x"]}),
    ],
)
def test_broken_cifar_file_is_named(tmp_path: Path, content: bytes) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(InputError, match="data_batch_3"):
        load("cifar10", tmp_path)


def test_missing_data_names_the_folder_and_the_command(tmp_path: Path) -> None:
    for name, folder in [
        ("cifar10", "cifar-10-batches-py"),
        ("cifar100", "cifar-100-python"),
        ("tiny-imagenet", "tiny-"),
    ]:
        with pytest.raises(InputError, match=rf"{folder}.*moonfl data get {name}"):
            load(name, tmp_path)


def test_broken_tiny_imagenet_is_named(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path)
    folder = tmp_path / "tiny-imagenet-200"
    annotations = folder / "val" / "val_annotations.txt"
    good = annotations.read_text()
    annotations.write_text(good + "val_9.JPEG\tn99999999\t0\t0\t1\t1\n")
    with pytest.raises(InputError, match=r"val_annotations.txt, line 4"):
        load("tiny-imagenet", tmp_path)
    annotations.write_text(good)
    image = folder / "train" / "n00000001" / "images" / "n00000001_2.JPEG"
    image.write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"n00000001_2.JPEG is not a readable image"):
        load("tiny-imagenet", tmp_path)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [(1, [1]), (10, [10]), (63, [63]), (64, [64]), (65, [64]), (130, [64, 64])],
)
def test_batches(samples: int, expected: list[int]) -> None:
    data = Examples(torch.arange(samples).view(-1, 1, 1, 1), torch.arange(samples))
    order = torch.Generator().manual_seed(0)
    epochs = [list(batches(data, PREPARATION, 64, order, None)) for _ in range(2)]
    for epoch in epochs:
        assert [len(batch.y) for batch in epoch] == expected
        rows = torch.cat([batch.rows for batch in epoch])
        assert len(set(rows.tolist())) == len(rows)
        assert all(torch.equal(batch.rows, batch.y) for batch in epoch)
    if samples > 1:
        assert not torch.equal(epochs[0][0].rows, epochs[1][0].rows)
