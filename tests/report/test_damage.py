"""Damaged run directories: an error of one sentence that names the file and the wrong value, or a
report; never a traceback."""

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG

from helpers.run_files import make_run
from moonfl import report
from moonfl.cli import main
from moonfl.errors import InputError
from moonfl.report.groups import group_runs
from moonfl.report.runs import load_runs
from moonfl.report.sections import report_sections

REMOVED = object()
PAGE_EVERY = 10  # one of so many accepted files is drawn, because figures take long
REPLACEMENTS: list[Any] = [
    "x",
    "\x00",
    -1,
    3,
    2.5,
    10**30,
    float("nan"),
    True,
    [],
    [1],
    {},
    {"a": 1},
    None,
    REMOVED,
]


def make_small_run(path: Path, seed: int = 0) -> Path:
    """Write a finished run with two rounds, parties and classes: few values of every kind."""
    run = make_run(path, "moon", seed, rounds=2, parties=2, patience=1)
    partition = {"classes": ["cat", "dog"], "counts": [[3, 4], [5, 6]], "names": ["Bonn", "Lyon"]}
    (run / "partition.json").write_text(json.dumps(partition))
    more = {"validation_accuracy": 0.5, "sites": {"0": [1, 2], "1": [3, 4]}}
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | more) + "\n" for record in records]
    (run / "rounds.jsonl").write_text("".join(lines))
    final = json.loads((run / "final.json").read_text())
    final["confusion"] = [[7, 1], [2, 8]]
    final["tsne"] = {
        "points": [[0.0, 1.0], [2.0, 3.0]],
        "labels": [0, 1],
        "local": [[0.5, 1.0], [2.0, 3.5]],
    }
    (run / "final.json").write_text(json.dumps(final))
    return run


def last_round(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


READERS: dict[str, Callable[[str], Any]] = {
    "experiment.toml": tomllib.loads,
    "rounds.jsonl": last_round,
    "partition.json": json.loads,
    "final.json": json.loads,
}


def write(run: Path, name: str, values: Any) -> None:
    """Write values to a file of the run; those of rounds.jsonl replace its second line."""
    text = (run / name).read_text()
    if name == "experiment.toml":
        (run / name).write_text(tomli_w.dumps(values))
    else:
        first = text.splitlines(keepends=True)[0] if name == "rounds.jsonl" else ""
        (run / name).write_text(f"{first}{json.dumps(values)}\n")


def places(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value, both containers and their items."""
    items: list[tuple[Any, Any]] = []
    if isinstance(values, dict):
        items = list(values.items())
    elif isinstance(values, list):
        items = list(enumerate(values))
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def replace_at(values: Any, place: tuple[Any, ...], replacement: Any) -> Any:
    """Return a copy with another value at the place, or without it."""
    copy = json.loads(json.dumps(values))
    parent = copy
    for key in place[:-1]:
        parent = parent[key]
    if replacement is REMOVED:
        del parent[place[-1]]
    else:
        parent[place[-1]] = replacement
    return copy


@pytest.mark.parametrize("name", READERS)
def test_any_replaced_value_gives_a_report_or_an_error_of_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compare` reads every damaged file; some of the accepted ones are built, but not drawn."""
    monkeypatch.setattr(
        FigureCanvasSVG, "print_svg", lambda self, file, **options: file.write("<svg></svg>")
    )
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, file, **options: None)
    run = make_small_run(tmp_path / "run")
    values = READERS[name]((run / name).read_text())
    errors = []
    accepted = 0
    for place in places(values):
        for replacement in REPLACEMENTS:
            if name == "experiment.toml" and replacement is None:
                continue  # TOML has no null
            write(run, name, replace_at(values, place, replacement))
            error = error_of_compare(run)
            if error:
                errors.append(error)
                continue
            accepted += 1
            if accepted % PAGE_EVERY == 0:
                report_sections(group_runs(load_runs([run])[0])[0], None)
    assert errors
    assert accepted > PAGE_EVERY
    for error in errors:
        assert name in error
        assert "\n" not in error
        assert len(error) < len(str(run)) + 200


def error_of_compare(run: Path) -> str:
    try:
        report.compare([run])
    except InputError as error:
        return str(error)
    return ""


Damage = Callable[[Path], object]


def toml(key: str, value: str) -> Damage:
    """Return a function that replaces a setting by TOML text."""

    def damage(run: Path) -> None:
        path = run / "experiment.toml"
        lines = path.read_text().splitlines()
        changed = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in lines]
        path.write_text("\n".join(changed) + "\n")

    return damage


