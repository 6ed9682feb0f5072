"""Settings: fields of frozen dataclasses with a description, a type and limits.

`setting` declares one. `build`, `check` and `convert` validate values from the command line, from
TOML files and from Python, and raise an InputError that names the setting and what it accepts.
"""

import dataclasses
import functools
import inspect
import math
import numbers
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import InputError, unknown

T = TypeVar("T")
RENAMED = {"combination": "aggregation"}  # keys of experiments: former name -> name


@dataclass(frozen=True)
class Limits:
    """The range of a numeric setting."""

    low: float = -math.inf  # value >= low
    above: float = -math.inf  # value > above
    high: float = math.inf  # value <= high
    below: float = math.inf  # value < below

    def contain(self, value: float) -> bool:
        """Return True if the value is within the limits."""
        return self.low <= value <= self.high and self.above < value < self.below

    def __str__(self) -> str:
        limits = {">=": self.low, ">": self.above, "<=": self.high, "<": self.below}
        finite = {sign: limit for sign, limit in limits.items() if math.isfinite(limit)}
        return " and ".join(f"{sign} {_digits(limit)}" for sign, limit in finite.items())


def setting(
    default: T, doc: str, *, added: str | None = None, names: bool = False, **limits: float
) -> T:
    """Return a dataclass field with a description and limits (low, above, high, below).

    `added` is the version of moonfl that introduced the setting, or None for the first one.
    `names` is True for several names, written as a,b,c; in Python and TOML they may be a list.
    """
    metadata = {"doc": doc, "limits": Limits(**limits), "added": added, "names": names}
    field: Any = dataclasses.field(default=default, metadata=metadata)
    return field  # type: ignore[no-any-return]  # dataclass replaces the field by its value


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """Return the default of a field."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@functools.cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields (cached, because resolving takes 0.5 ms)."""
    return get_type_hints(cls)


def names(cls: type) -> list[str]:
    """Return the names of the settings of a dataclass; computed fields (init=False) are not."""
    return [field.name for field in dataclasses.fields(cls) if field.init]


def convert(cls: type, name: str, value: object, label: str) -> Any:
    """Convert a value to the type of a field and check its limits.

    `value` is a string from the command line, or a value from TOML or Python. `label` is the name
    of the setting in error messages.
    """
    hint = field_types(cls)[name]
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    limits = field.metadata.get("limits", Limits())
    if field.metadata.get("names") and isinstance(value, list | tuple):
        value = join_names(value, label)
    try:
        result = _to_type(hint, value)
    except (TypeError, ValueError, KeyError, OverflowError, StopIteration):
        raise InputError(f"{label} must be {_allowed(hint, limits)}, got {value!r}") from None
    is_number = isinstance(result, int | float) and not isinstance(result, bool)
    if is_number and not limits.contain(result):
        raise InputError(f"{label} must be {_allowed(hint, limits)}, got {value}")
    return result


def join_names(names: Sequence[object], label: str) -> str:
    """Return a list of names as the text a,b,c."""
    if not names or not all(isinstance(name, str) and name and "," not in name for name in names):
        raise InputError(f"{label} must be a list of names without commas, got {list(names)!r}")
    return ",".join(map(str, names))


def check(settings: Any, prefix: str = "") -> None:
    """Convert and check every setting of a dataclass instance in place."""
    cls: type = type(settings)
    for name, hint in field_types(cls).items():
        if name in names(cls) and _is_supported(hint):
            value = convert(cls, name, getattr(settings, name), prefix + name)
            object.__setattr__(settings, name, value)


def check_field_types(cls: type, label: str) -> None:
    """Check that every field of a class can be written on the command line and in TOML."""
    hints = field_types(cls)
    if "__dataclass_fields__" not in vars(cls):
        own_hints = [hints[name] for name in inspect.get_annotations(cls)]
        if not all(_is_class_variable(hint) for hint in own_hints):
            raise InputError(
                f"{label}: {cls.__name__} has settings but is not a dataclass; "
                f"write @dataclass(frozen=True) above {cls.__name__}"
            )
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    if "__dataclass_fields__" not in vars(owner):
        raise InputError(
            f"{label}: {owner.__name__} has an __init__, whose arguments are not stored with a "
            "run; remove it, declare the settings as fields, and write @dataclass(frozen=True) "
            f"above {owner.__name__}"
        )
    for name in names(cls):
        setter = next((base for base in cls.__mro__ if name in vars(base)), cls)
        if name in vars(setter) and name not in inspect.get_annotations(setter):
            raise InputError(
                f"{label}: {setter.__name__} sets {name}, a setting that it inherits, without a "
                f"type, which has no effect; write {name}: "
                f"{inspect.formatannotation(hints[name])} = {vars(setter)[name]!r}, in a class "
                "with @dataclass(frozen=True)"
            )
        if not _is_supported(hints[name]):
            raise InputError(
                f"{label}: its field {name} must be bool, int, float, str, Literal[...], "
                "or one of these or None"
            )


