"""The datasets by name. A new dataset is a file with its reader and an entry in DATASETS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import InputError, quoted, unknown
from . import digits
from .augment import Preparation, default_preparation
from .base import Dataset, Reading
from .cifar import CIFAR10, CIFAR10_TRAIN, CIFAR100, read_cifar10, read_cifar100
from .digits import read_digits
from .folder import read_folder
from .npz import read_npz
from .tables import read_csv
from .tiny_imagenet import PREPARATION as TINY_IMAGENET
from .tiny_imagenet import read_tiny_imagenet


@dataclass(frozen=True)
class Archive:
    """The archive that a publisher offers for download."""

    url: str
    md5: str
    folder: str  # the folder that it unpacks to, below the data directory
    files: tuple[str, ...]  # files that must be in that folder


@dataclass(frozen=True)
class Source:
    """How a dataset is read, and the defaults that suit it."""

    read: Callable[[Path, Reading], Dataset]  # the argument is the folder or file
    model: str  # the encoder that the paper uses for it, or that suits most data of this kind
    preparation: Preparation | None  # None: depends on the type of the data
    archive: Archive | None = None  # None: there is nothing to download
    location: str = ""  # where data without an archive are, as the end of a sentence


def read_sites(folder: Path, reading: Reading) -> Dataset:
    """Raise an InputError: the data of a deployment are not here."""
    raise InputError(
        "dataset=sites means the data are at the sites of a deployment; "
        "see `moonfl flower init --help`"
    )


def read_federate_data(folder: Path, reading: Reading) -> Dataset:
    """Raise an InputError: data that were passed to moonfl.federate are not stored."""
    raise InputError(
        "dataset=given means the data were passed to moonfl.federate; "
        "call it again with resume=True"
    )


DATASETS = {
    "digits": Source(
        read=lambda folder, reading: read_digits(),
        model="mlp",
        preparation=digits.PREPARATION,
        location="is part of scikit-learn",
    ),
    "cifar10": Source(
        read=lambda folder, reading: read_cifar10(folder),
        model="simple-cnn",
        preparation=CIFAR10,
        archive=Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            folder="cifar-10-batches-py",
            files=(*CIFAR10_TRAIN, "test_batch"),
        ),
    ),
    "cifar100": Source(
        read=lambda folder, reading: read_cifar100(folder),
        model="resnet50",
        preparation=CIFAR100,
        archive=Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            folder="cifar-100-python",
            files=("train", "test", "meta"),
        ),
    ),
    "tiny-imagenet": Source(
        read=lambda folder, reading: read_tiny_imagenet(folder),
        model="resnet50",
        preparation=TINY_IMAGENET,
        archive=Archive(
            url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            md5="90528d7ca1a48142e341f4ef8d21d0de",
            folder="tiny-imagenet-200",
            files=("train", "val/images", "val/val_annotations.txt"),
        ),
    ),
    "folder": Source(
        read=read_folder,
        model="simple-cnn",
        preparation=None,
        location="is user-supplied: data_dir=FOLDER with one folder of images per class",
    ),
    "npz": Source(
        read=read_npz,
        model="mlp",
        preparation=None,
        location="is user-supplied: data_dir=FILE.npz with arrays x and y",
    ),
    "csv": Source(
        read=read_csv,
        model="mlp",
        preparation=None,
        location="is user-supplied: data_dir=FILE.csv label=COLUMN",
    ),
    "sites": Source(
        read=read_sites,
        model="mlp",
        preparation=None,
        location="is at the sites of a deployment (moonfl flower)",
    ),
    "given": Source(
        read=read_federate_data,
        model="mlp",
        preparation=None,
        location="was passed to moonfl.federate in Python",
    ),
}


def source(name: str) -> Source:
    """Return the entry of a dataset; an unknown name is an InputError with the nearest names."""
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name]


def preparation_of(dataset: str, dtype: torch.dtype, dimensions: int) -> Preparation:
    """Return the preparation of a dataset, or the default for samples of this type."""
    return source(dataset).preparation or default_preparation(dtype, dimensions)


def load(name: str, data_dir: Path, reading: Reading | None = None) -> Dataset:
    """Read a published dataset below `data_dir`, or the user's file or folder `data_dir`."""
    data = source(name).read(locate(name, data_dir), reading or Reading())
    for part, examples in (("training", data.train), ("test", data.test)):
        if examples is not None and len(examples.y) == 0:
            raise InputError(f"{name} in {data_dir} has no {part} samples")
    return data


def locate(name: str, data_dir: Path) -> Path:
    """Return the folder or file of a dataset; the files of a published one must be there."""
    archive = source(name).archive
    if archive is None:
        return data_dir
    folder = data_dir / archive.folder
    for file in archive.files:
        if not (folder / file).exists():
            raise InputError(
                f"{name} is not in {data_dir}: {folder / file} is missing. Download it with "
                f"`moonfl data get {name} --data-dir {quoted(data_dir)}`, or set data_dir to the "
                f"folder that has {archive.folder}/"
            )
    return folder
