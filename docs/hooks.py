"""Hooks of mkdocs: insert tables of settings and commands, and make the search work offline."""

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

COMPONENTS = {
    "algorithm": "the method, by name; in Python an instance of its class",
    "server": "the server optimizer, by name; in Python an instance of its class",
    "optimizer": "the local optimizer, by name; in Python an instance of its class",
    "schedule": "the schedule of the learning rate, by name; in Python an instance of its class",
    "dp": "the privacy mechanism, by name; in Python an instance of its class",
}
SHIM = "https://unpkg.com/iframe-worker/shim"  # address in the pages of Material's offline plugin
COMMANDS_MARK = "<!-- commands -->"
SETTINGS_MARK = re.compile(r"<!-- settings of (\S+):(\w+) -->")


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Replace the marks of settings and commands in a page by tables from the code."""
    if COMMANDS_MARK in markdown:
        sections = [command_section(parser) for parser in leaf_commands(make_parser())]
        markdown = markdown.replace(COMMANDS_MARK, "\n\n".join(sections))
    return SETTINGS_MARK.sub(lambda match: settings_table(match[1], match[2]), markdown)


def on_post_build(config: Any, **kwargs: Any) -> None:
    """Replace the script that the search would download by docs/offline-worker.js."""
    site = Path(config["site_dir"])
    for path in site.rglob("*.html"):
        worker = os.path.relpath(site / "offline-worker.js", path.parent)
        page = path.read_text(encoding="utf-8")
        path.write_text(page.replace(SHIM, worker), encoding="utf-8")


def settings_table(module: str, name: str) -> str:
    """Return a Markdown table of the settings of a class, with defaults and descriptions."""
    cls = getattr(importlib.import_module(module), name)
    rows = []
    for field in dataclasses.fields(cls):
        description = field.metadata.get("doc") or COMPONENTS[field.name]
        rows.append(f"| `{field.name}` | `{format_default(field)}` | {description} |")
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def leaf_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the commands of a parser that have no subcommands."""
    actions = parser._actions
    groups = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for subparser in group.choices.values():
            yield from leaf_commands(subparser)
    if not groups:
        yield parser


def command_section(parser: argparse.ArgumentParser) -> str:
    """Return the heading, description and table of arguments of a command."""
    rows = []
    for action in parser._actions:
        if action.dest == "help":
            continue
        words = list(action.option_strings)
        if action.nargs != 0:
            words.append(
                str(action.metavar or " | ".join(action.choices or []) or action.dest.upper())
            )
        description = (action.help or "").replace("%%", "%")
        rows.append(f"| `{' '.join(words)}` | {description} |")
    header = ["| argument | meaning |", "|---|---|"] if rows else []
    description = parser.description or ""
    sentence = f"{description[:1].upper()}{description[1:].rstrip('.')}."
    return "\n".join([f"### {parser.prog}", "", sentence, "", *header, *rows])
