"""The trained model leaves the run: model.safetensors, model.pt2 for torch alone, and a README.md that explains them.

Both files are loaded back and must give what the run's own evaluation gives, else nothing is written.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from ..runs.files import sync, writing
from ..runs.recorder import Result
from .program import check, write_program
from .source import of_directory, of_result
from .weights import PROGRAM, README, WEIGHTS, explained, is_artifact, write

WRITING = ".writing-"


class Exported(NamedTuple):
    directory: Path
    model: str  # which it is, in words
    checked: str  # what the files were compared on
    difference: float  # the largest between their z and logits and the run's own, as a share of the largest number


def export(
    run: Result | str | Path,
    out: str | Path | None = None,
    *,
    party: int | None = None,
    best: bool = False,
    data_dir: str | None = None,
    force: bool = False,
) -> Exported:
    """Write the trained model of a run, its result or its directory, to the folder `out`, by default RUN/export.

    `party`: whose, where each has its own. `best`: of the round with the best validation accuracy, not of the last.
    `data_dir`: where the data of a directory are now, if they were moved. `force`: whatever is in the folder.
    """
    home = run.directory if isinstance(run, Result) else Path(run)
    if out is None:
        if home is None:
            raise InputError(
                "this result has no run directory; moonfl.export(result, out) says where the model goes"
            )
        out = home / "export"
    if isinstance(run, Result):
        artifact = of_result(run, party, best)
    else:
        artifact = of_directory(Path(run), party, best, data_dir)
    with whole(Path(out), force) as staged:
        write(staged / WEIGHTS, artifact)
        write_program(staged / PROGRAM, artifact)
        (staged / README).write_text(explained(artifact), encoding="utf-8")
        checked, difference = check(staged, artifact)
    return Exported(Path(out), artifact.model, checked, difference)


@contextlib.contextmanager
def whole(out: Path, force: bool) -> Iterator[Path]:
    """A folder to write to; at the end of the block what is in it goes to `out`. Where that is cut off, no file stands
    beside weights that it is not of.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; an export is a folder")
    with writing(out):
        there = out.exists()
        out.mkdir(parents=True, exist_ok=True)
        try:
            others = any(not path.name.startswith(WRITING) for path in out.iterdir())
            if others and not force and not is_artifact(out / WEIGHTS):
                raise InputError(
                    f"{out} is not empty and holds no earlier export; another folder keeps what is there, --force "
                    f"(force=True) writes {WEIGHTS}, {PROGRAM} and {README} into it"
                )
            with tempfile.TemporaryDirectory(dir=out, prefix=WRITING) as staged:
                yield Path(staged)
                for path in Path(staged).iterdir():
                    sync(path)
                for name in (
                    PROGRAM,
                    README,
                ):  # so that a kill leaves nothing beside weights that it is not of
                    (out / name).unlink(missing_ok=True)
                for name in (WEIGHTS, PROGRAM, README):
                    os.replace(Path(staged) / name, out / name)
            for left in out.glob(f"{WRITING}*"):  # by an export that was killed
                shutil.rmtree(left, ignore_errors=True)
            sync(out)
        finally:
            if not there:
                with contextlib.suppress(OSError):  # not empty: it was written
                    out.rmdir()
