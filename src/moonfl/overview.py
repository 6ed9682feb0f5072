"""Presets, methods, setting keys and datasets as the user sees them, read from overview.json.

Importing the classes that define them takes two seconds, because they import torch. `moonfl list`,
`moonfl data`, `--help` and reports therefore read this file. `make overview` writes it again after
a preset, a method, a setting or a dataset has changed; a test compares the two.
"""

import functools
from pathlib import Path

import msgspec

PATH = Path(__file__).with_name("overview.json")
BASELINES = "baselines"
SEVERAL = "several components"
# What a preset changes, compared with FedAvg, in the order of `moonfl list`.
COMPONENTS = (
    BASELINES,
    "local term",
    "personal part",
    "aggregation",
    "privacy",
    "server optimizer",
    SEVERAL,
)


class PresetEntry(msgspec.Struct, kw_only=True):
    """A preset: one method on one dataset. `moonfl list` shows one line per method."""

    name: str  # DATASET-METHOD
    dataset: str
    component: str  # what the method changes, compared with FedAvg
    description: str
    paper: str  # top-1 test accuracy in the paper; may be empty


class MethodEntry(msgspec.Struct, kw_only=True):
    """A method of the table of algorithms."""

    name: str
    label: str  # as papers write it


class KeyEntry(msgspec.Struct, kw_only=True):
    """A key that `moonfl run` accepts as key=value."""

    name: str
    owner: str  # the class that has this setting; Experiment for those of every run
    default: str
    doc: str


class DatasetEntry(msgspec.Struct, kw_only=True):
    """A line of `moonfl data list`."""

    name: str
    location: str  # of data that are not downloaded
    folder: str = ""  # of downloaded data, below the data directory
    files: list[str] = []  # that must be in the folder
    suffixes: list[str] = []  # that may follow the name of a file
    url: str = ""


class Overview(msgspec.Struct, kw_only=True):
    """The content of overview.json."""

    presets: list[PresetEntry]
    methods: list[MethodEntry]
    keys: list[KeyEntry]
    datasets: list[DatasetEntry]


@functools.cache
def read() -> Overview:
    """Return the stored overview."""
    return msgspec.json.decode(PATH.read_bytes(), type=Overview)
