"""User-supplied arrays: an .npz file with x [N, ...] and y [N].

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
from numpy.typing import NDArray

from ..errors import InputError, first_line
from .augment import default_preparation
from .base import Dataset, Examples, Reading
from .labels import FEW_CLASSES, check_classification, regression_target
from .locations import check_file
from .targets import CLASSIFICATION, make_targets, target_names

RESERVED = ("x", "y", "x_test", "y_test", "classes")  # arrays that are not columns
MAX_COMPRESSED = 2**30  # bytes of an array that may be compressed by any factor
MAX_FACTOR = 100  # by which a larger array may be compressed
MAX_ITEM = 4096  # bytes of a value in a column
LARGEST = float(np.finfo(np.float32).max)
CHANNELS = (1, 3, 4)  # of images: grey, RGB, RGB with opacity
Array = NDArray[np.generic]
Arrays = dict[str, Array]


def read_npz(path: Path, reading: Reading | None = None) -> Dataset:
    """Read a dataset from an .npz file."""
    reading = reading or Reading()
    arrays = _load(path, reading)
    suffixes = ("", "_test") if "x_test" in arrays else ("",)
    names = _class_names(path, arrays, reading.classes)
    labels = [arrays[f"y{suffix}"] for suffix in suffixes]
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


def read_samples(path: Path) -> torch.Tensor:
    """Read the samples x of an .npz file; labels are not needed."""
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
    return _samples(f"{path}: x", x, False)


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


def infer_names(
    labels: list[Array], task: str, names: tuple[str, ...], location: str = "y"
) -> tuple[str, ...]:
    """Return the names of the classes, labels or targets; `names` if the user has given some."""
    if task != CLASSIFICATION:
        return target_names(labels, task, names)
    return names or infer_classes(labels, location)


def infer_classes(labels: list[Array], location: str = "y") -> tuple[str, ...]:
    """Return class names for labels: 0 to the largest integer, or the sorted strings.

    Return () for labels of another type, which `make_examples` refuses.
    """
    kinds = {part.dtype.kind in "US" for part in labels if part.size > 0}
    if len(kinds) > 1:
        raise InputError(
            "some labels are strings and others are numbers; give all of them as strings, "
            "or all as integers"
        )
    strings = _distinct(labels, "US", np.str_)
    integers = _distinct(labels, "biu", np.int64)
    samples = sum(part.size for part in labels)
    if strings.size > 0:
        check_classification(location, len(strings), samples, strings[0])
        return tuple(str(name) for name in strings)
    largest = int(integers.max(initial=-1))
    if largest >= FEW_CLASSES:
        check_classification(location, len(integers), samples, largest)
        if len(integers) <= largest / 2:
            raise InputError(
                f"labels go up to {largest}, but only {len(integers)} distinct values occur; "
                "number the classes from 0, or use strings as labels"
            )
    return tuple(str(k) for k in range(largest + 1))


def _distinct(labels: list[Array], kinds: str, dtype: type[np.generic]) -> Array:
    """Return the distinct values of the arrays whose dtype is of one of these kinds."""
    arrays = [part.astype(dtype).ravel() for part in labels if part.dtype.kind in kinds]
    return np.unique(np.concatenate(arrays)) if arrays else np.empty(0, dtype)


def make_examples(
    location: str,
    x: Array,
    y: Array,
    classes: tuple[str, ...],
    *,
    suffix: str = "",
    integers: bool = False,
    task: str = CLASSIFICATION,
) -> Examples:
    """Check x and y and convert them to tensors.

    Images stay bytes, and token ids (`integers`) become int64. Other values become float32 if that
    holds all values of their type, otherwise float64. Labels become the index of their class.
    `location` and `suffix` are for error messages.
    """
    dimensions = (1,) if task == CLASSIFICATION else (1, 2)
    if x.ndim < 2 or y.ndim not in dimensions or len(x) != len(y) or len(y) == 0:
        raise InputError(
            f"{location}x{suffix} {x.shape} and y{suffix} {y.shape} must be [N, ...] and [N], "
            f"N >= 1{_task_hint(y, task)}"
        )
    labels = make_labels(f"{location}y{suffix}", y, classes, task)
    return Examples(_samples(f"{location}x{suffix}", x, integers), labels)


def make_labels(location: str, y: Array, classes: tuple[str, ...], task: str) -> torch.Tensor:
    """Return the index of the class of every sample; of another task, its targets."""
    if task != CLASSIFICATION:
        return make_targets(location, y, task, classes)
    if y.ndim != 1:
        raise InputError(f"{location} {y.shape} must be [N]{_task_hint(y, task)}")
    return torch.from_numpy(class_indices(location, y, classes))


def _task_hint(y: Array, task: str) -> str:
    """Return which task labels of shape [N, L] may be meant for."""
    if task != CLASSIFICATION or y.ndim != 2:
        return ""
    return "; several labels per sample need task=multilabel, several numbers task=regression"


def with_common_dtype(parts: list[Examples]) -> list[Examples]:
    """Return the examples with float64 samples if some of them have float64 and others float32."""
    if not any(part.x.dtype == torch.float64 for part in parts):
        return parts
    return [part.with_dtype(torch.float64) for part in parts]


def class_indices(location: str, y: Array, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the index of the class of every label."""
    if y.dtype.kind in "US":
        return _string_indices(location, y.astype(np.str_), classes)
    if y.dtype.kind == "f":
        raise _float_labels(location, y)
    if y.dtype.kind not in "biu":
        raise InputError(
            f"{location} holds {y.dtype}; labels must be integers or strings, one value per class"
        )
    largest = max(len(classes), 1) - 1
    if int(y.min()) < 0 or int(y.max()) > largest:
        raise InputError(
            f"{location} must hold integers from 0 to {largest}, one per class; "
            f"it has {int(y.min())} to {int(y.max())}"
        )
    return y.astype(np.int64)


