"""Resume of interrupted runs: results are bit-identical to those of uninterrupted runs."""

import fcntl
import hashlib
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
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import gaussians, interruptible, with_algorithm
from helpers.processes import start as start_command
from helpers.run_files import remove_hashes
from moonfl.algorithms import ALGORITHMS, MOON
from moonfl.cli import main
from moonfl.errors import DivergenceError, InputError
from moonfl.experiment import Experiment, override
from moonfl.runs.directory import check_data, is_being_replaced, versions
from moonfl.runs.files import write_atomically
from moonfl.runs.index import sha256
from moonfl.runs.schema import PartyRecord, RoundRecord, decode, encode
from moonfl.server_optimizers import SERVERS

TESTS = Path(__file__).parents[1]
QUICK = Experiment(
    parties=4, rounds=4, epochs=1, batch_size=64, sample_fraction=0.5, algorithm=MOON(mu=1)
)


def start(exp: Experiment, out: Path, rounds: int) -> None:
    """Run the first rounds of an experiment and interrupt it."""
    with pytest.raises(StopError):
        moonfl.run(exp, out, workers=1, watch=stop_after(rounds))


@pytest.mark.parametrize(
    "algorithm", [*(name for name in ALGORITHMS if name != "solo"), MOON(mu=1, negatives=3)]
)
def test_every_algorithm_resumes_bit_identically(algorithm, tmp_path: Path) -> None:
    exp = with_algorithm(replace(QUICK, rounds=5), algorithm)
    start(exp, tmp_path / "run", 3)
    resumed = moonfl.resume(tmp_path / "run", workers=2, state_memory=0)
    assert same(results_of(resumed), results_of(moonfl.run(exp, workers=1)))


@pytest.mark.parametrize("server", SERVERS)
def test_every_server_optimizer_resumes_bit_identically(server: str, tmp_path: Path) -> None:
    exp = replace(QUICK, server=SERVERS[server]())
    start(exp, tmp_path / "run", 2)
    resumed = moonfl.resume(tmp_path / "run", workers=1)
    assert same(results_of(resumed), results_of(moonfl.run(exp, workers=1)))


def test_resume_of_a_finished_run_reads_its_result(tmp_path: Path) -> None:
    expected = moonfl.run(QUICK, tmp_path / "run", workers=1)
    before = (tmp_path / "run" / "rounds.jsonl").read_text()
    result = moonfl.resume(tmp_path / "run")
    assert same(results_of(result), results_of(expected))
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == before


def test_resume_of_a_finished_solo_run_reads_its_result(tmp_path: Path) -> None:
    exp = replace(with_algorithm(QUICK, "solo"), sample_fraction=1.0)
    expected = moonfl.run(exp, tmp_path / "run", workers=1)
    assert same(results_of(moonfl.resume(tmp_path / "run")), results_of(expected))


def build_faults(folder: Path) -> Path:
    """Compile faults.c and return the path of the library."""
    source = TESTS / "helpers" / "faults.c"
    library = folder / "faults.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-o", str(library)]
    subprocess.run(["gcc", *options, str(source)], check=True)
    return library


