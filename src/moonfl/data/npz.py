"""Anybody's arrays: an .npz file with x [N, ...] and y [N]; x_test, y_test, the names of classes, and columns (arrays
with a value for each sample, such as the person it is of) if there are.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InputError
from .augment import default_preparation
from .base import Dataset, Examples, Reading

CHANNELS = (1, 3, 4)  # of images: grey, colours, colours and opacity
FEW = 20  # classes of which most may be missing
Arrays = dict[str, NDArray[np.generic]]


def read_npz(path: Path, reading: Reading | None = None) -> Dataset:
    found = {name: _words(values) for name, values in _load(path).items()}
    for name in ("x", "y"):
        if name not in found:
            raise InputError(f"{path} has no array '{name}'; it has {', '.join(found) or 'none'}")
    names = found.get("classes")
    if names is not None and (
        names.ndim != 1 or len(set(names.tolist())) != len(names) or len(names) == 0
    ):
        raise InputError(f"{path}: classes must be a list of names, each once")
    given = tuple(str(name) for name in names) if names is not None else ()
    asked = reading.classes if reading is not None else ()
    if given and asked and given != asked:
        raise InputError(
            f"{path} has the classes {', '.join(given)}, not {', '.join(asked)} as classes= says"
        )
    given = given or asked
    if ("x_test" in found) != ("y_test" in found):
        raise InputError(f"{path} has one of x_test and y_test; give both or neither")
    parts = ("", "_test") if "x_test" in found else ("",)
    classes = given or infer_classes([found[f"y{part}"] for part in parts])
    train, *test = (
        make_examples(f"{path}: ", found[f"x{part}"], found[f"y{part}"], classes, part)
        for part in parts
    )
    for other in test:
        if other.x.shape[1:] != train.x.shape[1:] or other.x.dtype != train.x.dtype:
            raise InputError(
                f"{path}: x_test is {like(other)}, x is {like(train)}; they must be alike"
            )
    others = [name for name in found if name not in ("x", "y", "x_test", "y_test", "classes")]
    columns = {name: found[name] for name in others if found[name].shape == (len(train.y),)}
    held = {
        name.removesuffix("_test"): found[name]
        for name in others
        for part in test
        if name.endswith("_test") and found[name].shape == (len(part.y),)
    }
    prepared = default_preparation(train.x.dtype, len(train.x.shape) - 1)
    return Dataset(train, test[0] if test else None, classes, prepared, columns, held)


def _load(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: np.asarray(file[name]) for name in file.files}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged or foreign file raises nearly anything
        raise InputError(f"{path} is not an .npz file of plain arrays ({error})") from None


def _words(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Bytes as text, whatever they are."""
    if values.dtype.kind != "S":
        return values
    return np.char.decode(values.astype(np.bytes_), "utf-8", "backslashreplace")


def write_npz(path: Path, train: Examples, test: Examples | None, classes: tuple[str, ...]) -> None:
    arrays: Arrays = {}
    for part, (x, y) in (("", train), ("_test", test)) if test is not None else (("", train),):
        arrays |= {f"x{part}": x[torch.arange(len(y))].cpu().numpy(), f"y{part}": y.cpu().numpy()}
    np.savez(path, allow_pickle=False, classes=np.array(classes), **arrays)


def infer_classes(labels: list[NDArray[np.generic]]) -> tuple[str, ...]:
    """Whole numbers are classes from 0 to the largest; words are their own names, by the alphabet."""
    if len({part.dtype.kind in "US" for part in labels if part.size > 0}) > 1:
        raise InputError(
            "some labels are words and others are numbers; give all of them as words, or all as numbers"
        )
    words, whole = _different(labels, "US", np.str_), _different(labels, "biu", np.int64)
    if words.size > 0:
        return tuple(map(str, words))
    largest = int(whole.max(initial=-1))
    if largest >= FEW and len(whole) <= largest / 2:
        raise InputError(
            f"labels go up to {largest}, but only {len(whole)} different ones occur; number the classes from 0, "
            "or give words"
        )
    return tuple(str(k) for k in range(largest + 1))


def _different(
    labels: list[NDArray[np.generic]], kinds: str, as_type: type[np.generic]
) -> NDArray[np.generic]:
    """Of those that are of these kinds, each once."""
    found = [part.astype(as_type).ravel() for part in labels if part.dtype.kind in kinds]
    return np.unique(np.concatenate(found)) if found else np.empty(0, as_type)


def make_examples(
    where: str,
    x: NDArray[np.generic],
    y: NDArray[np.generic],
    classes: tuple[str, ...],
    part: str = "",
    whole: bool = False,
) -> Examples:
    """`x` and `y` checked: pixels stay bytes, numbers become float32 (int64 where `whole`), labels become their place
    among the classes.
    """
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or len(y) == 0:
        raise InputError(
            f"{where}x{part} {x.shape} and y{part} {y.shape} must be [N, ...] and [N], N at least 1"
        )
    if y.dtype.kind == "b":
        y = y.astype(np.int64)
    if y.dtype.kind in "US":
        y = _numbered(where, y.astype(np.str_), classes, part)
    if not np.issubdtype(y.dtype, np.integer):
        raise InputError(f"{where}y{part} holds {y.dtype}, not whole numbers or words, one a class")
    if not 0 <= y.min() <= y.max() < max(len(classes), 1):
        raise InputError(
            f"{where}y{part} must hold whole numbers from 0 to {max(len(classes), 1) - 1}, one a class"
        )
    if x.dtype.kind not in "biuf" or x.size == 0:
        raise InputError(
            f"{where}x{part} holds {x.dtype} {list(x.shape)}, not numbers for each sample"
        )
    pixels = x.dtype == np.uint8 and x.ndim == 4
    if pixels and x.shape[3] in CHANNELS and min(x.shape[1:3]) > max(CHANNELS):
        raise InputError(
            f"{where}x{part} {list(x.shape)} has its channels last; pixels are [N, C, H, W]: x.transpose(0, 3, 1, 2)"
        )
    values = torch.from_numpy(x.copy() if pixels else x.astype(np.int64 if whole else np.float32))
    if not pixels and not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values)).flatten(1).any(dim=1).nonzero()[0])
        raise InputError(f"{where}x{part} has a value that is not finite in sample {row}")
    return Examples(values, torch.from_numpy(y.astype(np.int64)))


def _numbered(
    where: str, y: NDArray[np.str_], classes: tuple[str, ...], part: str
) -> NDArray[np.int64]:
    number = {name: k for k, name in enumerate(classes)}
    strange = next((name for name in y.tolist() if name not in number), None)
    if strange is not None:
        raise InputError(
            f"{where}y{part} has '{strange}', which is not one of the classes ({', '.join(classes)})"
        )
    return np.array([number[name] for name in y.tolist()], dtype=np.int64)


def like(examples: Examples) -> str:
    return f"{str(examples.x.dtype).removeprefix('torch.')} {list(examples.x.shape[1:])}"
