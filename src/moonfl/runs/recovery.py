"""Recovery hints: what the user can do about an existing or damaged run directory.

Storage code raises errors without hints. Each interface (Python, the command line, Flower) adds
its own hints with `recovery_hints`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ChangedRunError, DamagedRunError, InputError, RunExistsError


@dataclass(frozen=True)
class Hints:
    """Templates; {run} is replaced by the run directory."""

    exists: str  # how to resume, replace or keep an existing run
    previous: str  # how to resume from the previous checkpoint
    restart: str  # how to start again
    changed: str = "or start a new run in another directory"  # what else if data or code changed

    def hint(self, error: InputError, run: Path) -> str:
        """Return the hint for an error."""
        if isinstance(error, RunExistsError):
            template = self.exists
        elif isinstance(error, DamagedRunError) and error.has_previous:
            template = self.previous
        elif isinstance(error, ChangedRunError):
            template = self.changed
        else:
            template = self.restart
        return template.replace("'{run}'", repr(str(run))).replace("{run}", str(run))


IN_PYTHON = Hints(
    exists="moonfl.resume('{run}') resumes it, force=True replaces it, another out keeps it",
    previous="moonfl.resume('{run}', previous=True) resumes from the previous checkpoint",
    restart="moonfl.run(experiment, '{run}', force=True) starts the run again",
)


@contextlib.contextmanager
def recovery_hints(hints: Hints, run: str | Path | None) -> Iterator[None]:
    """Add a hint to errors about the run directory `run`."""
    try:
        yield
    except (RunExistsError, DamagedRunError, ChangedRunError) as error:
        if run is None:
            raise
        raise InputError(f"{error}; {hints.hint(error, Path(run))}") from None