def _string_indices(
    location: str, y: NDArray[np.str_], classes: tuple[str, ...]
) -> NDArray[np.int64]:
    index = {name: k for k, name in enumerate(classes)}
    names = y.tolist()
    for name in names:
        if name not in index:
            raise InputError(
                f"{location} has '{name}', which is not one of the classes ({', '.join(classes)})"
            )
    return np.array([index[name] for name in names], dtype=np.int64)


def _float_labels(location: str, y: Array) -> InputError:
    """Return the error for floating-point labels."""
    values = y.astype(np.float64)
    fractions = values[values != np.floor(values)]  # includes NaN
    if fractions.size > 0:
        distinct = len(np.unique(values))
        return regression_target(location, f"{distinct} distinct {y.dtype} values", fractions[0])
    return InputError(
        f"{location} holds {y.dtype}; labels must be integers or strings, one value per class. If "
        "these are classes, convert them: y.astype(int); to predict numbers, set task=regression"
    )


def _samples(location: str, x: Array, integers: bool) -> torch.Tensor:
    """Return the samples as a tensor: uint8 images, int64 token ids, or finite floats."""
    if x.dtype.kind not in "biuf" or x.size == 0:
        raise InputError(f"{location} must hold integers or floats, got {x.dtype} {list(x.shape)}")
    if x.dtype == np.uint8 and x.ndim == 4:
        if x.shape[3] in CHANNELS and min(x.shape[1:3]) > max(CHANNELS):
            raise InputError(
                f"{location} {list(x.shape)} has its channels last; images are [N, C, H, W]: "
                "use x.transpose(0, 3, 1, 2)"
            )
        return torch.from_numpy(x.copy())
    if x.dtype in (np.int64, np.uint64):
        _check_rows(location, x, _is_exact(x), "integers beyond 2^53, which a float cannot hold")
    if integers:
        return torch.from_numpy(x.astype(np.int64))
    dtype = np.float32 if np.can_cast(x.dtype, np.float32) else np.float64
    values = x.astype(dtype)
    _check_rows(location, x, np.isfinite(values), "NaN or infinite values")
    _check_rows(location, x, np.abs(values) <= LARGEST, "values that are too large for float32")
    return torch.from_numpy(values)


def _is_exact(x: Array) -> NDArray[np.bool_]:
    """Return which integers are at most 2^53 in size, so that float64 holds them."""
    if x.dtype == np.uint64:
        return np.less_equal(x, np.uint64(2**53))
    return np.less_equal(x, 2**53) & np.greater_equal(x, -(2**53))


def _check_rows(location: str, x: Array, valid: NDArray[np.bool_], problem: str) -> None:
    """Raise an InputError that names the first sample with a value that is not valid."""
    if not valid.all():
        row = int(np.flatnonzero(~valid.reshape(len(x), -1).all(axis=1))[0])
        raise InputError(f"sample {row} of {location} has {problem}; correct or remove it")


def describe_samples(examples: Examples) -> str:
    """Return the dtype and shape of a sample, such as "float32 [4]"."""
    return f"{str(examples.x.dtype).removeprefix('torch.')} {list(examples.x.shape[1:])}"
