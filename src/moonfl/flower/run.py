"""`moonfl flower run`: start a training at the SuperLink, follow it, and fail when it fails."""

import collections
import contextlib
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

from ..api import experiments as api
from ..errors import InputError, Interrupted, RunError, notify
from ..experiment import Experiment, from_toml, read_toml
from ..runs.directory import holds_run
from .init import CONNECTION, NAME, check_path, connect
from .protocol import MARK
from .server import FAILURES, HERE

KEPT = 15  # lines of Flower's own that are shown when a run fails without a word of ours
FRAME = "╭╮╰╯│─ \n"  # what Flower draws around its errors


def experiment_of(folder: Path) -> Experiment:
    if not (folder / NAME).exists():
        raise InputError(
            f"{folder} is no deployment: there is no {NAME} in it; `moonfl flower init` makes one"
        )
    sys.path.insert(0, str((folder / "app").resolve()))  # where its own method or model is
    return from_toml(folder / "app" / "experiment.toml", HERE)


def run(folder: Path, out: Path, changes: dict[str, Any], watch: api.Watch) -> dict[str, Any]:
    """What the run said when it was done. `changes` are of the [tool.flwr.app.config] of the app."""
    if not changes.get("resume") and holds_run(out):
        raise InputError(
            f"{out} already holds a run; --resume goes on with it, another --out keeps it"
        )
    check_path(out)
    home, config = connect(folder, reached(folder)), changes | {"out": str(out.resolve())}
    command = [
        flwr(),
        "run",
        str((folder / "app").resolve()),
        CONNECTION,
        "--stream",
        "--run-config",
        " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in config.items()),
    ]
    quiet = {"FLWR_HOME": str(home), "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    with subprocess.Popen(
        command,
        cwd=home,
        env=os.environ | quiet,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        followed = Followed(watch)
        try:
            return followed.to_the_end(process.stdout or [])
        except KeyboardInterrupt:
            raise Interrupted(followed.way_out(home)) from None
        finally:
            process.terminate()


def flwr() -> str:
    """Flower's command: that of this installation."""
    beside = Path(sys.executable).with_name("flwr")
    found = str(beside) if beside.exists() else shutil.which("flwr")
    if found is None:
        raise RunError(
            "Flower's command flwr is neither beside this Python nor on the PATH; install moonfl[flower]"
        )
    return found


def reached(folder: Path) -> str:
    """Where the SuperLink is, if it answers."""
    address = str(read_toml(folder / NAME).get("address"))
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        start = folder / "server" / "start.sh"
        raise RunError(f"no SuperLink answers at {address} ({error}); {start} starts it") from None
    return address


def own_words(line: str) -> dict[str, Any] | None:
    """What the run itself tells by a line, if it does."""
    with contextlib.suppress(ValueError):
        if line.startswith(f"{MARK} ") and isinstance(
            told := json.loads(line.removeprefix(MARK)), dict
        ):
            return told
    return None


@dataclass
class Followed:
    """Flower's log of a run, as it comes."""

    watch: api.Watch
    number: str = ""  # by which Flower knows the run
    last: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=KEPT))

    def to_the_end(self, lines: Iterable[str]) -> dict[str, Any]:
        """Facts to `watch`, our own words to the person, and the end: what was done, or an error."""
        for line in lines:
            message = own_words(line)
            if message is None:
                self._hear(line.strip(FRAME))
            elif "fact" in message:
                self.watch(message["fact"])
            elif "done" in message:
                done: dict[str, Any] = message["done"]
                return done
            elif "error" in message:
                raise FAILURES[message["failure"]](message["error"])
        raise RunError(
            f"Flower ended the run before it was done. Its last words: {' '.join(self.last)}"
        )

    def _hear(self, line: str) -> None:
        if line:
            self.last.append(line)
        started = re.search(r"started run (\d+)", line)
        self.number = started[1] if started else self.number
        _, ours, words = line.partition("moonfl: ")
        if ours:
            notify(ours + words)

    def way_out(self, home: Path) -> str:
        if not self.number:
            return "interrupted before the run was started"
        stop = f"FLWR_HOME={shlex.quote(str(home))} flwr stop {self.number} {CONNECTION}"
        return f"no longer followed; the training goes on at the server, `{stop}` stops it"
