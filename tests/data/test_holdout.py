"""Held-out samples: groups that stay together, and duplicates of training samples."""

from pathlib import Path

import numpy as np
import pytest
import torch

import moonfl
from helpers.problems import write_images
from moonfl import Experiment
from moonfl.cli import main
from moonfl.data.partition import choose_groups
from moonfl.errors import InputError
from moonfl.experiment import fingerprint, override
from moonfl.flower.site import load_site
from moonfl.runs.directory import read_partition
from moonfl.task import make_task

QUICK = {"rounds": 1, "epochs": 1, "batch_size": 8, "out_dim": 8, "workers": 1}


def write_windows(path: Path) -> Path:
    """Write 12 patients at 3 hospitals, each with 5 identical rows that name the patient."""
    lines = ["patient_number,hospital,patient,label"]
    for patient in range(12):
        lines += [f"{patient},{'ABC'[patient % 3]},p{patient},{'xy'[patient // 3 % 2]}"] * 5
    path.write_text("\n".join([*lines, ""]))
    return path


def words(path: Path, *changes: str) -> list[str]:
    """Return the arguments of a run with the patients."""
    return [f"dataset={path.suffix[1:]}", f"data_dir={path}", "rounds=1", "epochs=1", *changes]


def patients(examples: object) -> set[float]:
    """Return the patients whose samples these are."""
    return set(examples.x.flatten().tolist())


