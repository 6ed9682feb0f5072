"""Tiny-ImageNet-200 in its publisher's layout: one folder of JPEG files per class, and val/.

https://www.kaggle.com/c/tiny-imagenet (100,000 images of 64x64 pixels, 200 classes)
"""

from pathlib import Path

import numpy as np
import torch

from ..errors import InputError
from .augment import Preparation
from .base import Dataset, Examples
from .images import read_image
from .locations import check_file

PREPARATION = Preparation(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
LabelledFile = tuple[Path, int]  # an image file and its class index


def read_tiny_imagenet(folder: Path) -> Dataset:
    """Read the training images and, as test set, the validation images."""
    class_folders = [path for path in (folder / "train").glob("n*/images") if path.is_dir()]
    wnids = sorted(path.parent.name for path in class_folders)
    if not wnids:
        raise InputError(f"{folder / 'train'} has no class folders (n01443537/images, ...)")
    label = {wnid: k for k, wnid in enumerate(wnids)}
    return Dataset(
        train=read_images(train_files(folder, label)),
        test=read_images(val_files(folder, label)),
        classes=tuple(class_names(folder, wnids)),
        preparation=PREPARATION,
    )


def train_files(folder: Path, label: dict[str, int]) -> list[LabelledFile]:
    """List the training images, sorted by class and name; `label` is the index of each class."""
    files: list[LabelledFile] = []
    for wnid, k in label.items():
        for path in sorted((folder / "train" / wnid / "images").glob("*.JPEG")):
            files.append((path, k))
    return files


def val_files(folder: Path, label: dict[str, int]) -> list[LabelledFile]:
    """List the validation images; their labels are in an annotation file."""
    annotations = folder / "val" / "val_annotations.txt"
    files: list[LabelledFile] = []
    for number, line in enumerate(read_lines(annotations), start=1):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        if not rest or rest[0] not in label:
            raise InputError(
                f"{annotations}, line {number}: no class of the train folder in '{line}'"
            )
        files.append((folder / "val" / "images" / name, label[rest[0]]))
    return files


def class_names(folder: Path, wnids: list[str]) -> list[str]:
    """Return the first word of each class from words.txt; the WordNet id if the file lacks it."""
    words: dict[str, str] = {}
    path = folder / "words.txt"
    if path.exists():
        for line in read_lines(path):
            wnid, tab, description = line.partition("\t")
            if tab:
                words[wnid] = description
    return [words.get(wnid, wnid).split(",")[0] for wnid in wnids]


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file."""
    check_file(path)
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def read_images(files: list[LabelledFile]) -> Examples:
    """Read images [N, 3, 64, 64]; the grey ones (about 2 %) get three equal channels."""
    x = np.empty((len(files), 3, 64, 64), dtype=np.uint8)
    for i, (path, _) in enumerate(files):
        x[i] = read_image(path, (64, 64))
    return Examples(torch.from_numpy(x), torch.tensor([y for _, y in files]))
