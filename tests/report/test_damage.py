"""Damaged run directories: one sentence that names the file and what is wrong, or a report; never a traceback."""

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
from moonfl.report.sections import sections

DROPPED = object()
PAGE_EACH = 10
INSTEAD: list[Any] = [
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
    DROPPED,
]


def run_of_two(path: Path, seed: int = 0) -> Path:
    """A whole run of two rounds, two parties and two classes: every kind of leaf, few of each."""
    run = make_run(path, "moon", seed, rounds=2, parties=2, patience=1)
    dealt = {"classes": ["cat", "dog"], "counts": [[3, 4], [5, 6]], "names": ["Bonn", "Lyon"]}
    (run / "partition.json").write_text(json.dumps(dealt))
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    judged = {"validation_accuracy": 0.5, "sites": {"0": [1, 2], "1": [3, 4]}}
    (run / "rounds.jsonl").write_text("".join(json.dumps(line | judged) + "\n" for line in lines))
    final = json.loads((run / "final.json").read_text())
    tsne = {"points": [[0.0, 1.0], [2.0, 3.0]], "labels": [0, 1], "local": [[0.5, 1.0], [2.0, 3.5]]}
    (run / "final.json").write_text(
        json.dumps(final | {"confusion": [[7, 1], [2, 8]], "tsne": tsne})
    )
    return run


