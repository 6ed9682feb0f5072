"""A run that ended at any moment, in any way, goes on to the bits of one that did not."""

import fcntl
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import gaussians, interruptible, with_algorithm
from helpers.processes import start as start_command
from moonfl.algorithms import ALGORITHMS, MOON
from moonfl.cli import main
from moonfl.errors import DivergenceError
from moonfl.experiment import Experiment
from moonfl.runs.directory import is_being_replaced
from moonfl.runs.files import write_atomically
from moonfl.server_optimizers import SERVERS

TESTS = Path(__file__).parents[1]
QUICK = Experiment(
    parties=4, rounds=4, epochs=1, batch_size=64, sample_fraction=0.5, algorithm=MOON(mu=1)
)


def start(exp: Experiment, out: Path, rounds: int) -> None:
    """The first rounds of a run, and then no more."""
    with pytest.raises(StopError):
        moonfl.run(exp, out, workers=1, watch=stop_after(rounds))


@pytest.mark.parametrize(
    "algorithm", [*(name for name in ALGORITHMS if name != "solo"), MOON(mu=1, negatives=3)]
)
def test_every_method_goes_on_to_the_same_bits(algorithm, tmp_path: Path) -> None:
    exp = with_algorithm(replace(QUICK, rounds=5), algorithm)
    start(exp, tmp_path / "run", 3)
    resumed = moonfl.resume(tmp_path / "run", workers=2, state_memory=0)
    assert same(results_of(resumed), results_of(moonfl.run(exp, workers=1)))


@pytest.mark.parametrize("server", SERVERS)
def test_every_server_step_goes_on_to_the_same_bits(server: str, tmp_path: Path) -> None:
    exp = replace(QUICK, server=SERVERS[server]())
    start(exp, tmp_path / "run", 2)
    assert same(
        results_of(moonfl.resume(tmp_path / "run", workers=1)),
        results_of(moonfl.run(exp, workers=1)),
    )


def test_a_finished_run_is_read(tmp_path: Path) -> None:
    done = moonfl.run(QUICK, tmp_path / "run", workers=1)
    before = (tmp_path / "run" / "rounds.jsonl").read_text()
    again = moonfl.resume(tmp_path / "run")
    assert same(results_of(again), results_of(done))
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == before


def test_solo_is_read(tmp_path: Path) -> None:
    exp = replace(with_algorithm(QUICK, "solo"), sample_fraction=1.0)
    done = moonfl.run(exp, tmp_path / "run", workers=1)
    assert same(results_of(moonfl.resume(tmp_path / "run")), results_of(done))


def build_faults(folder: Path) -> Path:
    library = folder / "faults.so"
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            str(TESTS / "helpers" / "faults.c"),
            "-o",
            str(library),
        ],
        check=True,
    )
    return library


