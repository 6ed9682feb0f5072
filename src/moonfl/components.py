"""The components of an experiment that are values: algorithm, optimizers, schedule and privacy.

A component is written as a table: its name and its settings. The name of a composition joins those
of its parts, `moon+scaffold`, and its table has a table of settings for each part. This module
turns tables into values and back, and finds the keys that an override may name.
"""

import dataclasses
from typing import Any

from . import settings
from .algorithms import ALGORITHMS, Algorithm, Composed, compose, part_key
from .errors import InputError, unknown
from .optimizers import OPTIMIZERS, SCHEDULES, LocalOptimizer, Schedule
from .privacy import PRIVACY, Privacy
from .registry import find, name_of
from .server_optimizers import SERVERS, ServerOptimizer
from .settings import default_of

Table = dict[str, Any]  # "name", and settings by name; of a composition, tables by part
Path = tuple[str, ...]  # where a setting is in the table of an experiment

COMPONENTS: dict[str, dict[str, Any]] = {
    "algorithm": ALGORITHMS,
    "server": SERVERS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "dp": PRIVACY,
}
BASES: dict[str, type] = {
    "algorithm": Algorithm,
    "server": ServerOptimizer,
    "optimizer": LocalOptimizer,
    "schedule": Schedule,
    "dp": Privacy,
}
EXAMPLES = {
    "algorithm": "moonfl.MOON()",
    "server": "moonfl.Average()",
    "optimizer": "moonfl.optimizers.AdamW()",
    "schedule": "moonfl.optimizers.Cosine()",
    "dp": "moonfl.privacy.ServerNoise(noise=1)",
}
PLUS = "+"  # between the parts of a composition


def parts_of(value: object) -> list[object]:
    """Return the parts of a composition, or the component itself."""
    return list(value.parts) if isinstance(value, Composed) else [value]


def component_name(value: object) -> str:
    """Return the names of the parts in their tables, or their dotted paths, joined by a plus."""
    return PLUS.join(name_of(type(part), table_of(part)) for part in parts_of(value))


def table_of(value: object) -> dict[str, Any]:
    """Return the table of the kind of component that a value is."""
    kinds = [kind for kind, base in BASES.items() if isinstance(value, base)]
    return COMPONENTS[kinds[0]] if kinds else {}


def short_name(value: object) -> str:
    """Return the name of a component for file names: without modules, in lower case."""
    return PLUS.join(part_key(component_name(part)) for part in parts_of(value))


def check_component(kind: str, value: object) -> None:
    """Check that a value is a component of this kind with valid settings."""
    base = BASES[kind]
    if not isinstance(value, base):
        raise InputError(
            f"{kind} must be of type {base.__name__}, such as {EXAMPLES[kind]}, got {value!r}"
        )
    for part in parts_of(value):
        label = f"{kind}={component_name(part)}"
        settings.check_field_types(type(part), label)
        settings.check_attributes(part, label)
        settings.check(part, f"{kind}.")


def examples_with(key: str, value: object) -> list[str]:
    """Return components that have a setting, as arguments: `server=moonfl.Momentum(momentum=0.5)`.

    The key may begin with the kind of component, as in `server.momentum`.
    """
    kind, _, name = key.rpartition(".")
    arguments = []
    for each in [kind] if kind in COMPONENTS else COMPONENTS:
        module = EXAMPLES[each].rpartition(".")[0]
        owners = [cls for cls in COMPONENTS[each].values() if name in settings.names(cls)]
        arguments += [f"{each}={module}.{cls.__name__}({name}={value!r})" for cls in owners]
    return arguments


def find_class(kind: str, name: str) -> type:
    """Return the class of a component by its name or dotted path."""
    cls: Any = find(kind, name, COMPONENTS[kind])
    base = BASES[kind]
    if not isinstance(cls, type) or not issubclass(cls, base) or not dataclasses.is_dataclass(cls):
        raise InputError(f"{kind}={name} must be a dataclass that extends {base.__name__}")
    settings.check_field_types(cls, f"{kind}={name}")
    return cls


