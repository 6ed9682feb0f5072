"""Party states at a Flower site: on the disk of the site, and nowhere else.

With each round the server sends which round of this party it accepted last, and the party starts
from the state after that round. A newer state belongs to a round whose answer was late or
refused, or that is repeated, so it is ignored. The state before the accepted one is kept, too, for
a server that resumes from its previous checkpoint.

A crash loses nothing: a state is written to a temporary folder, synced, and then moved to its final
name, which contains the round. An existing state is therefore never damaged.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from ..errors import FileError
from ..types import State
from .files import sync
from .state_files import file_name
from .tensor_files import READ_ERRORS, load, read_note, save

DAY = 86_400.0  # seconds
WRITING = ".writing-"  # prefix of temporary folders


class SiteStates:
    """The states of one party in a folder of its site."""

    def __init__(self, folder: Path, remove_old: bool = True) -> None:
        """Store states in `folder`; `remove_old` deletes those that the server cannot request."""
        self.folder = folder
        self.remove_old = remove_old

    def load(self, party: int, accepted: int | None) -> State | None:
        """Return the state after the last accepted round, or None before the first round."""
        if accepted is None:
            return None
        path = self.path(party, accepted)
        try:
            return load(path)
        except READ_ERRORS as error:
            problem = "is damaged" if path.exists() else "is missing"
            reason = f"the state of party {party} after round {accepted + 1} {problem}"
            raise FileError(f"{reason}: {path} ({error})", reason) from None

    def save(self, party: int, round: int, state: State, accepted: int | None) -> None:
        """Store the state after `round`, which started from the state after round `accepted`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(party, round)
        # Two processes may write the same round at the same time: each uses a folder of its own.
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=WRITING) as folder:
            temporary = Path(folder) / path.name
            save(temporary, state, json.dumps(accepted))
            os.replace(temporary, path)
        sync(self.folder)
        self._remove_temporary_folders()
        if self.remove_old:
            self._remove_states(party, round, accepted)

    def path(self, party: int, round: int) -> Path:
        """Return the file of the state that the party has after `round`."""
        return self.folder / file_name(party, round)

    def _remove_states(self, party: int, round: int, accepted: int | None) -> None:
        """Delete the states of earlier rounds, except for the accepted one and the one before it.

        States of later rounds stay: `round` may be a late one.
        """
        needed = {accepted}
        if accepted is not None:
            needed.add(self._accepted_before(party, accepted))
        for path in self.folder.glob(f"party-{party}-round-*"):
            number = path.stem.rpartition("-")[2]
            if number.isdecimal() and int(number) < round and int(number) not in needed:
                path.unlink(missing_ok=True)

    def _accepted_before(self, party: int, round: int) -> int | None:
        """Return the round that was the last accepted one when `round` started."""
        with contextlib.suppress(*READ_ERRORS):
            number = json.loads(read_note(self.path(party, round)))
            return None if number is None else int(number)
        return None

    def _remove_temporary_folders(self) -> None:
        """Delete folders that a killed process left more than a day ago."""
        for folder in self.folder.glob(f"{WRITING}*"):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > DAY:
                    shutil.rmtree(folder)