@pytest.mark.parametrize("kind", ["csv", "npz"])
@pytest.mark.parametrize("parties", ["column=hospital", "parties=3"])
def test_groups_are_held_out_as_a_whole(kind: str, parties: str, tmp_path: Path) -> None:
    path = write_windows(tmp_path / "t.csv")
    if kind == "npz":
        number = np.repeat(np.arange(12), 5)
        names = np.array(["ABC"[k % 3] for k in number])
        path = tmp_path / "a.npz"
        data = {"x": number[:, None].astype(float), "y": number // 3 % 2}
        np.savez(path, **data, hospital=names, patient=number)
    changes = [parties, "holdout=0.3", "validation=0.3", "holdout_by=patient"]
    changes += ["ignore=hospital"] if kind == "csv" and parties == "parties=3" else []
    task = make_task(override(Experiment(), words(path, *changes)))
    training = set().union(*(patients(party) for party in task.parties))
    assert task.validation is not None
    sets = [training, patients(task.test), patients(task.validation)]
    assert sum(len(part) for part in sets) == 12
    assert set().union(*sets) == set(range(12))
    assert all(len(party.y) > 0 for party in task.parties)
    assert task.duplicates == {"test": 0, "validation": 0}
    if parties == "column=hospital":
        assert len(sets[1]) == 3  # one patient of each hospital's four
        assert sorted(set(task.test_party.tolist())) == [0, 1, 2]


def test_a_group_at_several_parties_is_held_out_at_all_or_none() -> None:
    groups = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    rows = ([0, 2, 4, 6], [1, 3, 5, 8], [7], [9])
    parts = {i: np.array(part) for i, part in enumerate(rows)}
    for seed in range(20):
        chosen = choose_groups(
            parts, groups, 0.5, lambda i, seed=seed: torch.Generator().manual_seed(seed + i)
        )
        assert chosen
        assert not chosen & {3, 4}  # parties 2 and 3 have no other group
        for part in parts.values():
            assert set(groups[part].tolist()) - chosen


def test_the_share_is_that_of_the_groups() -> None:
    groups = np.repeat(np.arange(10), 3)
    for share, expected in ((0.01, 0), (0.2, 2), (0.5, 5), (0.99, 9)):
        chosen = choose_groups(
            {0: np.arange(30)}, groups, share, lambda i: torch.Generator().manual_seed(i)
        )
        assert len(chosen) == expected


def test_wrong_groups_are_refused(tmp_path: Path) -> None:
    path = write_windows(tmp_path / "t.csv")
    by_hospital = words(path, "column=hospital")
    with pytest.raises(InputError, match=r"unknown column .* 'patent'; did you mean patient"):
        make_task(override(Experiment(), [*by_hospital, "holdout_by=patent"]))
    with pytest.raises(InputError, match="holdout_by=hospital would hold out whole parties"):
        override(Experiment(), [*by_hospital, "holdout_by=hospital"])
    with pytest.raises(InputError, match="holdout_by belongs to dataset=csv or npz"):
        Experiment(holdout_by="patient")
    with pytest.raises(InputError, match=r"enough groups .* share of 0\.05; increase holdout="):
        make_task(override(Experiment(), [*by_hospital, "holdout_by=patient", "holdout=0.05"]))
    folder = tmp_path / "tables"
    folder.mkdir()
    for name in ("train.csv", "test.csv"):
        write_windows(folder / name)
    with_test = ["dataset=csv", f"data_dir={folder}", "column=hospital", "holdout_by=patient"]
    with pytest.raises(InputError, match="these data have a test set, and validation=SHARE"):
        make_task(override(Experiment(), with_test))
    assert make_task(override(Experiment(), [*with_test, "validation=0.3"])).validation is not None
    np.savez(tmp_path / "a.npz", x=np.eye(4), y=[0, 1, 0, 1])
    changes = ["parties=1", "min_samples=1", "holdout_by=person"]
    with pytest.raises(InputError, match="unknown column for holdout_by 'person'"):
        make_task(override(Experiment(), words(tmp_path / "a.npz", *changes)))


def test_groups_in_python(tmp_path: Path) -> None:
    number = np.repeat(np.arange(8), 5)
    parties = {name: (number[:, None] + 0.5 * k, number % 2) for k, name in enumerate("ab")}
    groups = {"b": number, "a": [f"p{k}" for k in number]}
    result = moonfl.federate("mlp", parties, groups=groups, out=tmp_path / "run", **QUICK)
    assert result.experiment.holdout_by == "group"
    assert read_partition(tmp_path / "run").duplicates == {"test": 0}
    sites = result.rounds[0]["sites"]
    assert [samples % 5 for _, samples in sites.values()] == [0, 0]
    again = moonfl.federate(
        "mlp", parties, groups=groups, out=tmp_path / "run", resume=True, **QUICK
    )
    assert again.accuracy == result.accuracy
    listed = moonfl.federate(
        "mlp", list(parties.values()), groups=[groups["a"], groups["b"]], **QUICK
    )
    assert listed.accuracy == result.accuracy
    with pytest.raises(InputError, match="groups has entries for a, but the parties are a, b"):
        moonfl.federate("mlp", parties, groups={"a": number}, **QUICK)
    with pytest.raises(InputError, match=r"groups of party b must be 40 .* got int64 \[3\]"):
        moonfl.federate("mlp", parties, groups={"a": number, "b": [1, 2, 3]}, **QUICK)
    with pytest.raises(InputError, match=r"holdout_by cannot be passed to.*: pass groups=, one"):
        moonfl.federate("mlp", parties, holdout_by="patient", **QUICK)


def test_a_site_holds_out_groups(tmp_path: Path) -> None:
    exp = Experiment(
        dataset="sites", model="mlp", ignore="hospital", holdout_by="patient", parties=1, rounds=1
    )
    write_windows(tmp_path / "rows.csv")
    (tmp_path / "site.toml").write_text("party = 0\ndata = 'rows.csv'\n")
    task = load_site(tmp_path / "site.toml", exp)[1].task
    assert not patients(task.parties[0]) & patients(task.test)
    assert len(patients(task.test)) == 2


def test_a_site_with_a_test_part_holds_out_no_groups(tmp_path: Path) -> None:
    """Other sites of the same experiment may have none."""
    exp = Experiment(
        dataset="sites", model="mlp", ignore="hospital", holdout_by="patient", parties=1, rounds=1
    )
    (tmp_path / "tables").mkdir()
    for name in ("train.csv", "test.csv"):
        write_windows(tmp_path / "tables" / name)
    (tmp_path / "site.toml").write_text("party = 0\ndata = 'tables'\n")
    task = load_site(tmp_path / "site.toml", exp)[1].task
    assert [len(task.parties[0].y), len(task.test.y)] == [60, 60]


def test_duplicates_of_training_samples_are_reported_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_windows(tmp_path / "t.csv")
    arguments = words(path, "column=hospital", "ignore=patient", "--workers", "1")
    assert main(["run", *arguments, "--out", str(tmp_path / "run")]) == 0
    counts = read_partition(tmp_path / "run").duplicates
    assert counts is not None
    assert counts["test"] > 6
    message = f"{counts['test']} of 12 test samples are identical to training samples"
    assert message in capsys.readouterr().err
    arguments.remove("ignore=patient")
    assert main(["run", *arguments, "--out", str(tmp_path / "b"), "holdout_by=patient"]) == 0
    assert "identical to training samples" not in capsys.readouterr().err


def test_duplicates_among_images_are_counted_by_content(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images" / "train", ("north", "south"), 4)
    write_images(tmp_path / "images" / "test", count=5)
    exp = Experiment(dataset="folder", data_dir=str(folder.parent), parties=2, min_samples=1)
    assert make_task(exp).duplicates == {"test": 8}  # the fifth image of each class is new


def test_the_setting_does_not_change_fingerprints_of_stored_runs() -> None:
    exp = Experiment(dataset="csv")
    assert fingerprint(exp) != fingerprint(Experiment(dataset="csv", holdout_by="patient"))
    assert "holdout_by" not in moonfl.experiment.to_dict(exp)
