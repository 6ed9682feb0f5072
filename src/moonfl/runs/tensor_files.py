"""Tensor files: a State (tensors by label and name) in one safetensors file.

Tensors are stored under running numbers, because labels and names may contain any character. The
header of the file has the labels, the names and an optional note. They are one JSON text under one
key, because safetensors writes several keys in random order: equal states are equal files.
"""

import ctypes
import functools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..data.locations import check_file
from ..errors import FileError
from ..seeds import one_thread
from ..types import State
from .files import atomic, writing
from .schema import TensorHeader, convert, decode, encode

KEY = "moonfl"  # of the header
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError)


def save(path: Path, state: State, note: str = "") -> None:
    """Write a tensor file durably: after a crash it is complete or absent."""
    with atomic(path) as temporary:
        write(temporary, state, note)


def write(path: Path, state: State, note: str = "") -> None:
    """Write a tensor file that need not survive a crash."""
    content = to_bytes(path, state, note)
    with writing(path):
        path.write_bytes(content)


def to_bytes(path: Path, state: State, note: str = "") -> bytes:
    """Return the content of the tensor file at `path`."""
    names = [(label, name) for label, params in state.items() for name in params]
    tensors = [state[label][name] for label, name in names]
    header = TensorHeader(labels=list(state), names=names, note=note)
    shapes = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
    try:
        start, order = _file_start(encode(header), shapes)
    except (safetensors.SafetensorError, KeyError) as error:  # KeyError: an unsupported dtype
        reason = f"cannot be written: {error}"
        raise FileError(f"{path} {reason}", f"a file {reason}") from None
    with one_thread():  # those of torch would wait actively, on the cores that workers need
        in_order = [tensors[k].detach().contiguous() for k in order]
    return b"".join([start, *map(_memory, in_order)])


@functools.lru_cache(maxsize=16)
def _file_start(
    header: str, shapes: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
) -> tuple[bytes, list[int]]:
    """Return the start of a file, up to the first tensor, and the order of the tensors in it.

    safetensors writes a file of empty memory once for all files with the same names and shapes,
    because it takes longer to do so than a small party takes to load its model.
    """
    tensors = {}
    for k, (dtype, shape) in enumerate(shapes):
        tensors[str(k)] = torch.zeros(shape, dtype=dtype)
    content = safetensors.torch.save(tensors, {KEY: header})
    stop = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:stop])
    del entries["__metadata__"]
    order = sorted(entries, key=lambda k: entries[k]["data_offsets"])
    return content[:stop], [int(k) for k in order]


def _memory(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor, which must stay alive."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


def load(path: Path) -> State:
    """Read all tensors of a file. It raises one of READ_ERRORS if the file is damaged."""
    check_file(path)
    with safetensors.safe_open(path, "pt") as file:
        header = _header(file.metadata())
        state: dict[str, dict[str, Tensor]] = {label: {} for label in header.labels}
        for k, (label, name) in enumerate(header.names):
            # The copy is aligned as torch aligns its own tensors.
            state[label][name] = file.get_tensor(str(k)).clone()
    return dict(state)


def read_note(path: Path) -> str:
    """Return the note in the header of a file."""
    with safetensors.safe_open(path, "pt") as file:
        return _header(file.metadata()).note


def _header(metadata: dict[str, str]) -> TensorHeader:
    """Return the header of a file; version 0.1 stored its fields under three keys."""
    if KEY in metadata:
        return decode(metadata[KEY], TensorHeader, "the header")
    values = {"labels": json.loads(metadata["labels"]), "names": json.loads(metadata["names"])}
    return convert(values | {"note": metadata["note"]}, TensorHeader, "the header")


def stored_state(path: Path) -> State:
    """Return the State in a file without reading its tensors."""
    with safetensors.safe_open(path, "pt") as file:
        labels = _header(file.metadata()).labels
    return {label: StoredParams(path, label) for label in labels}


def _version(path: Path) -> tuple[int, ...] | None:
    """Return what changes if a file is replaced or written again; None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class StoredParams(Mapping[str, Tensor]):
    """Params that stay in a file: each access reads a tensor, and none is kept in memory."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        self.version = _version(path)
        self.numbers: dict[str, str] = {}  # name of a tensor -> its number in the file
        with safetensors.safe_open(path, "pt") as file:
            names = _header(file.metadata()).names
        for k, (tensor_label, name) in enumerate(names):
            if tensor_label == label:
                self.numbers[name] = str(k)

    def __getitem__(self, name: str) -> Tensor:
        number = self.numbers[name]
        if self.version is None or self.version != _version(self.path):
            reason = "was changed or removed after it was opened"
            raise FileError(f"{self.path} {reason}", f"a file {reason}")
        with safetensors.safe_open(self.path, "pt") as file:
            tensor: Tensor = file.get_tensor(number)
        return tensor.clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)
