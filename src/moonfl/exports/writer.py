"""Export of a trained model: model.safetensors, model.pt2 for torch alone, and a README.md.

Both files are loaded again and compared with the network that the run evaluated. If they differ,
nothing is written.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from ..numerics import standard_settings
from ..runs.files import sync, writing
from ..runs.recovery import Hints, recovery_hints
from ..runs.result import Result
from .artifact import PROGRAM, README, WEIGHTS, readme
from .program import check_files, write_program
from .source import from_directory, from_result
from .weights import is_export, write_weights

STAGING = ".writing-"  # prefix of temporary folders

HINTS = Hints(
    exists="",
    previous="`moonfl resume {run} --previous` resumes from the previous checkpoint",
    restart="the run has to be started again",
)


class Exported(NamedTuple):
    """What was exported, and how it was checked."""

    directory: Path
    model: str  # a description: "the global model after round 3 of 10, accuracy 81.2 %"
    checked: str  # the samples that the files were checked on
    difference: float  # largest difference of z and logits, relative to the largest value


@standard_settings()
def export(
    run: Result | str | Path,
    out: str | Path | None = None,
    *,
    party: int | str | None = None,
    best: bool = False,
    data_dir: str | None = None,
    force: bool = False,
    trust: bool = False,
) -> Exported:
    """Write the trained model of a run to a folder.

    - `run`: a result, or a run directory.
    - `out`: the folder, by default RUN/export.
    - `party`: the number or name of the party whose model is exported, if every party has its own
      (SOLO, personal tensors).
    - `best`: export the round with the best validation accuracy instead of the last.
    - `data_dir`: the location of the data, if `run` is a directory and the data were moved.
    - `force`: write into a folder that contains other files.
    - `trust`: execute the method or model that the directory names, if it is not part of moonfl and
      is not imported yet.
    """
    if not isinstance(run, Result | str | os.PathLike):
        raise InputError(f"run must be a result or a run directory, got {run!r}")
    if out is None:
        home = run.directory if isinstance(run, Result) else Path(run)
        if home is None:
            raise InputError(
                "this result has no run directory; pass a folder: moonfl.export(result, out)"
            )
        out = home / "export"
    if isinstance(run, Result):
        artifact = from_result(run, party, best)
    else:
        with recovery_hints(HINTS, run):
            artifact = from_directory(Path(run), party, best, data_dir, trust=trust)
    with _staging_folder(Path(out), force) as folder:
        write_weights(folder / WEIGHTS, artifact)
        write_program(folder / PROGRAM, artifact)
        (folder / README).write_text(readme(artifact), encoding="utf-8")
        checked, difference = check_files(folder, artifact)
    return Exported(Path(out), artifact.title, checked, difference)


@contextlib.contextmanager
def _staging_folder(out: Path, force: bool) -> Iterator[Path]:
    """Provide a temporary folder whose files are moved to `out` at the end of the block."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; an export needs a folder")
    with writing(out):
        is_new = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        try:
            if not force:
                _check_replaceable(out)
            with tempfile.TemporaryDirectory(dir=out, prefix=STAGING) as folder:
                yield Path(folder)
                _move_files(Path(folder), out)
            for leftover in out.glob(f"{STAGING}*"):  # of an export that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            sync(out)
        finally:
            if is_new:
                with contextlib.suppress(OSError):  # not empty, if all went well
                    out.rmdir()


def _check_replaceable(out: Path) -> None:
    """Check that a folder is empty or contains an earlier export."""
    others = [path for path in out.iterdir() if not path.name.startswith(STAGING)]
    if others and not is_export(out / WEIGHTS):
        raise InputError(
            f"{out} is not empty and contains no earlier export; choose another folder, or use "
            f"--force (force=True) to write {WEIGHTS}, {PROGRAM} and {README} into it"
        )


def _move_files(folder: Path, out: Path) -> None:
    """Move the files of an export to `out`.

    The old program and README go first: if the process is killed, no file is next to weights of
    another export.
    """
    for path in folder.iterdir():
        sync(path)
    for name in (PROGRAM, README):
        (out / name).unlink(missing_ok=True)
    for name in (WEIGHTS, PROGRAM, README):
        os.replace(folder / name, out / name)
