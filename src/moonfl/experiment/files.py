"""Experiments to and from TOML, their hash, and trust in code that a file names."""

import hashlib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from .. import settings
from ..algorithms import MOON
from ..components import (
    BASES,
    COMPONENTS,
    PLUS,
    build_component,
    component_name,
    component_to_table,
    owners_of,
    parts_of,
    stored_settings,
)
from ..errors import InputError
from ..registry import find_loaded, origin, source_sha256
from ..runs.index import read_toml
from ..server_optimizers import Average
from ..settings import RENAMED
from .experiment import Experiment

Trust = bool | Collection[str]  # whether code that a file names may be executed, or which names
NOTES = ("versions", "code", "choices")  # tables of a run's experiment.toml that are not settings


def to_dict(exp: Experiment) -> dict[str, Any]:
    """Return plain values; components, such as the algorithm, as tables with their name.

    A setting that a later version added (`setting(..., added=VERSION)`) is left out while it has
    its default, so new settings do not change the hashes of existing experiments.
    """
    values = {name: getattr(exp, name) for name in stored_settings(exp)}
    for kind in COMPONENTS.keys() & values.keys():
        values[kind] = component_to_table(values[kind])
    return {key: value for key, value in values.items() if value is not None}


def canonical_toml(exp: Experiment) -> str:
    """Return TOML that identifies the experiment in this and later versions."""
    former_names = {new: old for old, new in RENAMED.items()}
    values = to_dict(exp)
    return tomli_w.dumps({former_names.get(key, key): value for key, value in values.items()})


def fingerprint(exp: Experiment) -> str:
    """Return a hash of every setting that affects the result; data location and device do not."""
    identity = canonical_toml(replace(exp, data_dir="data", device="cpu"))
    return hashlib.sha256(identity.encode()).hexdigest()


def from_dict(values: dict[str, Any]) -> Experiment:
    """Return the experiment with these values; `to_dict` is the inverse."""
    values = rename_keys({key: value for key, value in values.items() if key not in NOTES})
    components: dict[str, Any] = {}
    for kind in COMPONENTS:
        table = values.pop(kind, None)
        if table is not None:
            table = table if isinstance(table, dict) else {"name": table}
            check_component_table(kind, table)
            components[kind] = build_component(kind, table)
    check_tables(values, {"algorithm": MOON(), "server": Average()} | components)
    return replace(settings.build(Experiment, values, ""), **components)


def check_component_table(kind: str, table: dict[str, Any]) -> None:
    """Refuse a table without a name, and settings that belong to another component."""
    if "name" not in table:
        names = ", ".join(COMPONENTS[kind])
        raise InputError(f'[{kind}] needs name = "...", one of {names}, or package.module:Name')
    name = table["name"]
    if not isinstance(name, str) or name not in COMPONENTS[kind]:
        return  # a composition or user code
    valid = settings.names(COMPONENTS[kind][name])
    for key in table.keys() - {"name", *valid}:
        owners = owners_of(kind, key)
        if owners:
            raise InputError(
                f"{kind}.{key} belongs to {kind}={' or '.join(owners)}, and this experiment has "
                f'{kind}={name}; remove {key}, or set name = "{owners[0]}"'
            )
        if not valid:
            raise InputError(f"{kind}={name} has no settings, got {kind}.{key}; remove {key}")


def rename_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the present names of settings that were renamed."""
    for old, new in RENAMED.items():
        if old in values and new in values:
            raise InputError(f"{new} and its former name {old} are both set; remove {old}")
    values = {RENAMED.get(key, key): value for key, value in values.items()}
    if values.get("aggregation", "mean") in (None, "none"):  # the former default
        values["aggregation"] = "mean"
    return values


def check_tables(values: dict[str, Any], components: dict[str, Any]) -> None:
    """Refuse settings of a component, such as the algorithm, outside their TOML table."""
    for key in values.keys() - set(settings.names(Experiment)):
        for kind, component in components.items():
            if any(key in settings.names(type(part)) for part in parts_of(component)):
                raise InputError(
                    f"{key} is a setting of the {kind}: write it below [{kind}] with "
                    f'name = "{component_name(component)}"'
                )


def to_toml(exp: Experiment, notes: dict[str, dict[str, str]] | None = None) -> str:
    """Return the experiment as TOML; `notes` are tables that are not settings."""
    return tomli_w.dumps(to_dict(exp) | (notes or {}))


def from_toml(
    path: Path, changes: dict[str, str] | None = None, trust: Trust = False
) -> Experiment:
    """Read an experiment from a TOML file, with some values changed.

    Code that only the file names is executed if it is trusted.
    """
    values = read_toml(path) | (changes or {})
    check_trust(path, values, trust)
    try:
        return from_dict(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def check_trust(path: Path, values: dict[str, Any], trust: Trust) -> None:
    """Refuse code of others than moonfl that a file names, unless it is trusted or loaded."""
    if trust is True:
        return
    trusted = trust or ()
    for key, name in user_code(values):
        if name not in trusted and not is_loaded(key, name):
            raise InputError(
                f"{path} names code that is not part of moonfl and would be executed: "
                f"{key}={name}, from {origin(name)}. Read it; if you trust it, add --trust "
                "(trust=True)"
            )


def user_code(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the dotted paths of code among plain values, each with its setting."""
    names = {"model": values.get("model")}
    for kind in COMPONENTS:
        table = values.get(kind)
        names[kind] = table.get("name") if isinstance(table, dict) else table
    parts = [(key, part) for key, name in names.items() for part in str(name).split(PLUS)]
    return [(key, part.strip()) for key, part in parts if ":" in part]


def code_names(exp: Experiment) -> tuple[str, ...]:
    """Return the dotted paths of code that an experiment names."""
    return tuple(name for _, name in user_code(to_dict(exp)))


def code_hashes(exp: Experiment) -> dict[str, str]:
    """Return the SHA-256 of the file of each dotted path that an experiment names.

    A script that is running is left out: it also holds the settings of its runs, such as the seed.
    """
    names = [name for name in code_names(exp) if not name.startswith("__main__:")]
    hashes = {name: source_sha256(name) for name in names}
    return {name: value for name, value in hashes.items() if value is not None}


def is_loaded(key: str, name: str) -> bool:
    """Return True for a class of the right kind that this process has already imported.

    A function is not accepted, except from the script that is running: it would be called.
    """
    target = find_loaded(name)
    base = BASES.get(key, nn.Module)
    if isinstance(target, type):
        return issubclass(target, base)
    return callable(target) and getattr(target, "__module__", None) == "__main__"
