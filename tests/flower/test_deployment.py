"""Real processes on loopback: SuperLink and SuperNodes with TLS and authentication, and Ray.

Run them with `make test-flower`.
"""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import moonfl
from helpers.documents import ROOT, commands
from helpers.equality import same
from helpers.flower_grid import InProcessGrid, unpack
from moonfl import MOON, Experiment
from moonfl.flower.certificates import write_certificates, write_node_key
from moonfl.flower.client import MISCONFIGURED
from moonfl.flower.init import init
from moonfl.flower.server import serve, site_app
from moonfl.runs.tensor_files import load

pytestmark = pytest.mark.flower
EXP = Experiment(parties=3, rounds=6, epochs=1, algorithm=MOON(mu=1.0))
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PATIENCE = 120.0  # seconds for something that normally takes a moment


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    for port in range(20000 + os.getpid() % 20000, 60000, count):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for k in range(count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + k))
            return port
    raise AssertionError("no free ports")


@dataclass
class Processes:
    """Processes in their own sessions, which are killed with all their children."""

    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    folder: Path = Path()

    def start(
        self, name: str, command: list[str], cwd: Path, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start a process with a new log file."""
        self.log(name).unlink(missing_ok=True)
        with open(self.log(name), "wb") as log:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=os.environ | {"PATH": PATH} | env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '-')}.log"

    def kill(self, name: str) -> None:
        """Kill a process and its children."""
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait_for(self, name: str, text: str) -> None:
        """Wait until a process has logged a text."""
        until(
            lambda: text in self.log(name).read_text(),
            lambda: f"{name}: no '{text}' in\n{self.log(name).read_text()}",
        )


def until(
    condition: Callable[[], bool], describe: Callable[[], str], patience: float = PATIENCE
) -> None:
    """Wait until a condition is true; fail with a description after `patience` seconds."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, describe()
        time.sleep(0.2)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Provide processes that are killed after the test."""
    started = Processes(folder=tmp_path)
    try:
        yield started
    finally:
        for name in list(started.running):
            started.kill(name)


@dataclass
class Federation:
    """A deployment whose server and sites are real processes."""

    folder: Path
    processes: Processes

    def start_server(self) -> None:
        self.processes.start("server", [str(self.folder / "server" / "start.sh")], self.folder)
        self.processes.wait_for("server", "Uvicorn running")

    def register(self) -> None:
        self.call([str(self.folder / "server" / "register.sh")])

    def start_site(self, number: int, **env: str) -> None:
        self.processes.start(
            f"site-{number}", [str(self.folder / f"site-{number}" / "start.sh")], self.folder, **env
        )

    def call(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            env=os.environ | {"PATH": PATH},
            timeout=PATIENCE,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *words: str) -> subprocess.Popen[bytes]:
        out = ["--out", str(self.out)]
        return self.processes.start(
            "run", ["moonfl", "flower", "run", str(self.folder), *out, *words], self.folder
        )

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def records(self) -> list[dict[str, Any]]:
        path = self.out / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def missing(self) -> list[list[int]]:
        return [
            [p["party"] for p in record["parties"] if "missing" in p] for record in self.records()
        ]

    def wait_for_round(self, number: int) -> None:
        log = self.processes.log("run")
        until(
            lambda: len(self.records()) >= number,
            lambda: f"no round {number}: {log.read_text()}",
            2 * PATIENCE,
        )


@pytest.fixture
def federation(tmp_path: Path, processes: Processes) -> Federation:
    """Return a federation of EXP, not started."""
    return make_federation(EXP, tmp_path, processes)


def make_federation(exp: Experiment, tmp_path: Path, processes: Processes) -> Federation:
    """Create a deployment on free ports."""
    folder = tmp_path / "federation"
    init(folder, exp, exp.parties, f"127.0.0.1:{free_ports(exp.parties + 1)}", with_data=True)
    return Federation(folder, processes)


def test_a_killed_site_returns(federation: Federation, tmp_path: Path) -> None:
    """The result is bit-identical to a run in one process with the same missing parties."""
    federation.start_server()
    federation.register()
    for number in (1, 2, 3):
        federation.start_site(number)
    run = federation.run("--deadline", "40", "--min-parties", "2")
    federation.wait_for_round(1)
    federation.processes.kill("site-2")
    federation.wait_for_round(2)
    federation.start_site(2)
    until(
        lambda: run.poll() is not None,
        lambda: federation.processes.log("run").read_text(),
        3 * PATIENCE,
    )
    assert run.returncode == 0, federation.processes.log("run").read_text()
    missing = federation.missing()
    assert missing[0] == []
    assert [1] in missing
    assert missing[-1] == [], "it came back"
    again = in_one_process(tmp_path / "again", missing)
    assert same(load_server(federation.out, EXP.rounds), load_server(again, EXP.rounds))


def in_one_process(folder: Path, missing: list[list[int]]) -> Path:
    """Run the same deployment in one process, and lose the answers of the missing parties."""
    init(folder, EXP, EXP.parties, "127.0.0.1:8000", with_data=True)
    configs = [{"site": str(folder / f"site-{k + 1}" / "site.toml")} for k in range(EXP.parties)]
    grid = InProcessGrid(site_app(folder / "app" / "experiment.toml"), configs)

    def intercept(request: Any, reply: Any) -> Any:
        header: dict[str, Any] = unpack(request.content)[0]
        lost = "round" in header and header["party"] in missing[header["round"]]
        return None if lost else reply

    grid.intercept = intercept
    serve(
        grid,
        EXP,
        {"deadline": 0.1, "min_parties": 2, "out": str(folder / "run")},
        lambda record: None,
    )
    return folder / "run"


def load_server(out: Path, rounds: int) -> dict[str, Any]:
    return dict(load(out / "checkpoint" / f"server-{rounds}.safetensors"))


def test_a_killed_server_resumes(tmp_path: Path, processes: Processes) -> None:
    exp = replace(EXP, parties=2, rounds=3)
    federation = make_federation(exp, tmp_path, processes)
    federation.start_server()
    federation.register()
    for number in (1, 2):
        federation.start_site(number)
    run = federation.run("--deadline", "60")
    federation.wait_for_round(1)
    federation.processes.kill("server")
    until(
        lambda: run.poll() is not None,
        lambda: "the run is still followed although the server is gone",
    )
    assert run.returncode == 1
    federation.start_server()
    run = federation.run("--deadline", "60", "--query", "180", "--resume")
    until(
        lambda: run.poll() is not None,
        lambda: federation.processes.log("run").read_text(),
        3 * PATIENCE,
    )
    assert run.returncode == 0, federation.processes.log("run").read_text()
    assert federation.missing() == [[]] * exp.rounds
    expected = moonfl.run(exp, tmp_path / "laptop", workers=1).directory
    assert same(load_server(federation.out, exp.rounds), load_server(expected, exp.rounds))


def test_strangers_are_refused(federation: Federation, tmp_path: Path) -> None:
    """A SuperNode with an unregistered key or another CA's certificate ends with a reason.

    Errors in a site's data are printed in its own log.
    """
    federation.start_server()
    federation.register()
    write_node_key(tmp_path / "stranger")
    (tmp_path / "other").mkdir()
    write_certificates(tmp_path / "other", "127.0.0.1")
    for number, file, source in (
        (1, "key", tmp_path / "stranger"),
        (2, "ca.crt", tmp_path / "other" / "ca.crt"),
    ):
        (federation.folder / f"site-{number}" / file).write_bytes(source.read_bytes())
        federation.start_site(number, RETRIES="1")
    for number in (1, 2):
        process = federation.processes.running[f"site-{number}"]
        log = federation.processes.log(f"site-{number}")
        until(lambda process=process: process.poll() is not None, lambda log=log: log.read_text())
        assert process.returncode == 1, log.read_text()
    assert "Failed to activate SuperNode" in federation.processes.log("site-1").read_text()
    assert "certificate verify failed" in federation.processes.log("site-2").read_text()
    federation.start_site(3)
    federation.processes.wait_for("site-3", "SuperNode ID")
    run = federation.run("--wait", "1")
    until(lambda: run.poll() is not None, lambda: federation.processes.log("run").read_text())
    assert run.returncode == 1
    assert (
        "1 of 3 sites are connected, missing: party 0, party 1"
        in federation.processes.log("run").read_text()
    )
    (federation.folder / "site-3" / "data.npz").write_bytes(b"Jane Doe")
    run = federation.run("--wait", "1")
    federation.processes.wait_for("site-3", "data.npz is not an .npz file")
    until(lambda: run.poll() is not None, lambda: federation.processes.log("run").read_text())
    assert MISCONFIGURED in federation.processes.log("run").read_text()


def test_the_commands_of_the_documentation_page(processes: Processes, tmp_path: Path) -> None:
    """Run the commands of docs/flower.md in order, servers and sites in the background."""
    address = f"127.0.0.1:{free_ports(6)}"
    for words in commands((ROOT / "docs" / "flower.md").read_text()):
        if words[-1].endswith("start.sh"):
            name = Path(words[0]).parent.name
            processes.start(name, [str(tmp_path / words[0])], tmp_path)
            if name == "server":
                processes.wait_for("server", "Uvicorn running")
            continue
        if words[:3] == ["moonfl", "flower", "init"]:
            words = [*words, "--address", address]
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{PATH}"},
            timeout=5 * PATIENCE,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (shlex.join(words), done.stdout, done.stderr)
    records = [
        [
            json.loads(line)
            for line in (tmp_path / "runs" / name / "rounds.jsonl").read_text().splitlines()
        ]
        for name in ("laptop", "simulated", "hospitals")
    ]
    laptop, simulated, hospitals = ([record["accuracy"] for record in run] for run in records)
    assert laptop == simulated == hospitals
    servers = {
        name: load(tmp_path / "runs" / name / "checkpoint" / "server-2.safetensors")
        for name in ("laptop", "simulated", "hospitals")
    }
    assert same(servers["laptop"], servers["simulated"])
    assert same(servers["laptop"], servers["hospitals"])
