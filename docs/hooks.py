"""What pages of the documentation take from the code when the site is built."""

import dataclasses
import importlib
import os
import re
from pathlib import Path
from typing import Any

from moonfl.settings import shown

PARTS = {"algorithm": "the method, by name; in Python a value", "server": "the server step, likewise"}
SHIM = "https://unpkg.com/iframe-worker/shim"  # what Material's plugin for offline use would fetch


def on_page_markdown(markdown: str, **given: Any) -> str:
    """`<!-- settings of moonfl.experiment:Experiment -->` becomes the table of its fields."""
    return re.sub(r"<!-- settings of (\S+):(\w+) -->", lambda found: table(*found.groups()), markdown)


def on_post_build(config: Any, **given: Any) -> None:
    """The search works from disk by a script of our own: the site fetches nothing from elsewhere."""
    site = Path(config["site_dir"])
    for path in site.rglob("*.html"):
        ours = os.path.relpath(site / "offline-worker.js", path.parent)
        path.write_text(path.read_text(encoding="utf-8").replace(SHIM, ours), encoding="utf-8")


def table(module: str, name: str) -> str:
    cls = getattr(importlib.import_module(module), name)
    rows = [
        f"| `{f.name}` | `{shown(f)}` | {f.metadata.get('doc') or PARTS[f.name]} |" for f in dataclasses.fields(cls)
    ]
    return "\n".join(["| key | default | what it is |", "|---|---|---|", *rows])
