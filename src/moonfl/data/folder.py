"""User-supplied image folders: CLASS/ or PARTY/CLASS/, possibly below train/ and test/."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..errors import InputError, unknown
from .augment import default_preparation
from .base import Columns, Dataset, Examples, Reading
from .images import Cache, Images, common_size

EXTENSIONS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
PARTY = "party"  # the name of the column of parties


class ImageFile(NamedTuple):
    """An image file with its class and party."""

    path: Path
    class_name: str
    party: str  # empty: the folders are not by party


def read_folder(folder: Path, reading: Reading) -> Dataset:
    """List the image files and read their headers; pixels are read when they are needed."""
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder; dataset=folder needs data_dir=FOLDER with one folder "
            "per class"
        )
    splits = _split_folders(folder)
    classes = _classes(splits[0], reading)
    files = [_image_files(split, classes) for split in splits]
    paths = [file.path for split_files in files for file in split_files]
    size = common_size(paths, reading.image_size)
    resize = reading.image_size is not None
    cache: Cache = {}
    examples = [_examples(split_files, classes, size, resize, cache) for split_files in files]
    has_test = len(splits) > 1
    return Dataset(
        train=examples[0],
        test=examples[1] if has_test else None,
        classes=classes,
        preparation=default_preparation(torch.uint8, 3),
        columns=_party_column(files[0]),
        test_columns=_party_column(files[1]) if has_test else {},
    )


def _split_folders(folder: Path) -> list[Path]:
    """Return train/ and, if it exists, test/; the folder itself if there is no train/."""
    train = folder / "train"
    test = folder / "test"
    if not train.is_dir():
        return [folder]
    for subfolder in _subfolders(folder):
        if subfolder not in (train, test):
            raise InputError(
                f"{folder} has {subfolder.name}/ next to train/, where only test/ is allowed; "
                "rename or move it"
            )
    return [train, test] if test.is_dir() else [train]


def _subfolders(path: Path) -> list[Path]:
    """Return the folders in a folder, without hidden ones, sorted."""
    folders = [entry for entry in path.iterdir() if entry.is_dir()]
    return sorted(folder for folder in folders if not folder.name.startswith("."))


def _is_by_party(folder: Path) -> bool:
    """Return True if the folders in it have folders: they are parties with classes in them."""
    return any(_subfolders(subfolder) for subfolder in _subfolders(folder))


def _class_parents(folder: Path) -> list[Path]:
    """Return the folders that contain class folders: one per party, or the folder itself."""
    return _subfolders(folder) if _is_by_party(folder) else [folder]


def _classes(folder: Path, reading: Reading) -> tuple[str, ...]:
    """Return the names of all class folders; an empty one is a class without samples."""
    names: set[str] = set()
    for parent in _class_parents(folder):
        names.update(subfolder.name for subfolder in _subfolders(parent))
    if not names:
        raise InputError(
            f"{folder} has no class folders: put images into {folder}/CLASS/ "
            f"or {folder}/PARTY/CLASS/"
        )
    if not reading.classes:
        return tuple(sorted(names))
    for name in names:
        if name not in reading.classes:
            raise unknown(f"class folder in {folder}", name, reading.classes)
    return reading.classes


def _image_files(folder: Path, classes: tuple[str, ...]) -> list[ImageFile]:
    """List the image files of all classes and parties, sorted by party, class and name."""
    files: list[ImageFile] = []
    by_party = _is_by_party(folder)
    for parent in _class_parents(folder):
        _check_no_loose_images(parent)
        for class_folder in _subfolders(parent):
            if class_folder.name not in classes:
                raise unknown(f"class folder in {parent}", class_folder.name, classes)
            party = parent.name if by_party else ""
            for path in _image_paths(class_folder):
                files.append(ImageFile(path, class_folder.name, party))
    if by_party:
        _check_no_loose_images(folder)
    if not files:
        raise InputError(
            f"{folder} has class folders ({', '.join(classes[:5])}) but no images in them"
        )
    return files


def _image_paths(class_folder: Path) -> Iterator[Path]:
    """Yield the image files of a class in order; hidden files are skipped, others are refused."""
    for path in sorted(class_folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            raise InputError(
                f"{path} is a folder in a class folder; allowed are CLASS/IMAGE and "
                "PARTY/CLASS/IMAGE"
            )
        if path.suffix.lower() not in EXTENSIONS:
            raise InputError(
                f"{path} is not an image by its extension; known are "
                f"{', '.join(sorted(EXTENSIONS))}"
            )
        yield path


def find_images(folder: Path) -> list[Path]:
    """Return the image files in a folder and its subfolders, sorted, without hidden ones."""
    paths = []
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in EXTENSIONS and path.is_file() and not is_hidden:
            paths.append(path)
    if not paths:
        raise InputError(f"{folder} has no images ({', '.join(sorted(EXTENSIONS))})")
    return paths


def _check_no_loose_images(folder: Path) -> None:
    """Raise an InputError if an image is outside a class folder, because it has no label."""
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in EXTENSIONS and path.is_file():
            raise InputError(f"{path} has no label: it is not in a class folder")


def _examples(
    files: list[ImageFile],
    classes: tuple[str, ...],
    size: tuple[int, int],
    resize: bool,
    cache: Cache,
) -> Examples:
    index = {name: k for k, name in enumerate(classes)}
    y = torch.tensor([index[file.class_name] for file in files])
    paths = [file.path for file in files]
    return Examples(Images(paths, size, resize, cache=cache), y)


def _party_column(files: list[ImageFile]) -> Columns:
    """Return the party of every image as a column; {} if the folders are not by party."""
    if not files[0].party:
        return {}
    return {PARTY: np.array([file.party for file in files])}