@pytest.mark.parametrize("fault", ["kill", "full"])
def test_an_interruption_at_every_write_fsync_and_rename(fault: str, tmp_path: Path) -> None:
    """Interrupt `run`, `run --force`, `resume` and `resume --previous` by each fault, then resume.

    kill: the process gets SIGKILL during the call. full: the disk is full from this call on, and
    has space again before the run is resumed.
    """
    library = build_faults(tmp_path)
    folder = tmp_path / "runs"
    folder.mkdir()
    command = [sys.executable, "-m", "helpers.fault_injection", str(library), str(folder), fault]
    process = subprocess.run(
        command,
        cwd=TESTS,
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    writes = json.loads(process.stdout)
    assert writes.keys() == {
        "run",
        "run with the pool",
        "run --force",
        "resume",
        "resume --previous",
        "resume and reuse files",
    }
    assert min(writes.values()) > 20
    assert writes["run"] > 40


def start_moonfl(*args: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a moonfl command as a new process that SIGINT interrupts."""
    return interruptible(
        [sys.executable, "-m", "moonfl", *args],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


LONG = ["parties=4", "rounds=16", "epochs=2", "batch_size=32", "mu=1"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Return the server of an uninterrupted run of LONG."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert main(["run", *LONG, "--out", str(folder / "run"), "--workers", "1"]) == 0
    return load_file(folder / "run" / "checkpoint" / "server-16.safetensors")


@pytest.mark.parametrize("trial", range(4))
def test_twenty_kills_at_random_times(
    trial: int, uninterrupted: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Kill a run with its pool five times and resume it each time, in four trials.

    On a fast machine a run may finish before five kills. Then another run starts.
    """
    rng = random.Random(trial)
    kills = 0
    number = 1
    finished = False
    while not finished:
        out = tmp_path / f"run{number}"
        args = ["resume", out.name] if out.exists() else ["run", *LONG, "--out", out.name]
        before = progress(out)
        process = start_command(tmp_path, *args, "--workers", "2")
        if kills < 5:
            deadline = time.monotonic() + 60
            while process.is_alive() and progress(out) == before and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.4))
            process.kill()
        process.join(timeout=300)
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            continue
        assert process.exitcode == 0, (tmp_path / "output.txt").read_text()
        assert same(load_file(out / "checkpoint" / "server-16.safetensors"), uninterrupted)
        assert progress(out) == 16
        finished = kills == 5
        number += 1


def progress(directory: Path) -> int:
    """Return the number of recorded rounds."""
    path = directory / "rounds.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def change_json(path: Path, **changes: object) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def truncate_index(folder: Path) -> str:
    path = folder / "round-3.json"
    path.write_bytes(path.read_bytes()[:-20])
    return "round-3.json is damaged"


def flip_bit_of_server(folder: Path) -> str:
    path = folder / "server-3.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    return "server-3.safetensors is damaged"


def truncate_party(folder: Path) -> str:
    path = next(folder.glob("party-*-round-2.safetensors"))
    path.write_bytes(path.read_bytes()[:100])
    return f"{path.name} is damaged"


def remove_party(folder: Path) -> str:
    path = next(folder.glob("party-*-round-2.safetensors"))
    path.unlink()
    return f"{path.name} cannot be read"


def truncate_log(folder: Path) -> str:
    path = folder / "states.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    return "states.jsonl is damaged: its content is not what the run wrote"


def change_log(folder: Path) -> str:
    path = folder / "states.jsonl"
    start, _, last_round = path.read_text().rpartition('"round": 2')
    path.write_text(f'{start}"round": 1{last_round}')
    return "states.jsonl is damaged: its content is not what the run wrote"


def remove_states(folder: Path) -> str:
    change_json(folder / "round-3.json", states=None)
    return "round-3.json is damaged (round-3.json: object missing required field states)"


def use_newer_format(folder: Path) -> str:
    change_json(folder / "round-3.json", format=99)
    return "format 99; this version of moonfl reads formats 1 to 3"


def change_experiment(folder: Path) -> str:
    change_json(folder / "round-3.json", experiment="another")
    return "belongs to another experiment"


def replace_index(folder: Path) -> str:
    (folder / "round-3.json").write_text('{"format": 1, "experiment": 3, "parties": 7}')
    return "round-3.json"


