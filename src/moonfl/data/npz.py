"""User-supplied .npz files: x [N, ...] and y [N].

Optional arrays are x_test and y_test, the names of the classes, and columns: arrays with one value
per sample, such as the person it comes from.
"""

import math
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile

from ..errors import InputError, first_line
from .arrays import (
    check_labels,
    describe_samples,
    infer_names,
    make_examples,
    with_common_dtype,
)
from .augment import default_preparation
from .base import Array, Dataset, Examples, Reading
from .locations import check_file

RESERVED = ("x", "y", "x_test", "y_test", "classes")  # arrays that are not columns
MAX_COMPRESSED = 2**30  # bytes of an array that may be compressed by any factor
MAX_FACTOR = 100  # by which a larger array may be compressed
MAX_ITEM = 4096  # bytes of a value in a column
Arrays = dict[str, Array]


def read_npz(path: Path, reading: Reading | None = None) -> Dataset:
    """Read a dataset from an .npz file."""
    reading = reading or Reading()
    arrays = _load(path, reading)
    suffixes = ("", "_test") if "x_test" in arrays else ("",)
    names = _class_names(path, arrays, reading.classes)
    labels = [arrays[f"y{suffix}"] for suffix in suffixes]
    for suffix, y in zip(suffixes, labels, strict=True):
        check_labels(f"{path}: y{suffix}", y, reading.task)
    classes = infer_names(labels, reading.task, names, f"{path}: y")
    parts = [_read_part(path, arrays, classes, suffix, reading.task) for suffix in suffixes]
    train, *tests = with_common_dtype(parts)
    test = None
    test_columns: Arrays = {}
    if tests:
        test = tests[0]
        _check_alike(path, train, test)
        test_columns = {
            name.removesuffix("_test"): values
            for name, values in _columns(arrays, len(test.y)).items()
            if name.endswith("_test")
        }
    return Dataset(
        train=train,
        test=test,
        classes=classes,
        preparation=default_preparation(train.x.dtype, len(train.x.shape) - 1),
        columns=_columns(arrays, len(train.y)),
        test_columns=test_columns,
    )


def read_samples(path: Path) -> Array:
    """Read the samples x of an .npz file as they are stored; labels are not needed."""
    check_file(path)
    problem = f"{path} is not an .npz file of plain arrays"
    try:
        with np.load(path, allow_pickle=False) as content:
            archive = content.zip
            if archive is None or "x.npy" not in archive.namelist():
                raise InputError(f"{path} has no array 'x'; it has {', '.join(content.files)}")
            _check_size(path, archive, "x")
            x = _load_array(path, content, "x")
    except InputError:
        raise
    except Exception as error:  # a damaged or foreign file raises nearly anything
        raise InputError(f"{problem}: {first_line(error)}") from None
    if x.ndim < 2:
        raise InputError(f"{path}: x {list(x.shape)} must be [N, ...]")
    return x


def _class_names(path: Path, arrays: Arrays, expected: tuple[str, ...]) -> tuple[str, ...]:
    """Return the class names in the file or else the expected ones; () if there are neither."""
    if "classes" not in arrays:
        return expected
    names = arrays["classes"]
    if names.ndim != 1 or len(names) == 0 or len(set(names.tolist())) != len(names):
        raise InputError(f"{path}: classes must be a non-empty list of distinct names")
    classes = tuple(str(name) for name in names)
    if expected and classes != expected:
        raise InputError(
            f"{path} has the classes {', '.join(classes)}, but classes={','.join(expected)} is "
            "set; use the same names in the same order"
        )
    return classes


def _read_part(
    path: Path, arrays: Arrays, classes: tuple[str, ...], suffix: str, task: str
) -> Examples:
    """Return the training set (suffix "") or the test set (suffix "_test")."""
    x = arrays[f"x{suffix}"]
    y = arrays[f"y{suffix}"]
    return make_examples(f"{path}: ", x, y, classes, suffix=suffix, task=task)


def _check_alike(path: Path, train: Examples, test: Examples) -> None:
    """Check that the samples of the test set have the shape and dtype of the training set."""
    if test.x.shape[1:] != train.x.shape[1:] or test.x.dtype != train.x.dtype:
        raise InputError(
            f"{path}: x_test is {describe_samples(test)}, x is {describe_samples(train)}; "
            "both need the same dtype and shape"
        )


def _columns(arrays: Arrays, samples: int) -> Arrays:
    """Return the arrays with one value per sample."""
    return {
        name: values
        for name, values in arrays.items()
        if name not in RESERVED and values.shape == (samples,)
    }


