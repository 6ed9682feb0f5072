"""Fields of frozen dataclasses as settings: one place for their meaning, their limits and their text form."""

import dataclasses
import functools
import inspect
import math
import numbers
import types
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import InputError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    low: float = -math.inf  # smallest allowed
    above: float = -math.inf  # must be greater than
    high: float = math.inf  # largest allowed
    below: float = math.inf  # must be less than

    def hold(self, value: float) -> bool:
        return self.low <= value <= self.high and self.above < value < self.below

    def __str__(self) -> str:
        named = {">=": self.low, ">": self.above, "<=": self.high, "<": self.below}
        return " and ".join(
            f"{sign} {limit:g}" for sign, limit in named.items() if math.isfinite(limit)
        )


def setting(default: T, doc: str, *, added: str | None = None, **limits: float) -> T:
    """Return a dataclass field with a description and limits (low, above, high, below).

    `added` is the version of moonfl that introduced the setting, or None for the first one.
    """
    metadata = {"doc": doc, "limits": Limits(**limits), "added": added}
    field: Any = dataclasses.field(default=default, metadata=metadata)
    return field  # type: ignore[no-any-return]  # a field stands where its value will be


@functools.cache
def hints_of(cls: Any) -> dict[str, Any]:
    """The types of its fields; to work them out takes half a millisecond."""
    return get_type_hints(cls)


def names(cls: type) -> list[str]:
    """Of what can be set: not the fields that a class works out itself."""
    return [f.name for f in dataclasses.fields(cls) if f.init]


def convert(cls: type, name: str, value: object, label: str) -> Any:
    """`value` (text from a command line, or a value from TOML or Python) as the field's type and in its limits."""
    hint = hints_of(cls)[name]
    field = next(f for f in dataclasses.fields(cls) if f.name == name)
    try:
        result = _as_type(hint, value)
    except (TypeError, ValueError, KeyError, OverflowError, StopIteration):
        raise InputError(f"{label} is {allowed(hint)}, not {value!r}") from None
    limits = field.metadata.get("limits", Limits())
    if isinstance(result, int | float) and not isinstance(result, bool) and not limits.hold(result):
        raise InputError(f"{label} must be {limits}, not {value}")
    return result


def check(settings: Any, prefix: str = "") -> None:
    """Every field of a dataclass made in Python has the type and limits it declares."""
    cls: type = type(settings)
    for name, hint in hints_of(cls).items():
        if name in names(cls) and _is_plain(hint):
            object.__setattr__(
                settings, name, convert(cls, name, getattr(settings, name), prefix + name)
            )


def check_kinds(cls: type, label: str) -> None:
    """Every field has a type that a command line and TOML can write."""
    hints = hints_of(cls)
    bare = "__dataclass_fields__" not in vars(cls)
    if bare and any(
        ClassVar not in (hints[n], get_origin(hints[n])) for n in inspect.get_annotations(cls)
    ):
        raise InputError(
            f"{label}: write @dataclass(frozen=True) above {cls.__name__}, for it has settings"
        )
    odd = next((name for name in names(cls) if not _is_plain(hints[name])), None)
    if odd is not None:
        raise InputError(
            f"{label}: its field {odd} must be bool, int, float, str, Literal[...] or one of them or None"
        )


def build(cls: type[T], values: dict[str, object], prefix: str) -> T:
    """An instance from names and values, each checked; an unknown name gets the nearest valid ones."""
    for name in values:
        if name not in names(cls):
            raise unknown("key", prefix + name, [prefix + n for n in names(cls)])
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # a dataclass, as its callers see to
        needed = field.init and field.default is field.default_factory is dataclasses.MISSING
        if needed and field.name not in values:
            raise InputError(f"{prefix}{field.name} has no default; set it")
    converted = {name: convert(cls, name, value, prefix + name) for name, value in values.items()}
    try:
        return cls(**converted)
    except InputError:
        raise
    except ValueError as error:  # its own rule
        raise InputError(f"{cls.__name__}: {error}") from None


def allowed(hint: Any) -> str:
    """What a type admits, in words."""
    if get_origin(hint) is Literal:
        return " or ".join(map(written, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(
            "none" if part is type(None) else allowed(part) for part in get_args(hint)
        )
    return {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text that is not empty",
    }[hint]


def shown(field: "dataclasses.Field[Any]") -> str:
    """The default of a setting, as it is written on a command line."""
    if field.default is dataclasses.MISSING:
        return f"{getattr(field.default_factory, '__name__', '')}()"
    return f"{field.default:g}" if isinstance(field.default, float) else written(field.default)


def written(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _is_plain(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return _inner(hint) is not None and _is_plain(_inner(hint))
    return hint in (bool, int, float, str) or get_origin(hint) is Literal


def _inner(hint: Any) -> Any:
    """What a union has beside None, where that is one thing; a whole number is a number."""
    kinds = {part for part in get_args(hint) if part is not type(None)}
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 else None


def _as_type(hint: Any, value: Any) -> object:
    if get_origin(hint) is Literal:
        return next(one for one in get_args(hint) if value == one or value == written(one))
    if get_origin(hint) in (Union, types.UnionType):
        return None if value in (None, "none") else _as_type(_inner(hint), value)
    if hint is bool:
        return value if isinstance(value, bool) else {"true": True, "false": False}[value]
    number = isinstance(value, numbers.Real | str) and not isinstance(value, bool)
    if hint is float and number and math.isfinite(float(value)):
        return float(value)
    if hint is int and number and isinstance(value, numbers.Integral | str):
        return int(value)
    if hint is str and isinstance(value, str) and value.encode("utf-8"):
        return value
    raise TypeError(f"{value!r} is no {hint}")
