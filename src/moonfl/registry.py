"""Names to things: those of a table, or anybody's own as `package.module:Name`."""

import importlib
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import InputError, unknown

T = TypeVar("T")


def find(kind: str, name: str, table: Mapping[str, T]) -> T:
    """What the table has under this name, or what the dotted path leads to; unknown names get the nearest."""
    if name in table:
        return table[name]
    if ":" not in name:
        raise unknown(kind, name, table, "or your own as package.module:Name")
    module, _, attribute = name.partition(":")
    if module == "__main__" and not hasattr(sys.modules["__main__"], attribute.split(".")[0]):
        raise InputError(
            f"{kind}={name} was made in a script; put it into a module of its own, and name that"
        )
    thing: Any = _imported(kind, name, module)
    for part in attribute.split("."):
        if not hasattr(thing, part):
            raise unknown(
                f"{kind} in {module}", attribute, [n for n in dir(thing) if not n.startswith("_")]
            )
        thing = getattr(thing, part)
    found: T = thing
    return found


def name_of(thing: object, table: Mapping[str, object]) -> str:
    """The name by which `find` finds it."""
    named = next((name for name, other in table.items() if other is thing), None)
    return named or f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"


def _imported(kind: str, name: str, module: str) -> object:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            raise InputError(
                f"{kind}={name}: there is no module '{error.name}' in the current folder or among what is installed"
            ) from None
        raise InputError(f"{kind}={name}: importing {module} failed: {error}") from None
    except (Exception, SystemExit) as error:  # somebody's own code may do anything
        raise InputError(
            f"{kind}={name}: importing {module} failed: {type(error).__name__}: {error}"
        ) from None


def add_current_folder() -> None:
    """Modules of the current folder can be named, as with `python -m`; what is installed comes first."""
    if "" not in sys.path:
        sys.path.append("")
