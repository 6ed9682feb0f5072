"""Progress of runs that are started from Python: in notebooks, and on request elsewhere."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import moonfl
from helpers.interruption import StopError, stop_after
from helpers.problems import TINY, gaussians
from moonfl.task import Task

CELL = """
import sys
sys.modules["ipywidgets"] = None  # as if it were not installed
import moonfl
from moonfl.presets import PRESETS
from moonfl.experiment import override

exp = override(PRESETS["digits-fedavg"].experiment, ["rounds=2", "epochs=1", "parties=2"])
moonfl.run(exp, workers=1{})
"""


@pytest.fixture(scope="module")
def task() -> Task:
    return gaussians()


def test_python_shows_progress_on_request(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []
    moonfl.run(TINY, task=task, workers=1, watch=lambda record: seen.append(record.round))
    assert "round " not in capsys.readouterr().err
    with pytest.raises(StopError):
        moonfl.run(TINY, tmp_path / "run", task=task, workers=1, watch=stop_after(1), progress=True)
    moonfl.resume(tmp_path / "run", task=task, workers=1, progress=True)
    lines = capsys.readouterr().err.splitlines()
    rounds = [line.split()[1] for line in lines if line.startswith("round ")]
    assert rounds == [f"{number}/{TINY.rounds}" for number in seen[1:]]  # after the resume
    assert lines[-1] == "analysing the final model"
    moonfl.resume(tmp_path / "run", task=task, workers=1, progress=True)  # it is finished
    assert "round " not in capsys.readouterr().err
    parties = [(examples.x, examples.y) for examples in task.parties]
    keys = {"rounds": 1, "epochs": 1, "batch_size": 4, "workers": 1}
    moonfl.federate("mlp", parties, progress=True, **keys)
    assert "round 1/1  accuracy" in capsys.readouterr().err
    moonfl.federate("mlp", parties, **keys)
    assert "round 1/1" not in capsys.readouterr().err


def test_notebooks_show_a_bar(tmp_path: Path) -> None:
    """Without ipywidgets it is text, and there is no warning."""
    cells = [nbformat.v4.new_code_cell(CELL.format(text)) for text in ("", ", progress=False")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown, hidden = (
        "".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells
    )
    assert "2/2" in shown
    assert "accuracy" in shown
    assert "Warning" not in shown
    assert hidden == ""
