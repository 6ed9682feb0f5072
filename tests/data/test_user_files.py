"""Tests of user-supplied files: tables, arrays and image folders, valid and damaged ones."""

import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import moonfl
from helpers.problems import TABLE, write_images
from moonfl import Experiment
from moonfl.cli import main
from moonfl.data.base import Examples, Reading
from moonfl.data.cifar import read_pickle
from moonfl.data.datasets import load
from moonfl.data.folder import read_folder
from moonfl.data.images import Images, size_of
from moonfl.data.moments import compute_moments, mean_and_std
from moonfl.data.npz import read_npz
from moonfl.data.tables import read_csv
from moonfl.errors import InputError
from moonfl.experiment import from_toml, override
from moonfl.runs.index import read_toml
from moonfl.task import make_task, with_derived_settings

BY_SITE = Reading(label="outcome", column="site")
QUICK = {"rounds": 1, "epochs": 1, "out_dim": 8}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_table_with_a_column_of_parties(tmp_path: Path) -> None:
    data = read_csv(write(tmp_path / "t.csv", TABLE), BY_SITE)
    assert data.classes == ("ill", "well")
    assert data.train.x.shape == (120, 2)
    assert data.train.x[:3].tolist() == [[20, 0], [21, 1], [22, 0]]
    assert data.train.y[:3].tolist() == [1, 1, 1]
    assert data.columns["site"][:4].tolist() == ["A", "B", "C", "A"]
    assert data.test is None


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_and_a_byte_order_mark(delimiter: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "\ufeff" + TABLE.replace(",", delimiter))
    assert torch.equal(
        read_csv(path, BY_SITE).train.x, read_csv(write(tmp_path / "u.csv", TABLE), BY_SITE).train.x
    )


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ('"age, years";"height, cm";label', ("age, years", "height, cm")),
        ('"a ""x"", y";"b, c";label', ('a "x", y', "b, c")),
        ('"a, b, c";d;label', ("a, b, c", "d")),
    ],
)
def test_delimiters_in_quoted_names(header: str, names: tuple[str, ...], tmp_path: Path) -> None:
    assert read_csv(write(tmp_path / "t.csv", f"{header}\n1;2;a\n"), Reading()).features == names


def test_a_quoted_name_on_two_lines_is_refused_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", '"a, b\nc, d";e;label\n1;2;x\n')
    with pytest.raises(InputError, match="'a, b\\\\nc, d': names must be printable"):
        read_csv(path, Reading())


def test_booleans_are_numbers_with_and_without_encoding(tmp_path: Path) -> None:
    lines = [f"{k},{k % 2 == 0},{k % 3 == 0},{'xy'[k % 2]}" for k in range(6)]
    path = write(tmp_path / "t.csv", "\n".join(["a,smoker,ill,label", *lines, ""]))
    plain = read_csv(path, Reading())
    assert plain.train.x[:2].tolist() == [[0, 1, 1], [1, 0, 0]]
    assert torch.equal(read_csv(path, Reading(encode="onehot")).train.x, plain.train.x)
    labels = read_csv(path, Reading(label="smoker,ill", task="multilabel", ignore=("label",)))
    assert labels.train.y[:2].tolist() == [[1, 1], [0, 0]]


