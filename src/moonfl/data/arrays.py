"""User-supplied arrays: class names, checks, and conversion to examples."""

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InputError
from .base import Array, Examples
from .cells import FLOAT32_MAX, is_missing_value
from .targets import CLASSIFICATION, make_targets, target_names

CHANNELS = (1, 3, 4)  # of images: grey, RGB, RGB with opacity
FEW_CLASSES = 20  # so many distinct labels are classes, however few samples there are


def infer_names(
    labels: list[Array], task: str, names: tuple[str, ...], location: str = "y"
) -> tuple[str, ...]:
    """Return the names of the classes, labels or targets; `names` if the user has given some."""
    if task != CLASSIFICATION:
        return target_names(labels, task, names)
    return names or infer_classes(labels, location)


def infer_classes(labels: list[Array], location: str) -> tuple[str, ...]:
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


def check_classification(location: str, distinct: int, samples: int, example: object) -> None:
    """Raise an InputError if most labels are distinct, like the target of a regression."""
    if distinct > FEW_CLASSES and distinct > samples / 2:
        raise regression_target(
            location, f"{distinct} distinct values in {samples} samples", example
        )


def regression_target(location: str, description: str, example: object) -> InputError:
    """Return the error for labels that look like the target of a regression."""
    return InputError(
        f"{location} has {description} (such as {example}); labels must be classes, not "
        "measurements; to predict numbers, set task=regression"
    )


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
    return Examples(make_samples(f"{location}x{suffix}", x, integers=integers), labels)


def make_labels(location: str, y: Array, classes: tuple[str, ...], task: str) -> torch.Tensor:
    """Return the index of the class of every sample; of another task, its targets."""
    if task != CLASSIFICATION:
        return make_targets(location, y, task, classes)
    if y.ndim != 1:
        raise InputError(f"{location} {y.shape} must be [N]{_task_hint(y, task)}")
    return torch.from_numpy(class_indices(location, y, classes))


def _task_hint(y: Array, task: str) -> str:
    """Return what labels of shape [N, L] may be meant for."""
    if task != CLASSIFICATION or y.ndim != 2:
        return ""
    if y.shape[1] == 1:
        return "; use y.ravel()"
    return (
        "; several labels per sample need task=multilabel, several numbers task=regression; "
        "use y.argmax(1) for one-hot classes"
    )


def check_labels(location: str, y: Array, task: str) -> None:
    """Raise an InputError if a sample has no class: NaN, None, pandas.NA, or an empty string."""
    if task != CLASSIFICATION:
        return
    if y.dtype.kind == "U":
        rows = np.flatnonzero(y.ravel() == "").tolist()
    elif y.dtype.kind in "fO":
        rows = [row for row, value in enumerate(y.ravel().tolist()) if is_missing_value(value)]
    else:
        return
    if rows:
        more = f", and {len(rows) - 1} more have none" if len(rows) > 1 else ""
        raise InputError(
            f"sample {rows[0]} of {location} has no label{more}; remove the samples without labels"
        )


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
    fractions = values[values != np.floor(values)]
    if fractions.size > 0:
        distinct = len(np.unique(values))
        return regression_target(location, f"{distinct} distinct {y.dtype} values", fractions[0])
    return InputError(
        f"{location} holds {y.dtype}; labels must be integers or strings, one value per class. If "
        "these are classes, convert them: y.astype(int); to predict numbers, set task=regression"
    )


def make_samples(location: str, x: Array, *, integers: bool) -> torch.Tensor:
    """Return the samples as a tensor: uint8 images, int64 token ids, or finite floats."""
    if x.dtype.kind not in "biuf" or x.size == 0:
        raise InputError(f"{location} must hold integers or floats, got {x.dtype} {list(x.shape)}")
    if x.ndim == 4 and _has_channels_last(x):
        raise InputError(
            f"{location} {list(x.shape)} has its channels last; images are [N, C, H, W]: "
            "use x.transpose(0, 3, 1, 2)"
        )
    if x.dtype == np.uint8 and x.ndim == 4:
        return torch.from_numpy(x.copy())
    if x.dtype in (np.int64, np.uint64):
        _check_rows(location, x, _is_exact(x), "integers beyond 2^53, which a float cannot hold")
    if integers:
        return torch.from_numpy(x.astype(np.int64))
    dtype = np.float32 if np.can_cast(x.dtype, np.float32) else np.float64
    values = x.astype(dtype)
    _check_rows(location, x, np.isfinite(values), "NaN or infinite values")
    _check_rows(location, x, np.abs(values) <= FLOAT32_MAX, "values that are too large for float32")
    return torch.from_numpy(values)


def _has_channels_last(x: Array) -> bool:
    """Return True if [N, ., ., .] probably has the channels of images as its last axis.

    Values other than uint8 may be no images. They count as images if they have the proportions of
    one, and with a single channel if they are square: sensors over time may be [N, 12, 207, 1].
    """
    height, width, channels = x.shape[1:]
    short, long = sorted((height, width))
    is_image = x.dtype == np.uint8 or long <= (4 if channels > 1 else 1) * short
    return is_image and channels in CHANNELS and short > max(CHANNELS)


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
