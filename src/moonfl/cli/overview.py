"""Presets, setting keys and datasets as the command line shows them, read from overview.json.

Importing the classes that define them takes two seconds, because they import torch. `moonfl list`,
`moonfl data` and `--help` therefore read this file. `make overview` writes it again after a
preset, a setting or a dataset has changed; a test compares the two.
"""

import dataclasses
import functools
from pathlib import Path

import msgspec

PATH = Path(__file__).with_name("overview.json")


class PresetEntry(msgspec.Struct, kw_only=True):
    """A line of `moonfl list`."""

    name: str
    description: str
    paper: str  # top-1 test accuracy in the paper; may be empty


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
    url: str = ""


class Overview(msgspec.Struct, kw_only=True):
    """The content of overview.json."""

    presets: list[PresetEntry]
    keys: list[KeyEntry]
    datasets: list[DatasetEntry]


@functools.cache
def read() -> Overview:
    """Return the stored overview."""
    return msgspec.json.decode(PATH.read_bytes(), type=Overview)


def build() -> Overview:
    """Build the overview from the classes and tables of the package; imports torch."""
    from ..data.datasets import DATASETS
    from ..presets import PRESETS

    presets = [
        PresetEntry(name=name, description=preset.description, paper=preset.paper)
        for name, preset in PRESETS.items()
    ]
    datasets = []
    for name, source in DATASETS.items():
        entry = DatasetEntry(name=name, location=source.location)
        if source.archive is not None:
            entry.folder = source.archive.folder
            entry.files = list(source.archive.files)
            entry.url = source.archive.url
        datasets.append(entry)
    return Overview(presets=presets, keys=_keys(), datasets=datasets)


def _keys() -> list[KeyEntry]:
    """List the keys of Experiment, of every algorithm and of every server optimizer."""
    from ..algorithms import ALGORITHMS
    from ..experiment import Experiment
    from ..server_optimizers import SERVERS

    custom = "or package.module:Name"
    algorithm = KeyEntry(
        name="algorithm",
        owner="Experiment",
        default="moon",
        doc=f"{', '.join(ALGORITHMS)}, {custom}",
    )
    server = KeyEntry(
        name="server",
        owner="Experiment",
        default="average",
        doc=f"{', '.join(SERVERS)}, {custom}",
    )
    dataset, *others = _keys_of(Experiment, "")
    keys = [dataset, algorithm, server, *others]
    for method in ALGORITHMS.values():
        keys += _keys_of(method, "")
    for optimizer in SERVERS.values():
        keys += _keys_of(optimizer, "server.")
    return keys


def _keys_of(cls: type, prefix: str) -> list[KeyEntry]:
    from .. import settings

    keys = []
    for field in dataclasses.fields(cls):
        if "doc" in field.metadata:
            key = KeyEntry(
                name=prefix + field.name,
                owner=cls.__name__,
                default=settings.format_default(field),
                doc=field.metadata["doc"],
            )
            keys.append(key)
    return keys


def describe_keys() -> str:
    """Return every key with its description and default, for --help."""
    lines = ["keys (key=value, any number) [default, unless a preset or file sets another value]:"]
    owner = "Experiment"
    for key in read().keys:
        if key.owner != owner:
            owner = key.owner
            lines.append(f"  settings of {owner}:")
        lines.append(f"  {key.name:22} {key.doc} [{key.default}]")
    return "\n".join(lines)


def write() -> None:
    """Write overview.json."""
    content = msgspec.json.format(msgspec.json.encode(build()), indent=1)
    PATH.write_bytes(content + b"\n")