def part_tables(kind: str, table: Table) -> dict[str, Table]:
    """Return the settings of each part of a component by the part's name."""
    name = table.get("name")
    if not isinstance(name, str):
        raise unknown(kind, "without a name" if name is None else str(name), COMPONENTS[kind])
    rest = {key: value for key, value in table.items() if key != "name"}
    if kind != "algorithm" or PLUS not in name:
        return {name: rest}
    names = [part.strip() for part in name.split(PLUS)]
    tables = {part: rest.pop(part_key(part), {}) for part in names}
    if len(tables) < len(names) or not all(names):
        raise InputError(
            f"algorithm={name} must name different methods with a plus between them, "
            "such as moon+scaffold"
        )
    for key, value in rest.items():
        keys = " or ".join(f"[algorithm.{part_key(part)}]" for part in names)
        raise InputError(f"algorithm.{key}={value} is a setting of a part: write it below {keys}")
    for part, values in tables.items():
        if not isinstance(values, dict):
            raise InputError(f"algorithm.{part_key(part)} must be a table, got {values!r}")
    return tables


def build_component(kind: str, table: Table) -> Any:
    """Return the component that a table describes; `component_to_table` is the inverse."""
    tables = part_tables(kind, table)
    parts: list[Any] = []
    for name, values in tables.items():
        cls = find_class(kind, name)
        prefix = f"{kind}." if len(tables) == 1 else f"{part_key(name)}."
        parts.append(settings.build(cls, values, prefix))
    return parts[0] if len(parts) == 1 else compose(*parts)


def component_to_table(value: object) -> Table:
    """Return the name and settings of a component."""
    table: Table = {"name": component_name(value)}
    parts = parts_of(value)
    for part in parts:
        values = {}
        for name in stored_settings(part):
            setting = getattr(part, name)
            values[name] = "none" if setting is None else setting  # left out: the default
        if len(parts) == 1:
            table |= values
        elif values:
            table[part_key(component_name(part))] = values
    return table


def stored_settings(value: Any) -> list[str]:
    """Return the settings to store: all but later additions that have their default."""
    names = []
    for field in dataclasses.fields(value):
        is_addition = field.metadata.get("added") is not None
        if field.init and not (is_addition and getattr(value, field.name) == default_of(field)):
            names.append(field.name)
    return names


def with_name(kind: str, table: Table, name: str) -> Table:
    """Return the table of another component; parts that both have keep their settings."""
    before = part_tables(kind, table)
    parts = part_tables(kind, {"name": name})
    if len(parts) == 1:
        return {"name": name, **before.get(name, {})}
    common = {part_key(part): before[part] for part in parts if part in before}
    return {"name": name, **common}


def setting_paths(kind: str, table: Table) -> dict[str, list[Path]]:
    """Return the keys that an override may name, each with the settings that it stands for.

    A setting of the algorithm may be written as `mu`, `moon.mu`, `algorithm.mu` or
    `algorithm.moon.mu`, one of another component as `KIND.KEY`, as in `server.lr`. A key that two
    parts have stands for both.
    """
    paths: dict[str, list[Path]] = {}
    tables = part_tables(kind, table)
    for part in tables:
        inner = (kind,) if len(tables) == 1 else (kind, part_key(part))
        prefixes = [f"{kind}."]
        if kind == "algorithm":
            prefixes += ["", f"{part_key(part)}.", f"{kind}.{part_key(part)}."]
        for name in settings.names(find_class(kind, part)):
            for prefix in prefixes:
                paths.setdefault(f"{prefix}{name}", []).append((*inner, name))
    return paths


def owners_of(kind: str, name: str) -> list[str]:
    """Return the components of a kind that have a setting with this name."""
    return [owner for owner, cls in COMPONENTS[kind].items() if name in settings.names(cls)]


def check_resumable(kind: str, value: object) -> None:
    """Check that the classes of a component can be found by name when a run is resumed."""
    for part in parts_of(value):
        name = component_name(part)
        reason = ""
        try:
            if find_class(kind, name) is not type(part):
                reason = "another class has that name now; create the value again"
        except InputError as error:
            if "<locals>" in name:
                reason = "its class is defined inside a function; move it to module level"
            else:
                reason = f"{error}; define it at module level"
        if reason:
            raise InputError(f"runs of {kind}={name} could not be resumed: {reason}")
