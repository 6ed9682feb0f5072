"""`moonfl flower run`: start a training at the SuperLink, follow it, and fail when it fails."""

import collections
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import api
from ..errors import InputError, Interrupted, RunError, say
from ..experiment import Experiment, from_toml, read_toml
from ..rundir import holds_a_run
from .deployment import CONNECTION, NAME, connect
from .server import MARK

KEPT = 15  # lines of Flower's own that are shown when a run fails without a word of ours


def experiment_of(folder: Path) -> Experiment:
    if not (folder / NAME).exists():
        raise InputError(f"{folder} is no deployment: there is no {NAME} in it; `moonfl flower init` makes one")
    return from_toml(folder / "app" / "experiment.toml")


def run(folder: Path, out: Path, resume: bool, changes: dict[str, Any], watch: api.Watch) -> dict[str, Any]:
    """What the run said when it was done. `changes` are of the [tool.flwr.app.config] of the app."""
    if not resume and holds_a_run(out):
        raise InputError(f"{out} already holds a run; --resume goes on with it, another --out keeps it")
    home = connect(folder, str(read_toml(folder / NAME).get("address")))
    config = changes | {"out": str(out.resolve()), "resume": resume}
    command = [
        str(Path(sys.executable).with_name("flwr")), "run", str((folder / "app").resolve()), CONNECTION, "--stream",
        "--run-config", " ".join(f"{key.replace('-', '_')}={json.dumps(value)}" for key, value in config.items()),
    ]  # fmt: skip
    quiet = {"FLWR_HOME": str(home), "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "1000"}
    with subprocess.Popen(
        command, cwd=home, env=os.environ | quiet, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            return follow(iter(process.stdout or ()), watch)
        except KeyboardInterrupt:
            raise Interrupted(f"no longer followed; the training goes on at the server, in {out}") from None
        finally:
            process.terminate()


def follow(lines: Iterator[str], watch: api.Watch) -> dict[str, Any]:
    """Facts to `watch`, our own words to the person, and the end: what was done, or an error."""
    last: collections.deque[str] = collections.deque(maxlen=KEPT)
    for line in lines:
        before, mark, told = line.partition(MARK)
        if not mark:
            last.append(line.rstrip())
            if "moonfl: " in before:
                say(before[before.index("moonfl: ") :].rstrip())
            continue
        message = json.loads(told)
        if "fact" in message:
            watch(message["fact"])
        elif "done" in message:
            done: dict[str, Any] = message["done"]
            return done
        elif "error" in message:
            raise (InputError if message["status"] == 2 else RunError)(message["error"])
    words = "\n".join(line for line in last if line)
    raise RunError(f"Flower ended the run before it was done. Its last words:\n{words}")