def _load(path: Path, reading: Reading) -> Arrays:
    """Load the arrays of a dataset; others, and files that would need unpickling, are not."""
    check_file(path)
    problem = f"{path} is not an .npz file of plain arrays"
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise InputError(f"{problem}: it is not a complete zip archive{_format_hint(path)}")
        with np.load(path, allow_pickle=False) as content:
            return _load_arrays(path, content, reading)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged or foreign file raises nearly anything
        raise InputError(f"{problem}: {first_line(error)}") from None


def _load_arrays(path: Path, content: NpzFile, reading: Reading) -> Arrays:
    """Load samples, labels and class names, and then the columns: one value per sample."""
    names = content.files
    for name in ("x", "y"):
        if name not in names:
            raise InputError(f"{path} has no array '{name}'; it has {', '.join(names) or 'none'}")
    if ("x_test" in names) != ("y_test" in names):
        raise InputError(f"{path} has only one of x_test and y_test; give both or neither")
    archive = content.zip
    assert archive is not None  # it is None only after closing
    members = set(archive.namelist())
    arrays = {}
    for name in names:
        if name in RESERVED:
            if f"{name}.npy" not in members:
                raise InputError(f"{path}: '{name}' is not an array in the format of numpy")
            _check_size(path, archive, name)
            arrays[name] = _load_array(path, content, name)
    lengths = {arrays[name].shape[:1] for name in ("y", "y_test") if name in arrays}
    for name in names:
        if name in RESERVED or f"{name}.npy" not in members:
            continue
        shape, dtype = _read_header(archive, name)
        if shape in lengths and dtype.kind not in "OV" and dtype.itemsize <= MAX_ITEM:
            _check_size(path, archive, name)
            arrays[name] = _load_array(path, content, name)
        elif name in (reading.column, reading.holdout_by):
            raise InputError(
                f"{path}: '{name}' is {dtype} {list(shape)}; a column needs one number or string "
                f"of at most {MAX_ITEM} bytes for each of the {len(arrays['y'])} samples"
            )
    return arrays


def _check_size(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    """Refuse an array whose size is false, or with which a small file would fill the memory."""
    member = archive.getinfo(f"{name}.npy")
    shape, dtype = _read_header(archive, name)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize > member.file_size:
        raise InputError(
            f"{path}: '{name}' is {dtype} {list(shape)}, but has only {member.file_size:,} bytes; "
            "it is damaged"
        )
    if member.file_size > max(MAX_COMPRESSED, MAX_FACTOR * member.compress_size):
        raise InputError(
            f"{path}: '{name}' has {member.file_size:,} bytes, compressed to "
            f"{member.compress_size:,}; more than {MAX_COMPRESSED:,} bytes may be compressed by a "
            f"factor of at most {MAX_FACTOR}: save it without compression, with np.savez"
        )


def _load_array(path: Path, content: NpzFile, name: str) -> Array:
    """Load one array; refuse Python objects without numpy's advice to unpickle them."""
    try:
        return _decode_strings(np.asarray(content[name]))
    except InputError as error:
        raise InputError(f"{path}: '{name}' is damaged: {error}") from None
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise InputError(
            f"{path} is not an .npz file of plain arrays: '{name}' holds Python objects; save it "
            "with a numeric or string dtype"
        ) from None


def _read_header(
    archive: zipfile.ZipFile, name: str
) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Return shape and dtype of an array without loading it."""
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    return shape, dtype


def _format_hint(path: Path) -> str:
    """Return how to read a file of another format, by its name; empty if unknown."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return "; read a table with dataset=csv"
    if suffix == ".npy":
        return "; save x and y in one file with np.savez(FILE, x=x, y=y)"
    return ""


def _decode_strings(values: Array) -> Array:
    """Decode byte strings as UTF-8 with escapes for invalid bytes; leave other arrays alone.

    Strings with numbers that are no characters, which end in a SystemError of numpy, are refused.
    """
    if values.dtype.kind == "U":
        native = values.astype(values.dtype.newbyteorder("="), copy=False)
        codes = np.frombuffer(native.tobytes(), np.uint32)
        if codes.max(initial=0) > sys.maxunicode:
            raise InputError("it has strings with numbers that are no characters of Unicode")
    if values.dtype.kind != "S":
        return values
    return np.char.decode(values.astype(np.bytes_), "utf-8", "backslashreplace")


def write_npz(path: Path, train: Examples, test: Examples | None, classes: tuple[str, ...]) -> None:
    """Write a dataset in the format that `read_npz` reads."""
    arrays: Arrays = {}
    for suffix, examples in (("", train), ("_test", test)):
        if examples is not None:
            rows = torch.arange(len(examples.y))
            arrays[f"x{suffix}"] = examples.x[rows].cpu().numpy()
            arrays[f"y{suffix}"] = examples.y.cpu().numpy()
    np.savez(path, allow_pickle=False, classes=np.array(classes), **arrays)
