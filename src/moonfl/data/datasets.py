"""The data sets by name. A new one is a file with its reader and a line in this table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, quoted, unknown
from . import digits
from .augment import Preparation
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
    """What the publisher offers."""

    url: str
    md5: str
    folder: str  # what it unpacks to, below the data directory
    files: tuple[str, ...]  # what must be in that folder


@dataclass(frozen=True)
class Source:
    read: Callable[[Path, Reading], Dataset]  # the folder or file
    model: str  # the encoder the paper uses for it, or that suits most of the kind
    preparation: Preparation | None  # None: by the type of the data
    archive: Archive | None = None  # None: there is nothing to download, and
    where: str = ""  # this is where it is


def at_sites(folder: Path, reading: Reading) -> Dataset:
    raise InputError(
        "dataset=sites means the data are at the sites of a deployment; see `moonfl flower init --help`"
    )


def given(folder: Path, reading: Reading) -> Dataset:
    raise InputError(
        "dataset=given means the data were handed to moonfl.federate; call it again with resume=True"
    )


DATASETS = {
    "digits": Source(
        lambda folder, reading: read_digits(),
        "mlp",
        digits.PREPARATION,
        where="comes with scikit-learn",
    ),
    "cifar10": Source(
        lambda folder, reading: read_cifar10(folder),
        "simple-cnn",
        CIFAR10,
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
            (*CIFAR10_TRAIN, "test_batch"),
        ),
    ),
    "cifar100": Source(
        lambda folder, reading: read_cifar100(folder),
        "resnet50",
        CIFAR100,
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
            ("train", "test", "meta"),
        ),
    ),
    "tiny-imagenet": Source(
        lambda folder, reading: read_tiny_imagenet(folder),
        "resnet50",
        TINY_IMAGENET,
        Archive(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            "tiny-imagenet-200",
            ("train", "val/images", "val/val_annotations.txt"),
        ),
    ),
    "folder": Source(
        read_folder,
        "simple-cnn",
        None,
        where="is your own: data_dir=FOLDER, a folder of images per class",
    ),
    "npz": Source(
        read_npz, "mlp", None, where="is your own: data_dir=FILE.npz with arrays x and y"
    ),
    "csv": Source(read_csv, "mlp", None, where="is your own: data_dir=FILE.csv label=COLUMN"),
    "sites": Source(at_sites, "mlp", None, where="is at the sites of a deployment (moonfl flower)"),
    "given": Source(given, "mlp", None, where="is what moonfl.federate was given in Python"),
}


def source(name: str) -> Source:
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name]


def load(name: str, data_dir: Path, reading: Reading | None = None) -> Dataset:
    """Read a data set from its publisher's layout below `data_dir`, or what the user has there."""
    data = _read(name, data_dir, reading or Reading())
    for part, examples in (("training", data.train), ("test", data.test)):
        if examples is not None and len(examples.y) == 0:
            raise InputError(f"{name} in {data_dir} has no {part} samples")
    return data


def _read(name: str, data_dir: Path, reading: Reading) -> Dataset:
    return source(name).read(locate(name, data_dir), reading)


def locate(name: str, data_dir: Path) -> Path:
    """The folder or file of a data set; one of a publisher must be there."""
    archive = source(name).archive
    if archive is None:
        return data_dir
    folder = data_dir / archive.folder
    missing = [file for file in archive.files if not (folder / file).exists()]
    if missing:
        raise InputError(
            f"{name} is not in {data_dir}: {folder / missing[0]} is missing. "
            f"Fetch it with `moonfl data get {name} --data-dir {quoted(data_dir)}`, or set data_dir to the folder that "
            f"has {archive.folder}/"
        )
    return folder
