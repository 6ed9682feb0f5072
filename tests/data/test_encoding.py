"""Imputation and one-hot encoding of tables, with statistics that are sums over the parties."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moonfl import InputError
from moonfl.data.base import Reading
from moonfl.data.cells import MISSING
from moonfl.data.columns import (
    RawTable,
    Rules,
    encode_cells,
    frame_table,
    read_columns,
)
from moonfl.data.encoding import (
    UNKNOWN,
    Column,
    Encode,
    Encoding,
    from_record,
    learn_encoding,
    recode,
    summarise,
)
from moonfl.data.tables import read_csv
from moonfl.runs.schema import EncodingRecord, convert, decode, encode

ENCODE = Rules(impute="indicator", encode="onehot", categorical=())
NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-1000, 1000))
LETTERS = st.sampled_from([None, "a", "B", "b ", "c", "dd"])
ROWS = st.lists(st.tuples(NUMBERS, LETTERS), min_size=2, max_size=60)


def table(*columns: tuple[str, list[str]]) -> RawTable:
    cells = dict(columns)
    rows = len(columns[0][1])
    return RawTable(cells, rows, lambda row: f"t.csv, line {row + 2}", "t.csv")


def columns_and_rows(rows: list[tuple[float | None, str | None]]) -> tuple:
    """Return the stored rows of a table with a column of numbers and one of letters."""
    numbers = ["" if number is None else repr(number) for number, _ in rows]
    letters = ["" if letter is None else letter for _, letter in rows]
    many = Rules(impute="mean", encode="onehot", categorical=("letter",))
    raw = table(("number", numbers), ("letter", letters))
    columns, (x,) = read_columns([raw], ["number", "letter"], many)
    return columns, torch.from_numpy(x)


@settings(deadline=None)
@given(rows=ROWS, data=st.data())
def test_any_partition_gives_the_statistics_of_all_rows_together(rows: list, data) -> None:
    try:
        columns, x = columns_and_rows(rows)
    except InputError:  # all letters distinct
        return
    owner = torch.tensor(
        data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    )
    parts = [x[owner == party] for party in range(4)]
    names = ["number", "letter"]
    try:
        together = learn_encoding(names, [summarise(x, columns)], "indicator", 2)
    except InputError as error:
        with pytest.raises(InputError, match=str(error)[:30]):
            learn_encoding(names, [summarise(part, columns) for part in parts], "indicator", 2)
        return
    split = learn_encoding(names, [summarise(part, columns) for part in parts], "indicator", 2)
    number, letter = together.columns
    assert split.columns[1] == letter  # counts are exact
    assert split.features == together.features
    assert math.isclose(split.columns[0].mean, number.mean, rel_tol=1e-9, abs_tol=1e-6)
    present = [value for value, _ in rows if value is not None]
    assert math.isclose(number.mean, np.mean(present), rel_tol=1e-9, abs_tol=1e-6)
    if number.std != 1:
        assert math.isclose(number.std, np.std(present), rel_tol=1e-6, abs_tol=1e-6)
        assert math.isclose(split.columns[0].std, number.std, rel_tol=1e-6, abs_tol=1e-6)


@settings(deadline=None)
@given(rows=ROWS)
def test_features_are_what_the_definition_says(rows: list) -> None:
    try:
        columns, x = columns_and_rows(rows)
        encoding = learn_encoding(["number", "letter"], [summarise(x, columns)], "indicator", 2)
    except InputError:
        return
    stored = recode(x, columns, encoding)
    features = encoding.apply(stored)
    assert torch.equal(features, Encode(encoding, stored.dtype)(stored))
    number, letter = encoding.columns
    assert features.shape == (len(rows), len(encoding.features))
    for (value, text), row in zip(rows, features.tolist(), strict=True):
        named = dict(zip(encoding.features, row, strict=True))
        assert named["number"] == (number.mean if value is None else value)
        assert named.get("number is missing", 0) == (value is None and number.indicator)
        for name, share in zip(letter.categories, letter.shares, strict=True):
            expected = share if text is None else float(text.strip().lower() == name)
            assert named[f"letter={name}"] == expected
        assert named.get("letter is missing", 0) == (text is None and letter.indicator)
    assert from_record(decode(encode(encoding.to_record()), EncodingRecord, "")) == encoding


def test_a_column_to_ignore_may_be_missing_in_a_test_table(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b,label\n1,5,x\n2,6,y\n")
    reading = Reading(ignore=("comment",))
    for one_party in (False, True):
        with pytest.raises(InputError, match=r"unknown column of .*train\.csv 'comment'"):
            read_csv(tmp_path, reading, one_party=one_party)
    (tmp_path / "test.csv").write_text("a,label\n3,x\n")
    data = read_csv(tmp_path, Reading(ignore=("b",)))
    assert data.features == ("a",)
    assert data.test is not None


def test_unknown_and_rare_categories_are_none_of_the_known_ones() -> None:
    cells = ["a"] * 5 + ["b"] * 5 + ["rare"] * 4
    columns, (x,) = read_columns([table(("letter", cells))], ["letter"], ENCODE)
    encoding = learn_encoding(["letter"], [summarise(torch.from_numpy(x), columns)], "mean", 5)
    assert encoding.columns[0].categories == ("a", "b")
    assert "rare" not in encode(encoding.to_record())
    new = torch.from_numpy(encode_cells(table(("letter", [" A", "rare", "new", "NA"])), encoding))
    assert new[:3, 0].tolist() == [0, UNKNOWN, UNKNOWN]
    assert encoding.apply(new).tolist() == [[1, 0], [0, 0], [0, 0], [5 / 14, 5 / 14]]


def test_missing_values_are_refused_at_prediction_if_they_were_in_training() -> None:
    rules = Rules(impute="refuse", encode="onehot", categorical=())
    raw = table(("age", ["1", "2", "3"]))
    columns, (x,) = read_columns([raw], ["age"], rules)
    encoding = learn_encoding(["age"], [summarise(torch.from_numpy(x), columns)], "refuse", 5)
    with pytest.raises(InputError, match=r"line 3: column 'age' is 'NA', a missing value"):
        encode_cells(table(("age", ["1", "NA"])), encoding)
    assert encoding.apply(torch.tensor([[math.nan]])).isnan().all()  # a program cannot refuse it
    with pytest.raises(InputError, match=r"line 2: column 'age' is 'old', not a finite.*numbers"):
        encode_cells(table(("age", ["old"])), encoding)


@pytest.mark.parametrize(
    ("cells", "rules", "message"),
    [
        (["1", "", "2"], Rules("refuse", "onehot", ()), "line 3: .* is empty; add impute=mean"),
        (["1", "n/a", "2"], Rules("refuse", "onehot", ()), "line 3: .* is 'n/a', a missing value"),
        (["x", "y", "x"], Rules("mean", "refuse", ()), "line 2: .*'x', not .*add encode=onehot"),
        (["2020-01-31", ""], ENCODE, "line 2: .*'2020-01-31', a date; replace it by a number"),
        (["", "31.01.2020 12:30"], ENCODE, "line 3: .*a date"),
        (["36,6", "37,0"], ENCODE, "line 2: .*'36,6', with a decimal comma.*ignore=c"),
        (["1", "2", "IV"], ENCODE, "line 4: .*'IV', not .*numbers such as 1; .*categorical=c"),
        (
            [f"p{k}" for k in range(6)],
            ENCODE,
            "6 distinct values in 6 rows and looks like an ident",
        ),
        (
            [f"p{k // 2}" for k in range(60)],
            Rules("mean", "onehot", ("d",)),
            "categorical=d: there",
        ),
        (["x" * 101, "y", "y"], ENCODE, "more than 100 characters"),
    ],
)
def test_what_a_column_may_not_have(cells: list[str], rules: Rules, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_columns([table(("c", cells))], ["c"], rules)


def test_kinds_of_columns() -> None:
    cells = {
        "number": ["1", " 2.5", "-3e2", "NA"],
        "boolean": ["True", "false", "", "TRUE"],
        "code": ["01", "1", "01", "?"],
        "text": ["yes", "No", "YES ", "#N/A"],
        "empty": ["", "NaN", "null", "None"],
    }
    rules = Rules("mean", "onehot", ("code",))
    columns, (x,) = read_columns([table(*cells.items())], list(cells), rules)
    assert columns == (
        Column("number"),
        Column("boolean"),
        Column("code", ("01", "1")),
        Column("text", ("no", "yes")),
        Column("empty"),
    )
    nan = math.nan
    expected = [[1, 1, 0, 1, nan], [2.5, 0, 1, 0, nan], [-300, nan, 0, 1, nan]]
    expected.append([nan, 1, nan, nan, nan])
    assert np.array_equal(x, expected, equal_nan=True)


def test_a_data_frame_is_read_like_its_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    text = "label,age,sex,smoker,code\n" + "".join(
        f"{'ab'[k % 2]},{['', 30 + k, 40.5][k % 3]},{['F', 'm', 'NA'][k % 3]},"
        f"{['True', 'False', ''][k % 3]},{k % 4}\n"
        for k in range(24)
    )
    (tmp_path / "t.csv").write_text(text)
    reading = Reading(impute="mean", encode="onehot", categorical=("code",))
    data = read_csv(tmp_path / "t.csv", reading)
    frame = pandas.read_csv(tmp_path / "t.csv").drop(columns="label")
    names = list(frame.columns)
    rules = Rules("mean", "onehot", ("code",))
    columns, (x,) = read_columns([frame_table(frame, "frame")], names, rules)
    assert columns == data.table
    assert np.array_equal(x, data.train.x.numpy(), equal_nan=True)
    frame["day"] = pandas.Timestamp("2020-01-31")
    with pytest.raises(InputError, match="frame, column 'day' has dates"):
        frame_table(frame, "frame")


def test_codes_are_the_same_however_pandas_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty cell turns a column of integers into floats, which are written as 1.0."""
    pandas = pytest.importorskip("pandas")
    stages = [[1, 2, 3, np.nan][k % 4] for k in range(24)]
    smokers = [k % 3 == 0 for k in range(24)]
    frame = pandas.DataFrame({"stage": stages, "smoker": smokers, "label": list("ab") * 12})
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert "1.0,True,a" in (tmp_path / "t.csv").read_text()
    rules = Reading(impute="mean", encode="onehot", categorical=("stage", "smoker"))
    data = read_csv(tmp_path / "t.csv", rules)
    assert data.table is not None
    encoding = learn_encoding(["stage", "smoker"], [summarise(data.train.x, data.table)], "mean", 5)
    assert encoding.features == ("stage=1", "stage=2", "stage=3", "smoker=false", "smoker=true")
    rows = data.train.x.numpy()
    integers = frame.astype({"stage": "Int64"})
    for other in (frame, integers, frame.astype({"stage": str}), frame.astype({"smoker": object})):
        assert np.array_equal(encode_cells(frame_table(other, "f"), encoding), rows, equal_nan=True)
    assert capsys.readouterr().err == ""
    mixed = table(("stage", ["1", "1.0", "1.", "01", "1.5", " 2.00", "-3.0", "x1.0"]))
    (column,), _ = read_columns([mixed], ["stage"], Rules("mean", "onehot", ("stage",)))
    assert column.categories == ("-3", "01", "1", "1.5", "2", "x1.0")


