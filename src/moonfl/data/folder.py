"""Anybody's images: a folder for each class, or for each party a folder of those; below train/ and test/ or not."""

from pathlib import Path

import numpy as np
import torch

from ..errors import InputError, unknown
from .augment import default_preparation
from .base import Dataset, Examples, Reading
from .images import Images, Pixels, size_of, wrong_size

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
PARTY = "party"  # the column of folders of parties
Found = list[tuple[Path, str, str]]  # file, class, party


def read_folder(folder: Path, reading: Reading) -> Dataset:
    """Files are listed and their heads read; pixels are read when they are needed."""
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder; dataset=folder wants data_dir to be one with a folder for each class"
        )
    parts = [folder / "train", folder / "test"] if (folder / "train").is_dir() else [folder]
    odd = next(
        (inner.name for inner in _folders(folder) if len(parts) == 2 and inner not in parts), None
    )
    if odd is not None:
        raise InputError(
            f"{folder} has {odd}/ beside train/, where only test/ is known; rename it, or take it away"
        )
    names = _classes(parts[0], reading)
    found = [_files(part, names) for part in parts if part.is_dir()]
    size = _size([path for files in found for path, _, _ in files], reading.image_size)
    kept: dict[Path, Pixels] = {}
    train, *test = (
        _examples(files, names, size, reading.image_size is not None, kept) for files in found
    )
    columns, *held = (
        {PARTY: np.array([party for _, _, party in files])} if files[0][2] else {}
        for files in found
    )
    return Dataset(
        train,
        test[0] if test else None,
        names,
        default_preparation(torch.uint8, 3),
        columns,
        held[0] if held else {},
    )


def _folders(path: Path) -> list[Path]:
    return sorted(
        inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith(".")
    )


def _by_party(folder: Path) -> bool:
    """Whether what is in it are parties, with the classes in them."""
    return any(_folders(inner) for inner in _folders(folder))


def _classes(folder: Path, reading: Reading) -> tuple[str, ...]:
    """All class folders, those without images too: they are classes that nobody has here."""
    holders = _folders(folder) if _by_party(folder) else [folder]
    names = {inner.name for holder in holders for inner in _folders(holder)}
    if not names:
        raise InputError(
            f"{folder} has no class folders: images go into {folder}/CLASS/ or {folder}/PARTY/CLASS/"
        )
    for name in names if reading.classes else ():
        if name not in reading.classes:
            raise unknown(f"class folder in {folder}", name, reading.classes)
    return reading.classes or tuple(sorted(names))


def _files(folder: Path, names: tuple[str, ...]) -> Found:
    found: Found = []
    by_party = _by_party(folder)
    for holder in _folders(folder) if by_party else [folder]:
        _refuse_loose(holder)
        for inner in _folders(holder):
            if inner.name not in names:
                raise unknown(f"class folder in {holder}", inner.name, names)
            files = sorted(
                path for path in inner.iterdir() if path.is_file() and not path.name.startswith(".")
            )
            odd = next((path for path in files if path.suffix.lower() not in ENDINGS), None)
            if odd is not None:
                raise InputError(
                    f"{odd} is no image by its ending; known are {', '.join(sorted(ENDINGS))}"
                )
            found += [(path, inner.name, holder.name if by_party else "") for path in files]
    if by_party:
        _refuse_loose(folder)
    if not found:
        raise InputError(
            f"{folder} has class folders ({', '.join(names[:5])}) but no images in them"
        )
    return found


def _refuse_loose(folder: Path) -> None:
    """An image outside a class folder has no label."""
    loose = next(
        (
            path
            for path in sorted(folder.iterdir())
            if path.suffix.lower() in ENDINGS and path.is_file()
        ),
        None,
    )
    if loose is not None:
        raise InputError(f"{loose} has no label: it is in no class folder")


def _size(paths: list[Path], asked: int | None) -> tuple[int, int]:
    """Every head is read, so that a file that is no image is found before the first round."""
    sizes = [size_of(path) for path in paths]
    if asked is not None:
        return asked, asked
    odd = next((k for k, size in enumerate(sizes) if size != sizes[0]), None)
    if odd is not None:
        raise InputError(
            f"{wrong_size(paths[odd], sizes[odd], sizes[0])} as {paths[0].name} has; "
            "set image_size=N to bring all images to NxN"
        )
    return sizes[0]


def _examples(
    found: Found,
    names: tuple[str, ...],
    size: tuple[int, int],
    resize: bool,
    kept: dict[Path, Pixels],
) -> Examples:
    label = {name: k for k, name in enumerate(names)}
    y = torch.tensor([label[name] for _, name, _ in found])
    return Examples(Images([path for path, _, _ in found], size, resize, kept=kept), y)
