"""Real processes on loopback: SuperLink and SuperNodes with TLS and node authentication, and Ray. make test-flower."""

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
from helpers.flower_grid import InProcess
from moonfl import MOON, Experiment
from moonfl.flower.certificates import write_certificates, write_node_key
from moonfl.flower.client import WRONG_THERE
from moonfl.flower.init import init
from moonfl.flower.protocol import unpack
from moonfl.flower.server import serve, site_app
from moonfl.runs.tensor_files import load

pytestmark = pytest.mark.flower
EXP = Experiment(parties=3, rounds=6, epochs=1, algorithm=MOON(mu=1.0))
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PATIENCE = 120.0  # seconds for what takes a moment


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has."""
    for port in range(20000 + os.getpid() % 20000, 60000, count):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for k in range(count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + k))
            return port
    raise AssertionError("no free ports")


@dataclass
class Processes:
    """Started in sessions of their own, and ended with all that they started."""

    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    folder: Path = Path()

    def start(
        self, name: str, command: list[str], cwd: Path, **env: str
    ) -> subprocess.Popen[bytes]:
        """With a log of its own: what one of the same name said before it does not count."""
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
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait_for(self, name: str, text: str) -> None:
        until(
            lambda: text in self.log(name).read_text(),
            lambda: f"{name}: no '{text}' in\n{self.log(name).read_text()}",
        )


def until(true: Callable[[], bool], why: Callable[[], str], patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, why()
        time.sleep(0.2)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(folder=tmp_path)
    try:
        yield made
    finally:
        for name in list(made.running):
            made.kill(name)


@dataclass
class Federation:
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

    def facts(self) -> list[dict[str, Any]]:
        path = self.out / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def missing(self) -> list[list[int]]:
        return [[p["party"] for p in fact["parties"] if "missing" in p] for fact in self.facts()]

    def wait_for_round(self, number: int) -> None:
        log = self.processes.log("run")
        until(
            lambda: len(self.facts()) >= number,
            lambda: f"no round {number}: {log.read_text()}",
            2 * PATIENCE,
        )


@pytest.fixture
def federation(tmp_path: Path, processes: Processes) -> Federation:
    return lay_out(EXP, tmp_path, processes)


def lay_out(exp: Experiment, tmp_path: Path, processes: Processes) -> Federation:
    folder = tmp_path / "federation"
    init(folder, exp, exp.parties, f"127.0.0.1:{free_ports(exp.parties + 1)}", with_data=True)
    return Federation(folder, processes)


def test_a_site_is_killed_and_comes_back(federation: Federation, tmp_path: Path) -> None:
    """The end is, to the bit, that of the same run in one process in which the party is missing in the same rounds."""
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
    assert same(server_of(federation.out, EXP.rounds), server_of(again, EXP.rounds))


def in_one_process(folder: Path, missing: list[list[int]]) -> Path:
    """The same deployment, with the answers of those who were missing lost."""
    init(folder, EXP, EXP.parties, "127.0.0.1:8000", with_data=True)
    configs = [{"site": str(folder / f"site-{k + 1}" / "site.toml")} for k in range(EXP.parties)]
    grid = InProcess(site_app(folder / "app" / "experiment.toml"), configs)

    def lose(order: Any, reply: Any) -> Any:
        facts = unpack(order.content)[0]
        return None if "round" in facts and facts["party"] in missing[facts["round"]] else reply

    grid.meddle = lose
    serve(
        grid,
        EXP,
        {"deadline": 0.1, "min_parties": 2, "out": str(folder / "run")},
        lambda fact: None,
    )
    return folder / "run"


def server_of(out: Path, rounds: int) -> dict[str, Any]:
    return dict(load(out / "checkpoint" / f"server-{rounds}.safetensors"))


def test_a_server_that_is_killed_goes_on(tmp_path: Path, processes: Processes) -> None:
    exp = replace(EXP, parties=2, rounds=3)
    federation = lay_out(exp, tmp_path, processes)
    federation.start_server()
    federation.register()
    for number in (1, 2):
        federation.start_site(number)
    run = federation.run("--deadline", "60")
    federation.wait_for_round(1)
    federation.processes.kill("server")
    until(lambda: run.poll() is not None, lambda: "it is followed though the server is gone")
    assert run.returncode == 1
    federation.start_server()
    run = federation.run("--deadline", "60", "--resume")
    until(
        lambda: run.poll() is not None,
        lambda: federation.processes.log("run").read_text(),
        3 * PATIENCE,
    )
    assert run.returncode == 0, federation.processes.log("run").read_text()
    assert federation.missing() == [[]] * exp.rounds
    expected = moonfl.run(exp, tmp_path / "laptop", workers=1).directory
    assert same(server_of(federation.out, exp.rounds), server_of(expected, exp.rounds))


def test_strangers_get_nowhere(federation: Federation, tmp_path: Path) -> None:
    """A key that is not registered, and a certificate that another CA signed: the SuperNode ends and says why. What is
    wrong with a site's data is said in its own log.
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
    assert WRONG_THERE in federation.processes.log("run").read_text()


def test_the_page_from_one_laptop_to_five_hospitals(processes: Processes, tmp_path: Path) -> None:
    """Every command of docs/flower.md in its order; what runs until it is stopped, in the background."""
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
    facts = [
        [
            json.loads(line)
            for line in (tmp_path / "runs" / name / "rounds.jsonl").read_text().splitlines()
        ]
        for name in ("laptop", "simulated", "hospitals")
    ]
    laptop, simulated, hospitals = ([fact["accuracy"] for fact in of_run] for of_run in facts)
    assert laptop == simulated == hospitals
    servers = {
        name: load(tmp_path / "runs" / name / "checkpoint" / "server-2.safetensors")
        for name in ("laptop", "simulated", "hospitals")
    }
    assert same(servers["laptop"], servers["simulated"])
    assert same(servers["laptop"], servers["hospitals"])
