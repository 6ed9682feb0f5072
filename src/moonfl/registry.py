"""Lookup of algorithms, server optimizers and models by name.

A name is either a key of a table of built-in objects, such as ALGORITHMS, or the dotted path of a
user-supplied object, `package.module:Name`.
"""

import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from .errors import InputError, unknown

T = TypeVar("T")


def find(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return the object with this name in the table, or at this dotted path.

    `kind` is the setting that the name belongs to, such as "algorithm"; error messages use it.
    """
    if name in table:
        return table[name]
    module, colon, path = name.partition(":")
    if not colon:
        raise unknown(kind, name, table, "or a custom one as package.module:Name")
    if not module or not path:
        raise InputError(
            f"{kind}={name} is not a dotted path; write package.module:Name, "
            "with a module before the colon and a name after it"
        )
    if module == "__main__" and not hasattr(sys.modules["__main__"], path.split(".")[0]):
        raise InputError(
            f"{kind}={name} was defined in a script that is not running now; "
            f"move it to a module and write {kind}=module:{path}"
        )
    target: Any = _import(kind, name, module)
    for part in path.split("."):
        if not hasattr(target, part):
            raise unknown(f"{kind} in {module}", path, public_names(target, module))
        target = getattr(target, part)
    source_sha256(name)  # before the user edits the file further
    result: T = target
    return result


def public_names(target: object, module: str) -> list[str]:
    """Return the public names of a module or class that its package defines, without imports."""
    package = module.partition(".")[0]
    names = []
    for name in dir(target):
        source = str(getattr(getattr(target, name, None), "__module__", ""))
        if not name.startswith("_") and source.partition(".")[0] == package:
            names.append(name)
    return names


def name_of(target: object, table: Mapping[str, object]) -> str:
    """Return the name under which `find` returns this object."""
    for name, entry in table.items():
        if entry is target:
            return name
    return f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', '')}"


def find_loaded(name: str) -> object:
    """Return the object at a dotted path if this process has imported it; otherwise None."""
    module, _, path = name.partition(":")
    target: Any = sys.modules.get(module)
    for part in path.split("."):
        target = getattr(target, part, None)
    return target


def source_sha256(name: str) -> str | None:
    """Return the SHA-256 of the file that defines the object at a dotted path.

    Return None if this process has not imported the object, or has it from no file.
    """
    target = find_loaded(name)
    if not isinstance(target, type | FunctionType):
        target = sys.modules.get(name.partition(":")[0])
    return _source_sha256(target)


@functools.cache
def _source_sha256(target: Any) -> str | None:
    """Hash a file once per class: after an edit, this process still executes what it imported."""
    try:
        path = inspect.getsourcefile(target)
        return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (TypeError, OSError):  # built in, or typed into a notebook
        return None


def origin(name: str) -> str:
    """Return where the module of a dotted path would be imported from, without importing it."""
    package = name.partition(":")[0].partition(".")[0]
    spec = PathFinder.find_spec(package, [*sys.path, ""])
    return f"module {package}" if spec is None or spec.origin is None else spec.origin


def _import(kind: str, name: str, module: str) -> object:
    # Only now: otherwise a file in the current folder could replace a module that a library
    # imports if it is installed.
    if "" not in sys.path:
        sys.path.append("")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            raise InputError(
                f"{kind}={name}: there is no module '{error.name}' in the current folder "
                "or among the installed packages"
            ) from None
        raise InputError(f"{kind}={name}: importing {module} failed: {error}") from None
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise InputError(
            f"{kind}={name}: importing {module} failed: {type(error).__name__}: {error}"
        ) from None
