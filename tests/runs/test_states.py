"""Party states: on disk and in memory they are bit-identical, and memory use is bounded."""

import os
import pickle
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from helpers.equality import same
from helpers.problems import TINY, MemoryRecorder, gaussians, with_algorithm
from moonfl.algorithms import ALGORITHMS, MOON, FedAvg
from moonfl.engines.base import make_engine
from moonfl.engines.embedded import Embedded
from moonfl.engines.shared_memory import Channel, Packet, open_channel
from moonfl.errors import RunError
from moonfl.federation import run
from moonfl.runs.site_states import SiteStates
from moonfl.runs.state_files import read_log
from moonfl.runs.states import States, free_memory, num_bytes
from moonfl.runs.tensor_files import StoredParams, load, save
from moonfl.types import Mean, Params, Server, Update


def state(value: float) -> dict[str, dict[str, torch.Tensor]]:
    """Return a state with a tensor of this value and an integer."""
    return {"prev0": {"w": torch.full((100,), value), "n": torch.tensor(3)}}


def test_free_memory_is_what_is_left_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonfl.runs.states.CGROUP", tmp_path)
    unlimited = free_memory()
    files = {"max": "1000", "current": "900", "stat": "anon 600\ninactive_file 200\n"}
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory() == 300
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() > unlimited / 2


@pytest.mark.parametrize("budget", [0, 500, 10**9])
def test_the_store_keeps_the_two_newest_states(budget: int) -> None:
    with closing(States(budget)) as states:
        assert states.load(1, before=0) is None
        for t in range(4):
            states.save(1, t, state(t))
        assert same(states.load(1, before=4), state(3))
        assert same(states.load(1, before=3), state(2))  # where round 3 started
        assert states.load(1, before=2) is None  # older states are removed
        states.save(1, 3, state(9))
        assert same(states.load(1, before=4), state(9))
        assert same(states.load(1, before=3), state(2))
        assert states.used <= budget


def test_an_older_state_with_a_file_is_not_in_memory(tmp_path: Path) -> None:
    with closing(States(10**9, tmp_path)) as states:
        for t in range(3):
            states.save(1, t, state(t))
            assert states.used == num_bytes(state(t))
        assert same(states.load(1, before=3), state(2))
        assert same(states.load(1, before=2), state(1))


def test_states_and_updates_share_a_budget() -> None:
    size = num_bytes(state(1))
    with closing(States(size + size // 2)) as states:
        params = state(1)["prev0"]
        states.store_update(Update(0, params=params, buffers={}, num_samples=1, num_steps=1))
        states.save(1, 0, state(1))
        assert states.used == 0  # there is no memory left beside the update
        assert same(states.load(1, before=1), state(1))


def test_files_are_removed_when_they_are_not_needed() -> None:
    states = States(0)
    for t in range(5):
        for party in range(3):
            states.save(party, t, state(t))
    folder = Path(states._temporary.name)
    assert len(list(folder.iterdir())) == 6
    states.close()
    assert not folder.exists()


def test_a_tensor_file_is_complete_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save(path, state(1.5))
    assert same(load(path), state(1.5))
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]
    assert torch.equal(StoredParams(path, "prev0")["n"], torch.tensor(3))


def unusual_state() -> dict[str, dict[str, torch.Tensor]]:
    """Return a state with shared memory, views, empty tensors and a slash in a label."""
    w = torch.arange(12.0).view(3, 4)
    return {
        "a/b": {"w": w, "same": w},
        "none": {},
        "views": {"t": w.t(), "row": w[1], "nothing": torch.empty(0)},
    }


def test_unusual_states_survive_disk_and_shared_memory(tmp_path: Path) -> None:
    save(tmp_path / "unusual", unusual_state())
    assert same(load(tmp_path / "unusual"), unusual_state())
    ours, theirs = map(Channel, open_channel())
    for text in ("hello", "long" * 100_000):
        ours.send(text, unusual_state())
        message, tensors = theirs.receive()
        assert message == text
        assert same(tensors, unusual_state())
        ours.send(text, {})
        assert theirs.receive() == (text, {})


def test_a_process_that_dies_in_the_middle_of_a_message() -> None:
    ours, connection = open_channel()
    theirs = Channel(connection)
    ours.send(pickle.dumps(Packet("hello", tensors=64)))  # without a descriptor
    with pytest.raises(EOFError, match="in the middle"):
        theirs.receive()
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()


def test_a_state_that_cannot_be_written_gets_a_clear_message() -> None:
    with pytest.raises(RunError, match="cannot be written"):
        save(Path("/dev/full/x"), state(1))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, MOON(negatives=3)])
