"""Tensor files: a State (tensors by label and name) in one safetensors file.

Tensors are stored under running numbers, because labels and names may contain any character. The
header of the file has the labels, the names and an optional note. They are one JSON text under one
key, because safetensors writes several keys in random order: equal states are equal files.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..data.locations import check_file
from ..errors import RunError
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
    tensors = {}
    with one_thread():  # those of torch would wait actively, on the cores that workers need
        for k, (label, name) in enumerate(names):
            # safetensors refuses tensors that share memory, hence the copy.
            tensors[str(k)] = state[label][name].clone(memory_format=torch.contiguous_format)
    header = TensorHeader(labels=list(state), names=names, note=note)
    try:
        return safetensors.torch.save(tensors, {KEY: encode(header)})
    except (safetensors.SafetensorError, KeyError) as error:  # KeyError: an unsupported dtype
        raise RunError(f"{path} cannot be written: {error}") from None


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


class StoredParams(Mapping[str, Tensor]):
    """Params that stay in a file: each access reads a tensor, and none is kept in memory."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        self.numbers: dict[str, str] = {}  # name of a tensor -> its number in the file
        with safetensors.safe_open(path, "pt") as file:
            names = _header(file.metadata()).names
        for k, (tensor_label, name) in enumerate(names):
            if tensor_label == label:
                self.numbers[name] = str(k)

    def __getitem__(self, name: str) -> Tensor:
        with safetensors.safe_open(self.path, "pt") as file:
            tensor: Tensor = file.get_tensor(self.numbers[name])
        return tensor.clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)
