"""Commands as processes of their own, forked from one that has moonfl loaded, which takes a while."""

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
    """`moonfl WORDS` in the folder; what it says goes to the file `told` there."""
    process = SERVER.Process(target=_command, args=(folder, words))
    process.start()
    return process


def _command(folder: Path, words: tuple[str, ...]) -> None:
    from moonfl.cli import main

    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # also where the tests are deaf to Ctrl-C
    os.chdir(folder)
    descriptor = os.open("told", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    sys.exit(main(list(words)))
