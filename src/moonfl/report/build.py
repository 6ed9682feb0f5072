"""From facts to tables, figures and a page. Nothing here trains, and nothing needs torch."""

import math
from pathlib import Path

from ..errors import InputError


def write(paths: list[Path], out: Path, target: float | None = None) -> Path:
    """A report of all runs in or under `paths`: report.html in `out`, and each figure and table beside it."""
    from .groups import group_runs
    from .html_page import page
    from .report_files import replace_report
    from .runs import load_runs
    from .sections import headline, sections
    from .tables import csv_text, markdown

    check(target)
    runs, left_out = load_runs(paths)
    groups, notes = group_runs(runs)
    parts = sections(groups, target)
    files: dict[str, bytes] = {}
    for part in parts:
        for p in part.pictures:
            files |= {f"{p.name}.svg": p.svg.encode(), f"{p.name}.png": p.png}
        for t in part.tables:
            files |= {
                f"{t.name}.md": as_bytes(markdown(t)),
                f"{t.name}.csv": as_bytes(csv_text(t)),
            }
    return replace_report(
        out, files, as_bytes(page(groups, parts, headline(groups), left_out + notes))
    )


def compare(paths: list[Path], target: float | None = None) -> str:
    """The short form, for a terminal: a line a group."""
    from .groups import group_runs
    from .result_tables import short
    from .runs import load_runs
    from .tables import plain_text

    check(target)
    runs, left_out = load_runs(paths)
    groups, notes = group_runs(runs)
    return "\n".join([plain_text(short(groups, target)), *left_out, *notes])


def as_bytes(text: str) -> bytes:
    """A folder may have a name that is no text."""
    return text.encode(errors="replace")


def check(target: float | None) -> None:
    if target is not None and not (math.isfinite(target) and 0 < target <= 1):
        raise InputError(
            f"the target accuracy is a share above 0 and at most 1, such as 0.65, not {target:g}"
        )
