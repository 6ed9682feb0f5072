"""Columns of tables at sites: what is missing where."""

from collections.abc import Sequence

from .refusals import sanitize

MAX_COLUMNS = 5  # names that a message lists


def describe_columns(ours: Sequence[str], theirs: Sequence[str], other: str = "the others") -> str:
    """Return which columns one site lacks and which only it has; `other` names the others."""
    known = set(ours)
    expected = set(theirs)
    missing = [name for name in theirs if name not in known]
    additional = [name for name in ours if name not in expected]
    parts = []
    if missing:
        parts.append(f"it lacks {list_columns(missing)}, which {other} has")
    if additional:
        parts.append(f"it has {list_columns(additional)}, which {other} lacks")
    return ", and ".join(parts)


def list_columns(names: list[str]) -> str:
    """Return the names of columns, at most a few."""
    shown = ", ".join(f"'{sanitize(name)}'" for name in names[:MAX_COLUMNS])
    more = f" and {len(names) - MAX_COLUMNS} more" if len(names) > MAX_COLUMNS else ""
    return f"the column{'s' if len(names) > 1 else ''} {shown}{more}"