def test_disk_and_memory_are_bit_identical(algorithm, workers: int) -> None:
    exp = with_algorithm(replace(TINY, rounds=5, sample_fraction=0.5), algorithm)
    task = gaussians(batch_norm=True)

    def result(budget: int) -> Server:
        with closing(make_engine(exp, task, workers, States(budget))) as engine:
            return run(exp, task, engine, MemoryRecorder())

    assert same(result(10**9), result(0))


MANY_PARTIES = """
import os, threading, time
import moonfl
from moonfl.experiment import Experiment
from moonfl.task import build_task, read, split
from torch import nn

def watch():
    while True:
        with open("/proc/self/statm") as file:
            peaks[-1] = max(peaks[-1], int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        time.sleep(0.05)

def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 256))

method = moonfl.MOON(mu=1.0)
exp = Experiment(parties=30, partition="iid", rounds=2, epochs=1, algorithm=method, model="own")
task = build_task(exp, split(exp, read(exp)), model=wide)
peaks = [0]
threading.Thread(target=watch, daemon=True).start()
for budget in (10**7, 10**10):
    moonfl.run(exp, task=task, state_memory=budget, workers=1)
    peaks.append(0)
print(*peaks[:2])
"""


def test_states_above_the_budget_are_not_in_memory() -> None:
    """The 30 previous models of 5 MB each are in memory, if the budget allows it, or on disk."""
    process = subprocess.run(
        [sys.executable, "-c", MANY_PARTIES],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    on_disk, in_memory = map(int, process.stdout.split())
    assert in_memory - on_disk > 1.5e8


def test_a_site_keeps_the_states_that_the_server_may_ask_for(tmp_path: Path) -> None:
    """States of rounds that were not accepted are removed, but never those of newer rounds."""
    store = SiteStates(tmp_path / "site")
    state = {"previous": {"w": torch.arange(3.0)}}
    assert store.load(1, None) is None
    store.save(1, 0, state, None)
    store.save(1, 3, {}, 0)
    store.save(1, 4, state, 0)
    store.save(1, 3, state, 0)
    assert same(store.load(1, 0), state)
    assert same(store.load(1, 4), state)
    store.save(1, 5, {}, 4)
    assert same(store.load(1, 0), state), (
        "round 0 was accepted before round 4, so a server may go back to it; round 3 never was"
    )
    assert {path.stem for path in (tmp_path / "site").iterdir()} == {
        f"party-1-round-{t}" for t in (0, 4, 5)
    }
    store.save(1, 6, {}, 5)
    assert {path.stem for path in (tmp_path / "site").iterdir()} == {
        f"party-1-round-{t}" for t in (4, 5, 6)
    }
    assert store.load(1, 5) == {}
    with pytest.raises(RunError, match="the state of party 1 after round 3 is missing"):
        store.load(1, 2)
    store.path(1, 5).write_bytes(b"broken")
    with pytest.raises(RunError, match="is damaged"):
        store.load(1, 5)


def test_a_state_with_empty_labels_survives_a_restart(tmp_path: Path) -> None:
    states = States(0, tmp_path)
    states.save(0, 0, {"seen": {}})
    states.save(1, 0, {})
    entry = states.commit()
    restarted = States(0, tmp_path)
    restarted.restore(read_log(tmp_path, entry), entry.size)
    assert restarted.load(0, before=1) == {"seen": {}}
    assert restarted.load(1, before=1) == {}
    assert restarted.load(2, before=1) is None


def save_rounds(states: States, rounds: range, parties: range = range(3)) -> None:
    """Store the states of all parties in each round, as a run with checkpoints does."""
    for t in rounds:
        for party in parties:
            states.save(party, t, state(t + party))
        states.commit()
        states.release()


def state_files(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.safetensors")}


def test_the_files_of_outdated_states_are_overwritten(tmp_path: Path) -> None:
    """In round t, the files of round t - 3 are reused: two checkpoints need the later ones."""
    with closing(States(folder=tmp_path)) as states:
        save_rounds(states, range(3))
        inodes = {path.stat().st_ino for path in tmp_path.glob("party-*-round-0.safetensors")}
        save_rounds(states, range(3, 4))
        reused = {path.stat().st_ino for path in tmp_path.glob("party-*-round-3.safetensors")}
        assert reused == inodes
        for party in range(3):
            path = tmp_path / f"party-{party}-round-3.safetensors"
            assert same(load(path), state(3 + party))
    expected = {f"party-{i}-round-{t}" for i in range(3) for t in (2, 3)}
    assert state_files(tmp_path) == expected, "files that no checkpoint needs are removed"


def test_an_overwritten_file_may_become_longer_or_shorter(tmp_path: Path) -> None:
    with closing(States(0, tmp_path)) as states:
        for t in range(9):
            longer = {"prev0": {"w": torch.full((100 * (1 + t % 4),), float(t))}}
            states.save(0, t, longer)
            states.commit()
            states.release()
            assert same(states.load(0, before=t + 1), longer)
            saved_again = tmp_path / "again.safetensors"
            save(saved_again, longer)
            path = tmp_path / f"party-0-round-{t}.safetensors"
            assert path.read_bytes() == saved_again.read_bytes()


def test_a_file_with_a_hard_link_is_not_overwritten(tmp_path: Path) -> None:
    """A backup may consist of hard links to the files of a run."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with closing(States(folder=folder)) as states:
        save_rounds(states, range(1))
        backup = tmp_path / "backup"
        os.link(folder / "party-1-round-0.safetensors", backup)
        save_rounds(states, range(1, 6))
    assert same(load(backup), state(1))


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """A run directory from somebody else may contain links to anywhere."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("content")
    with closing(States(folder=folder)) as states:
        save_rounds(states, range(1))
        outdated = folder / "party-1-round-0.safetensors"
        outdated.unlink()
        outdated.symlink_to(elsewhere)
        save_rounds(states, range(1, 6))
        assert not outdated.is_symlink()
        (folder / "states.jsonl").unlink()
        (folder / "states.jsonl").symlink_to(elsewhere)
        states.save(0, 6, state(6))
        with pytest.raises(RunError, match=r"states.jsonl cannot be written"):
            states.commit()
    assert elsewhere.read_text() == "content"


def test_a_removed_file_is_not_missed(tmp_path: Path) -> None:
    with closing(States(folder=tmp_path)) as states:
        save_rounds(states, range(3))
        for path in tmp_path.glob("party-*-round-0.safetensors"):
            path.unlink()
        save_rounds(states, range(3, 5))
    assert state_files(tmp_path) == {f"party-{i}-round-{t}" for i in range(3) for t in (3, 4)}


def test_files_that_the_next_round_cannot_use_are_removed(tmp_path: Path) -> None:
    with closing(States(folder=tmp_path)) as states:
        save_rounds(states, range(3), range(5))
        save_rounds(states, range(3, 5), range(1))
        expected = {f"party-{i}-round-2" for i in range(1, 5)}
        assert state_files(tmp_path) - expected == {f"party-0-round-{t}" for t in (2, 3, 4)}, (
            "that of round 2 is reused next"
        )


def test_a_repeated_round_replaces_the_state_of_the_first_attempt(tmp_path: Path) -> None:
    with closing(States(0, tmp_path)) as states:
        save_rounds(states, range(2))
        for value in (7.0, 8.0):
            states.save(1, 2, state(value))
        entry = states.commit()
        states.release()
        assert same(states.load(1, before=3), state(8.0))
        assert same(states.load(1, before=2), state(2))
    newest = read_log(tmp_path, entry)
    assert [newest[i].round for i in range(3)] == [1, 2, 1]


def test_a_log_continues_after_the_part_that_a_checkpoint_names(tmp_path: Path) -> None:
    """Lines after it belong to an interrupted round."""
    with closing(States(folder=tmp_path)) as states:
        save_rounds(states, range(2))
        entry = states.commit()
        size = (tmp_path / "states.jsonl").stat().st_size
        save_rounds(states, range(2, 4))
    resumed = States(folder=tmp_path)
    resumed.restore(read_log(tmp_path, entry), entry.size)
    resumed.save(0, 2, state(9.0))
    newest = read_log(tmp_path, resumed.commit())
    assert (tmp_path / "states.jsonl").stat().st_size > size
    assert [newest[i].round for i in range(3)] == [2, 1, 1]


def test_a_log_with_a_hard_link_is_not_overwritten(tmp_path: Path) -> None:
    """A backup of hard links is resumed while the run that it belongs to has more rounds."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with closing(States(folder=folder)) as states:
        save_rounds(states, range(2))
        earlier = states.commit()
        save_rounds(states, range(2, 4))
        newest = states.commit()
    original = tmp_path / "original"
    original.mkdir()
    os.link(folder / "states.jsonl", original / "states.jsonl")
    with closing(States(folder=folder)) as resumed:
        resumed.restore(read_log(folder, earlier), earlier.size)
        save_rounds(resumed, range(2, 3))
    assert {state.round for state in read_log(original, newest).values()} == {3}


def test_a_log_that_is_not_a_file_is_not_read(tmp_path: Path) -> None:
    """A pipe in a run directory from somebody else would never end."""
    log = tmp_path / "states.jsonl"
    os.mknod(log, stat.S_IFSOCK | 0o600)
    with closing(States(folder=tmp_path)) as states:
        states.save(0, 0, state(1.0))
        assert read_log(tmp_path, states.commit())[0].round == 0
    log.unlink()
    log.mkdir()
    with closing(States(folder=tmp_path)) as states:
        states.save(0, 0, state(1.0))
        with pytest.raises(RunError, match=r"states.jsonl cannot be written: Is a directory"):
            states.commit()


@pytest.mark.parametrize("name", ["party-0-round-0.safetensors.part", "states.jsonl.part"])
def test_a_link_under_a_temporary_name_is_not_followed(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("content")
    (folder / name).symlink_to(elsewhere)
    with closing(States(folder=folder)) as states:
        save_rounds(states, range(2))
    assert elsewhere.read_text() == "content"


def test_old_temporary_folders_of_a_killed_site_are_removed(tmp_path: Path) -> None:
    for name in (".writing-old", ".writing-new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("")
    os.utime(tmp_path / ".writing-old", (0, 0))
    SiteStates(tmp_path).save(0, 0, {"a": {"w": torch.zeros(1)}}, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".writing-new",
        "party-0-round-0.safetensors",
    ]


@dataclass(frozen=True)
class StoresUpdates(FedAvg):
    """An algorithm whose server stores the updates and uses one of them as its model."""

    def init_server(self, params: Params, buffers: Params) -> Server:
        server = super().init_server(params, buffers)
        return replace(server, shared={"first": params})

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        first = updates[0].params
        memory = {f"party{update.party}": update.params for update in updates}
        return replace(server, params=first, memory=memory, shared={"first": first})


def test_updates_that_the_server_stores_outlive_their_files() -> None:
    exp = with_algorithm(TINY, StoresUpdates())
    task = gaussians()
    on_disk, in_memory = (
        run(exp, task, Embedded(exp, task, States(budget)), MemoryRecorder())
        for budget in (0, 10**9)
    )
    assert same(on_disk, in_memory)
