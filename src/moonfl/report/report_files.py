"""Write the files of a report or of one figure atomically.

A report removes the files of the one that it replaces.
"""

import re
from pathlib import Path

from ..errors import InputError, RunError
from ..runs.files import atomic
from .rendering import Picture

PAGE = "report.html"
LINKED_FILE = re.compile(r'href="([a-z0-9-]+\.(?:svg|png|csv|md))" download')


def replace_report(out: Path, files: dict[str, bytes], page: bytes) -> Path:
    """Write figures and tables, then the page that links to them, and return its path.

    Files that only the previous report linked to are removed; all other files stay.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        path = out / PAGE
        old_files: set[str] = set()
        if path.exists():
            old_files.update(LINKED_FILE.findall(path.read_text(encoding="utf-8")))
        for name, data in [*files.items(), (PAGE, page)]:
            write_bytes(out / name, data)
        for name in old_files - files.keys():
            (out / name).unlink(missing_ok=True)
    except (OSError, RunError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"the report cannot be written to {out}: {reason}; choose another folder"
        ) from None
    return path


def write_picture(picture: Picture, folder: Path) -> list[Path]:
    """Write a figure as SVG and PNG, and return the paths."""
    paths = []
    for name, data in picture.files().items():
        write_bytes(folder / name, data)
        paths.append(folder / name)
    return paths


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file in one step."""
    with atomic(path) as temporary:
        temporary.write_bytes(data)
