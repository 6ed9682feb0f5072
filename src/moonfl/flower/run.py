"""`moonfl flower run`: start a run at the SuperLink, follow its log, and fail if it fails."""

import collections
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, Interrupted, RunError, notify
from ..experiment import Experiment, from_toml
from ..runs.directory import holds_run
from ..runs.index import read_toml
from ..runs.result import Watch
from .init import CONNECTION, DEPLOYMENT_FILE, check_path, write_connection
from .protocol import parse_event
from .server import FAILURES, SERVER_DEVICE

TAIL = 15  # lines of Flower's log that are shown if a run fails without a RunEvent
FRAME = "╭╮╰╯│─ \n"  # characters that Flower draws around its errors


def read_experiment(folder: Path) -> Experiment:
    """Return the experiment of a deployment, and make its own modules importable.

    They are trusted: whoever starts a run sends the folder `app` to the sites to be executed.
    """
    if not (folder / DEPLOYMENT_FILE).exists():
        raise InputError(
            f"{folder} is not a deployment: it has no {DEPLOYMENT_FILE}; "
            "create one with `moonfl flower init`"
        )
    sys.path.insert(0, str((folder / "app").resolve()))
    return from_toml(folder / "app" / "experiment.toml", SERVER_DEVICE, trust=True)


def run(folder: Path, out: Path, changes: dict[str, Any], watch: Watch) -> str:
    """Start a run, follow it to its end and return its summary.

    `changes` override values of [tool.flwr.app.config] in the app's pyproject.toml.
    """
    if not changes.get("resume") and holds_run(out):
        raise InputError(
            f"{out} already contains a run; use --resume to continue it, or another --out"
        )
    check_path(out)
    home = write_connection(folder, find_server(folder))
    config = changes | {"out": str(out.resolve())}
    pairs = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in config.items()]
    app = str((folder / "app").resolve())
    command = [flwr(), "run", app, CONNECTION, "--stream", "--run-config", " ".join(pairs)]
    plain = {"FLWR_HOME": str(home), "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    with subprocess.Popen(
        command,
        cwd=home,
        env=os.environ | plain,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        log = RunLog(watch)
        try:
            return log.follow(process.stdout or [])
        except KeyboardInterrupt:
            raise Interrupted(log.interruption(home)) from None
        finally:
            process.terminate()


def flwr() -> str:
    """Return the path of Flower's command, preferably of this installation."""
    installed = Path(sys.executable).with_name("flwr")
    path = str(installed) if installed.exists() else shutil.which("flwr")
    if path is None:
        raise RunError(
            "Flower's command flwr is neither next to this Python nor on the PATH; "
            "install moonfl[flower]"
        )
    return path


def find_server(folder: Path) -> str:
    """Return the address of the SuperLink after checking that it accepts connections."""
    address = str(read_toml(folder / DEPLOYMENT_FILE).get("address"))
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        script = folder / "server" / "start.sh"
        raise RunError(
            f"no SuperLink answers at {address} ({error}); start it with {script}"
        ) from None
    return address


@dataclass
class RunLog:
    """The log of a run as Flower streams it."""

    watch: Watch
    number: str = ""  # Flower's id of the run
    tail: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=TAIL))

    def follow(self, lines: Iterable[str]) -> str:
        """Pass round records to `watch` and messages to the user until the run ends.

        Return its summary, or raise its error.
        """
        for line in lines:
            event = parse_event(line)
            if event is None:
                self._show(line.strip(FRAME))
            elif event.round is not None:
                self.watch(event.round)
            elif event.error is not None:
                raise FAILURES[event.failure](event.error)
            elif event.summary is not None:
                return event.summary
        raise RunError(
            f"Flower ended the run before it was finished. Its last lines: {' '.join(self.tail)}"
        )

    def _show(self, line: str) -> None:
        """Store a line of Flower's log, and print it if it is a message of moonfl."""
        if line:
            self.tail.append(line)
        started = re.search(r"started run (\d+)", line)
        if started:
            self.number = started[1]
        _, prefix, message = line.partition("moonfl: ")
        if prefix:
            notify(prefix + message)

    def interruption(self, home: Path) -> str:
        """Return what the user should know after Ctrl-C."""
        if not self.number:
            return "interrupted before the run was started"
        stop = f"FLWR_HOME={shlex.quote(str(home))} flwr stop {self.number} {CONNECTION}"
        return f"no longer followed; training continues at the server, `{stop}` stops it"
