"""The entry point of the command line: exit statuses, error messages and signals."""

import argparse
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..errors import InputError, RunError, notify
from .parser import parse
from .signals import Terminated

DONE = 0
FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the exit status.

    Every failure that is not a bug is reported as one line on stderr.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal whose encoding has no plus-minus sign shows a question mark.
        sys.stdout.reconfigure(errors="replace")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        find_handler(args.handler)(args)
        flush()
    except InputError as error:
        return fail(str(error), WRONG_INPUT)
    except BrokenPipeError:  # the reader of our stdout, such as head, has ended
        drop_output()
        return DONE
    except (RunError, OSError) as error:
        return fail(str(error), FAILED)
    except KeyboardInterrupt as error:
        return fail(str(error) or "interrupted", INTERRUPTED)
    except Terminated as error:
        return fail(str(error), Terminated.STATUS)
    return DONE


def find_handler(name: str) -> Callable[[argparse.Namespace], None]:
    """Import the function of a command; `name` is "module:function" in moonfl.cli.commands.

    Modules are imported on demand, because most of them import torch, which takes two seconds.
    """
    module, _, function = name.partition(":")
    commands = importlib.import_module(f".commands.{module}", __package__)
    handler: Callable[[argparse.Namespace], None] = getattr(commands, function)
    return handler


def flush() -> None:
    """Write the buffered output now, so that an error appears here and not when Python exits."""
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_output() -> None:
    """Discard the buffered output, so that Python does not try to write it again at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, status: int) -> int:
    """Print the message on one line of stderr, whatever it quotes, and return the status."""
    try:
        flush()
    except OSError:
        drop_output()
    notify(f"moonfl: {' '.join(message.splitlines())}")
    return status


def _terminate(number: int, frame: FrameType | None) -> Any:
    """Handle SIGTERM with an exception, so that files and processes are cleaned up."""
    raise Terminated("terminated")
