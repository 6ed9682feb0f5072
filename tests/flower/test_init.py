"""`moonfl flower init`: the files of a deployment, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.custom import custom_experiment, module
from helpers.flower_deployment import (
    Deployment,
)
from moonfl import Experiment
from moonfl.cli import main
from moonfl.flower.certificates import write_certificates
from moonfl.flower.init import init
from moonfl.flower.run import read_experiment

_ = module  # a fixture


def test_a_deployment_without_data_needs_dataset_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the pixels of hospitals would be scaled like digits."""
    assert main(["flower", "init", str(tmp_path / "hospitals"), "--sites", "3"]) == 2
    assert "use dataset=sites" in capsys.readouterr().err
    assert (
        main(["flower", "init", str(tmp_path / "hospitals"), "--sites", "3", "dataset=sites"]) == 0
    )


def test_data_of_sites_are_not_shifted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flower", "init", str(tmp_path / "hospitals"), "--sites", "3"]
    assert main([*words, "dataset=cifar10", "shift=noise"]) == 2
    assert "remove shift=noise, or use --with-data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["partition=labels", "classes_per_party=1"],
            "remove partition=labels, classes_per_party=1, or use --with-data",
        ),
        (["beta=0.1", "min_samples=2"], "remove beta=0.1, min_samples=2, or"),
        (["partition_seed=1"], "remove partition_seed=1, or"),
        (["column=site"], "remove partition=column, column=site, or"),
        (["parties=9"], "--sites 2 sets the number of parties, got parties=9; remove parties"),
    ],
)
def test_data_of_sites_are_not_split(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["flower", "init", str(tmp_path / "hospitals"), "--sites", "2", "dataset=sites"]
    assert main([*command, *words]) == 2
    assert message in capsys.readouterr().err
    assert main([*command, "parties=2"]) == 0


def test_targets_without_classes_keep_the_partition_that_they_need(tmp_path: Path) -> None:
    command = ["flower", "init", str(tmp_path / "hospitals"), "--sites", "2", "dataset=csv"]
    assert main([*command, "task=regression", "label=y", "partition=iid"]) == 0


def test_a_deployment_contains_its_own_method(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found from any folder, even if that has another module of the same name."""
    Deployment(module / "federation", custom_experiment())
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "mymethod", raising=False)
    (module / "elsewhere").mkdir()
    (module / "elsewhere" / "mymethod.py").write_text("another = 3\n")
    monkeypatch.chdir(module / "elsewhere")
    monkeypatch.syspath_prepend("")
    assert type(read_experiment(module / "federation").algorithm).__name__ == "Small"


def test_secrets_are_readable_by_their_owner_only(deployment: Deployment) -> None:
    for name in ("site.toml", "key"):
        assert (deployment.folder / "site-1" / name).stat().st_mode & 0o077 == 0


def test_the_holdout_share_is_written_to_the_sites(tmp_path: Path) -> None:
    init(
        tmp_path / "federation",
        Experiment(dataset="sites", holdout=0.5),
        2,
        "127.0.0.1:8000",
        with_data=False,
    )
    assert "holdout = 0.5" in (tmp_path / "federation" / "site-1" / "site.toml").read_text()


def test_the_current_folder_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["flower", "init", ".", "--sites", "2", "dataset=sites"]) == 2
    assert ". is the current folder" in capsys.readouterr().err


def start_with_stub(deployment: Deployment, folder: Path, stub: str) -> subprocess.Popen[str]:
    """Start a site with a shell script in place of Flower's SuperNode, and without waiting."""
    folder.mkdir()
    for name, text in (("flower-supernode", stub), ("sleep", "exit 0")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return subprocess.Popen(
        [deployment.folder / "site-1" / "start.sh"],
        env={"PATH": f"{folder}:/usr/bin:/bin", "RETRIES": "3"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_site_starts_again_however_its_supernode_ended(
    deployment: Deployment, tmp_path: Path
) -> None:
    """A SuperNode that the server rejects ends itself with status 0."""
    process = start_with_stub(deployment, tmp_path / "bin", "echo started; exit 0")
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert output.count("started") == 3
    assert output.count("the clock of this machine or of the server is wrong") == 3


def test_a_site_ends_when_its_script_is_stopped(deployment: Deployment, tmp_path: Path) -> None:
    process = start_with_stub(deployment, tmp_path / "bin", "echo started; exec /bin/sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.terminate()
    assert process.communicate(timeout=30)[0] == ""
    assert process.returncode == 143


def test_certificates_pass_a_strict_verifier(tmp_path: Path) -> None:
    """Python's own verification is strict since 3.13."""
    write_certificates(tmp_path, "fl.example.org")
    words = [
        "openssl",
        "verify",
        "-x509_strict",
        "-CAfile",
        str(tmp_path / "ca.crt"),
        str(tmp_path / "server.crt"),
    ]
    assert subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.endswith(
        "server.crt: OK\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init", "new", "--sites", "1"], "at least 2 sites"),
        (["init", "full", "--sites", "2"], "full already exists and is not empty"),
        (["init", "new", "--sites", "2", "--address", "nowhere"], "--address must be HOST:PORT"),
        (["init", "new", "--sites", "2", "--address", "[::1]:8000"], "--address must be HOST:PORT"),
        (["init", "new", "--sites", "2", "--address", "a b;c:8000"], "--address must be HOST:PORT"),
        (
            ["init", "new", "--sites", "3", "--address", "host:65534"],
            "port must be from 1 to 65532",
        ),
        (["init", 'new"', "--sites", "3"], "does not support quotation marks"),
        (["init", "new", "--sites", "2", "digits-mon"], "did you mean digits-moon"),
        (["init", "new", "--sites", "2", "cifar10-moon", "--with-data"], "cifar10 is not in data"),
        (
            ["init", "new", "--sites", "2", "dataset=sites", "--with-data"],
            "dataset=sites means the data are at",
        ),
        (["run", "nowhere"], "nowhere is not a deployment"),
        (["run", "full", "--resume"], "full is not a deployment"),
    ],
)
def test_wrong_arguments_get_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert main(["flower", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
