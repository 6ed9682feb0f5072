"""Changes of an experiment that the user writes as key=value."""

from collections.abc import Iterable
from typing import Any

from .. import settings
from ..components import COMPONENTS, component_to_table, owners_of, setting_paths, with_name
from ..data.datasets import source
from ..errors import SYNONYMS, InputError, closest_names, notify, unknown
from ..settings import RENAMED
from .experiment import Experiment
from .files import from_dict, to_dict


def override(exp: Experiment, changes: list[str]) -> Experiment:
    """Return the experiment with `key=value` changes.

    A key is a field of Experiment, a setting of the algorithm (`mu=5`, `moon.mu=5` or
    `algorithm.mu=5`), or `KIND.KEY` for another component, as in `server.lr=0.1`. `KIND=NAME`, as
    in `algorithm=moon`, wherever it stands among the changes, starts from the defaults of that
    class; a component that the experiment already has keeps its settings. With another dataset, a
    model that was the dataset's default becomes the default of the new one.
    """
    pairs = parse_changes(changes)
    values = to_dict(exp)
    for kind in COMPONENTS:
        values.setdefault(kind, component_to_table(getattr(exp, kind)))
        if kind in pairs:
            values[kind] = with_name(kind, values[kind], pairs.pop(kind))
    has_default_model = exp.model == source(exp.dataset).model
    if pairs.get("dataset", exp.dataset) != exp.dataset and has_default_model:
        values.pop("model", None)
    if "column" in pairs and "partition" not in pairs and pairs["column"] != "none":
        pairs["partition"] = "column"
    if pairs.get("partition") == "column" and "parties" not in pairs:
        pairs["parties"] = "0"
    changed: dict[tuple[str, ...], str] = {}
    for key, text in pairs.items():
        path = find_path(key, values)
        if path in changed:
            raise InputError(f"{path[-1]} is set twice, by {changed[path]} and {key}; remove one")
        changed[path] = key
        *tables, name = path
        table = values
        for inner in tables:
            table = table.setdefault(inner, {})
        table[name] = text
    return from_dict(values)


def parse_changes(changes: list[str]) -> dict[str, str]:
    """Return the keys and values of `key=value` texts; each key may occur once."""
    pairs: dict[str, str] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise InputError(f"'{change}' is not of the form key=value, such as rounds=10")
        if key in RENAMED:
            notify(f"moonfl: the key {key} is deprecated; use {RENAMED[key]}")
            key = RENAMED[key]
        if key in pairs:
            raise InputError(f"{key} is set twice; remove one of the two")
        pairs[key] = value
    return pairs


def find_path(key: str, values: dict[str, Any]) -> tuple[str, ...]:
    """Return where the setting that an override names is in the values of an experiment."""
    fields = settings.names(Experiment)
    paths: dict[str, list[tuple[str, ...]]] = {}
    for kind in COMPONENTS:
        paths |= setting_paths(kind, values[kind])
    for name in paths.keys() & set(fields):
        raise InputError(
            f"algorithm={values['algorithm']['name']} has a setting {name}, "
            "which every experiment has; rename it"
        )
    if key in fields:
        return (key,)
    if key not in paths:
        names = [*fields, *paths] if "." in key else [*fields, *short_names(paths)]
        raise unknown_key(key, values, names)
    if len(paths[key]) > 1:
        choices = [f"{path[1]}.{path[2]}" for path in paths[key]]
        raise InputError(f"{key} is a setting of several parts; write {' or '.join(choices)}")
    return paths[key][0]


def short_names(paths: dict[str, list[tuple[str, ...]]]) -> list[str]:
    """Return one name of each setting of the components, the shortest."""
    names: dict[tuple[tuple[str, ...], ...], str] = {}
    for name in sorted(paths, key=len):
        names.setdefault(tuple(paths[name]), name)
    return list(names.values())


def unknown_key(key: str, values: dict[str, Any], valid: list[str]) -> InputError:
    """Return the error for a key that this experiment lacks; name the components that have it."""
    prefix, dot, name = key.rpartition(".")
    kind = prefix if prefix in COMPONENTS else "algorithm"
    owners = owners_of(kind, name)
    if dot and prefix in owners:
        owners = [prefix]
    elif dot and prefix != kind:
        owners = []
    if owners:
        synonym = SYNONYMS.get(key)
        also = f", or write {synonym}, if that is what you mean" if synonym in valid else ""
        return InputError(
            f"{key} belongs to {kind}={' or '.join(owners)}, and this experiment has "
            f"{kind}={values[kind]['name']}; add {kind}={' or '.join(owners)}{also}"
        )
    return unknown_name("key", key, valid, "`moonfl run --help` lists the keys")


def unknown_name(kind: str, name: str, allowed: Iterable[str], listing: str) -> InputError:
    """Return the error for an unknown one of many names.

    It has the closest allowed names and `listing`, a sentence about where all of them are listed.
    Without a close one it lists all.
    """
    names = list(allowed)
    closest = closest_names(name, names, cutoff=0.6)
    if not closest:
        return unknown(kind, name, names)
    return InputError(f"unknown {kind} '{name}'; did you mean {' or '.join(closest)}? {listing}")
