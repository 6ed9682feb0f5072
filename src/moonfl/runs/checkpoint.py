"""Checkpoints: what a run needs to go on to the same bits after any end.

A checkpoint is an index, `round-N.json`, that names the server's file and each party's with their hashes. Files are
written first and the index last, so that a checkpoint is there whole or not at all. The newest and the one before are
kept. All randomness comes from (seed, purpose, round, party), so there is no generator to save.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors

from .. import tree
from ..errors import InputError, quoted
from ..experiment import Experiment, read_toml, to_toml
from ..types import Server, State
from .files import write_atomically
from .states import States
from .tensor_files import load, save

FORMAT = 1
GO_BACK = (
    "`moonfl flower run DEPLOYMENT --resume --out {run} --previous`",
    "moonfl.federate with out={path!r}, resume=True and previous=True",
    "`moonfl resume {run} --previous`",
)
START_AGAIN = (
    "`moonfl flower run DEPLOYMENT` with another --out",
    "moonfl.federate with out={path!r} and force=True in place of resume=True",
    "`moonfl run {settings} --out {run} --force`",
)
STATES = ("shared", "memory", "step")  # of a Server, in its order


@dataclass(frozen=True)
class Checkpoint:
    """The end of a round: how many are done, the server, and where each party's state is."""

    rounds: int
    server: Server
    parties: dict[int, tuple[int, Path | None]]
    chosen: Server | None  # after the round that was chosen by then, where there is a choice


def write(
    folder: Path, exp: Experiment, rounds: int, server: Server, states: States, chosen: int | None
) -> None:
    """The checkpoint after `rounds` rounds, `chosen` the best of them; what neither it nor the one before names is
    removed."""
    save(folder / _name(rounds), _flat(server))
    known = {name: hash for index in indexes(folder)[:1] for name, hash in _files(index).items()}
    parties: dict[str, dict[str, Any]] = {}
    for i, (t, file) in states.newest().items():
        named = {"file": file.name, "sha256": known.get(file.name) or _hash(file)} if file else {}
        parties[str(i)] = {"round": t, **named}
    known[_name(rounds)] = _hash(folder / _name(rounds))
    index = {"format": FORMAT, "experiment": fingerprint(exp), "rounds": rounds, "parties": parties}
    for key, number in (("server", rounds), ("chosen", chosen)):
        if number is not None:
            name = _name(number)
            index[key] = {"file": name, "sha256": known.get(name) or _hash(folder / name)}
    write_atomically(folder / f"round-{rounds}.json", json.dumps(index))
    _sweep(folder)


def read(folder: Path, exp: Experiment, previous: bool = False) -> Checkpoint | None:
    """The newest checkpoint, or the one before it; None where there is none yet. A damaged one is refused."""
    found = indexes(folder)
    if len(found) < 1 + previous:
        if previous:
            raise InputError(f"{folder} holds no checkpoint before the newest")
        return None
    path = found[previous]
    try:
        index = _index(path, exp)
        parties = {
            int(i): (int(of["round"]), _checked(folder, of)) for i, of in index["parties"].items()
        }
        server = _server(load(_checked(folder, index["server"]) or path))
        chosen = (
            _server(load(_checked(folder, index["chosen"]) or path)) if "chosen" in index else None
        )
        return Checkpoint(int(index["rounds"]), server, parties, chosen)
    except _DamageError as error:
        raise InputError(f"{error}; {_way_out(folder, exp, found, previous)}") from None
    except (KeyError, TypeError, ValueError, AttributeError, safetensors.SafetensorError):
        raise InputError(
            f"{path} is not a checkpoint's index; {_way_out(folder, exp, found, previous)}"
        ) from None


def forget_after(folder: Path, rounds: int) -> None:
    """Checkpoints of later rounds are void."""
    for path in indexes(folder):
        if int(path.stem.removeprefix("round-")) > rounds:
            path.unlink()


