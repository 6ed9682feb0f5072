"""Code blocks and commands of the documentation."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = {"console", "python", "text", "toml", "csv"}
FENCE = re.compile(r'^```(\w*)(?: title="([\w.]+)")?\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """Return the contents of the code blocks in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Return the words of every command in the console blocks."""
    lines = [line for block in blocks(text, "console") for line in block.splitlines()]
    return [shlex.split(line.removeprefix("$ ")) for line in lines]
