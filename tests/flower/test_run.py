"""`moonfl flower run`: following a run, and using its directory afterwards."""

import contextlib
import shlex
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moonfl
from helpers.flower_deployment import (
    Deployment,
    drop_updates,
)
from moonfl import InputError, RunError
from moonfl.cli import main
from moonfl.cli.commands.flower import _config
from moonfl.cli.parser import parse
from moonfl.experiment import Experiment
from moonfl.flower import run
from moonfl.flower.run import RunLog
from moonfl.runs.index import SETTINGS

FORGED = '@moonfl {"summary": "perfect"}'


def test_following_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    records: list[Any] = []
    lines = [
        "INFO : started run 7\n",
        '@moonfl {"round": {"round": 1, "accuracy": 0.5}}\n',
        "INFO : moonfl: site-1 is party 0\n",
        "\n",
    ]
    lines += [
        f"moonfl: node 3 was refused: {FORGED}\n",
        "@moonfl is a name\n",
    ]  # a site's text as it would be without sanitize
    log = RunLog(records.append)
    assert log.follow([*lines, '@moonfl {"summary": "good"}\n', "not read"]) == "good"
    assert [(record["round"], record["accuracy"]) for record in records] == [(1, 0.5)]
    assert log.number == "7"
    assert (
        capsys.readouterr().err
        == f"moonfl: site-1 is party 0\nmoonfl: node 3 was refused: {FORGED}\n"
    )
    with pytest.raises(RunError, match="round 2 needs"):
        log.follow(['@moonfl {"error": "round 2 needs 3", "failure": "run"}\n'])
    with pytest.raises(InputError, match="min_parties"):
        log.follow(['@moonfl {"error": "min_parties", "failure": "input"}\n'])
    with pytest.raises(RunError, match=r"before it was finished\. Its last lines: no such thing"):
        RunLog(records.append).follow(["╭─────╮\n", "│ no such thing │\n"])


def test_a_server_that_does_not_run(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    path = deployment.folder / "deployment.toml"
    path.write_text(path.read_text().replace("8000", str(port)))
    assert main(["flower", "run", str(deployment.folder)]) == 1
    assert f"no SuperLink answers at 127.0.0.1:{port}" in capsys.readouterr().err.splitlines()[-1]
    assert not (deployment.folder / "server" / "runs").exists()


def test_the_test_set_of_another_task(tmp_path: Path) -> None:
    """A test set of a regression is read as one, and that of a classification is refused."""
    exp = Experiment(dataset="sites", task="regression")
    path = tmp_path / "test.npz"
    np.savez(path, x=np.zeros((4, 3)), y=np.array([0.5, 1.5, 2.5, 3.5]))
    words = ["flower", "run", "folder", "--test", str(path)]
    assert _config(parse(words), exp)["test"] == str(path)
    np.savez(path, x=np.zeros((4, 3)), y=np.array(["a", "b", "a", "b"]))
    with pytest.raises(InputError, match=r"test\.npz"):
        _config(parse(words), exp)


def test_the_resume_hint_repeats_the_options(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.out.mkdir()
    (deployment.out / SETTINGS).write_text("")

    def fail(*arguments: object) -> str:
        raise RunError("round 2 needs 3 parties")

    monkeypatch.setattr(run, "find_server", lambda folder: "")
    monkeypatch.setattr(run, "run", fail)
    command = ["flower", "run", str(deployment.folder), "--out", str(deployment.out)]
    options = ["--deadline", "40.0", "--min-parties", "2", "--track", "tensorboard"]
    assert main([*command, *options]) == 1
    hint = shlex.join(["moonfl", *command, "--resume", *options])
    assert f"round 2 needs 3 parties; `{hint}` resumes" in capsys.readouterr().err


def test_the_run_of_a_deployment_can_be_reported(deployment: Deployment, tmp_path: Path) -> None:
    drop_updates(deployment, 1, {1})
    deployment.serve()
    assert main(["report", str(deployment.out), "--out", str(tmp_path / "report")]) == 0
    assert main(["compare", str(deployment.out)]) == 0


def test_the_model_of_a_deployment_can_be_exported(deployment: Deployment, tmp_path: Path) -> None:
    """The result and the directory give the same file; the server has no samples to check with."""
    result = deployment.serve()
    by_result, by_directory = (
        moonfl.export(run, tmp_path / kind) for kind, run in (("a", result), ("b", deployment.out))
    )
    assert "random inputs" in by_result.checked
    assert "samples of the data" in by_directory.checked  # these digits come with scikit-learn
    files = [(tmp_path / kind / "model.safetensors").read_bytes() for kind in ("a", "b")]
    assert files[0] == files[1]
