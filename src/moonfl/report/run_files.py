"""The files of a run as values. Errors name the file and the line."""

import json
import tomllib
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import run_checks
from .run_checks import Fact


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}"
        ) from None


def read_toml(path: Path) -> Fact:
    try:
        return tomllib.loads(text_of(path))
    except (ValueError, RecursionError) as error:  # bad TOML, numbers or nesting beyond reason
        raise InputError(f"{path} is not TOML: {error}") from None


def from_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers or nesting beyond reason
        raise InputError(f"{where}: not JSON that can be read: {error}") from None


def read_json(path: Path) -> Fact | None:
    if not path.exists():
        return None
    fact = from_json(text_of(path), str(path))
    if not isinstance(fact, dict):
        raise InputError(f"{path}: an object in braces was expected")
    return fact


def read_rounds(path: Path) -> list[Fact]:
    """One fact a line. A last line without its end was cut while it was written."""
    if not path.exists():
        return []
    rounds: list[Fact] = []
    for number, line in enumerate(text_of(path).split("\n")[:-1], 1):
        where = f"{path}, line {number}"
        rounds.append(run_checks.of_round(from_json(line, where), number, where))
    return rounds
