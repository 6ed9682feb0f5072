"""Build overview.json from the classes and tables of the package, and show its keys in --help."""

import dataclasses

import msgspec

from ..overview import PATH, DatasetEntry, KeyEntry, MethodEntry, Overview, PresetEntry, read


def build() -> Overview:
    """Build the overview from the classes and tables of the package; imports torch."""
    from ..algorithms import ALGORITHMS
    from ..data.datasets import DATASETS
    from ..presets import PRESETS

    presets = [
        PresetEntry(
            name=name,
            dataset=preset.experiment.dataset,
            component=preset.component,
            description=preset.description,
            paper=preset.paper,
        )
        for name, preset in PRESETS.items()
    ]
    methods = [MethodEntry(name=name, label=cls.label) for name, cls in ALGORITHMS.items()]
    datasets = []
    for name, source in DATASETS.items():
        entry = DatasetEntry(name=name, location=source.location)
        if source.publication is not None:
            entry.folder = source.publication.folder
            entry.files = list(source.publication.files)
            entry.suffixes = list(source.publication.suffixes)
            entry.url = source.publication.address
        datasets.append(entry)
    return Overview(presets=presets, methods=methods, keys=_keys(), datasets=datasets)


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
        doc=f"{', '.join(ALGORITHMS)}, {custom}; a+b composes methods",
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
