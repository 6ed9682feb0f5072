"""moonfl check: every problem at once, with advice."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from helpers.problems import write_images, write_patients
from moonfl.cli import main


def check(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    status = main(["check", *map(str, words)])
    return status, capsys.readouterr().out


def test_a_table_with_many_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_patients(tmp_path / "patients.csv")
    status, out = check(capsys, path, "label=outcome", "column=hospital")
    assert status == 1
    for name in ("patient", "age", "sex", "crp", "smoker", "blood"):
        assert f"column '{name}'" in out
    assert "looks like an identifier or text; leave the column out with ignore=patient" in out
    assert out.count("error: ") == len(out.splitlines())
    keys = ["label=outcome", "column=hospital", "ignore=patient", "impute=mean", "encode=onehot"]
    status, out = check(capsys, path, *keys)
    assert status == 0
    assert "column 'sex' has 'Female', 'female', which differ only in case" in out
    assert "column 'crp' has missing values: 'NaN' " in out
    assert "train with: moonfl run" in out


@pytest.mark.parametrize(
    ("text", "message", "status"),
    [
        ("a,label\n1,x\n2,X\n3,x\n", "the classes 'X', 'x', which differ only in case", 0),
        ("a,label\n1,x\n2,x\n3,x\n", "all training samples have the class 'x'", 0),
        ("a,b,label\n1,5,x\n2,5,y\n3,5,x\n", "'b' has the same value in all rows", 0),
        ("a,label\n1,x\n1,y\n3,x\n", "1 rows have the features of another row", 0),
        ("id,label\n" + "".join(f"{k},{'xy'[k % 2]}\n" for k in range(30)), "may be an ident", 0),
        (
            "Unnamed: 0,a,label\n" + "".join(f"{k},{k % 5},{'xy'[k // 10]}\n" for k in range(20)),
            "'Unnamed: 0' numbers the rows, and reveals the labels if they are sorted by them",
            0,
        ),
        ("a,label\n1,x\n2,\n3,\n", "line 3, 4: column 'label' is empty", 1),
        ("a;label\n1,5;x\n2,5;y\n", "'1,5', with a decimal comma", 1),
        ("a,label\n2020-01-01,x\n2020-02-01,y\n", "a date; replace it", 1),
    ],
)
def test_problems_of_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str, status: int
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    found, out = check(capsys, path, "partition=iid", "parties=1", "holdout=0.4")
    assert message in out
    assert found == status, out


@pytest.mark.parametrize(
    ("column", "keys", "message"),
    [
        (["", "", "", ""] * 8, ["impute=mean"], "has no values in the training"),
        ([f"v{k % 12}" for k in range(32)], ["encode=onehot"], "min_category"),
        ([f"{1e9 + k / 100:.2f}" for k in range(32)], ["standardise=false"], "float32"),
    ],
)
def test_problems_of_encoding_and_standardising(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    column: list[str],
    keys: list[str],
    message: str,
) -> None:
    rows = [f"{k},{cell},{'xy'[k % 2]}\n" for k, cell in enumerate(column)]
    path = tmp_path / "t.csv"
    path.write_text("a,b,label\n" + "".join(rows))
    status, out = check(capsys, path, "partition=iid", "parties=2", *keys)
    assert status == 1
    assert message in out


def test_a_run_warns_of_names_that_are_missing_values_or_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = ["North", "north", "NA"]
    lines = [f"{k * k},{sites[k % 3]},{['0', '1', 'NA'][k // 3 % 3]}" for k in range(90)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,site,label", *lines, ""]))
    keys = ["column=site", "rounds=1", "epochs=1", "out_dim=8"]
    assert check(capsys, path, *keys)[0] == 0
    words = ["run", "dataset=csv", f"data_dir={path}", *keys, "--out", str(tmp_path / "run")]
    assert main(words) == 0
    err = capsys.readouterr().err
    assert "the label has 'NA' in 30 training samples, and it is used as a name" in err
    assert "column 'site' has 'NA' in 30 training samples" in err
    assert "'North', 'north', which differ only in case, whitespace or a decimal point; they" in err


def test_codes_in_several_spellings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = ["1", "1.0", "01", "2"]
    lines = [f"{codes[k % 4]},{k},{'xy'[k % 2]}" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["code,a,label", *lines, ""]))
    keys = ["partition=iid", "parties=1", "encode=onehot", "categorical=code"]
    status, out = check(capsys, tmp_path / "t.csv", *keys)
    assert status == 0
    assert (
        "has '1', '1.0', which differ only in case, whitespace or a decimal point; they are" in out
    )
    assert "has '01', '1', one number but different categories; use one spelling" in out


def test_encodings_test_classes_arrays_and_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ["partition=iid", "parties=1"]
    (tmp_path / "t.csv").write_bytes("größe,label\n1,x\n".encode("latin-1"))
    status, out = check(capsys, tmp_path / "t.csv", *one)
    assert (status, "save it as UTF-8" in out) == (1, True)
    y = np.arange(20) % 2 + 1
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(20, 2)), y=y)
    status, out = check(capsys, tmp_path / "a.npz", *one)
    assert (status, "labels start at 1" in out) == (0, True)
    x = np.zeros((20, 2))
    np.savez(tmp_path / "b.npz", x=x, y=y - 1, x_test=x[:3], y_test=[0, 1, 2])
    assert "test samples have the class '2'" in check(capsys, tmp_path / "b.npz", *one)[1]
    write_images(tmp_path / "images")
    images = sorted((tmp_path / "images").rglob("*.png"))
    for path in images[:2]:
        path.write_bytes(path.read_bytes()[:40])
    status, out = check(capsys, tmp_path / "images", *one, "image_size=8")
    assert status == 1
    for path in images[:2]:
        assert str(path) in out


def test_a_run_says_how_to_list_several_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_patients(tmp_path / "my patients.csv")
    words = ["dataset=csv", f"data_dir={path}", "label=outcome", "column=hospital"]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"moonfl: {path}, line 2: column 'patient' is 'p0000'")
    assert message.count("\n") == 1
    found = re.search(r"; this is one of (\d+) errors, which `moonfl (.*)` lists$", message.strip())
    assert found is not None
    assert main(shlex.split(found[2])) == 1
    assert capsys.readouterr().out.count("error: ") == int(found[1])


@pytest.mark.parametrize("words", [["label=outcom"], ["label=outcome", "ignore=a"]])
def test_a_run_with_a_wrong_key_only_does_not_mention_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    path = write_patients(tmp_path / "patients.csv")
    words = ["dataset=csv", f"data_dir={path}", "column=hospital", *words]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 2
    assert "moonfl check" not in capsys.readouterr().err