@pytest.mark.parametrize(
    "damage",
    [
        truncate_index,
        flip_bit_of_server,
        truncate_party,
        remove_party,
        truncate_log,
        change_log,
        remove_states,
        use_newer_format,
        change_experiment,
        replace_index,
    ],
    ids=lambda function: function.__name__,
)
def test_a_damaged_checkpoint_is_refused_and_the_previous_one_can_be_resumed(
    damage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    start(QUICK, out, 3)
    message = damage(out / "checkpoint")
    records = (out / "rounds.jsonl").read_text()
    assert main(["resume", str(out)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert f"`moonfl resume {out} --previous` resumes from the previous checkpoint" in err
    assert (out / "rounds.jsonl").read_text() == records
    resumed = moonfl.resume(out, previous=True, workers=1)
    assert same(results_of(resumed), results_of(moonfl.run(QUICK, workers=1)))


def test_the_message_for_two_damaged_checkpoints_says_how_to_start_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    start(QUICK, out, 3)
    for path in (out / "checkpoint").glob("round-*.json"):
        path.write_text("{}")
    assert main(["resume", str(out), "--previous"]) == 2
    toml = str(out / "experiment.toml")
    err = capsys.readouterr().err
    assert f"`moonfl run {toml} --out {out} --force` starts the run again" in err
    assert main(["run", toml, "--out", str(out), "--force", "--workers", "1"]) == 0


def make_room(path: Path) -> Path:
    path.unlink()
    return path


def change_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rounds.jsonl", '"accuracy": 0.', '"accuracy": 0.9'),
        ("partition.json", '"counts": [[', '"counts": [[1'),
        ("experiment.toml", "torch = ", 'torch = "9" # '),
        ("experiment.toml", "the last incomplete batch", "no batch"),
    ],
)
def test_a_plausible_edit_of_a_run_file_is_found_by_resume_report_and_export(
    name: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    start(QUICK, out, 3)
    change_text(out / name, old, new)
    message = f"{name} is damaged: its content is not what the run wrote"
    for command in (["resume"], ["export"], ["report", "--out", str(tmp_path / "report")]):
        assert main([*command, str(out)]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_what_may_change_in_a_run_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    start(QUICK, out, 3)
    change_text(out / "experiment.toml", 'data_dir = "data"', 'data_dir = "moved"')
    change_text(out / "experiment.toml", "[versions]", '[versions]\n"torch from round 4" = "9"')
    with open(out / "rounds.jsonl", "a") as file:
        file.write("the line of a round that was inter")
    assert main(["compare", str(out)]) == 0
    assert moonfl.resume(out, workers=1).rounds[-1].round == 4
    assert main(["compare", str(out)]) == 0


def test_a_damaged_last_line_of_the_records_resumes_from_the_previous_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    start(QUICK, out, 3)
    first, second, third = (out / "rounds.jsonl").read_text().splitlines(keepends=True)
    (out / "rounds.jsonl").write_text(first + second + third.replace("0", "1"))
    assert main(["resume", str(out)]) == 2
    assert f"`moonfl resume {out} --previous`" in capsys.readouterr().err
    resumed = moonfl.resume(out, previous=True, workers=1)
    assert same(results_of(resumed), results_of(moonfl.run(QUICK, workers=1)))
    (out / "rounds.jsonl").write_text(first.replace("0", "1") + second + third)
    assert main(["resume", str(out)]) == 2
    assert "--force` starts the run again" in capsys.readouterr().err


def use_three_keys(path: Path) -> None:
    """Write the header of a tensor file as version 0.1 did."""
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["moonfl"])
    old = {key: json.dumps(header[key]) for key in ("labels", "names")} | {"note": ""}
    save_file(load_file(path), path, old)


def list_states_in_index(folder: Path, path: Path) -> None:
    """Write an index of format 2, which has the newest states instead of the size of a log."""
    index = json.loads(path.read_text())
    log = (folder / "states.jsonl").read_bytes()[: index.pop("states")["size"]]
    newest = {}
    for line in map(json.loads, log.splitlines()):
        newest[line["party"]] = line["round"]
    index["parties"] = {}
    for party, t in newest.items():
        file = f"party-{party}-round-{t}.safetensors"
        index["parties"][str(party)] = {"round": t, "file": file, "sha256": hash_of(folder / file)}
    index["server"]["sha256"] = hash_of(folder / index["server"]["file"])
    path.write_text(json.dumps(index | {"format": 2}))


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_of_an_older_format_is_resumed(
    version: int, previous: bool, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    start(QUICK, out, 3)
    folder = out / "checkpoint"
    if version == 1:
        for path in folder.glob("*.safetensors"):
            use_three_keys(path)
    for path in folder.glob("round-*.json"):
        list_states_in_index(folder, path)
    (folder / "states.jsonl").unlink()
    if version == 1:
        remove_hashes(out)
        for path in folder.glob("round-*.json"):
            change_json(path, format=1)
    resumed = moonfl.resume(out, workers=1, previous=previous)
    assert same(results_of(resumed), results_of(moonfl.run(QUICK, workers=1)))
    again = moonfl.resume(out, workers=1, previous=True)
    assert same(results_of(again), results_of(resumed))


def test_equal_runs_write_equal_files(tmp_path: Path) -> None:
    exp = replace(QUICK, rounds=2, validation=0.2)
    contents = []
    for name in ("a", "b"):
        moonfl.run(exp, tmp_path / name, workers=1)
        paths = sorted((tmp_path / name).rglob("*.safetensors"))
        assert {"best.safetensors", "server-2.safetensors"} <= {path.name for path in paths}
        contents.append({path.name: path.read_bytes() for path in paths})
    assert contents[0] == contents[1]


def test_a_checkpoint_folder_that_links_to_other_files_removes_none_of_them(tmp_path: Path) -> None:
    out = tmp_path / "run"
    start(QUICK, out, 2)
    home = tmp_path / "home"
    (out / "checkpoint").rename(home)
    (out / "checkpoint").symlink_to(home)
    own = [home / name for name in ("letter.txt", "round-1.txt", "server-1.safetensors.bak")]
    for path in own:
        path.write_text("mine")
    moonfl.resume(out, workers=1)
    moonfl.run(QUICK, out, workers=1, force=True)
    assert [path.read_text() for path in own] == ["mine"] * 3
    assert sorted(path.name for path in home.glob("round-*.json")) == [
        "round-3.json",
        "round-4.json",
    ]


def test_a_run_that_cannot_be_resumed_gets_a_clear_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(QUICK, tmp_path / "run", 3)

    def check(change, message: str) -> None:
        """Check that resume of a changed copy fails with a message."""
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "run", copy)
        change(copy)
        assert main(["resume", str(copy)]) == 2
        assert message in capsys.readouterr().err
        shutil.rmtree(copy)

    check(lambda d: (d / "experiment.toml").unlink(), "holds no run")
    check(lambda d: (d / "experiment.toml").write_text("rounds = 'x'"), "experiment.toml")
    check(lambda d: (d / "rounds.jsonl").write_text(""), "rounds.jsonl is damaged")
    check(lambda d: (d / "partition.json").unlink(), "partition.json")
    check(lambda d: change_json(d / "partition.json", sha256="other"), "partition.json is damaged")
    check(lambda d: os.mkfifo(make_room(d / "rounds.jsonl")), "it is a pipe or device, not a file")
    check(
        lambda d: make_room(d / "experiment.toml").symlink_to("/dev/zero"), "it is a pipe or device"
    )
    for index in (tmp_path / "run" / "checkpoint").glob("round-*.json"):
        change_json(index, files={})  # as in a run of version 0.1
    check(
        lambda d: (d / "rounds.jsonl").write_text(""),
        "does not have the 3 rounds of the checkpoint",
    )
    check(
        lambda d: (d / "rounds.jsonl").write_text("[]\n[]\n[]\n"),
        "rounds.jsonl is missing or damaged",
    )
    check(
        lambda d: change_json(d / "partition.json", sha256="other"),
        "the data of digits have changed since",
    )
    check(lambda d: [p.unlink() for p in (d / "checkpoint").glob("round-*")], "holds no checkpoint")


def test_a_run_directory_in_use_is_locked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(QUICK, tmp_path / "run", 2)
    descriptor = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        for args in (
            ["resume", str(tmp_path / "run")],
            ["run", "rounds=1", "--force", "--out", str(tmp_path / "run")],
        ):
            assert main(args) == 2
            assert "is in use by another process; wait until it ends" in capsys.readouterr().err
    finally:
        os.close(descriptor)
    assert moonfl.resume(tmp_path / "run", workers=1).rounds[-1]["round"] == 4


def test_a_forked_process_does_not_extend_the_lock(tmp_path: Path) -> None:
    children = []

    def fork(record: Any) -> None:
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


def test_the_message_after_ctrl_c_says_how_to_resume(tmp_path: Path) -> None:
    process = start_moonfl("run", "rounds=100000", "epochs=1", "--out", "run", cwd=tmp_path)
    while progress(tmp_path / "run") < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    message = "moonfl: interrupted; `moonfl resume run` resumes from the last finished round"
    assert err.splitlines()[-1] == message


def test_another_version_is_reported_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(QUICK, tmp_path / "run", 2)
    remove_hashes(tmp_path / "run")
    path = tmp_path / "run" / "experiment.toml"
    path.write_text(path.read_text().replace(f'torch = "{torch.__version__}"', 'torch = "1.0"'))
    moonfl.resume(tmp_path / "run", workers=1)
    assert "torch 1.0 is now" in capsys.readouterr().err
    versions = tomllib.loads(path.read_text())["versions"]
    assert (versions["torch"], versions["torch from round 3"]) == ("1.0", torch.__version__)
    assert "choices" in tomllib.loads(path.read_text())
    moonfl.resume(tmp_path / "run", workers=1)
    assert "is now" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "entries"), [("99", ["torch from round 3"]), (torch.__version__, [])]
)
def test_versions_of_rounds_that_were_not_finished_are_forgotten(
    version: str, entries: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume with another version, stop before a round ends, and go back to the previous one.

    The previous checkpoint is resumed with the other version, or with the first one again.
    """
    out = tmp_path / "run"
    exp = replace(QUICK, rounds=6)
    start(exp, out, 3)
    first = versions()
    monkeypatch.setattr("moonfl.runs.directory.versions", lambda: first | {"torch": "99"})

    def stop(exp: Experiment, t: int) -> list[int]:
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr("moonfl.federation.sample_parties", stop)
        with pytest.raises(StopError):
            moonfl.resume(out, workers=1)
    monkeypatch.setattr("moonfl.runs.directory.versions", lambda: first | {"torch": version})
    with pytest.raises(StopError):
        moonfl.resume(out, workers=1, previous=True, watch=stop_after(5))
    stored = tomllib.loads((out / "experiment.toml").read_text())["versions"]
    assert [key for key in stored if "from round" in key] == entries
    assert moonfl.resume(out, workers=1).rounds[-1].round == 6
    assert moonfl.resume(out).rounds[-1].round == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("aa", "zz")}, "class 0 of the data was 'no' when .* and is 'aa' now"),
        ({"features": ("b", "a")}, "column 0 of the data was 'a' when .* and is 'b' now"),
        ({"names": ("n", "e")}, "party 0 of the data was 'North' when .* and is 'n' now"),
    ],
)
def test_other_names_are_refused(change: dict, message: str, tmp_path: Path) -> None:
    task = gaussians((20, 20), classes=2)
    named = {"classes": ("no", "yes"), "features": ("a", "b"), "names": ("North", "East")}
    exp = replace(QUICK, parties=2, rounds=1)
    moonfl.run(exp, tmp_path / "run", task=replace(task, **named), workers=1)
    check_data(tmp_path / "run", exp, replace(task, **named))
    with pytest.raises(InputError, match=message):
        check_data(tmp_path / "run", exp, replace(task, **(named | change)))


def test_records_of_a_run_that_diverges_can_be_read() -> None:
    record = RoundRecord(round=1, lr=1e20, parties=[PartyRecord(party=0, drift=1e30)])
    assert decode(encode(record), RoundRecord, "line 1") == record


def test_a_folder_that_is_not_a_run_is_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project" / "checkpoint").mkdir(parents=True)
    (tmp_path / "project" / "checkpoint" / "model.pt").write_text("content")
    assert main(["run", "rounds=1", "--out", str(tmp_path / "project")]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (tmp_path / "project" / "checkpoint" / "model.pt").read_text() == "content"


def test_resume_with_another_data_dir(tmp_path: Path) -> None:
    start(QUICK, tmp_path / "run", 2)
    resumed = moonfl.resume(tmp_path / "run", data_dir=str(tmp_path), workers=1)
    assert same(results_of(resumed), results_of(moonfl.run(QUICK, workers=1)))


def test_an_interruption_of_resume_previous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--previous removes the newer checkpoint before it truncates the round records.

    A run that is interrupted between the two can be resumed.
    """
    start(QUICK, tmp_path / "run", 3)
    with monkeypatch.context() as patch:
        patch.setattr("moonfl.runs.directory.write_atomically", stop)
        with pytest.raises(StopError):
            moonfl.resume(tmp_path / "run", previous=True, workers=1)
    resumed = moonfl.resume(tmp_path / "run", workers=1)
    assert same(results_of(resumed), results_of(moonfl.run(QUICK, workers=1)))


def stop(*args: object) -> None:
    """Interrupt a function that is patched."""
    raise StopError


def test_solo_with_a_party_that_cannot_train(tmp_path: Path) -> None:
    """A party with a single sample and BatchNorm has no model; the others are recorded."""
    exp = Experiment(parties=4, epochs=1, rounds=1, algorithm=moonfl.Solo())
    task = replace(gaussians((40, 1, 20, 33), batch_norm=True), classes=("a", "b", "c"))
    result = moonfl.run(exp, tmp_path / "run", workers=2, task=task)
    assert list(result.models) == ["party0", "party2", "party3"]
    final = json.loads((tmp_path / "run" / "final.json").read_text())
    assert [party["party"] for party in final["parties"]] == [0, 2, 3]


def test_the_newest_two_checkpoints_are_stored(tmp_path: Path) -> None:
    moonfl.run(replace(QUICK, sample_fraction=1.0, rounds=6), tmp_path / "run", workers=1)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    parties = [f"party-{i}-round-{t}.safetensors" for i in range(4) for t in (4, 5)]
    assert names == [
        *parties,
        "round-5.json",
        "round-6.json",
        "server-5.safetensors",
        "server-6.safetensors",
        "states.jsonl",
    ]


def checkpoint_files(run: Path) -> dict[str, Any]:
    """Return the content of all checkpoint files, without hashes of files that contain times."""
    contents: dict[str, Any] = {}
    for path in (run / "checkpoint").iterdir():
        contents[path.name] = path.read_bytes()
        if path.suffix == ".json":
            contents[path.name] = json.loads(path.read_text()) | {"files": None}
    return contents


@pytest.mark.parametrize("previous", [False, True])
def test_a_resumed_run_leaves_the_files_of_an_uninterrupted_one(
    previous: bool, tmp_path: Path
) -> None:
    """Files of an interrupted round, which no checkpoint names, are removed."""
    exp = replace(QUICK, validation=0.2, rounds=6)
    moonfl.run(exp, tmp_path / "uninterrupted", workers=1)
    out = tmp_path / "run"
    start(exp, out, 4)
    left_behind = [
        "party-0-round-4.safetensors",
        "party-1-round-4.safetensors.part",
        "server-5.safetensors",
        "update-7.safetensors",
    ]
    for name in left_behind:
        (out / "checkpoint" / name).write_text("left behind")
    with open(out / "checkpoint" / "states.jsonl", "a") as file:
        file.write('{"party": 0, "round": 4, "sha')
    moonfl.resume(out, workers=1, previous=previous)
    assert checkpoint_files(out) == checkpoint_files(tmp_path / "uninterrupted")


def test_the_reason_of_a_divergence_is_recorded(tmp_path: Path) -> None:
    """`run` and `resume` write diverged.txt, and a later resume removes it."""
    out = tmp_path / "run"
    with pytest.raises(DivergenceError) as error:
        moonfl.run(replace(QUICK, lr=1e4), out, workers=1)
    assert (out / "diverged.txt").read_text() == f"{error.value}\n"
    with pytest.raises(DivergenceError) as error:
        moonfl.resume(out, workers=1)
    assert (out / "diverged.txt").read_text() == f"{error.value}\n"
    start(QUICK, tmp_path / "other", 2)
    (tmp_path / "other" / "diverged.txt").write_text("an earlier divergence")
    moonfl.resume(tmp_path / "other", workers=1)
    assert not (tmp_path / "other" / "diverged.txt").exists()


def test_force_with_a_checkpoint_folder_that_is_a_symbolic_link(tmp_path: Path) -> None:
    """The link may lead to a larger disk. The old checkpoints are removed, the new ones stored."""
    moonfl.run(QUICK, tmp_path / "run", workers=1)
    (tmp_path / "run" / "checkpoint").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "diverged.txt").write_text("an old divergence")
    exp = replace(QUICK, seed=1)
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", force=True, workers=1, watch=stop_after(2))
    assert not (tmp_path / "run" / "diverged.txt").exists()
    resumed = moonfl.resume(tmp_path / "run", workers=1)
    assert same(results_of(resumed), results_of(moonfl.run(exp, workers=1)))


