"""The tensors of a message: compared with what is expected, then decoded.

A message may list one array under thousands of names, claim any shape, or hide a large file behind
a small one. `read_tensors` therefore decodes nothing until labels, names, number of entries,
shapes, dtypes and sizes of all arrays are exactly the expected ones. What a message can cost is
then known before it arrives: once the size of the expected tensors.
"""

import io
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from ..types import Params, State
from .refusals import RefusedError, sanitize

MAX_FILE_HEADER = 4096  # bytes; the header of an .npy file has 128 unless it has many dimensions
NPY_VERSION = (1, 0)  # that numpy writes for plain arrays
OWNERS = {"params": "the model", "buffers": "the buffers", "model": "the model"}
DECLARATIONS = {
    "extra/": "a method declares in extra_like() what its finish() sends",
    "shared/": "a method declares in init_server() what its parties receive",
}  # prefix of a label -> where a method declares these tensors


def to_arrays(tensors: State) -> dict[str, ArrayRecord]:
    """Return tensors as Flower arrays. They are made once and put into every party's message."""
    return {
        label: ArrayRecord({name: to_array(tensor) for name, tensor in params.items()})
        for label, params in tensors.items()
    }


def to_array(tensor: Tensor) -> Array:
    """Return a tensor as a Flower array."""
    return Array(tensor.detach().cpu().contiguous().numpy())


def read_tensors(
    arrays: Mapping[str, ArrayRecord], names: Mapping[str, Sequence[str]], expected: State
) -> State:
    """Return the tensors of a message in the order of the expected ones.

    `names` are the tensor names of each label as the sender lists them. Only names, shapes and
    dtypes of `expected` matter. Raise RefusedError unless they, and the number and sizes of the
    arrays, are the same; nothing is decoded before everything was compared.
    """
    check_labels(list(names), list(expected))
    for label, params in expected.items():
        owner = owner_of(label)
        check_names(owner, names[label], arrays[label], params)
        for name, tensor in params.items():
            check_array(f"{name} of {owner}", arrays[label][name], tensor)
    return {
        label: {
            name: to_tensor(f"{name} of {owner_of(label)}", arrays[label][name], tensor)
            for name, tensor in params.items()
        }
        for label, params in expected.items()
    }


def owner_of(label: str) -> str:
    """Return what the tensors of a label are called in errors."""
    for prefix in DECLARATIONS:
        label = label.removeprefix(prefix)
    return OWNERS.get(label, label)


def check_labels(labels: list[str], expected: list[str]) -> None:
    """Check that a message has the expected groups of tensors in the expected order."""
    if labels == expected:
        return
    differences = set(labels) ^ set(expected)
    hint = ""
    for prefix, declaration in DECLARATIONS.items():
        if differences and all(label.startswith(prefix) for label in differences):
            hint = f"; {declaration}"
    sent = sanitize(", ".join(labels)) or "no tensors"
    raise RefusedError(f"it sends {sent}, expected {', '.join(expected) or 'no tensors'}{hint}")


def check_names(
    owner: str, names: Sequence[str], arrays: Mapping[str, Array], expected: Params
) -> None:
    """Check that exactly the expected names are listed and sent, each once."""
    for sent in (names, arrays):
        difference = next(iter(set(sent) ^ expected.keys()), None)
        if difference is not None or len(sent) != len(expected):
            example = "" if difference is None else f" ({sanitize(difference)})"
            raise RefusedError(
                f"{owner} has other tensors than expected: {len(sent)} instead of "
                f"{len(expected)}{example}"
            )


def check_array(label: str, array: Array, expected: Tensor) -> None:
    """Check shape, dtype and size of an array before it is decoded."""
    description = f"{array.dtype} {list(array.shape)}"
    if description != describe(expected):
        raise RefusedError(f"{label} is {sanitize(description)}, expected {describe(expected)}")
    size = expected.numel() * expected.element_size()
    if not size < len(array.data) <= size + MAX_FILE_HEADER:
        raise RefusedError(
            f"{label} is a file of {len(array.data)} bytes, expected {size} bytes of values and a "
            f"header of at most {MAX_FILE_HEADER}"
        )


def to_tensor(label: str, array: Array, expected: Tensor) -> Tensor:
    """Return a Flower array as a tensor with its own storage, aligned as torch aligns it.

    The header of the .npy file may differ from what the message states, so it is checked as well.
    """
    dtype = numpy_dtype(expected)
    file = io.BytesIO(array.data[:MAX_FILE_HEADER])
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0(file)
    start = file.tell()
    size = expected.numel() * expected.element_size()
    correct = (tuple(expected.shape), False, dtype)  # shape, Fortran order, dtype
    if version != NPY_VERSION or header != correct or len(array.data) - start != size:
        raise RefusedError(f"{label} is not the file of {describe(expected)}")
    tensor = torch.empty(expected.shape, dtype=expected.dtype)
    values = np.frombuffer(array.data, dtype, count=expected.numel(), offset=start)
    tensor.numpy()[...] = values.reshape(expected.shape)
    return tensor


def numpy_dtype(tensor: Tensor) -> np.dtype[np.generic]:
    """Return numpy's dtype for the values of a tensor."""
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype


def describe(tensor: Tensor) -> str:
    """Return dtype and shape of a tensor as Flower describes arrays."""
    return f"{numpy_dtype(tensor)} {list(tensor.shape)}"
