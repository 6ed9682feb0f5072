"""Runs in directories that are named by their settings."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import moonfl
from moonfl import Experiment
from moonfl.api.named_runs import read_ended_run
from moonfl.cli import main
from moonfl.report.groups import group_runs
from moonfl.report.runs import load_runs

QUICK = Experiment(rounds=1, epochs=1, parties=2)
DATA = ["dataset=csv", "data_dir=one.csv", "label=y", "partition=iid", "parties=2"]
SHORT = ["rounds=1", "epochs=1", "batch_size=8", "algorithm=my:Mine", "--workers=1", "--out=runs"]
REPEATED = {  # commands that use stored runs again
    "seeds": ["run", *DATA, *SHORT, "--seeds=1"],
    "grid": ["sweep", *DATA, *SHORT, "lr=0.01,0.02", "--jobs=1"],
    "trials": ["sweep", *DATA, *SHORT, "lr=0.01..0.02", "--trials=2"],
}
METHOD = """
from dataclasses import dataclass
import moonfl

@dataclass(frozen=True)
class Mine(moonfl.FedAvg):
    def term(self, party):
        return lambda output, batch, w: {factor} * output.z.square().mean()
"""
SCRIPT = f"""
import sys
{METHOD.format(factor=0.1)}
SEED = 0
if __name__ == "__main__":
    exp = moonfl.Experiment(rounds=1, epochs=1, parties=2, algorithm=Mine(), seed=SEED)
    moonfl.run(exp, sys.argv[1], workers=1)
"""


def write_data(name: str, shift: int) -> None:
    rows = [f"{(i * 31 + shift) % 97},{i % 5},{i % 3}" for i in range(60)]
    Path(f"{name}.csv").write_text("\n".join(["u,v,y", *rows]) + "\n")


def write_code(factor: float) -> None:
    """Write the user's method, for a process that has not imported it."""
    Path("my.py").write_text(METHOD.format(factor=factor))
    sys.modules.pop("my", None)


def write_problem(factor: float = 0.1) -> None:
    write_data("one", 0)
    write_data("two", 7)
    write_code(factor)


def move_data(words: list[str]) -> list[str]:
    return ["data_dir=two.csv" if word.startswith("data_dir=") else word for word in words]


def edit_data(words: list[str]) -> list[str]:
    write_data("one", 7)
    return words


def edit_code(words: list[str]) -> list[str]:
    write_code(0.2)
    return words


CHANGES = {
    "other data": (move_data, "the data of csv have changed since"),
    "edited data": (edit_data, "the data of csv have changed since"),
    "edited code": (edit_code, "the file that defines my:Mine has changed since"),
}


@pytest.mark.usefixtures("temporary_folder")
@pytest.mark.parametrize("command", REPEATED)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("diverged", [False, True])
def test_stored_runs_of_other_data_or_code_are_refused(
    command: str, change: str, diverged: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write_problem(1e40 if diverged else 0.1)
    words = REPEATED[command]
    status = main(words)
    assert status == int(diverged), capsys.readouterr().err
    assert bool(list(Path("runs").glob("*/diverged.txt"))) == diverged
    assert main(words) == status  # nothing has changed
    capsys.readouterr()
    apply, message = CHANGES[change]
    words = apply(words)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "--force" in error or "another --out" in error
    assert main([*words, "--out=other"]) == int(diverged and change != "edited code")


@pytest.mark.usefixtures("temporary_folder")
def test_a_run_that_was_resumed_with_other_code_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No version of the file is that of all its rounds, so restoring it is no remedy."""
    write_problem()
    words = REPEATED["seeds"]
    assert main(words) == 0
    (settings,) = Path("runs").glob("*/experiment.toml")
    table = '[code]\n"my:Mine from round 2" = "0"\n'
    settings.write_text(settings.read_text().replace("[code]\n", table))
    shutil.rmtree(settings.parent / "checkpoint")
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "was resumed with another version of the file that defines my:Mine; use" in error
    assert "restore" not in error


@pytest.mark.usefixtures("temporary_folder")
def test_an_unfinished_run_is_not_resumed_with_other_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_problem()
    words = REPEATED["seeds"]
    assert main(words) == 0
    (run,) = Path("runs").iterdir()
    shutil.rmtree(run / "checkpoint")
    (run / "rounds.jsonl").write_text("")
    (run / "final.json").unlink()
    write_code(0.2)
    capsys.readouterr()
    assert main(words) == 2
    assert "the file that defines my:Mine has changed since" in capsys.readouterr().err
    write_code(0.1)
    assert main(words) == 0


def test_the_script_that_is_running_has_no_hash(tmp_path: Path) -> None:
    """It also holds the settings of its runs: two seeds of a script are one group."""
    script = tmp_path / "study.py"
    script.write_text(SCRIPT)
    for seed in ("0", "1"):
        script.write_text(SCRIPT.replace("SEED = 0", f"SEED = {seed}"))
        subprocess.run([sys.executable, script, tmp_path / seed], check=True, timeout=120)
    runs, _ = load_runs([tmp_path])
    (group,), _ = group_runs(runs)
    assert sorted(run.seed for run in group.runs) == [0, 1]


@pytest.mark.usefixtures("temporary_folder")
def test_a_run_without_the_hash_of_its_code_is_accepted() -> None:
    """As one of an older version."""
    write_problem()
    assert main(REPEATED["seeds"]) == 0
    (settings,) = Path("runs").glob("*/experiment.toml")
    text = settings.read_text()
    assert text.count("[code]") == 1
    settings.write_text(text[: text.index("[code]")])
    shutil.rmtree(settings.parent / "checkpoint")
    write_code(0.2)
    assert main(REPEATED["seeds"]) == 0


def test_a_run_that_is_being_replaced_is_not_read(tmp_path: Path) -> None:
    """Its settings are still there, but the next command replaces it."""
    run = tmp_path / "run"
    assert read_ended_run(run) is None
    moonfl.run(QUICK, run, workers=1)
    assert read_ended_run(run) is not None
    (run / ".new").mkdir()
    shutil.copy(run / "experiment.toml", run / ".new")
    assert read_ended_run(run) is None
