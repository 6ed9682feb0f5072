"""From facts to tables, figures and a page. Nothing here trains, and nothing needs torch."""

import math
from pathlib import Path

from ..errors import InputError


def write(paths: list[Path], out: Path, target: float | None = None) -> Path:
    """A report of all runs in or under `paths`: report.html in `out`, and each figure and table beside it."""
    from .contents import headline, sections
    from .files import replace_report
    from .groups import group
    from .page import page
    from .runs import load
    from .tables import comma_separated, markdown

    check(target)
    runs, left_out = load(paths)
    groups, notes = group(runs)
    parts = sections(groups, target)
    files: dict[str, bytes] = {}
    for part in parts:
        for p in part.pictures:
            files |= {f"{p.name}.svg": p.svg.encode(), f"{p.name}.png": p.png}
        for t in part.tables:
            files |= {
                f"{t.name}.md": as_bytes(markdown(t)),
                f"{t.name}.csv": as_bytes(comma_separated(t)),
            }
    return replace_report(
        out, files, as_bytes(page(groups, parts, headline(groups), left_out + notes))
    )


def compare(paths: list[Path], target: float | None = None) -> str:
    """The short form, for a terminal: a line a group."""
    from .groups import group
    from .results import short
    from .runs import load
    from .tables import plain

    check(target)
    runs, left_out = load(paths)
    groups, notes = group(runs)
    return "\n".join([plain(short(groups, target)), *left_out, *notes])


def as_bytes(text: str) -> bytes:
    """A folder may have a name that is no text."""
    return text.encode(errors="replace")


def check(target: float | None) -> None:
    if target is not None and not (math.isfinite(target) and 0 < target <= 1):
        raise InputError(
            f"the target accuracy is a share above 0 and at most 1, such as 0.65, not {target:g}"
        )