def test_an_interruption_of_run_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the old run is removed, the directory belongs to the new run."""
    moonfl.run(replace(QUICK, rounds=1), tmp_path / "run", workers=1)

    def write(path: Path, text: str) -> None:
        # At this write the old run is removed, and the new one does not exist yet.
        if path == tmp_path / "run" / "rounds.jsonl":
            raise StopError
        write_atomically(path, text)

    with monkeypatch.context() as patch:
        patch.setattr("moonfl.runs.directory.write_atomically", write)
        with pytest.raises(StopError):
            moonfl.run(QUICK, tmp_path / "run", force=True, workers=1)
    assert not (tmp_path / "run" / "experiment.toml").exists()
    assert is_being_replaced(tmp_path / "run")
    assert main(["resume", str(tmp_path / "run"), "--workers", "1"]) == 0
    resumed = moonfl.resume(tmp_path / "run")
    assert same(results_of(resumed), results_of(moonfl.run(QUICK, workers=1)))


def test_resume_of_a_finished_run_does_not_write(tmp_path: Path) -> None:
    """A finished run may be on a read-only medium."""
    expected = moonfl.run(QUICK, tmp_path / "run", workers=1)
    paths = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in paths}
    assert same(results_of(moonfl.resume(tmp_path / "run")), results_of(expected))
    assert {path: path.stat().st_mtime_ns for path in paths} == before


def sweep(seed: int) -> float:
    """Return the accuracy of a run with two workers."""
    return moonfl.run(replace(QUICK, rounds=1, seed=seed), workers=2).accuracy


def test_a_sweep_in_daemonic_processes() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(sweep, [0]) == [sweep(0)]


def test_changed_code_is_reported_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hash is that of the code which the process has imported, not of the file's last edit."""
    monkeypatch.chdir(tmp_path)
    code = Path("own.py")
    code.write_text("import moonfl\n\n\nclass Mine(moonfl.FedAvg):\n    pass\n")
    exp = override(QUICK, ["algorithm=own:Mine"])
    before = sha256(code)
    code.write_text(code.read_text() + "# edited\n")
    start(exp, tmp_path / "run", 2)
    monkeypatch.delitem(sys.modules, "own")
    with pytest.raises(StopError):
        moonfl.resume(tmp_path / "run", workers=1, trust=True, watch=stop_after(3))
    error = capsys.readouterr().err
    assert "the file that defines own:Mine has changed since the run began; rounds from 3" in error
    stored = tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())["code"]
    assert stored == {"own:Mine": before, "own:Mine from round 3": sha256(code)}
    moonfl.resume(tmp_path / "run", workers=1)
    assert "has changed" not in capsys.readouterr().err