def last_round(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


READ: dict[str, Callable[[str], Any]] = {
    "experiment.toml": tomllib.loads,
    "rounds.jsonl": last_round,
    "partition.json": json.loads,
    "final.json": json.loads,
}


def write(run: Path, name: str, fact: Any) -> None:
    text = (run / name).read_text()
    if name == "experiment.toml":
        (run / name).write_text(tomli_w.dumps(fact))
    else:
        first = text.splitlines(keepends=True)[0] if name == "rounds.jsonl" else ""
        (run / name).write_text(f"{first}{json.dumps(fact)}\n")


def places(fact: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value, the whole ones and those within."""
    inner = (
        fact.items()
        if isinstance(fact, dict)
        else enumerate(fact)
        if isinstance(fact, list)
        else ()
    )
    for key, value in inner:
        yield (*here, key)
        yield from places(value, (*here, key))


def damaged(fact: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at the place, or none."""
    made = json.loads(json.dumps(fact))
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    if value is DROPPED:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return made


@pytest.mark.parametrize("name", READ)
def test_whatever_stands_in_a_place_there_is_a_report_or_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every damage meets `compare`; figures take long, so some of those it lets pass get them, not painted."""
    monkeypatch.setattr(
        FigureCanvasSVG, "print_svg", lambda self, file, **options: file.write("<svg></svg>")
    )
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, file, **options: None)
    run = run_of_two(tmp_path / "run")
    sound = READ[name]((run / name).read_text())
    refused, passed = [], 0
    for place in places(sound):
        for value in INSTEAD:
            if name == "experiment.toml" and value is None:
                continue  # TOML has no null
            write(run, name, damaged(sound, place, value))
            message = refusal(run)
            refused += [message] if message else []
            passed += not message
            if not message and passed % PAGE_EACH == 0:
                sections(group_runs(load_runs([run])[0])[0], None)
    assert refused
    assert passed > PAGE_EACH
    for message in refused:
        assert name in message
        assert "\n" not in message
        assert len(message) < len(str(run)) + 200


def refusal(run: Path) -> str:
    try:
        report.compare([run])
    except InputError as error:
        return str(error)
    return ""


def toml(key: str, value: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / "experiment.toml"
        lines = [
            f"{key} = {value}" if line.startswith(f"{key} = ") else line
            for line in path.read_text().splitlines()
        ]
        path.write_text("\n".join(lines) + "\n")

    return change


def fact(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda run: write(run, name, READ[name]((run / name).read_text()) | values)


def bytes_of(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes(data) and None


def folder(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            toml("seed", '"x"'),
            r"experiment\.toml: seed, a whole number from 0 up, was expected, not 'x'",
        ),
        (
            toml("rounds", '"3x"'),
            r"experiment\.toml: rounds, a whole number from 1 up, was expected, not '3x'",
        ),
        (toml("rounds", "9" * 5000), r"experiment\.toml is not TOML: .*4300 digits"),
        (toml("beta", '"wide"'), r"experiment\.toml: beta, a number, was expected, not 'wide'"),
        (toml("dataset", r'"\u0000"'), r"experiment\.toml: dataset, plain text, was expected"),
        (toml("seed", "[" * 9000), r"experiment\.toml is not TOML"),
        (bytes_of("experiment.toml", b"\xff\xfe"), r"experiment\.toml is not text in UTF-8"),
        (
            bytes_of(
                "experiment.toml",
                b'versions = 3\nrounds = 2\ndataset = "x"\n[algorithm]\nname = "moon"\n',
            ),
            r"experiment\.toml: \[versions\], a table, was expected, not 3",
        ),
        (
            fact("rounds.jsonl", seconds="x"),
            r"rounds\.jsonl, line 2: 'seconds', a number from 0 up, .*not 'x'",
        ),
        (
            fact("rounds.jsonl", parties=[7]),
            r"rounds\.jsonl, line 2: in 'parties' an object a party .*not 7",
        ),
        (
            fact("rounds.jsonl", parties=[{"drift": "far"}]),
            r"rounds\.jsonl, line 2: the 'drift' of a party.*'far'",
        ),
        (fact("rounds.jsonl", accuracy=True), r"rounds\.jsonl, line 2: round 2 with an accuracy"),
        (
            fact("rounds.jsonl", macro_f1="x"),
            r"rounds\.jsonl, line 2: 'macro_f1', a number from 0 to 1, .*not 'x'",
        ),
        (
            fact("rounds.jsonl", validation_accuracy=2),
            r"line 2: 'validation_accuracy', a number from 0 to 1, .*not 2",
        ),
        (
            fact("rounds.jsonl", sites=[1]),
            r"rounds\.jsonl, line 2: 'sites', an object, .*not \[1\]",
        ),
        (
            fact("rounds.jsonl", sites={"0": [3, 2]}),
            r"rounds\.jsonl, line 2: in 'sites' a party with .*\[3, 2\]",
        ),
        (
            fact("rounds.jsonl", sites={"0": [0, 0]}),
            r"rounds\.jsonl, line 2: in 'sites' a party with .*\[0, 0\]",
        ),
        (bytes_of("rounds.jsonl", b"[1]\n"), r"rounds\.jsonl, line 1: an object in braces"),
        (bytes_of("rounds.jsonl", b"[" * 100_000 + b"\n"), r"rounds\.jsonl, line 1: not JSON"),
        (bytes_of("rounds.jsonl", b"9" * 5000 + b"\n"), r"rounds\.jsonl, line 1: not JSON"),
        (folder("rounds.jsonl"), r"rounds\.jsonl cannot be read: Is a directory"),
        (
            fact("partition.json", counts=[[1, "2"], [3, 4]]),
            r"partition\.json: 'counts', a table of counts",
        ),
        (fact("partition.json", counts=[[0, 0]]), r"partition\.json: 'counts', a table of counts"),
        (
            fact("partition.json", classes=["\ud800", "b"]),
            r"partition\.json: 'classes', a list of names",
        ),
        (fact("partition.json", classes=["a"]), r"partition\.json: 'classes', 2 as in 'counts'"),
        (
            fact("partition.json", names=[3]),
            r"partition\.json: 'names', a list of names, .*not \[3\]",
        ),
        (bytes_of("partition.json", b"3"), r"partition\.json: an object in braces"),
        (
            fact("final.json", confusion=[[1] * 3] * 3),
            r"final\.json: 'confusion', 2 by 2 classes, .*not \(3, 3\)",
        ),
        (fact("final.json", parties=[3]), r"final\.json: in 'parties' a 'party'"),
        (
            fact("final.json", parties=[{"party": 0, "accuracy": "high"}]),
            r"final\.json: 'accuracy' of a party",
        ),
        (fact("final.json", tsne=[1]), r"final\.json: 'tsne', an object"),
        (
            fact("final.json", tsne={"points": [[0, 1]], "labels": []}),
            r"final\.json: 'points' of 'tsne', as many as",
        ),
        (
            fact("final.json", tsne={"points": [[0, "1"]], "labels": [0]}),
            r"final\.json: 'points' of 'tsne', points",
        ),
        (fact("final.json", tsne={"labels": ["cat"]}), r"final\.json: 'labels' of 'tsne'"),
    ],
)
def test_damage_is_told_in_one_sentence(
    damage: Callable[[Path], None], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run_of_two(tmp_path / "run"))
    with pytest.raises(InputError, match=message):
        report.write([tmp_path / "run"], tmp_path / "out")
    assert main(["compare", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_seeds_of_one_group_may_have_other_classes(tmp_path: Path) -> None:
    """Names of one run are never put to the numbers of another."""
    (run_of_two(tmp_path / "runs/a") / "partition.json").unlink()
    other = make_run(tmp_path / "runs/b", "moon", 1, rounds=2, parties=2)
    (other / "final.json").unlink()
    report.write([tmp_path / "runs"], tmp_path / "out")
    assert [
        line.split(",")[0] for line in (tmp_path / "out/classes.csv").read_text().splitlines()
    ] == [
        "class",
        "0",
        "1",
    ]


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    run_of_two(Path(f"{tmp_path}/runs/\udcff"))
    assert (
        "?" in report.write([tmp_path / "runs"], tmp_path / "out").with_name("runs.csv").read_text()
    )