@pytest.mark.parametrize("fault", ["kill", "full"])
def test_the_end_at_every_write_fsync_and_rename(fault: str, tmp_path: Path) -> None:
    """kill: kill -9 in the middle of each of them. full: the disk is full from there on, and then has room again.

    In a run, one with the pool, one over another by force, a resumed one, and one that goes back a checkpoint.
    """
    library, folder = build_faults(tmp_path), tmp_path / "runs"
    folder.mkdir()
    words = [sys.executable, "-m", "helpers.fault_injection", str(library), str(folder), fault]
    done = subprocess.run(
        words,
        cwd=TESTS,
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    places = json.loads(done.stdout)
    assert places.keys() == {
        "run",
        "run with the pool",
        "run --force",
        "resume",
        "resume --previous",
    }
    assert min(places.values()) > 20
    assert places["run"] > 40


def moonfl_process(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return interruptible(
        [sys.executable, "-m", "moonfl", *words],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


LONG = ["parties=4", "rounds=16", "epochs=2", "batch_size=32", "mu=1"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert main(["run", *LONG, "--out", str(folder / "run"), "--workers", "1"]) == 0
    return load_file(folder / "run" / "checkpoint" / "server-16.safetensors")


@pytest.mark.parametrize("trial", range(4))
def test_twenty_kills_at_random_moments(
    trial: int, uninterrupted: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Five kills of a whole run with its pool, four times, each time resumed."""
    moments, kills, number = random.Random(trial), 0, 1
    finished = False
    while not finished:
        out = tmp_path / f"run{number}"
        words = ["resume", out.name] if out.exists() else ["run", *LONG, "--out", out.name]
        before = progress(out)
        process = start_command(tmp_path, *words, "--workers", "2")
        if kills < 5:
            deadline = time.monotonic() + 60
            while process.is_alive() and progress(out) == before and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 0.4))
            process.kill()
        process.join(timeout=300)
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            continue
        assert process.exitcode == 0, (tmp_path / "output.txt").read_text()
        assert same(load_file(out / "checkpoint" / "server-16.safetensors"), uninterrupted)
        assert progress(out) == 16
        finished = kills == 5
        number += 1  # a fast machine got to the end before five kills: another run


def progress(directory: Path) -> int:
    """Rounds recorded."""
    path = directory / "rounds.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut_index(folder: Path) -> str:
    path = folder / "round-3.json"
    path.write_bytes(path.read_bytes()[:-20])
    return "round-3.json is damaged"


def flip_server(folder: Path) -> str:
    path = folder / "server-3.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    return "server-3.safetensors is damaged"


def cut_party(folder: Path) -> str:
    path = next(folder.glob("party-*-round-2.safetensors"))
    path.write_bytes(path.read_bytes()[:100])
    return f"{path.name} is damaged"


def lose_party(folder: Path) -> str:
    path = next(folder.glob("party-*-round-2.safetensors"))
    path.unlink()
    return f"{path.name} cannot be read"


def newer_format(folder: Path) -> str:
    change_json(folder / "round-3.json", format=99)
    return "format 99; this version of moonfl reads format 1"


def foreign(folder: Path) -> str:
    change_json(folder / "round-3.json", experiment="another")
    return "belongs to another experiment"


def not_an_index(folder: Path) -> str:
    (folder / "round-3.json").write_text('{"format": 1, "experiment": 3, "parties": 7}')
    return "round-3.json"


@pytest.mark.parametrize(
    "damage",
    [cut_index, flip_server, cut_party, lose_party, newer_format, foreign, not_an_index],
    ids=lambda f: f.__name__,
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_good(
    damage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    start(QUICK, out, 3)
    message = damage(out / "checkpoint")
    facts = (out / "rounds.jsonl").read_text()
    assert main(["resume", str(out)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert f"`moonfl resume {out} --previous` resumes from the previous checkpoint" in err
    assert (out / "rounds.jsonl").read_text() == facts
    resumed = moonfl.resume(out, previous=True, workers=1)
    assert same(results_of(resumed), results_of(moonfl.run(QUICK, workers=1)))


def test_both_damaged_says_how_to_start_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(QUICK, tmp_path / "run", 3)
    for path in (tmp_path / "run" / "checkpoint").glob("round-*.json"):
        path.write_text("{}")
    assert main(["resume", str(tmp_path / "run"), "--previous"]) == 2
    out = tmp_path / "run"
    assert (
        f"`moonfl run {out / 'experiment.toml'} --out {out} --force` starts the run again"
        in capsys.readouterr().err
    )
    assert (
        main(["run", str(out / "experiment.toml"), "--out", str(out), "--force", "--workers", "1"])
        == 0
    )


def test_what_cannot_be_resumed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(QUICK, tmp_path / "run", 3)

    def refused(change, message: str) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "run", copy)
        change(copy)
        assert main(["resume", str(copy)]) == 2
        assert message in capsys.readouterr().err
        shutil.rmtree(copy)

    refused(lambda d: (d / "experiment.toml").unlink(), "holds no run")
    refused(lambda d: (d / "experiment.toml").write_text("rounds = 'x'"), "experiment.toml")
    refused(
        lambda d: (d / "rounds.jsonl").write_text(""),
        "does not have the 3 rounds of the checkpoint",
    )
    refused(
        lambda d: (d / "rounds.jsonl").write_text("[]\n[]\n[]\n"),
        "rounds.jsonl is missing or damaged",
    )
    refused(lambda d: (d / "partition.json").unlink(), "partition.json")
    refused(
        lambda d: change_json(d / "partition.json", sha256="other"),
        "the data of digits have changed since",
    )
    refused(
        lambda d: [p.unlink() for p in (d / "checkpoint").glob("round-*")], "holds no checkpoint"
    )


def test_a_run_directory_in_use_is_locked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(QUICK, tmp_path / "run", 2)
    descriptor = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        for words in (
            ["resume", str(tmp_path / "run")],
            ["run", "rounds=1", "--force", "--out", str(tmp_path / "run")],
        ):
            assert main(words) == 2
            assert "is in use by another run" in capsys.readouterr().err
    finally:
        os.close(descriptor)
    assert moonfl.resume(tmp_path / "run", workers=1).rounds[-1]["round"] == 4


def test_the_lock_ends_with_the_run_whatever_was_forked_in_it(tmp_path: Path) -> None:
    children = []

    def fork(fact: Any) -> None:
        children.append(os.fork())
        if children[-1] == 0:
            try:
                signal.pause()
            finally:
                os._exit(0)

    try:
        moonfl.run(replace(QUICK, rounds=1), tmp_path / "run", workers=1, watch=fork)
        assert moonfl.resume(tmp_path / "run", workers=1).rounds[-1]["round"] == 1
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_ctrl_c_tells_how_to_go_on(tmp_path: Path) -> None:
    process = moonfl_process("run", "rounds=100000", "epochs=1", "--out", "run", cwd=tmp_path)
    while progress(tmp_path / "run") < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert (
        err.splitlines()[-1]
        == "moonfl: interrupted; `moonfl resume run` resumes from the last finished round"
    )


def test_another_version_is_told_and_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(QUICK, tmp_path / "run", 2)
    path = tmp_path / "run" / "experiment.toml"
    path.write_text(path.read_text().replace(f'torch = "{torch.__version__}"', 'torch = "1.0"'))
    moonfl.resume(tmp_path / "run", workers=1)
    assert "torch 1.0 is now" in capsys.readouterr().err
    noted = tomllib.loads(path.read_text())["versions"]
    assert (noted["torch"], noted["torch from round 3"]) == ("1.0", torch.__version__)
    assert "choices" in tomllib.loads(path.read_text())
    moonfl.resume(tmp_path / "run", workers=1)
    assert "is now" not in capsys.readouterr().err


def test_a_folder_of_somebody_elses_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project" / "checkpoint").mkdir(parents=True)
    (tmp_path / "project" / "checkpoint" / "model.pt").write_text("precious")
    assert main(["run", "rounds=1", "--out", str(tmp_path / "project")]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (tmp_path / "project" / "checkpoint" / "model.pt").read_text() == "precious"


def test_the_data_may_have_moved(tmp_path: Path) -> None:
    start(QUICK, tmp_path / "run", 2)
    resumed = moonfl.resume(tmp_path / "run", data_dir=str(tmp_path), workers=1)
    assert same(results_of(resumed), results_of(moonfl.run(QUICK, workers=1)))


def test_a_kill_in_the_middle_of_going_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--previous removes the newer checkpoint first and cuts the facts then; ended between, it still goes on."""
    start(QUICK, tmp_path / "run", 3)
    with monkeypatch.context() as patch:
        patch.setattr("moonfl.runs.directory.write_atomically", stop)
        with pytest.raises(StopError):
            moonfl.resume(tmp_path / "run", previous=True, workers=1)
    assert same(
        results_of(moonfl.resume(tmp_path / "run", workers=1)),
        results_of(moonfl.run(QUICK, workers=1)),
    )


def stop(*args: object) -> None:
    raise StopError


def test_solo_with_a_party_that_cannot_train(tmp_path: Path) -> None:
    """A single sample and BatchNorm: that party has no model, and the rest of the run is kept."""
    exp = Experiment(parties=4, epochs=1, rounds=1, algorithm=moonfl.Solo())
    task = replace(gaussians((40, 1, 20, 33), batch_norm=True), classes=("a", "b", "c"))
    result = moonfl.run(exp, tmp_path / "run", workers=2, task=task)
    assert list(result.models) == ["party0", "party2", "party3"]
    final = json.loads((tmp_path / "run" / "final.json").read_text())
    assert [party["party"] for party in final["parties"]] == [0, 2, 3]


def test_only_two_checkpoints_are_kept(tmp_path: Path) -> None:
    moonfl.run(replace(QUICK, sample_fraction=1.0, rounds=6), tmp_path / "run", workers=1)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    parties = [f"party-{i}-round-{t}.safetensors" for i in range(4) for t in (4, 5)]
    assert names == [
        *parties,
        "round-5.json",
        "round-6.json",
        "server-5.safetensors",
        "server-6.safetensors",
    ]


def test_a_run_that_diverges_leaves_why(tmp_path: Path) -> None:
    """And so does one that is resumed; going on, it takes the note of the last time away."""
    wild = replace(QUICK, lr=1e4)
    for attempt in (moonfl.run, moonfl.resume):
        with pytest.raises(DivergenceError) as caught:
            attempt(*([wild] if attempt is moonfl.run else []), tmp_path / "run", workers=1)
        assert (tmp_path / "run" / "diverged.txt").read_text() == f"{caught.value}\n"
    start(QUICK, tmp_path / "other", 2)
    (tmp_path / "other" / "diverged.txt").write_text("once")
    moonfl.resume(tmp_path / "other", workers=1)
    assert not (tmp_path / "other" / "diverged.txt").exists()


def test_force_over_a_checkpoint_folder_that_is_a_link(tmp_path: Path) -> None:
    """As to a larger disk: the old run's checkpoints are gone, and the new one's are kept."""
    moonfl.run(QUICK, tmp_path / "run", workers=1)
    (tmp_path / "run" / "checkpoint").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "diverged.txt").write_text("the old one")
    with pytest.raises(StopError):
        moonfl.run(
            replace(QUICK, seed=1), tmp_path / "run", force=True, workers=1, watch=stop_after(2)
        )
    assert not (tmp_path / "run" / "diverged.txt").exists()
    resumed = moonfl.resume(tmp_path / "run", workers=1)
    assert same(results_of(resumed), results_of(moonfl.run(replace(QUICK, seed=1), workers=1)))


def test_a_kill_while_a_run_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on the folder is the new run's, for whoever looks next."""
    moonfl.run(replace(QUICK, rounds=1), tmp_path / "run", workers=1)

    def write(path: Path, text: str) -> None:
        if (
            path == tmp_path / "run" / "rounds.jsonl"
        ):  # when the old run is gone, and the new one is not there
            raise StopError
        write_atomically(path, text)

    with monkeypatch.context() as patch:
        patch.setattr("moonfl.runs.directory.write_atomically", write)
        with pytest.raises(StopError):
            moonfl.run(QUICK, tmp_path / "run", force=True, workers=1)
    assert not (tmp_path / "run" / "experiment.toml").exists()
    assert is_being_replaced(tmp_path / "run")
    assert main(["resume", str(tmp_path / "run"), "--workers", "1"]) == 0
    assert same(
        results_of(moonfl.resume(tmp_path / "run")), results_of(moonfl.run(QUICK, workers=1))
    )


def test_a_finished_run_is_read_without_a_write(tmp_path: Path) -> None:
    """So it may be on a medium that takes none."""
    done = moonfl.run(QUICK, tmp_path / "run", workers=1)
    there = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in there}
    assert same(results_of(moonfl.resume(tmp_path / "run")), results_of(done))
    assert {path: path.stat().st_mtime_ns for path in there} == before


def sweep(seed: int) -> float:
    return moonfl.run(replace(QUICK, rounds=1, seed=seed), workers=2).accuracy


def test_a_sweep_by_processes_that_may_have_no_children() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(sweep, [0]) == [sweep(0)]
