"""Start `moonfl` commands as processes.

They are forked from a server process that has imported moonfl, because the import is slow.
"""

import multiprocessing
import os
import signal
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["moonfl.cli.commands.training", "sklearn.datasets", "sklearn.manifold"]
)


def start(folder: Path, *words: str) -> BaseProcess:
    """Start `moonfl WORDS` in a folder. Its output goes to the file `output.txt` there."""
    process = SERVER.Process(target=_command, args=(folder, words))
    process.start()
    return process


def _command(folder: Path, words: tuple[str, ...]) -> None:
    from moonfl.cli import main

    # Tests that run in the background ignore SIGINT, and a forked process would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    descriptor = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    sys.exit(main(list(words)))