def check_attributes(value: Any, label: str) -> None:
    """Check that a dataclass holds its fields as they were given, and cached properties.

    Other attributes are not stored with a run, and do not change its fingerprint.
    """
    cls = type(value)
    fields = {field.name for field in dataclasses.fields(cls)}
    for name in vars(value).keys() - fields:
        if not isinstance(getattr(cls, name, None), functools.cached_property):
            raise InputError(
                f"{label}: {name} is not a field of {cls.__name__}, so it is not stored with a "
                "run; declare it as a field, or as a property that is computed from fields"
            )
    if dataclasses.replace(value) != value:
        raise InputError(
            f"{label}: {cls.__name__} changes its fields when it is built, so a resumed run would "
            "have other values than were stored; compute them in properties instead"
        )


def build(cls: type[T], values: dict[str, object], prefix: str) -> T:
    """Return an instance of a dataclass from checked values by name.

    Unknown names are refused with the closest valid ones. `prefix` is put before the names in
    error messages, as in `algorithm.mu`.
    """
    valid = names(cls)
    for name in values:
        if name not in valid:
            raise unknown("key", prefix + name, [prefix + key for key in valid])
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # callers pass a dataclass
        missing = dataclasses.MISSING
        has_default = field.default is not missing or field.default_factory is not missing
        if field.init and not has_default and field.name not in values:
            raise InputError(f"{prefix}{field.name} has no default and must be set")
    converted = {name: convert(cls, name, value, prefix + name) for name, value in values.items()}
    try:
        return cls(**converted)
    except InputError:
        raise
    except ValueError as error:  # raised by a check in the class itself
        raise InputError(f"{cls.__name__}: {error}") from None


def format_default(field: "dataclasses.Field[Any]") -> str:
    """Return the default of a setting as it is written on the command line."""
    if field.default is dataclasses.MISSING:
        return f"{getattr(field.default_factory, '__name__', '')}()"
    if isinstance(field.default, float):
        return f"{field.default:g}"
    return format_value(field.default)


def format_value(value: object) -> str:
    """Return a value as it is written on the command line: true, false and none in lower case."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _digits(limit: float) -> str:
    """Return an integer in full and a float in short."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _allowed(hint: Any, limits: Limits) -> str:
    """Describe the values that a type and its limits allow, as in "an integer >= 1 or none"."""
    if get_origin(hint) is Literal:
        return " or ".join(map(format_value, get_args(hint)))
    if _is_union(hint):
        member = _allowed(_union_member(hint), limits)
        return f"{member} or none" if type(None) in get_args(hint) else member
    if hint in (int, float):
        kind = "an integer" if hint is int else "a finite number"
        return f"{kind} {limits}".rstrip()
    return "true or false" if hint is bool else "a non-empty string"


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _is_class_variable(hint: Any) -> bool:
    return ClassVar in (hint, get_origin(hint))


def _is_supported(hint: Any) -> bool:
    """Return True for bool, int, float, str, Literal, and each of these or None."""
    if _is_union(hint):
        member = _union_member(hint)
        return member is not None and _is_supported(member)
    return hint in (bool, int, float, str) or get_origin(hint) is Literal


def _union_member(hint: Any) -> Any:
    """Return the only member of a union besides None, or None; `int | float` counts as float."""
    members = {part for part in get_args(hint) if part is not type(None)}
    if members == {int, float}:
        return float
    return members.pop() if len(members) == 1 else None


def _to_type(hint: Any, value: Any) -> object:
    """Convert a value to a supported type, or raise one of the errors that `convert` handles."""
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if value in (choice, format_value(choice)))
    if _is_union(hint):
        return None if value in (None, "none") else _to_type(_union_member(hint), value)
    if hint is bool:
        return value if isinstance(value, bool) else {"true": True, "false": False}[value]
    if hint is str:
        return _to_string(value)
    return _to_number(hint, value)


def parse_int(text: str) -> int:
    """Return the integer that a text denotes, or raise a ValueError."""
    return int(_without_python_syntax(text))


def parse_float(text: str) -> float:
    """Return the float that a text denotes, or raise a ValueError."""
    return float(_without_python_syntax(text))


def _without_python_syntax(text: str) -> str:
    """Refuse numbers that only Python accepts: 5_0 for 50, and digits of other alphabets."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a number")
    return text


def _to_string(value: Any) -> str:
    if not isinstance(value, str) or not value.encode("utf-8"):  # encode refuses lone surrogates
        raise TypeError(f"{value!r} is not a non-empty string")
    return value


def _to_number(hint: Any, value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    if hint is int and isinstance(value, numbers.Integral | str):
        return parse_int(value) if isinstance(value, str) else int(value)
    if hint is float and isinstance(value, numbers.Real | str):
        number = parse_float(value) if isinstance(value, str) else float(value)
        if math.isfinite(number):
            return number
    raise TypeError(f"{value!r} is not {hint.__name__}")
