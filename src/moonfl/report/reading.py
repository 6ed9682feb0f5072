"""The files of a run: read, and checked where a wrong one would be misread. Errors name the file and the line."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError

Fact = dict[str, Any]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from None


def read_toml(path: Path) -> Fact:
    try:
        return tomllib.loads(text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None


def read_json(path: Path) -> Fact | None:
    if not path.exists():
        return None
    try:
        fact = json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    if not isinstance(fact, dict):
        raise InputError(f"{path}, line 1: an object in braces was expected")
    return fact


def read_rounds(path: Path) -> list[Fact]:
    """One fact a line. A last line without its end was cut while it was written."""
    if not path.exists():
        return []
    rounds: list[Fact] = []
    lines = text_of(path).split("\n")
    for number, line in enumerate(lines, 1):
        if number == len(lines):
            break
        try:
            fact = json.loads(line)
            good = fact["round"] == number and 0 <= fact["accuracy"] <= 1
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not JSON: {error.msg}") from None
        except (KeyError, TypeError):
            good = False
        if not good:
            raise InputError(f"{path}, line {number}: round {number} with an accuracy from 0 to 1 was expected")
        rounds.append(fact)
    return rounds


def check_counts(fact: Fact | None, key: str, path: Path) -> None:
    """A table of counts has a row per party or class, all of one length."""
    if fact is None or key not in fact:
        return
    try:
        shape = np.asarray(fact[key], dtype=np.int64).shape
    except (ValueError, TypeError):
        shape = ()
    if (
        len(shape) != 2
        or (key == "confusion" and shape[0] != shape[1])
        or len(fact.get("classes", [0] * shape[1])) != shape[1]
    ):
        raise InputError(f"{path}: '{key}' is not a table of counts with one column a class")


def check_final(final: Fact, path: Path) -> None:
    tsne = final.get("tsne") or {}
    parties = final.get("parties") or []
    try:
        good = np.shape(tsne.get("points", [])) in [(len(tsne.get("labels", [])), 2), (0,)]
        good &= all(isinstance(row["party"], int) for row in parties)
    except (ValueError, TypeError, KeyError, AttributeError):
        good = False
    if not good:
        raise InputError(f"{path}: 'tsne' holds points [x, y] with a label each, 'parties' an object a party")
