"""dataset=hub: folders and files that the library `datasets` reads, offline."""

import builtins
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import TABLE, write_images
from moonfl.cli import main
from moonfl.data.base import Dataset, Reading
from moonfl.data.folder import read_folder
from moonfl.data.hub import read_hub
from moonfl.data.images import Images
from moonfl.data.tables import read_csv
from moonfl.errors import InputError
from moonfl.experiment import Experiment, canonical_toml, override
from moonfl.task import make_task

CLASSES = ("cat", "dog")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the library convert files in a temporary folder."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    return folder


def picture(k: int, side: int = 20, mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", (side, side), (40 * (k % 2) + k, k, 200)).convert(mode)


def image_split(count: int, **columns: list) -> datasets.Dataset:
    """Return images of two classes by three writers."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=list(CLASSES)),
            "writer": datasets.Value("string"),
        }
    )
    content = {
        "image": [picture(k) for k in range(count)],
        "label": [k % 2 for k in range(count)],
        "writer": [f"w{k % 3}" for k in range(count)],
    }
    return datasets.Dataset.from_dict(content | columns, features=features)


def number_split(count: int = 30, **columns: list) -> datasets.Dataset:
    """Return a table of numbers with labels that are strings."""
    content = {
        "age": [20 + k % 50 for k in range(count)],
        "dose": [0.1 * k for k in range(count)],
        "smoker": [k % 3 == 0 for k in range(count)],
        "site": [f"s{k % 3}" for k in range(count)],
        "label": ["ill" if k % 2 else "well" for k in range(count)],
    }
    return datasets.Dataset.from_dict(content | columns)


def save(split: datasets.Dataset | datasets.DatasetDict, folder: Path) -> Path:
    split.save_to_disk(folder)
    return folder


def test_saved_images_with_classes_parties_and_a_test_set(tmp_path: Path) -> None:
    splits = datasets.DatasetDict({"train": image_split(12), "test": image_split(4)})
    data = read_hub(save(splits, tmp_path / "d"), Reading(column="writer"))
    assert data.classes == CLASSES
    assert data.train.y.tolist() == [0, 1] * 6
    assert data.columns["writer"].tolist() == ["w0", "w1", "w2"] * 4
    assert data.test_columns["writer"].tolist() == ["w0", "w1", "w2", "w0"]
    assert isinstance(data.train.x, Images)
    assert data.train.x.shape == (12, 3, 20, 20)
    expected = np.stack([np.asarray(picture(k)).transpose(2, 0, 1) for k in range(12)])
    assert torch.equal(data.train.x[torch.arange(12)], torch.from_numpy(expected))
    assert data.test is not None
    assert torch.equal(data.test.x[torch.tensor([3])][0], torch.from_numpy(expected[3]))


def test_images_stay_on_disk_and_are_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is memory-mapped, and a decoded image is cached, not stored a second time."""
    rng = np.random.default_rng(0)
    noise = [Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(40)]
    folder = save(image_split(40, image=noise), tmp_path / "d")
    import pyarrow

    before = pyarrow.total_allocated_bytes()
    data = read_hub(folder, Reading())
    assert isinstance(data.train.x, Images)
    assert pyarrow.total_allocated_bytes() - before < 40 * 64 * 64 * 3 // 4
    data.train.x.check()
    opened: list[object] = []
    true_open = Image.open
    monkeypatch.setattr(Image, "open", lambda *a, **k: opened.append(a) or true_open(*a, **k))
    data.train.x.take(torch.tensor([3, 5]))[torch.tensor([0, 1])]
    assert opened == []


def test_grey_and_mixed_images_become_rgb_like_those_of_a_folder(tmp_path: Path) -> None:
    modes = ["L", "RGB", "RGBA", "P", "1", "L"]
    images = [picture(k, mode=mode) for k, mode in enumerate(modes)]
    saved = read_hub(save(image_split(6, image=images), tmp_path / "d"), Reading())
    for k, image in enumerate(images):
        (tmp_path / "folder" / CLASSES[k % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "folder" / CLASSES[k % 2] / f"{k}.png")
    folder = read_folder(tmp_path / "folder", Reading())
    order = torch.tensor([0, 2, 4, 1, 3, 5])  # a folder is sorted by class
    assert torch.equal(saved.train.x[order], folder.train.x[torch.arange(6)])


def test_image_size(tmp_path: Path) -> None:
    images = [picture(k, side=20 + k) for k in range(6)]
    folder = save(image_split(6, image=images), tmp_path / "d")
    message = "train, row 1 has 21x21 pixels, not 20x20 as .*train, row 0 has; set image_size=N"
    with pytest.raises(InputError, match=message):
        read_hub(folder, Reading())
    assert read_hub(folder, Reading(image_size=16)).train.x.shape == (6, 3, 16, 16)


def test_an_image_folder_is_read_like_dataset_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_images(tmp_path / "d" / split)
    hub = read_hub(tmp_path / "d", Reading())
    folder = read_folder(tmp_path / "d", Reading())
    assert hub.classes == folder.classes
    rows = torch.arange(len(folder.train.y))
    assert isinstance(hub.train.x, Images)
    assert sorted(hub.train.x.contents()) == sorted(folder.train.x.contents())
    assert hub.train.y.bincount().tolist() == folder.train.y.bincount().tolist()
    by_content = dict(zip(folder.train.x.contents(), folder.train.y.tolist(), strict=True))
    for content, label in zip(hub.train.x.contents(), hub.train.y.tolist(), strict=True):
        assert by_content[content] == label
    assert hub.train.x[rows].shape == folder.train.x[rows].shape


def test_an_image_folder_with_metadata(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    lines = ["file_name,label,writer"]
    for k in range(6):
        picture(k).save(tmp_path / "d" / f"{k}.png")
        lines.append(f"{k}.png,{CLASSES[k % 2]},w{k % 3}")
    (tmp_path / "d" / "metadata.csv").write_text("\n".join(lines))
    data = read_hub(tmp_path / "d", Reading(column="writer"))
    assert data.classes == CLASSES
    assert sorted(data.columns["writer"].tolist()) == ["w0", "w0", "w1", "w1", "w2", "w2"]


@pytest.mark.parametrize("name", ["train.csv", "train.parquet", "train.jsonl", "saved"])
def test_tables_are_read_like_dataset_csv(name: str, tmp_path: Path) -> None:
    """Numbers, labels and parties of every format are those of the same table as .csv."""
    (tmp_path / "table.csv").write_text(TABLE)
    reading = Reading(label="outcome", column="site")
    expected = read_csv(tmp_path / "table.csv", reading)
    split = datasets.Dataset.from_csv(str(tmp_path / "table.csv"))
    folder = tmp_path / "d"
    folder.mkdir()
    if name == "saved":
        save(split, folder)
    elif name.endswith("csv"):
        (folder / name).write_text(TABLE)
    elif name.endswith("parquet"):
        split.to_parquet(folder / name)
    else:
        split.to_json(folder / name)
    paths = [folder] if name == "saved" else [folder, folder / name]
    for path in paths:
        data = read_hub(path, reading)
        assert data.classes == expected.classes
        assert data.features == expected.features
        assert data.columns["site"].tolist() == expected.columns["site"].tolist()
        assert torch.equal(data.train.x, expected.train.x)
        assert torch.equal(data.train.y, expected.train.y)
        assert data.test is None


def test_types_of_columns(tmp_path: Path) -> None:
    data = read_hub(save(number_split(), tmp_path / "d"), Reading(column="site"))
    assert data.features == ("age", "dose", "smoker")
    assert data.train.x[3].tolist() == [23.0, 0.1 * 3, 1.0]
    assert data.classes == ("ill", "well")
    numbers = number_split(label=[k % 2 for k in range(30)])
    assert read_hub(save(numbers, tmp_path / "n"), Reading(ignore=("site",))).classes == ("0", "1")
    few = Reading(ignore=("site",), classes=("0", "1", "2"))
    assert read_hub(tmp_path / "n", few).classes == ("0", "1", "2")


def test_nan_is_a_missing_value(tmp_path: Path) -> None:
    values = [float(k % 2) for k in range(30)]
    values[3] = float("nan")
    folder = save(number_split(label=values), tmp_path / "labels")
    with pytest.raises(InputError, match="row 3: the cell of column 'label' is empty"):
        read_hub(folder, Reading(ignore=("site",)))
    folder = save(number_split(site=values), tmp_path / "sites")
    with pytest.raises(InputError, match="row 3: the cell of column 'site' is empty"):
        read_hub(folder, Reading(column="site"))


def test_a_folder_named_like_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` would take the name for one of its builders."""
    save(number_split(), tmp_path / "csv")
    monkeypatch.chdir(tmp_path)
    assert len(read_hub(Path("csv"), Reading(ignore=("site",))).train.y) == 30


@pytest.mark.parametrize(
    ("names", "test"),
    [
        (("train", "test"), 4),
        (("train", "validation", "test"), 4),
        (("train", "validation"), 4),
        (("train", "extra"), None),
        (("all",), None),
    ],
)
def test_splits(
    names: tuple[str, ...], test: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"train": 12, "all": 12, "test": 4, "validation": 4 if "test" not in names else 5}
    splits = {name: image_split(sizes.get(name, 7)) for name in names}
    data = read_hub(save(datasets.DatasetDict(splits), tmp_path / "d"), Reading())
    assert len(data.train.y) == 12
    assert (None if data.test is None else len(data.test.y)) == test
    message = capsys.readouterr().err
    if names == ("train", "validation"):
        assert "has no split named test; its split validation is the test set" in message
    assert ("these splits are not used: validation" in message) == (len(names) == 3)
    assert ("these splits are not used: extra" in message) == ("extra" in names)


def test_splits_without_a_training_set(tmp_path: Path) -> None:
    splits = datasets.DatasetDict({"one": image_split(4), "two": image_split(4)})
    with pytest.raises(InputError, match="no split named train; its splits are one, two"):
        read_hub(save(splits, tmp_path / "d"), Reading())


def test_the_column_of_the_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine = image_split(6).rename_column("label", "fine")
    folder = save(fine, tmp_path / "one")
    assert read_hub(folder, Reading()).classes == CLASSES
    assert "are in its column 'fine'" in capsys.readouterr().err
    two = save(fine.add_column("coarse", [0] * 6).class_encode_column("coarse"), tmp_path / "two")
    with pytest.raises(InputError, match=r"no column 'label' and 2 columns of classes \(fine, coa"):
        read_hub(two, Reading())
    assert read_hub(two, Reading(label="coarse")).classes == ("0",)
    none = save(number_split().rename_column("label", "outcome"), tmp_path / "none")
    with pytest.raises(InputError, match=r"set label=NAME to one of its columns: age, dose, smok"):
        read_hub(none, Reading())
    with pytest.raises(InputError, match=r"'outcomes'; did you mean outcome\?.*label=NAME"):
        read_hub(none, Reading(label="outcomes"))


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (Reading(column="sites"), r"unknown column of .*train 'sites'; did you mean site\?"),
        (Reading(holdout_by="patient"), "unknown column of .*train 'patient'"),
        (Reading(ignore=("height",)), "unknown column of .*train 'height'"),
        (Reading(), "train, row 0: column 'site' is 's0', not a finite decimal number.*ignore=sit"),
        (Reading(subset="small"), "subset=small is for datasets of the hub"),
        (Reading(ignore=("site",), classes=("ill",)), "row 0, column 'label': unknown class 'wel"),
    ],
)
def test_wrong_settings(reading: Reading, message: str, tmp_path: Path) -> None:
    folder = save(number_split(), tmp_path / "d")
    with pytest.raises(InputError, match=message):
        read_hub(folder, reading)


def test_missing_values_and_categories_are_encoded_like_those_of_csv(tmp_path: Path) -> None:
    reading = Reading(impute="mean", encode="onehot")
    split = number_split(6, age=[1, None, 3, 4, 5, 6])
    hub = read_hub(save(split, tmp_path / "d"), reading)
    rows = [",".join(split.column_names)]
    for row in split:
        cells = ["" if cell is None else str(cell) for cell in row.values()]
        rows.append(",".join({"True": "1", "False": "0"}.get(cell, cell) for cell in cells))
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    table = read_csv(tmp_path / "t.csv", reading)
    assert hub.table == table.table
    assert hub.table is not None
    assert torch.equal(hub.train.x.nan_to_num(-1), table.train.x.nan_to_num(-1))
    pictures = save(image_split(4), tmp_path / "images")
    with pytest.raises(InputError, match="impute, encode and categorical are for tables"):
        read_hub(pictures, reading)


def test_contents_that_are_refused(tmp_path: Path) -> None:
    def refusal(split: datasets.Dataset, reading: Reading | None = None) -> str:
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        with pytest.raises(InputError) as error:
            read_hub(save(split, tmp_path / "d"), reading or Reading(ignore=("site",)))
        return str(error.value)

    unlabelled = image_split(4).map(lambda row: {"label": -1})
    assert "row 0: the cell of column 'label' is empty" in refusal(unlabelled, Reading())
    without = image_split(4, image=[picture(0), None, picture(2), picture(3)])
    assert "row 1: column 'image' has no image" in refusal(without, Reading())
    missing = number_split(3, age=[1, None, 3])
    assert "row 1: column 'age' is empty" in refusal(missing)
    lists = number_split(2, age=[[1, 2], [3, 4]])
    assert "column 'age' of" in refusal(lists)
    assert "ignore=age, or use an .npz file" in refusal(lists)
    second = image_split(4).rename_column("image", "front")
    both = datasets.concatenate_datasets([second, image_split(4).select_columns("image")], axis=1)
    assert "several columns of images (front, image)" in refusal(both, Reading())
    text = refusal(number_split(60, label=[k / 7 for k in range(60)]))
    assert "60 distinct values in 60 samples" in text
    broken = io.BytesIO()
    picture(0).save(broken, "PNG")
    cut = {"bytes": broken.getvalue()[:50], "path": None}
    folder = save(image_split(2, image=[picture(0), cut]), tmp_path / "cut")
    with pytest.raises(InputError, match="train, row 1 is not a readable image"):
        read_hub(folder, Reading()).train.x.check()


def test_images_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    picture(0).save(folder / "inside.png")
    picture(1).save(tmp_path / "outside.png")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})

    def read(name: str) -> Dataset:
        cells = [{"bytes": None, "path": path} for path in (str(folder / "inside.png"), name)]
        split = datasets.Dataset.from_dict({"image": cells, "label": ["a", "b"]}, features)
        split.to_parquet(folder / "train.parquet")
        return read_hub(folder / "train.parquet", Reading())

    assert len(read(str(folder / "inside.png")).train.y) == 2
    for name in (tmp_path / "outside.png", folder / ".." / "outside.png"):
        with pytest.raises(
            InputError, match=r"row 1: column 'image' names .*outside\.png, which is"
        ):
            read(str(name))


def test_folders_that_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=r"has no files that dataset=hub reads; they are images"):
        read_hub(empty, Reading())
    (empty / "train.csv").write_text(TABLE)
    (empty / "train.json").write_text("[]")
    with pytest.raises(InputError, match=r"files of several formats \(csv, json\)"):
        read_hub(empty, Reading())
    rows = tmp_path / "rows"
    rows.mkdir()
    number_split().to_parquet(rows / "train.parquet")
    number_split().select([]).to_parquet(rows / "test.parquet")
    with pytest.raises(InputError, match='"test" corresponds to no data'):
        read_hub(rows, Reading(ignore=("site",)))
    os.mkfifo(rows / "more.parquet")
    with pytest.raises(InputError, match=r"more.parquet cannot be read: it is a pipe or device"):
        read_hub(rows, Reading())
    for split, message in (("../rows", "names the file ../rows"), ("/etc", "names the file /etc")):
        outside = save(datasets.DatasetDict({"train": number_split()}), tmp_path / "outside")
        (outside / "dataset_dict.json").write_text(json.dumps({"splits": [split]}))
        with pytest.raises(InputError, match=message):
            read_hub(outside, Reading())
    damaged = save(number_split(), tmp_path / "damaged")
    (arrow,) = damaged.glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:200])
    with pytest.raises(InputError, match=r"damaged cannot be read with the library datasets: "):
        read_hub(damaged, Reading())


def test_scripts_and_pickles_are_not_executed(tmp_path: Path) -> None:
    """A script or a README cannot make the library run code or read other files."""
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "d.py").write_text("raise SystemExit('executed')")
    (folder / "data.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(InputError, match="no files that dataset=hub reads"):
        read_hub(folder, Reading())
    (folder / "train.csv").write_text(TABLE)
    elsewhere = "configs:\n- config_name: default\n  data_files: https://example.org/x.csv\n"
    (folder / "README.md").write_text(f"---\n{elsewhere}---\n")
    data = read_hub(folder, Reading(label="outcome", column="site"))
    assert len(data.train.y) == TABLE.count("\n") - 1


def test_the_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_import = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name == "datasets":
            raise ModuleNotFoundError("No module named 'datasets'")
        return true_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"needs the library datasets; .*'moonfl\[hub\]'"):
        read_hub(tmp_path, Reading())


def test_only_this_reader_imports_the_library() -> None:
    code = "import sys, moonfl.data.hub, moonfl.cli.main; print('datasets' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_a_name_is_not_looked_up_offline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert main(["partition", "dataset=hub", "data_dir=nobody/nothing"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "not in the cache of the library datasets" in line
    assert "HF_HUB_OFFLINE is set" in line


def test_paths_are_not_sent_to_the_hub() -> None:
    for path in ("/home/me/scans", "../scans/train", "a/b/c"):
        with pytest.raises(InputError, match="does not exist, and is not the name of a dataset"):
            read_hub(Path(path), Reading())


def test_settings_belong_to_the_reader() -> None:
    with pytest.raises(InputError, match="subset belongs to dataset=hub, not to dataset=csv"):
        Experiment(dataset="csv", subset="small")
    for key in ("label=y", "ignore=z", "image_size=8", "classes=a,b", "holdout_by=p", "subset=s"):
        override(Experiment(dataset="hub"), [key])
    assert "subset" not in canonical_toml(Experiment())


def hub_experiment(tmp_path: Path, images: bool) -> Experiment:
    """Return an experiment with three parties, of images or numbers."""
    split = image_split(60) if images else number_split(60)
    column = "writer" if images else "site"
    words = [f"column={column}", f"data_dir={save(split, tmp_path / 'd')}", "rounds=3", "epochs=1"]
    model = "simple-cnn" if images else "mlp"
    return override(Experiment(dataset="hub", model=model, batch_size=8), words)


@pytest.mark.parametrize("images", [True, False])
def test_workers_and_resumed_runs_are_bit_identical(images: bool, tmp_path: Path) -> None:
    exp = hub_experiment(tmp_path, images)
    alone = results_of(moonfl.run(exp, workers=1))
    assert same(alone, results_of(moonfl.run(exp, workers=2)))
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=1, watch=stop_after(2))
    assert same(alone, results_of(moonfl.resume(tmp_path / "run", workers=2)))


def test_numbers_and_several_labels_of_rows_and_images(tmp_path: Path) -> None:
    """Booleans are labels, and the targets are no features."""
    rows = number_split(60, dose=[0.5 * k for k in range(60)])
    table = save(rows.remove_columns("label"), tmp_path / "rows")
    data = read_hub(table, Reading(label="dose", task="regression", column="site"))
    assert data.features == ("age", "smoker")
    assert data.train.y.squeeze(1).tolist() == [0.5 * k for k in range(60)]
    pictures = image_split(12).add_column("old", [k % 3 == 0 for k in range(12)])
    pictures = pictures.add_column("torn", [k % 2 for k in range(12)])
    folder = save(pictures.remove_columns("label"), tmp_path / "images")
    data = read_hub(folder, Reading(label="old,torn", task="multilabel"))
    assert data.classes == ("old", "torn")
    assert data.train.y.tolist() == [[k % 3 == 0, k % 2] for k in range(12)]
    assert isinstance(data.train.x, Images)
    with pytest.raises(InputError, match="set the columns to predict with label=NAME"):
        read_hub(table, Reading(task="regression"))
    with pytest.raises(InputError, match=r"row 0: column 'site' is 's0', .* predicts numbers"):
        read_hub(table, Reading(label="site", task="regression"))


def test_a_regression_is_bit_identical_to_that_of_a_csv_file(tmp_path: Path) -> None:
    rows = number_split(60).remove_columns(["label", "smoker"])
    rows.to_csv(tmp_path / "t.csv")
    words = ["label=dose", "column=site", "task=regression", "model=mlp", "rounds=2", "epochs=1"]
    data_dirs = {"csv": tmp_path / "t.csv", "hub": save(rows, tmp_path / "rows")}
    results = [
        results_of(moonfl.run(override(Experiment(dataset=name, data_dir=str(path)), words)))
        for name, path in data_dirs.items()
    ]
    assert same(*results)
    assert results[0]["records"][-1]["rmse"] > 0


def test_resume_refuses_changed_data(tmp_path: Path) -> None:
    exp = hub_experiment(tmp_path, images=True)
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=1, watch=stop_after(1))
    shutil.rmtree(tmp_path / "d")
    save(image_split(60, image=[picture(k + 1) for k in range(60)]), tmp_path / "d")
    with pytest.raises(InputError, match="data"):
        moonfl.resume(tmp_path / "run", workers=1)


def test_holdout_groups_and_a_missing_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = replace(hub_experiment(tmp_path, images=False), holdout=0.5)
    assert len(make_task(exp).test.y) == 30
    split = number_split(60, patient=[k // 6 for k in range(60)])
    folder = save(split, tmp_path / "groups")
    task = make_task(override(exp, [f"data_dir={folder}", "holdout_by=patient"]))
    assert len(task.test.y) in range(24, 37, 6)
    words = ["dataset=hub", f"data_dir={tmp_path / 'no' / 'folder' / 'here'}"]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_from_the_command_line(tmp_path: Path) -> None:
    folder = save(image_split(60), tmp_path / "pictures")
    words = ["dataset=hub", f"data_dir={folder}", "column=writer", "rounds=1", "epochs=1"]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    record = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert record["names"] == ["w0", "w1", "w2"]
    assert record["classes"] == list(CLASSES)
