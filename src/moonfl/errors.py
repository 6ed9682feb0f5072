"""The ways to fail, the message for a name nobody knows, and how a person is told."""

import contextlib
import difflib
import shlex
import sys
from collections.abc import Iterable


class InputError(ValueError):
    """Wrong input: the message says what was given, what is allowed, and where to fix it."""


class RunError(RuntimeError):
    """A run that cannot go on; what it had recorded is kept."""


class DivergenceError(RunError):
    """Training that led nowhere, and would again."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what to tell the person who pressed it."""


def unknown(kind: str, given: str, allowed: Iterable[str], also: str = "") -> InputError:
    """An InputError that names the nearest allowed names first, then all of them, and what else may stand there."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    allowed = ", ".join([*names, also] if also else names)
    return InputError(f"unknown {kind} '{given}'{hint} (allowed: {allowed})")


def quoted(path: object) -> str:
    """A path as it is typed in a shell."""
    return shlex.quote(str(path))


def notify(message: str) -> None:
    """A line on stderr; a run goes on when nobody reads it."""
    if sys.stderr is None:  # closed before we began
        return
    with contextlib.suppress(OSError, ValueError):  # a pipe, a terminal or a stream that is closed
        print(message, file=sys.stderr, flush=True)
