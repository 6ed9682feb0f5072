"""`moonfl run --seeds N`: several seeds in ordinary run directories."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moonfl import run
from moonfl.api.named_runs import run_name
from moonfl.cli import main
from moonfl.experiment import Experiment, override
from moonfl.presets import PRESETS
from moonfl.runs.schema import RoundRecord

CHANGES = ["rounds=2", "epochs=1", "parties=4", "batch_size=64"]
WORDS = ["run", "digits-fedavg", *CHANGES, "--workers=1", "--out", "study"]
pytestmark = pytest.mark.usefixtures("temporary_folder")


def experiment(seed: int) -> Experiment:
    exp = override(PRESETS["digits-fedavg"].experiment, CHANGES)
    return replace(exp, seed=seed)


def directory(seed: int) -> Path:
    return Path("study") / run_name(experiment(seed))


def losses(path: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (path / "rounds.jsonl").read_text().splitlines()]


def interrupt(record: RoundRecord) -> None:
    raise KeyboardInterrupt


def test_finished_runs_are_kept_and_unfinished_ones_resumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Seed 1 is finished, seed 2 is interrupted after a round, and seed 3 does not exist."""
    expected = {seed: run(experiment(seed), workers=1) for seed in (1, 2, 3)}
    run(experiment(1), directory(1), workers=1)
    finished = (directory(1) / "rounds.jsonl").stat().st_mtime_ns
    with pytest.raises(KeyboardInterrupt):
        run(experiment(2), directory(2), workers=1, watch=interrupt)
    first_record = (directory(2) / "rounds.jsonl").read_text()
    assert len(losses(directory(2))) == 1
    assert main([*WORDS, "seed=1", "--seeds", "3"]) == 0
    out, err = capsys.readouterr()
    assert f"seed 1 is finished: {directory(1)}" in err
    assert (directory(1) / "rounds.jsonl").stat().st_mtime_ns == finished
    assert (directory(2) / "rounds.jsonl").read_text().startswith(first_record)
    for seed, result in expected.items():
        assert losses(directory(seed)) == [record.loss for record in result.rounds]
    accuracies = [100 * result.accuracy for result in expected.values()]
    mean, std = np.mean(accuracies), np.std(accuracies, ddof=1)
    assert out.startswith(f"final accuracy {mean:.1f} ± {std:.1f} %: mean and standard deviation")
    assert "95 % interval of the mean, by Student's t: " in out
    assert sorted(path.name for path in Path("study").iterdir()) == [
        directory(seed).name for seed in (1, 2, 3)
    ]


def test_json_and_replacement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--seeds", "2", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [entry["seed"] for entry in summary["runs"]] == [0, 1]
    accuracies = [entry["accuracy"] for entry in summary["runs"]]
    assert summary["accuracy"] == pytest.approx(np.mean(accuracies))
    assert summary["std_over_seeds"] == pytest.approx(np.std(accuracies, ddof=1))
    assert summary["interval"][0] < summary["accuracy"] < summary["interval"][1]
    assert summary["diverged"] == []
    before = [losses(directory(seed)) for seed in (0, 1)]
    times = [(directory(seed) / "experiment.toml").stat().st_mtime_ns for seed in (0, 1)]
    assert main([*WORDS, "--seeds", "2", "--force"]) == 0
    assert [losses(directory(seed)) for seed in (0, 1)] == before
    for seed in (0, 1):
        assert (directory(seed) / "experiment.toml").stat().st_mtime_ns > times[seed]


def test_one_seed_says_what_cannot_be_concluded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--seeds", "1"]) == 0
    out = capsys.readouterr().out
    assert "cannot be concluded; --seeds 3 or more is needed" in out
    assert "±" not in out


def test_diverged_seeds_are_named_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "lr=1e6", "--seeds", "2"]
    for _ in range(2):
        assert main(words) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "2 of 2 runs diverged, with seed 0, 1" in err
    assert "seed 0 diverged before" in err


def test_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(experiment(0), "study", workers=1)
    assert main([*WORDS, "--seeds", "2"]) == 2
    assert "study holds a run; with --seeds, --out is the folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "--seeds", "0"])
    assert "an integer >= 1" in capsys.readouterr().err


def test_other_data_under_the_same_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, shift in (("a", 0), ("b", 7)):
        rows = [f"{(i * 31 + shift) % 97},{i % 5},{i % 3}" for i in range(120)]
        Path(f"{name}.csv").write_text("\n".join(["u,v,y", *rows]) + "\n")
    words = ["run", "dataset=csv", "label=y", "rounds=1", "epochs=1", "parties=2"]
    words += ["min_samples=1", "batch_size=8", "--workers=1", "--seeds=1"]
    assert main([*words, "data_dir=a.csv"]) == 0, capsys.readouterr().err
    assert main([*words, "data_dir=b.csv"]) == 2
    assert "the data of csv have changed" in capsys.readouterr().err


def test_the_privacy_of_several_seeds_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Each run has its guarantee; whoever sees both models has the sum."""
    pytest.importorskip("dp_accounting")
    private = ["dp=server", "dp.noise=1", "clip=0.5", "rounds=1", "epochs=1", "parties=4"]
    words = ["run", "digits-fedavg", *private, "--workers=1", "--out", "study", "--seeds", "2"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    exp = override(PRESETS["digits-fedavg"].experiment, private)
    guarantee = exp.dp.guarantee(1.0, 1)
    assert f"after round 1: {guarantee} for the model of each run" in lines[-3]
    total = replace(guarantee, epsilon=2 * guarantee.epsilon, delta=2e-5)
    assert f"whoever sees all 2 models has at most {total}" in lines[-2]
    assert lines[-1] == exp.dp.caution()
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
