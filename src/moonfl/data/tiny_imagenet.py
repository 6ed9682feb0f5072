"""Tiny-ImageNet-200 as its publisher lays it out: a folder of JPEG files per class, and an annotated val folder.

https://www.kaggle.com/c/tiny-imagenet (100,000 images of 64x64 pixels, 200 classes)
"""

from pathlib import Path

import numpy as np
import torch

from ..errors import InputError
from .augment import Preparation
from .base import Dataset, Examples
from .images import read_image

PREPARATION = Preparation(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def read_tiny_imagenet(folder: Path) -> Dataset:
    wnids = sorted(
        path.parent.name for path in (folder / "train").glob("n*/images") if path.is_dir()
    )
    if not wnids:
        raise InputError(f"{folder / 'train'} has no class folders (n01443537/images, ...)")
    label = {wnid: k for k, wnid in enumerate(wnids)}
    train = [
        (path, label[n])
        for n in wnids
        for path in sorted((folder / "train" / n / "images").glob("*.JPEG"))
    ]
    return Dataset(
        read_images(train),
        read_images(val_files(folder, label)),
        tuple(class_names(folder, wnids)),
        PREPARATION,
    )


def val_files(folder: Path, label: dict[str, int]) -> list[tuple[Path, int]]:
    """The val images are not in class folders: their labels stand in an annotation file."""
    annotations = folder / "val" / "val_annotations.txt"
    files = []
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
    """The first word of each class, where the file that lists them is there."""
    path = folder / "words.txt"
    words = (
        dict(line.split("\t", 1) for line in read_lines(path) if "\t" in line)
        if path.exists()
        else {}
    )
    return [words.get(wnid, wnid).split(",")[0] for wnid in wnids]


def read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def read_images(files: list[tuple[Path, int]]) -> Examples:
    """[N, 3, 64, 64]; the grey ones (about 2 %) get three equal channels."""
    x = np.empty((len(files), 3, 64, 64), dtype=np.uint8)
    for i, (path, _) in enumerate(files):
        x[i] = read_image(path, (64, 64))
    return Examples(torch.from_numpy(x), torch.tensor([y for _, y in files]))
