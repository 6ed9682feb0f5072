"""Files of a report: each is written beside and renamed, and those of a replaced report go."""

import re
from pathlib import Path

from ..errors import InputError, RunError
from ..runs.files import atomic

PAGE = "report.html"
OURS = re.compile(r'href="([a-z0-9-]+\.(?:svg|png|csv|md))" download')


def replace_report(out: Path, files: dict[str, bytes], page: bytes) -> Path:
    """The page last, when all it links to is there; then what only the report before it linked to is removed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        old = out / PAGE
        before = set(OURS.findall(old.read_text(encoding="utf-8"))) if old.exists() else set()
        for name, data in [*files.items(), (PAGE, page)]:
            with atomic(out / name) as temporary:
                temporary.write_bytes(data)
        for name in before - files.keys():
            (out / name).unlink(missing_ok=True)
    except (OSError, RunError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"the report cannot be written to {out}: {reason}; choose another folder"
        ) from None
    return old
