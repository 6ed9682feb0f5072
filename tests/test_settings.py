"""Messages of settings: what a value must be, with its limits."""

from dataclasses import dataclass, fields
from typing import Literal

import pytest

from moonfl import settings
from moonfl.errors import InputError
from moonfl.settings import Limits, setting


@dataclass(frozen=True)
class Example:
    count: int = setting(1, "an integer", low=1)
    seed: int = setting(0, "a large integer", low=0, high=2**63 - 1)
    rate: float | None = setting(None, "an optional number", above=0, below=1, added="0.2")
    kind: Literal["a", "b"] = setting("a", "one of two")
    mixed: int | float = setting(1, "an integer or a float", low=0.5)
    name: str = setting("x", "a string")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", "ten", "count must be an integer >= 1, got 'ten'"),
        ("count", "5_0", "count must be an integer >= 1, got '5_0'"),
        ("count", "٣", "count must be an integer >= 1, got '٣'"),
        ("rate", "0.1_5", "rate must be a finite number > 0 and < 1 or none, got '0.1_5'"),
        ("count", 0, "count must be an integer >= 1, got 0"),
        ("count", 1.0, "count must be an integer >= 1, got 1.0"),
        ("seed", -1, "seed must be an integer >= 0 and <= 9223372036854775807, got -1"),
        ("rate", "high", "rate must be a finite number > 0 and < 1 or none, got 'high'"),
        ("rate", 1, "rate must be a finite number > 0 and < 1 or none, got 1"),
        ("kind", "c", "kind must be a or b, got 'c'"),
        ("mixed", "inf", "mixed must be a finite number >= 0.5, got 'inf'"),
        ("name", "", "name must be a non-empty string, got ''"),
    ],
)
def test_a_wrong_value_gets_what_is_allowed(name: str, value: object, message: str) -> None:
    with pytest.raises(InputError) as error:
        settings.build(Example, {name: value}, "")
    assert str(error.value) == message


def test_limits_without_a_bound_print_nothing() -> None:
    assert str(Limits()) == ""


def test_a_setting_knows_the_version_that_added_it() -> None:
    versions = {field.name: field.metadata["added"] for field in fields(Example)}
    assert versions["rate"] == "0.2"
    assert versions["count"] is None
