"""Every key of partitions, feature shifts and datasets: its effect, resume, workers, wrong use."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import datasets
import pytest

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, results_of, stop_after
from helpers.published_files import write_idx, write_svhn
from moonfl import Experiment
from moonfl.cli import main
from moonfl.data.mnist import emnist_files
from moonfl.experiment import override
from moonfl.task import make_task

TINY = Experiment(parties=3, rounds=2, epochs=1, batch_size=32, out_dim=8, min_samples=4)
HUB_NAME = "nobody/visits"


def write_nothing(folder: Path) -> None:
    """Leave the folder as it is; the dataset digits needs no files."""


def write_emnist(folder: Path) -> None:
    """Write two splits of EMNIST."""
    write_idx(folder / "emnist", emnist_files("letters"), labels=range(1, 27))
    write_idx(folder / "digits", emnist_files("digits"))
    for file in (folder / "digits").iterdir():
        file.rename(folder / "emnist" / file.name)


def visits(first: int) -> dict[str, list]:
    """Return the columns of a table with 12 patients."""
    rows = range(first, first + 60)
    return {
        "age": [20 + k * k % 50 for k in rows],
        "patient": [f"p{k // 5}" for k in rows],
        "label": ["ill" if k % 3 else "well" for k in rows],
    }


def write_table(folder: Path) -> None:
    datasets.Dataset.from_dict(visits(0)).to_csv(folder / "visits.csv")


def write_saved(folder: Path) -> None:
    datasets.Dataset.from_dict(visits(0)).save_to_disk(folder / "visits")


def write_cached(folder: Path) -> None:
    """Fill the cache of the library as the download of a dataset with two subsets does."""
    for first, subset in enumerate(("north", "south")):
        builder = datasets.load_dataset_builder(
            "json", subset, data_files=str(write_lines(folder / f"{subset}.jsonl", 7 * first))
        )
        builder.download_and_prepare()
        target = folder / "cache" / "nobody___visits" / subset / "0.0.0" / "revision"
        target.parent.mkdir(parents=True)
        Path(builder.cache_dir).rename(target)
        for file in target.glob("json-*"):
            file.rename(target / file.name.replace("json-", "visits-"))


def write_lines(path: Path, first: int) -> Path:
    datasets.Dataset.from_dict(visits(first)).to_json(path)
    return path


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library `datasets` use a temporary cache, and no network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@dataclass(frozen=True)
class Use:
    """A correct use of keys."""

    words: str
    without: str | None = None  # changes after which the parties have other samples
    write: Callable[[Path], object] = write_nothing
    data_dir: str = "{}"  # the folder of the files is filled in


def samples_of(exp: Experiment) -> dict:
    """Return the training samples of every party."""
    parties = make_task(exp).parties
    return {str(k): {"x": party.x, "y": party.y} for k, party in enumerate(parties)}


@pytest.mark.parametrize(
    "use",
    [
        Use("partition=labels classes_per_party=4", "classes_per_party=5"),
        Use("partition=shards shards_per_party=3", "shards_per_party=none"),
        Use("partition=quantity beta=0.3", "partition=dirichlet"),
        Use("partition=dirichlet-balanced beta=0.3", "partition=dirichlet"),
        Use("shift=noise shift_level=0.3", "shift_level=none"),
        Use("shift=rotation shift_level=90", "shift_level=none"),
        Use("shift=scale shift_level=0.8", "shift=none shift_level=none"),
        Use("dataset=mnist", write=lambda folder: write_idx(folder / "mnist")),
        Use("dataset=fashion-mnist", write=lambda folder: write_idx(folder / "fashion-mnist")),
        Use("dataset=emnist split=letters", "split=digits", write_emnist),
        Use("dataset=svhn", write=lambda folder: write_svhn(folder / "svhn")),
        Use(
            words="dataset=csv holdout_by=patient",
            without="holdout_by=none ignore=patient",
            write=write_table,
            data_dir="{}/visits.csv",
        ),
        Use(
            words="dataset=hub model=mlp holdout_by=patient",
            without="holdout_by=none ignore=patient",
            write=write_saved,
            data_dir="{}/visits",
        ),
        Use(
            words="dataset=hub model=mlp ignore=patient subset=north",
            without="subset=south",
            write=write_cached,
            data_dir=HUB_NAME,
        ),
    ],
    ids=lambda use: use.words,
)
def test_keys_have_an_effect_and_runs_are_bit_identical(use: Use, tmp_path: Path) -> None:
    """A run with two workers, interrupted and resumed, equals one of a single worker."""
    use.write(tmp_path)
    words = [*use.words.split(), f"data_dir={use.data_dir.format(tmp_path)}"]
    exp = override(TINY, words)
    if use.without is not None:
        assert not same(samples_of(exp), samples_of(override(exp, use.without.split())))
    alone = results_of(moonfl.run(exp, workers=1))
    assert len(alone["records"]) == 2
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=2, watch=stop_after(1))
    assert same(alone, results_of(moonfl.resume(tmp_path / "run", workers=2)))


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ("partition=label", ["unknown partition 'label'", "labels"]),
        ("partition=labels classes_per_party=0", ["classes_per_party must be", "got 0"]),
        ("partition=labels classes_per_party=11", ["set classes_per_party to 10 or less"]),
        ("partition=quantity classes_per_party=2", ["classes_per_party belongs to"]),
        ("partition=shards shards_per_party=two", ["shards_per_party must be", "'two'"]),
        ("partition=shards shards_per_party=10000", ["shards_per_party", "10000"]),
        ("partition=iid shards_per_party=2", ["shards_per_party belongs to partition=shards"]),
        ("partition=quantity min_samples=1000", ["min_samples"]),
        ("partition=dirichlet-balanced beta=0", ["beta must be", "got 0"]),
        ("shift=blur", ["shift must be", "'blur'"]),
        ("shift=noise shift_level=0", ["shift_level must be", "got 0"]),
        ("shift_level=1", ["shift_level needs a kind of shift"]),
        ("dataset=mnits", ["unknown dataset 'mnits'", "mnist"]),
        ("dataset=mnist", ["mnist is not in", "moonfl data get mnist"]),
        ("dataset=fashion-mnist", ["fashion-mnist is not in", "moonfl data get fashion-mnist"]),
        ("dataset=emnist", ["emnist", "moonfl data get emnist"]),
        ("dataset=svhn", ["svhn is not in", "moonfl data get svhn"]),
        ("dataset=emnist split=capitals", ["split must be balanced", "'capitals'"]),
        ("dataset=svhn split=digits", ["split belongs to dataset=emnist"]),
        ("holdout_by=patient", ["holdout_by belongs to dataset="]),
        ("dataset=csv data_dir={}/visits.csv holdout_by=patent", ["'patent'", "patient"]),
        ("dataset=hub data_dir={}/visits ignore=patient parties=3", ["try model=mlp"]),
        ("dataset=hub model=mlp data_dir={}/visits", ["'patient'", "ignore=patient"]),
        ("dataset=hub data_dir={}/visits subset=north", ["subset=north", "remove subset"]),
        ("dataset=csv data_dir={}/visits.csv subset=north", ["subset belongs to dataset=hub"]),
        (f"dataset=hub data_dir={HUB_NAME}", ["north", "south", "subset=NAME"]),
        (f"dataset=hub data_dir={HUB_NAME} subset=west", ["west", "subset=NAME"]),
    ],
)
def test_wrong_use_gives_one_line_that_names_the_key(
    words: str, messages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for write in (write_table, write_saved):
        write(tmp_path)
    if HUB_NAME in words:
        write_cached(tmp_path)
    arguments = ["rounds=1", *words.format(tmp_path).split()]
    if "dataset=" in words and "data_dir=" not in words:
        arguments.append(f"data_dir={tmp_path}")
    capsys.readouterr()
    assert main(["run", *arguments, "--out", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(message in line for message in messages), line
    assert not (tmp_path / "run").exists()
