"""Build overview.json from the classes and tables of the package, and show its keys in --help."""

import dataclasses

import msgspec

from ..overview import PATH, DatasetEntry, KeyEntry, MethodEntry, Overview, PresetEntry, read

DESCRIPTIONS = {  # of components
    "algorithm": "method",
    "server": "server optimizer",
    "optimizer": "local optimizer",
    "schedule": "schedule of the learning rate over the rounds",
    "dp": "differential privacy, where noise is added",
}


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
    """List the keys of Experiment and of every component, such as the algorithms."""
    from ..components import COMPONENTS
    from ..experiment import Experiment

    dataset, *others = _keys_of(Experiment, "")
    keys = [dataset, *map(_component_key, COMPONENTS), *others]
    for kind, table in COMPONENTS.items():
        for cls in table.values():
            keys += _keys_of(cls, "" if kind == "algorithm" else f"{kind}.")
    return keys


def _component_key(kind: str) -> KeyEntry:
    """Return the key that names a component, such as the algorithm."""
    from ..components import COMPONENTS, component_name
    from ..experiment import Experiment

    doc = f"{DESCRIPTIONS[kind]}: {', '.join(COMPONENTS[kind])}, or package.module:Name"
    if kind == "algorithm":
        doc += "; a+b composes methods"
    default = component_name(getattr(Experiment(), kind))
    return KeyEntry(name=kind, owner="Experiment", default=default, doc=doc)


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
