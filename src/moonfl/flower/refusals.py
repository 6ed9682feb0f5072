"""Why a message is refused, and texts of others in a form that is safe to show."""

import re

MARKER = "@moonfl"  # starts a RunEvent in the server's log; `sanitize` removes it from sites' texts
MAX_TEXT = 200  # characters that are shown of somebody else's text


class RefusedError(Exception):
    """A message is not what was agreed; the text says why."""


class NotFiniteError(RefusedError):
    """A model has no finite loss at a site."""


def sanitize(text: str) -> str:
    """Return a site's text in a form that is safe to show.

    It has one line and a bounded length, contains nothing that controls a terminal, and cannot be
    mistaken for a RunEvent.
    """
    printable = "".join(c if c.isprintable() else " " for c in text[: MAX_TEXT + 1])
    printable = re.sub(f"@+(?={MARKER[1:]})", "", printable)
    if len(printable) > MAX_TEXT:
        return printable[:MAX_TEXT] + "..."
    return printable