def values(name: str, **changes: Any) -> Damage:
    """Return a function that changes values of a file."""
    return lambda run: write(run, name, READERS[name]((run / name).read_text()) | changes)


def content(name: str, data: bytes) -> Damage:
    """Return a function that replaces the content of a file."""
    return lambda run: (run / name).write_bytes(data)


def folder(name: str) -> Damage:
    """Return a function that replaces a file by a folder."""

    def damage(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return damage


NO_TABLE = b'versions = 3\nrounds = 2\ndataset = "x"\n[algorithm]\nname = "moon"\n'


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (toml("seed", '"x"'), r"experiment\.toml: seed must be an integer >= 0, got 'x'"),
        (toml("rounds", '"3x"'), r"experiment\.toml: rounds must be an integer >= 1, got '3x'"),
        (toml("rounds", "9" * 5000), r"experiment\.toml is not valid TOML: .*4300 digits"),
        (toml("beta", '"wide"'), r"experiment\.toml: beta must be a finite number, got 'wide'"),
        (toml("lr", "inf"), r"experiment\.toml: lr must be a finite number, got inf"),
        (toml("dataset", r'"\u0000"'), r"experiment\.toml: dataset must be printable text"),
        (toml("seed", "[" * 9000), r"experiment\.toml is not valid TOML"),
        (content("experiment.toml", b"\xff\xfe"), r"experiment\.toml is not text in UTF-8"),
        (content("experiment.toml", NO_TABLE), r"toml: \[versions\] must be a table, got 3"),
        (values("rounds.jsonl", seconds="x"), r"rounds\.jsonl, line 2: seconds: .*, got 'x'"),
        (values("rounds.jsonl", seconds=-1), r"line 2: seconds: expected int >= 0, got -1"),
        (values("rounds.jsonl", parties=[7]), r"line 2: parties\[0\]: expected object, got 7"),
        (
            values("rounds.jsonl", parties=[{"drift": "far"}]),
            r"line 2: parties\[0\]\.drift: expected .*, got 'far'",
        ),
        (
            values("rounds.jsonl", accuracy=True),
            r"line 2: accuracy: expected float \| null, got True",
        ),
        (values("rounds.jsonl", accuracy=float("nan")), r"line 2: accuracy: .*, got nan"),
        (values("rounds.jsonl", round=3), r"rounds\.jsonl, line 2: round must be 2, got 3"),
        (values("rounds.jsonl", macro_f1="x"), r"line 2: macro_f1: expected float .*, got 'x'"),
        (
            values("rounds.jsonl", validation_accuracy=2),
            r"line 2: validation_accuracy: expected float <= 1\.0, got 2",
        ),
        (values("rounds.jsonl", sites=[1]), r"line 2: sites: expected object .*, got \[1\]"),
        (values("rounds.jsonl", sites={"x": [1, 2]}), r"line 2: sites: .*number of a party as key"),
        (
            values("rounds.jsonl", sites={"0": [3, 2]}),
            r"line 2: sites: party 0 must have at most 2 correct predictions, got 3",
        ),
        (values("rounds.jsonl", sites={"0": [0, 0]}), r"line 2: sites.*: expected int >= 1"),
        (content("rounds.jsonl", b"[1]\n"), r"rounds\.jsonl, line 1: expected object, got array"),
        (content("rounds.jsonl", b"{}\n"), r"rounds\.jsonl, line 1: .*missing .*round"),
        (
            content("rounds.jsonl", b"[" * 100_000 + b"\n"),
            r"rounds\.jsonl, line 1 is not valid JSON: .*recursion",
        ),
        (content("rounds.jsonl", b"9" * 5000 + b"\n"), r"line 1 is not valid JSON: .*digits"),
        (folder("rounds.jsonl"), r"rounds\.jsonl cannot be read: it is a folder"),
        (
            values("partition.json", counts=[[1, "2"], [3, 4]]),
            r"partition\.json: counts\[0\]\[1\]: expected int, got '2'",
        ),
        (
            values("partition.json", counts=[[0, 0]]),
            r"partition\.json: counts must be a table of counts .* not all 0",
        ),
        (
            values("partition.json", counts=[[1, 2], [3]]),
            r"partition\.json: counts must be a table of counts with rows of one length",
        ),
        (
            values("partition.json", classes=["\ud800", "b"]),
            r"partition\.json: classes\[0\]: expected printable text",
        ),
        (values("partition.json", classes=["a"]), r"partition\.json: classes must be 2 names"),
        (values("partition.json", names=[3]), r"partition\.json: names\[0\]: .* got 3"),
        (content("partition.json", b"3"), r"partition\.json: expected object, got int"),
        (
            values("final.json", confusion=[[1] * 3] * 3),
            r"final\.json: confusion must have 2 x 2 entries, got \(3, 3\)",
        ),
        (values("final.json", parties=[3]), r"final\.json: parties\[0\]: expected object, got 3"),
        (
            values("final.json", parties=[{"party": 0, "accuracy": "high"}]),
            r"final\.json: parties\[0\]\.accuracy: expected float .*, got 'high'",
        ),
        (values("final.json", tsne=[1]), r"final\.json: tsne: expected object .*, got \[1\]"),
        (
            values("final.json", tsne={"points": [[0, 1]], "labels": []}),
            r"final\.json: tsne\.points must have 0 points, as many as there are labels, got 1",
        ),
        (
            values("final.json", tsne={"points": [[0, "1"]], "labels": [0]}),
            r"final\.json: tsne\.points\[0\]\[1\]: expected float, got '1'",
        ),
        (
            values("final.json", tsne={"points": [], "labels": ["cat"]}),
            r"final\.json: tsne\.labels\[0\]: expected int, got 'cat'",
        ),
    ],
)
def test_damage_is_reported_in_one_sentence(
    damage: Damage, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(make_small_run(tmp_path / "run"))
    with pytest.raises(InputError, match=message):
        report.write([tmp_path / "run"], tmp_path / "out")
    assert main(["compare", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_huge_loss_is_still_readable(tmp_path: Path) -> None:
    """Training that is about to diverge has a large but finite loss."""
    run = make_small_run(tmp_path / "run")
    values("rounds.jsonl", loss=1e300, parties=[{"loss": 1e300}])(run)
    assert report.write([run], tmp_path / "out").exists()


def test_class_names_of_one_run_are_not_used_for_another(tmp_path: Path) -> None:
    (make_small_run(tmp_path / "runs/a") / "partition.json").unlink()
    other = make_run(tmp_path / "runs/b", "moon", 1, rounds=2, parties=2)
    (other / "final.json").unlink()
    report.write([tmp_path / "runs"], tmp_path / "out")
    lines = (tmp_path / "out/classes.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["class", "0", "1"]


def test_a_folder_name_that_is_not_valid_text(tmp_path: Path) -> None:
    make_small_run(Path(f"{tmp_path}/runs/\udcff"))
    page = report.write([tmp_path / "runs"], tmp_path / "out")
    assert "?" in page.with_name("runs.csv").read_text()
