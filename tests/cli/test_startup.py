"""Fast startup: commands that train nothing do not import torch."""

import subprocess
import sys

import pytest

from moonfl.cli import overview


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["list"],
        ["data"],
        ["data", "list"],
        ["run", "--help"],
        ["partition", "--help"],
        ["flower", "init", "--help"],
        ["resume", "--help"],
    ],
)
def test_commands_that_train_nothing_do_not_import_torch(words: list[str]) -> None:
    code = f"""
import contextlib, sys
from moonfl.cli import main
with contextlib.suppress(SystemExit):
    main({words})
print("torch" in sys.modules, "numpy" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "False False\n"
    assert done.stdout != ""


def test_the_stored_overview_is_that_of_the_code() -> None:
    assert overview.read() == overview.build(), "run `make overview`"