def test_a_folder_with_train_and_test_tables(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", TABLE)
    write(tmp_path / "test.csv", "outcome,sex,age,site\nill,1,50,A\n")
    data = read_csv(tmp_path, BY_SITE)
    assert data.test is not None
    assert data.test.x.tolist() == [[50, 1]]


def test_numeric_labels_are_in_ascending_order(tmp_path: Path) -> None:
    assert read_csv(write(tmp_path / "t.csv", "a,label\n1,10\n2,9\n3,2\n"), Reading()).classes == (
        "2",
        "9",
        "10",
    )


DAMAGED_TABLES = [
    ("", "has no rows below its header"),
    ("age,label\n", "has no rows below its header"),
    ("age,label\n1,a\n2\n", "line 3 has 1 cells, the header has 2; correct the line"),
    (
        "age,label\n1,a\nold,b\n",
        "line 3: column 'age' is 'old', not a finite decimal number.*ignore=age",
    ),
    ("age,label\n1,a\n,b\n", "line 3: column 'age' is empty"),
    ("age,label\n1,a\ninf,b\n", "line 3: column 'age' is 'inf', not a finite decimal number"),
    ("age,label\n1,a\n5_0,b\n", "line 3: column 'age' is '5_0', not a finite decimal number"),
    ("age,label\n1,a\n٣,b\n", "line 3: column 'age' is '٣', not a finite decimal number"),
    (
        "age,label\n1,a\n1e300,b\n",
        "line 3: column 'age' is '1e300', not a number that a float can hold",
    ),
    ("age,label\n2020-01-31,a\n", "line 2: column 'age' is '2020-01-31', a date; replace it by"),
    ('age,label\n"36,6",a\n', "line 2: column 'age' is '36,6', with a decimal comma; write a"),
    ("age,label\nTrue,a\n2,b\n", "line 2: column 'age' is 'True', .* but other rows have numbers"),
    (
        "age,label\n1,a\nIV,b\n",
        "line 3: column 'age' is 'IV'.*, or if all .* add encode=onehot categorical=age",
    ),
    ("age,label\n1,a\n2,\n", "line 3: the cell of column 'label' is empty; fill it in"),
    ("age,label\n1,1\n2,1.0\n3,2\n", "column 'label' has 1 and 1.0, one number in two spellings"),
    ("age,age,label\n1,1,a\n", "more than one column 'age'; rename one of them"),
    (",age,label\n0,1,a\n1,2,b\n", r"column 1 has no name; .*to_csv\(path, index=False\)"),
    (",,age,label\n0,0,1,a\n", "more than one column without a name; rename one of them"),
    ("label\na\n", "no feature columns: its only columns are label"),
    ("age,lable\n1,a\n", "unknown column of .* 'label'; did you mean lable"),
    ('age,label\n"1,a\n', "not a text table"),
    (
        "age,label\n" + "".join(f"1,{i / 7}\n" for i in range(50)),
        r"'label' has 50 distinct values in 50 samples \(such as 0\.0\); .*set task=regression",
    ),
]


@pytest.mark.parametrize(
    ("text", "message"), DAMAGED_TABLES, ids=[message for _, message in DAMAGED_TABLES]
)
def test_a_damaged_table_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(InputError, match=message) as error:
        read_csv(path, Reading())
    assert str(path) in str(error.value)


def test_a_wrong_column_of_parties_gets_the_nearest(tmp_path: Path) -> None:
    path, reading = (
        write(tmp_path / "t.csv", "site,age,label\nN,1,a\nS,2,b\n"),
        Reading(column="sit"),
    )
    with pytest.raises(InputError, match=r"unknown column of .*t\.csv 'sit'; did you mean site"):
        read_csv(path, reading)
    own = write(tmp_path / "own.csv", "age,label\n1,a\n2,b\n")
    assert (
        read_csv(own, reading, one_party=True).columns == {}
    )  # the file of one site needs no column of parties


def test_classes_have_one_order_whatever_the_hash_seed(tmp_path: Path) -> None:
    """NaN as a sort key has no order, and the order of a set differs between processes."""
    names = ["nan", "3", "-nan", "1", "NaN", "2", "0"]
    path = write(tmp_path / "t.csv", "age,label\n" + "".join(f"1,{name}\n" for name in names))
    assert read_csv(path, Reading()).classes == tuple(sorted(names))


def test_other_files_than_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_csv(tmp_path / "none.csv", Reading())
    with pytest.raises(InputError, match=r"has no train\.csv"):
        read_csv(tmp_path, Reading())
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(InputError, match="not a text table"):
        read_csv(tmp_path / "t.csv", Reading())
    with pytest.raises(InputError, match="line 2, column 'label': unknown class 'a'"):
        read_csv(write(tmp_path / "u.csv", "age,label\n1,a\n"), Reading(classes=("b", "c")))


def test_a_table_with_many_columns_is_read_in_linear_time(tmp_path: Path) -> None:
    names = [f"feature {k}" for k in range(40_000)]
    row = ",".join("1.5" for _ in names)
    path = write(tmp_path / "t.csv", f"{','.join(names)},label\n{row},a\n{row},b\n")
    start = time.perf_counter()
    assert read_csv(path, Reading()).train.x.shape == (2, 40_000)
    assert time.perf_counter() - start < 15  # it was 50 s, and is 0.1 s
    with pytest.raises(InputError, match=r"unknown column .* and 39901 more") as error:
        read_csv(path, Reading(label="feature"))
    assert len(str(error.value)) < 3000


NOT_FILES = [
    ("/dev/null", "it is a pipe or device, not a file"),
    ("nothing.csv", "No such file|is missing"),
    ("\0", "null|is missing"),
]


@pytest.mark.parametrize(("name", "message"), NOT_FILES)
@pytest.mark.parametrize(
    "read",
    [lambda path: read_csv(path, Reading()), read_npz, read_toml, read_pickle, size_of],
    ids=["csv", "npz", "toml", "pickle", "image"],
)
def test_pipes_and_devices_are_not_read(
    read: Callable[[Path], object], name: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(Path(name))


def test_a_device_without_an_end_is_refused_at_once(tmp_path: Path) -> None:
    """The limit of memory would end the process if it read the device."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30));"
        "from moonfl.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["partition", "dataset=csv", "data_dir=/dev/zero", "--out", str(tmp_path / "p.png")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ("moonfl: /dev/zero cannot be read: it is a pipe or device, not a file\n")
    assert done.returncode == 2


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonfl.data.tables.MAX_LINE", 1000)
    for text in ("a" * 1000, "age,label\n1,a\n" + "a" * 1000):
        with pytest.raises(InputError, match="it has a line of 1,000 or more characters"):
            read_csv(write(tmp_path / "t.csv", text), Reading())


def test_arrays_that_are_not_used_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    objects = np.array([{}, None, 1], dtype=object)
    data = {"x": np.eye(3), "y": [0, 1, 0], "who": np.array([[1], [2], [3]])}
    np.savez_compressed(path, **data, notes=objects, other=np.zeros((20_000, 1000)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README.txt", "about these data")
    tracemalloc.start()
    assert read_npz(path).columns == {}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6  # `other` has 160 MB
    with pytest.raises(InputError, match=r"'who' is int64 \[3, 1\]; a column needs one number"):
        read_npz(path, Reading(column="who"))


def test_arrays_with_columns_and_string_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(
        path,
        x=np.eye(4),
        y=np.array(["b", "a", "b", "c"]),
        person=np.array([7, 7, 9, 9]),
        other=np.ones(3),
    )
    data = read_npz(path)
    assert data.classes == ("a", "b", "c")
    assert data.train.y.tolist() == [1, 0, 1, 2]
    assert data.columns.keys() == {"person"}
    words = {"y": np.array([b"cat", b"dog", b"cat"]), "classes": np.array([b"dog", b"cat"])}
    np.savez(
        path,
        x=np.eye(3),
        **words,
        town=np.array(["Köln".encode()] * 3),
        digest=np.array([b"\xff\x00\xfe"] * 3),
    )
    assert read_npz(path).columns["town"].tolist() == ["Köln"] * 3
    assert (read_npz(path).classes, read_npz(path).train.y.tolist()) == (("dog", "cat"), [1, 0, 1])


DAMAGED_ARRAYS = [
    ({"y": np.zeros(3, int)}, "has no array 'x'; it has y"),
    ({"x": np.zeros((3, 2)), "y": np.zeros(2, int)}, r"must be \[N, ...\] and \[N\]"),
    (
        {"x": np.zeros((3, 2)), "y": np.zeros(3)},
        r"holds float64; .*y\.astype\(int\)",
    ),
    (
        {"x": np.zeros((3, 2)), "y": np.array([0.5, 1.25, 0.5])},
        r"y has 2 distinct float64 values \(such as 0\.5\); .*set task=regression",
    ),
    (
        {"x": np.zeros((3, 2)), "y": np.array([0.0, np.nan, 1.0])},
        r"sample 1 of .*a\.npz: y has no label; remove the samples without labels",
    ),
    (
        {"x": np.zeros((60, 2)), "y": np.arange(60)},
        r"y has 60 distinct values in 60 samples \(such as 59\); .*set task=regression",
    ),
    (
        {"x": np.zeros((60, 2)), "y": np.arange(60).astype(str)},
        r"y has 60 distinct values in 60 samples \(such as 0\); .*set task=regression",
    ),
    (
        {"x": np.zeros((3, 2)), "y": np.array([1 + 1j] * 3)},
        "y holds complex128; labels must be integers or strings",
    ),
    (
        {"x": np.zeros((3, 2)), "y": np.array([0, -1, 1])},
        r"y must hold integers from 0 to 1, one per class; it has -1 to 1",
    ),
    (
        {"x": np.array([[1.0], [np.nan]]), "y": np.zeros(2, int)},
        "sample 1 of .* has NaN or infinite values",
    ),
    (
        {"x": np.zeros((3, 2)), "y": np.zeros(3, int), "x_test": np.zeros((1, 2))},
        "one of x_test and y_test",
    ),
    (
        {
            "x": np.zeros((3, 2)),
            "y": np.zeros(3, int),
            "x_test": np.zeros((1, 3)),
            "y_test": np.zeros(1, int),
        },
        "both need the same dtype and shape",
    ),
]


@pytest.mark.parametrize(
    ("arrays", "message"), DAMAGED_ARRAYS, ids=[message for _, message in DAMAGED_ARRAYS]
)
def test_damaged_arrays_are_refused(
    arrays: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message) as error:
        read_npz(tmp_path / "a.npz")
    assert "a.npz" in str(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("t.csv", "dataset=csv"), ("x.npy", "np.savez"), ("a.npz", "not a complete zip archive")],
)
def test_a_file_that_is_not_npz_is_refused_without_advice_to_unpickle_it(
    name: str, hint: str, tmp_path: Path
) -> None:
    path = write(tmp_path / name, TABLE)
    if path.suffix == ".npy":
        np.save(path, np.eye(3))
    with pytest.raises(InputError, match=rf"{name} is not an \.npz file.*{hint}") as error:
        read_npz(path)
    assert "pickle" not in str(error.value)


def test_an_array_of_python_objects_is_refused_without_advice_to_unpickle_it(
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=np.array(["a", None], dtype=object))
    with pytest.raises(InputError, match=r"a\.npz .*'y' holds Python objects") as error:
        read_npz(tmp_path / "a.npz")
    assert "pickle" not in str(error.value)


def test_images_by_class_and_by_party(tmp_path: Path) -> None:
    plain = read_folder(write_images(tmp_path / "plain"), Reading())
    assert plain.classes == ("blue", "red")
    assert plain.train.x.shape == (12, 3, 20, 20)
    assert plain.train.x[torch.tensor([7])][0, :, 0, 0].tolist() == [201, 1, 1]
    assert plain.columns == {}
    parties = read_folder(
        write_images(tmp_path / "parties", ("north", "south"), 2), Reading(image_size=16)
    )
    assert parties.columns["party"].tolist() == ["north"] * 4 + ["south"] * 4
    assert parties.train.x.shape == (8, 3, 16, 16)
    write_images(tmp_path / "split" / "train")
    write_images(tmp_path / "split" / "test", count=2)
    split = read_folder(tmp_path / "split", Reading())
    assert split.test is not None
    assert (len(split.train.y), len(split.test.y)) == (12, 4)


def test_a_note_names_the_column_of_parties_if_it_is_not_used(tmp_path: Path) -> None:
    write_images(tmp_path, ("Training", "Testing"))
    exp = Experiment(dataset="folder", data_dir=str(tmp_path), parties=2, min_samples=2)
    assert make_task(exp).partition_note == (
        "samples are partitioned at random; column=party would take the parties from the data"
    )
    assert make_task(replace(exp, partition="column", column="party")).partition_note == ""


def test_an_empty_class_folder_is_a_class(tmp_path: Path) -> None:
    (write_images(tmp_path / "images") / "green").mkdir()
    data = read_folder(tmp_path / "images", Reading())
    assert data.classes == ("blue", "green", "red")
    assert data.train.y.tolist() == [0] * 6 + [2] * 6


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images")
    cases = [
        (tmp_path / "none", "is not a folder", None),
        (tmp_path, "has class folders .* but no images|has no class folders|no label", "empty"),
        (
            folder,
            r"004\.png is not a readable image",
            lambda: (folder / "red" / "004.png").write_bytes(b"no"),
        ),
        (
            folder,
            r"004\.png has 9x9 pixels, not 20x20 .*image_size=N",
            lambda: Image.new("L", (9, 9)).save(folder / "red" / "004.png"),
        ),
        (
            folder,
            r"loose\.png has no label",
            lambda: Image.new("L", (20, 20)).save(folder / "loose.png"),
        ),
        (
            folder,
            r"notes\.txt is not an image",
            lambda: (folder / "blue" / "notes.txt").write_text("x"),
        ),
    ]
    for path, message, spoil in cases:
        if spoil == "empty":
            path = tmp_path / "empty"
            (path / "red").mkdir(parents=True)
        elif spoil is not None:
            spoil()
        with pytest.raises(InputError, match=message):
            read_folder(path, Reading())
        (folder / "loose.png").unlink(missing_ok=True)
    write_images(tmp_path / "split" / "train")
    write_images(tmp_path / "split" / "val")
    with pytest.raises(
        InputError, match=r"split has val/ next to train/, where only test/ is allowed"
    ):
        read_folder(tmp_path / "split", Reading())
    with pytest.raises(InputError, match=r"unknown class folder .* 'blue'; did you mean blu"):
        read_folder(write_images(tmp_path / "other"), Reading(classes=("blu", "red")))


def test_pixels_of_more_than_a_byte_are_refused(tmp_path: Path) -> None:
    """The values of a 16-bit scan would be clipped at 255 without notice."""
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((16, 16), 3000, dtype=np.uint16)).save(tmp_path / "a" / "scan.png")
    with pytest.raises(InputError, match=r"scan\.png has pixels of more than 8 bits"):
        read_folder(tmp_path, Reading())


def test_images_are_not_all_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is bounded: 20,000 rows of a few files would be 2.4 GB if decoded at once."""
    folder = write_images(tmp_path / "images", count=5, side=200)
    monkeypatch.setattr("moonfl.data.images.CACHE_BYTES", 4 * 3 * 200 * 200)
    paths = sorted(folder.rglob("*.png")) * 2000
    tracemalloc.start()
    images = Images(paths, (200, 200))
    part = images.take(torch.arange(0, 20_000, 2))
    for rows in torch.arange(1000).split(100):
        assert part[rows].shape == (len(rows), 3, 200, 200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(part) == 10_000
    assert peak < 60e6


FILES = {
    "csv": ["dataset=csv", "label=outcome", "column=site"],
    "npz": ["dataset=npz", "column=person", "model=cnn1d"],
    "folder": ["dataset=folder", "column=party", "image_size=16"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the arguments of `moonfl run` for each file format."""
    folder = tmp_path_factory.mktemp("files")
    write(folder / "t.csv", TABLE)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 40, 3)), np.arange(60) % 2
    np.savez(folder / "a.npz", x=x + y[:, None, None], y=y, person=np.arange(60) % 3)
    write_images(folder / "images", ("north", "south"), 15)
    places = {"csv": "t.csv", "npz": "a.npz", "folder": "images"}
    return {kind: [*words, f"data_dir={folder / places[kind]}"] for kind, words in FILES.items()}


def experiment(words: list[str]) -> Experiment:
    exp = override(Experiment(**QUICK), words)
    return with_derived_settings(exp, make_task(exp))


@pytest.mark.parametrize("kind", FILES)
def test_each_format_runs_from_the_command_line_and_resumes(
    kind: str, files: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*files[kind], "rounds=1", "epochs=1", "--out", str(tmp_path / "run")]
    assert main(["run", *words]) == 0, capsys.readouterr().err
    assert main(["resume", str(tmp_path / "run")]) == 0, capsys.readouterr().err
    assert main(["partition", *files[kind], "--out", str(tmp_path / "p.png")]) == 0


def test_a_run_of_user_data_is_not_named_after_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.csv", TABLE)
    words = [
        "dataset=csv",
        "data_dir=t.csv",
        "label=outcome",
        "column=site",
        "rounds=1",
        "epochs=1",
        "--workers",
        "1",
    ]
    assert main(["run", *words]) == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["csv-moon"]


@pytest.mark.parametrize("kind", FILES)
def test_every_party_holds_out_a_share_of_its_samples(
    kind: str, files: dict[str, list[str]]
) -> None:
    exp = experiment([*files[kind], "holdout=0.3", "validation=0.2"])
    task = make_task(exp)
    whole = load(exp.dataset, Path(exp.data_dir), exp.reading)
    assert task.test_party is not None
    assert task.validation is not None
    assert set(task.test_party.tolist()) == set(range(exp.parties))
    sizes = [len(part.y) for part in (*task.parties, task.test, task.validation)]
    assert sum(sizes) == len(whole.train.y)
    assert make_task(exp).partition_record() == task.partition_record()
    assert len(task.test.y) == sum(
        round(0.3 * int((whole.columns[str(exp.column)] == name).sum()))
        for name in np.unique(whole.columns[str(exp.column)])
    )


def test_contradictory_settings_are_refused() -> None:
    with pytest.raises(InputError, match="these data have one"):
        make_task(Experiment(holdout=0.2))
    with pytest.raises(InputError, match="label belongs to dataset=csv"):
        Experiment(label="y")
    with pytest.raises(InputError, match="set validation=SHARE too"):
        Experiment(patience=3)
    with pytest.raises(InputError, match="standardise=true requires floating-point features"):
        make_task(Experiment(standardise=True))


def test_standardisation_is_that_of_all_samples_together(files: dict[str, list[str]]) -> None:
    """Only moments are shared; also far from 0, where a sum of squares would lose all digits."""
    for kind in ("csv", "npz"):
        exp = experiment(files[kind])
        task = make_task(exp)
        far = [part._replace(x=part.x.double() + 1e8) for part in task.parties]
        for parties, shift in ((task.parties, 0.0), (far, 1e8)):
            mean, std = mean_and_std(map(compute_moments, parties), parties[0].x.shape[1:])
            together = torch.cat([part.x for part in parties]).double() - shift
            axes = (0,) if kind == "csv" else (0, 1)
            assert torch.allclose(
                mean.double().flatten() - shift, together.mean(dim=axes), atol=1e-4 + shift * 6e-8
            )
            assert torch.allclose(
                std.double().flatten(), together.std(dim=axes, correction=0), rtol=1e-5
            )


def test_a_constant_column_is_left_alone() -> None:
    party = Examples(torch.tensor([[3.0, 1.0], [3.0, 2.0]]), torch.tensor([0, 1]))
    mean, std = mean_and_std([compute_moments(party)], (2,))
    assert mean.tolist() == [3.0, 1.5]
    assert std.tolist() == [1.0, 0.5]


def test_mean_and_standard_deviation_are_buffers_that_do_not_change(
    files: dict[str, list[str]],
) -> None:
    exp = replace(experiment(files["csv"]), rounds=3)
    task = make_task(exp)
    model = moonfl.run(exp, workers=1).models["global"]
    assert task.scales is not None
    assert torch.equal(model["standardise.mean"], task.scales[0])
    assert torch.equal(model["standardise.std"], task.scales[1])


def test_a_test_set_with_the_column_of_parties_is_evaluated_by_party(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", TABLE)
    write(tmp_path / "test.csv", "age,sex,site,outcome\n50,1,C,ill\n21,0,A,well\n22,0,A,well\n")
    words = ["dataset=csv", f"data_dir={tmp_path}", "label=outcome", "column=site"]
    assert make_task(experiment(words)).test_party.tolist() == [2, 0, 0]
    write(tmp_path / "test.csv", "age,sex,site,outcome\n50,1,D,ill\n")
    with pytest.raises(InputError, match="column 'site' of the test set: unknown party 'D'"):
        experiment(words)
    path = tmp_path / "a.npz"
    np.savez(
        path,
        x=np.eye(4),
        y=[0, 1, 0, 1],
        x_test=np.eye(4)[:2],
        y_test=[0, 1],
        who=[5, 5, 7, 7],
        who_test=[7, 5],
    )
    assert make_task(
        experiment(["dataset=npz", f"data_dir={path}", "column=who"])
    ).test_party.tolist() == [1, 0]
    write_images(tmp_path / "split" / "train", ("north", "south"))
    write_images(tmp_path / "split" / "test", ("south",), count=1)
    words = ["dataset=folder", f"data_dir={tmp_path / 'split'}", "column=party"]
    assert make_task(experiment(words)).test_party.tolist() == [1, 1]


ESCAPE = "\x1b]0;hacked\x07"


@pytest.mark.parametrize("words", [["label=label", "column=site"], ["label=site", "ignore=label"]])
@pytest.mark.parametrize("command", ["partition", "run"])
def test_no_command_prints_an_escape_sequence_of_a_name(
    command: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a sequence can retitle a terminal, or hide and fake its output."""
    rows = "".join(f"{k},{'A' if k % 2 else ESCAPE},{'xy'[k // 2 % 2]}\n" for k in range(40))
    path = write(tmp_path / "t.csv", f"age,site,label\n{rows}")
    out = ["--out", str(tmp_path / "out.png")]
    extra = [] if "column=site" in words else ["parties=2"]
    assert main([command, "dataset=csv", f"data_dir={path}", *words, *extra, *out]) == 2
    printed = "".join(capsys.readouterr())
    assert "names must be printable" in printed
    assert "\x1b" not in printed


def test_an_error_that_quotes_a_file_does_not_print_its_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (
        f"{ESCAPE},label\n1,a\n",
        f"age,outcome{ESCAPE}\n1,a\n",
        f"age,label\n{ESCAPE},a\n",
    ):
        path = write(tmp_path / "t.csv", text)
        assert main(["partition", "dataset=csv", f"data_dir={path}"]) == 2
        message = capsys.readouterr().err
        assert "\x1b" not in message
        assert "\\x1b]0;hacked" in message


def test_unprintable_and_repeated_names_are_refused(tmp_path: Path) -> None:
    rows = 'age,site,label\n1,A,x\n2,"B\n\x1b[31m",y\n3,A,y\n'
    with pytest.raises(InputError, match=r"a party has the name 'B\\n\\x1b\[31m'"):
        experiment(["dataset=csv", f"data_dir={write(tmp_path / 't.csv', rows)}", "column=site"])
    words = [
        "dataset=csv",
        f"data_dir={write(tmp_path / 'u.csv', TABLE)}",
        "label=outcome",
        "ignore=site",
    ]
    with pytest.raises(InputError, match="a class has the name 'ill', and so has another"):
        experiment([*words, "classes=ill,well,ill", "parties=3"])


def test_classes_of_arrays_are_consistent_and_start_at_0(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.eye(2), y=[0, 1], classes=["a", "b"])
    with pytest.raises(
        InputError, match="has the classes a, b, but classes=b,a is set; use the same names"
    ):
        read_npz(path, Reading(classes=("b", "a")))
    np.savez(path, x=np.eye(2), y=[100_000, 100_001])
    with pytest.raises(
        InputError, match="labels go up to 100001, but only 2 distinct values occur"
    ):
        read_npz(path)
    np.savez(path, x=np.eye(2), y=[True, False])
    assert read_npz(path).train.y.tolist() == [1, 0]


def test_user_data_start_from_the_settings_of_the_paper(tmp_path: Path) -> None:
    words = [
        "run",
        "dataset=csv",
        f"data_dir={write(tmp_path / 't.csv', TABLE)}",
        "label=outcome",
        "column=site",
    ]
    assert main([*words, "rounds=1", "epochs=1", "--out", str(tmp_path / "run")]) == 0
    exp = from_toml(tmp_path / "run" / "experiment.toml")
    assert (exp.batch_size, exp.parties, exp.algorithm) == (64, 3, moonfl.MOON(mu=1.0))