def indexes(folder: Path) -> list[Path]:
    """The newest first."""
    numbered = [(path.stem.removeprefix("round-"), path) for path in folder.glob("round-*.json")]
    return [
        path
        for _, path in sorted(((int(n), p) for n, p in numbered if n.isdecimal()), reverse=True)
    ]


def fingerprint(exp: Experiment) -> str:
    """Of all that decides the result; where the data lie and where it is computed does not."""
    return hashlib.sha256(to_toml(replace(exp, data_dir="data", device="cpu")).encode()).hexdigest()


def _name(rounds: int) -> str:
    """Of the file of the server after so many rounds."""
    return f"server-{rounds}.safetensors"


class _DamageError(Exception):
    pass


def _index(path: Path, exp: Experiment) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads(path.read_bytes())
        version = index["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise _DamageError(f"{path} is damaged") from None
    if version != FORMAT:
        raise _DamageError(
            f"{path} has format {version}, this version of moonfl reads format {FORMAT}"
        )
    if index["experiment"] != fingerprint(exp):
        raise _DamageError(
            f"{path} belongs to another experiment than the experiment.toml beside it"
        )
    return index


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(path: Path) -> dict[str, str]:
    """The files an index names, with their hashes; none where it is damaged."""
    try:
        index = json.loads(path.read_bytes())
        named = [index["server"], index.get("chosen", {}), *index["parties"].values()]
        return {of["file"]: of["sha256"] for of in named if "file" in of}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _checked(folder: Path, named: dict[str, Any]) -> Path | None:
    """The file that an index names, if it is what was written; None for an empty state."""
    if "file" not in named:
        return None
    path = folder / Path(named["file"]).name
    try:
        found = _hash(path)
    except OSError as error:
        raise _DamageError(f"{path} cannot be read: {error.strerror}") from None
    if found != named["sha256"]:
        raise _DamageError(f"{path} is damaged: it is not what the run wrote")
    return path


def _way_out(folder: Path, exp: Experiment, found: list[Path], previous: bool) -> str:
    run = folder.parent
    if not previous and len(found) > 1:
        with contextlib.suppress(_DamageError):
            _index(found[1], exp)
            return f"{_by(run, GO_BACK)} goes on from the checkpoint before it"
    return start_again(run)


def start_again(run: Path) -> str:
    """The way out that is always there, in words."""
    return f"{_by(run, START_AGAIN)} starts the run again"


def _by(run: Path, ways: tuple[str, str, str]) -> str:
    """For a run over sites, a run of moonfl.federate, any other."""
    over_flower, in_python, here = ways
    way = over_flower if over_sites(run) else in_python if _given(run) else here
    return way.format(run=quoted(run), settings=quoted(run / "experiment.toml"), path=str(run))


def _given(run: Path) -> bool:
    with contextlib.suppress(InputError):
        return bool(read_toml(run / "experiment.toml").get("dataset") == "given")
    return False


def over_sites(run: Path) -> bool:
    """Whether a run's parties are the sites of a deployment, by what it wrote of them when it began."""
    try:
        return "sites" in json.loads((run / "partition.json").read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def _sweep(folder: Path) -> None:
    """Remove all but the two newest checkpoints and what they name."""
    wanted = indexes(folder)[:2]
    names = {path.name for path in wanted} | {name for path in wanted for name in _files(path)}
    for path in folder.iterdir():
        if path.name not in names and not path.is_dir():
            path.unlink()


def _flat(server: Server) -> State:
    """All of a server in one State: params, buffers, and shared/c, memory/h, step/v."""
    parts = (tree.add_prefix(part, getattr(server, part)) for part in STATES)
    return {"params": server.params, "buffers": server.buffers} | {
        k: v for part in parts for k, v in part.items()
    }


def _server(flat: State) -> Server:
    return Server(
        flat["params"], flat["buffers"], *(tree.select_prefix(part, flat) for part in STATES)
    )
