"""What pages of the documentation take from the code when the site is built."""

import argparse
import dataclasses
import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moonfl.cli.parser import make_parser
from moonfl.settings import format_default

PARTS = {
    "algorithm": "the method, by name; in Python a value",
    "server": "the server step, likewise",
}
SHIM = "https://unpkg.com/iframe-worker/shim"  # what Material's plugin for offline use would fetch


def on_page_markdown(markdown: str, **given: Any) -> str:
    """`<!-- settings of MODULE:CLASS -->` becomes the table of its fields, `<!-- commands -->` all commands."""
    markdown = re.sub(
        "<!-- commands -->", lambda _: "\n\n".join(map(command, leaves(make_parser()))), markdown
    )
    return re.sub(
        r"<!-- settings of (\S+):(\w+) -->", lambda found: table(*found.groups()), markdown
    )


def on_post_build(config: Any, **given: Any) -> None:
    """The search works from disk by a script of our own: the site fetches nothing from elsewhere."""
    site = Path(config["site_dir"])
    for path in site.rglob("*.html"):
        ours = os.path.relpath(site / "offline-worker.js", path.parent)
        path.write_text(path.read_text(encoding="utf-8").replace(SHIM, ours), encoding="utf-8")


def table(module: str, name: str) -> str:
    cls = getattr(importlib.import_module(module), name)
    rows = [
        f"| `{f.name}` | `{format_default(f)}` | {f.metadata.get('doc') or PARTS[f.name]} |"
        for f in dataclasses.fields(cls)
    ]
    return "\n".join(["| key | default | what it is |", "|---|---|---|", *rows])


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands of a command, down to those that have none of their own."""
    groups = [
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ]
    for group in groups:
        for sub in group.choices.values():
            yield from leaves(sub)
    if not groups:
        yield parser


def command(parser: argparse.ArgumentParser) -> str:
    """Its heading, what it does, and a table of its words."""
    rows = []
    for action in parser._actions:
        if action.dest == "help":
            continue
        value = str(action.metavar or " | ".join(action.choices or []) or action.dest.upper())
        words = [*action.option_strings, *([value] if action.nargs != 0 else [])]
        rows.append(f"| `{' '.join(words)}` | {(action.help or '').replace('%%', '%')} |")
    told = ["| word | what it is |", "|---|---|", *rows] if rows else []
    doc = parser.description or ""
    return "\n".join([f"### {parser.prog}", "", f"{doc[:1].upper()}{doc[1:]}.", "", *told])