def test_the_user_is_notified_of_unknown_categories(capsys: pytest.CaptureFixture[str]) -> None:
    """pandas reads 01 as the integer 1."""
    pandas = pytest.importorskip("pandas")
    raw = table(
        ("code", [f"0{1 + k % 7}" for k in range(35)]), ("sex", ["f", "m", "x", "m", "f"] * 7)
    )
    columns, (x,) = read_columns([raw], ["code", "sex"], Rules("mean", "onehot", ("code",)))
    encoding = learn_encoding(["code", "sex"], [summarise(torch.from_numpy(x), columns)], "mean", 5)
    frame = pandas.DataFrame({"code": [1, 2, 3], "sex": ["F", "d", "e"]})
    encode_cells(frame_table(frame, "the data frame"), encoding)
    assert capsys.readouterr().err == (
        "moonfl: the data frame: categories that the model does not know, and treats as none of "
        "those it knows: column 'code' in 3 of 3 rows, such as '1' (it knows 01, 02, 03, 04, 05 "
        "and 2 more), column 'sex' in 2 of 3 rows, such as 'd' (it knows f, m, x)\n"
    )
    encode_cells(raw, encoding)
    assert capsys.readouterr().err == ""


def test_a_column_may_be_empty_at_one_party_but_not_at_all() -> None:
    numeric, empty = (Column("a"),), torch.full((3, 1), math.nan)
    values = summarise(torch.tensor([[1.0], [3.0]]), numeric)
    encoding = learn_encoding(["a"], [summarise(empty, numeric), values], "mean", 1)
    assert encoding.columns[0].mean == 2
    with pytest.raises(InputError, match="column 'a' has no values in the training rows"):
        learn_encoding(["a"], [summarise(empty, numeric)], "mean", 1)
    categories = summarise(torch.tensor([[0.0]]), (Column("a", ("x",)),))
    with pytest.raises(InputError, match=r"numbers at some parties .*categorical=a"):
        learn_encoding(["a"], [values, categories], "mean", 1)
    with pytest.raises(InputError, match="numbers at some parties"):
        recode(torch.tensor([[0.0]]), (Column("a", ("x",)),), encoding)
    assert recode(empty, (Column("a", ("x",)),), encoding).isnan().all()


def test_every_spelling_of_a_missing_value_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "tables.md").read_text().lower()
    for spelling in MISSING - {""}:
        assert f"`{spelling}`" in page


@pytest.mark.parametrize("change", [{"categories": ["a"]}, {"std": 0.0}, {"shares": [0.5]}])
def test_an_encoding_from_a_file_is_checked(change: dict[str, object]) -> None:
    values = {"impute": "mean", "columns": [{"name": "a", **change}]}
    with pytest.raises(InputError, match="column 'a' must have one share per category"):
        from_record(convert(values, EncodingRecord, "file"))
    with pytest.raises(InputError, match="no columns"):
        from_record(Encoding("mean", ()).to_record())
