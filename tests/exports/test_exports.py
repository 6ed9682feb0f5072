"""Exported files: they give the outputs of the run's model, or they are not written."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import moonfl
from helpers.problems import TABLE
from moonfl import tree
from moonfl.cli import main
from moonfl.data.base import Examples
from moonfl.data.npz import write_npz
from moonfl.errors import InputError, RunError
from moonfl.experiment import Experiment
from moonfl.exports import writer as exports
from moonfl.exports.artifact import Artifact
from moonfl.runs import tensor_files
from moonfl.runs.result import Result
from moonfl.runs.schema import PartitionRecord, SiteRecord, encode
from moonfl.task import build_task, make_task, read, split

FILES = ["README.md", "model.pt2", "model.safetensors"]
QUICK = Experiment(rounds=2, epochs=1, parties=3, out_dim=16)
SHAPES = {
    "mlp": (6,),
    "simple-cnn": (3, 16, 16),
    "wide-cnn": (3, 16, 16),
    "resnet18": (3, 16, 16),
    "cnn1d": (2, 20),
    "test_exports:custom": (6,),
}
ENCODERS = [
    (model, head)
    for model in SHAPES
    for head in (True, False)
    if head or model != "resnet18"  # which is slow
]
ALONE = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("moonfl", "test_exports"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refused())
import torch

for folder in sys.argv[1:]:
    model = torch.export.load(f"{folder}/model.pt2").module()
    x = torch.load(f"{folder}/../x.pt")
    torch.save([model(x), model(x[:1])], f"{folder}/../found.pt")
"""


def custom(shape: tuple[int, ...]) -> nn.Module:
    """Return a custom encoder with BatchNorm."""
    return nn.Sequential(nn.Linear(shape[0], 12), nn.BatchNorm1d(12), nn.Tanh())


class CustomModel(nn.Module):
    """A custom model that returns (z, logits) itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.layer(x)


class ValueDependent(nn.Module):
    """A model that torch.export refuses, because its control flow depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.flatten(1))
        return y if float(y.detach().sum()) > 0 else y * 2


def write_data(path: Path, shape: tuple[int, ...]) -> str:
    """Write samples of three classes: images, or features that a model must standardise."""
    rng, y = np.random.default_rng(0), np.arange(90) % 3
    if len(shape) == 3:
        x = torch.from_numpy(rng.integers(0, 256, (90, *shape), dtype=np.uint8))
    else:
        values = (
            300 + 40 * rng.standard_normal((90, *shape)) + 30 * y.reshape(-1, *[1] * len(shape))
        )
        x = torch.from_numpy(values.astype(np.float32))
    labels = torch.from_numpy(y)
    write_npz(
        path, Examples(x[:60], labels[:60]), Examples(x[60:], labels[60:]), ("no", "perhaps", "yes")
    )
    return str(path)


def experiment(folder: Path, model: str, head: bool, algorithm: moonfl.FedAvg) -> Experiment:
    data = write_data(folder / "data.npz", SHAPES[model])
    return replace(
        QUICK,
        dataset="npz",
        data_dir=data,
        model=model,
        head=head,
        algorithm=algorithm,
        batch_size=16,
    )


def run_outputs(result: Result, name: str = "global") -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return stored samples, and z and logits of all and of the first as the run evaluates them."""
    task = make_task(result.experiment)
    model = tree.load(task.build(), result.models[name]).eval()
    with torch.no_grad():
        expected = [
            tuple(model(task.preparation.batch(task.test.x, torch.arange(n))))
            for n in (len(task.test.y), 1)
        ]
    return task.test.x, expected


def assert_close(
    actual: list[tuple[Tensor, Tensor]], expected: list[tuple[Tensor, Tensor]]
) -> None:
    for actual_pair, expected_pair in zip(actual, expected, strict=True):
        for a, b in zip(actual_pair, expected_pair, strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return moonfl.run(QUICK, tmp_path_factory.mktemp("runs") / "moon", workers=1)


@pytest.fixture
def run(digits: Result, tmp_path: Path) -> Path:
    """Return a copy of the directory of `digits`, which a test may change."""
    return Path(shutil.copytree(str(digits.directory), tmp_path / "run"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Result]:
    """Export every encoder with and without head to FOLDER/export, and write FOLDER/x.pt."""
    results = {}
    for k, (model, head) in enumerate(ENCODERS):
        folder = tmp_path_factory.mktemp("exported")
        algorithm = (moonfl.MOON(mu=1), moonfl.Scaffold(), moonfl.FedAvg())[k % 3]
        exp = replace(experiment(folder, model, head, algorithm), rounds=1, parties=2)
        results[model, head] = replace(moonfl.run(exp, workers=1), directory=folder)
        export = exports.export(results[model, head])
        assert export.directory == folder / "export"
        assert "30 samples of the data" in export.checked
        assert export.difference < 2e-5
        torch.save(run_outputs(results[model, head])[0], folder / "x.pt")
    return results


@pytest.mark.parametrize(("model", "head"), ENCODERS)
def test_both_files_and_the_result_give_the_outputs_of_the_run(
    exported: dict[tuple[str, bool], Result], model: str, head: bool
) -> None:
    result = exported[model, head]
    x, expected = run_outputs(result)
    folder = result.directory / "export"
    loaded = moonfl.load_model(folder, model if ":" in model else None)
    program = torch.export.load(folder / "model.pt2").module()
    assert not loaded.training
    with torch.no_grad():
        for exported_model in (loaded, program, result.model):
            outputs = [tuple(exported_model(x)), tuple(exported_model(x[:1]))]
            assert_close(outputs, expected)
    dimension = expected[0][0].shape[1]
    if head:
        assert dimension == 16
    else:
        assert dimension == {"simple-cnn": 84, "wide-cnn": 128, "resnet18": 512}.get(
            model, dimension
        )


def test_torch_alone_loads_the_program(
    exported: dict[tuple[str, bool], Result], tmp_path: Path
) -> None:
    """Neither moonfl nor the module of the custom encoder can be imported there."""
    (tmp_path / "alone.py").write_text(ALONE)
    folders = [result.directory / "export" for result in exported.values()]
    command = [sys.executable, str(tmp_path / "alone.py"), *map(str, folders)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True)
    for result, folder in zip(exported.values(), folders, strict=True):
        assert_close(torch.load(folder.parent / "found.pt"), run_outputs(result)[1])


def test_an_export_contains_no_sample_and_no_path(
    exported: dict[tuple[str, bool], Result], tmp_path: Path
) -> None:
    for result in exported.values():
        shutil.unpack_archive(
            result.directory / "export" / "model.pt2", tmp_path / "unpacked", "zip"
        )
        files = [*(tmp_path / "unpacked").rglob("*"), *(result.directory / "export").iterdir()]
        texts = [path.read_bytes() for path in files if path.is_file()]
        assert not any(
            str(part).encode() in text
            for text in texts
            for part in (Path(__file__).parent, tmp_path.parent)
        )
        (path,) = (path for path in files if path.parent.name == "sample_inputs")
        inputs = torch.load(path)
        assert float(inputs[0][0].abs().max()) == 0
        shutil.rmtree(tmp_path / "unpacked")


def test_the_readme_describes_the_model_and_its_code_runs(
    digits: Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exports.export(digits, tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert f"accuracy {100 * digits.accuracy:.1f} %" in text
    assert "round 2 of 2" in text
    assert "uint8 [B, 1, 8, 8], pixels from 0 to 16" in text
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9." in text
    monkeypatch.chdir(tmp_path / "out")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out.startswith("tensor([")


def test_the_weights_have_the_names_of_the_network_and_a_header(
    digits: Result, tmp_path: Path
) -> None:
    exports.export(digits, tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(digits.models["global"])
        head = json.loads(file.metadata()["moonfl"])
    assert head["experiment"]["algorithm"]["name"] == "moon"
    assert (head["shape"], head["round"], head["preparation"]["scale"]) == ([1, 8, 8], 2, 16)
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode == (
        tmp_path / "out" / "README.md"
    ).stat().st_mode


def test_samples_of_another_type_are_refused(digits: Result) -> None:
    with pytest.raises(InputError, match=r"uint8 \[B, 1, 8, 8\], got float32 \[B, 1, 8, 8\]"):
        digits.model(torch.zeros(2, 1, 8, 8))


@pytest.mark.parametrize(
    ("samples", "kind"), [(np.zeros((2, 1, 8, 8)), "ndarray"), ([1.0], "list")]
)
def test_arrays_are_refused_with_the_conversion(digits: Result, samples: object, kind: str) -> None:
    message = rf"takes a tensor, got {kind}; pass torch.as_tensor\(x\), or use moonfl.predict"
    with pytest.raises(moonfl.InputError, match=message):
        digits.model(samples)


def test_command(run: Path, digits: Result, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run)]) == 0
    out, err = capsys.readouterr()
    accuracy = f"{100 * digits.accuracy:.1f} %"
    title = f"the global model after round 2 of 2, accuracy {accuracy}"
    assert f"{title}, is in {run / 'export'}" in out
    assert "checked on 100 samples of the data, one alone and all at once" in out
    assert err == ""
    assert sorted(os.listdir(run / "export")) == FILES
    before = (run / "export" / "model.safetensors").read_bytes()
    assert main(["export", str(run)]) == 0  # an earlier export is replaced
    assert (run / "export" / "model.safetensors").read_bytes() == before


def test_a_run_of_another_machine(run: Path, tmp_path: Path) -> None:
    """A run on a device that this machine lacks, after an export that was killed."""
    settings = (run / "experiment.toml").read_text()
    (run / "experiment.toml").write_text(settings.replace('device = "cpu"', 'device = "xpu:7"'))
    (tmp_path / "out" / ".writing-x").mkdir(parents=True)
    assert main(["export", str(run), "--out", str(tmp_path / "out")]) == 0
    assert sorted(os.listdir(tmp_path / "out")) == FILES


def test_solo_has_one_model_per_party(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = moonfl.run(
        replace(QUICK, algorithm=moonfl.Solo(), rounds=1), tmp_path / "solo", workers=1
    )
    export = ["export", str(tmp_path / "solo")]
    assert main([*export, "--party", "1"]) == 0
    accuracy = f"{100 * result.rounds[0]['accuracies']['party1']:.1f} %"
    title = f"party 1's model after round 1 of 1, accuracy {accuracy}"
    assert title in capsys.readouterr().out
    x, expected = run_outputs(result, "party1")
    loaded = moonfl.load_model(tmp_path / "solo" / "export" / "model.safetensors")
    with torch.no_grad():
        assert_close([tuple(loaded(x)), tuple(loaded(x[:1]))], expected)
    assert main([*export, "--party", "3"]) == 2
    assert "--party (party=) must be one of 0, 1, 2, got 3" in capsys.readouterr().err
    assert main(export) == 2
    assert "--party (party=) must be one of 0, 1, 2, got none" in capsys.readouterr().err
    with pytest.raises(InputError, match="party0, party1, party2"):
        _ = result.model


def test_parties_are_chosen_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    exp = Experiment(
        dataset="csv",
        data_dir=str(tmp_path / "t.csv"),
        partition="column",
        column="site",
        label="outcome",
        algorithm=moonfl.Solo(),
        rounds=1,
        epochs=1,
        out_dim=16,
    )
    result = moonfl.run(exp, tmp_path / "run", workers=1)
    command = ["export", str(tmp_path / "run"), "--force", "--party"]
    for number, name in enumerate(result.names):
        assert main([*command, name]) == 0
        by_name = capsys.readouterr().out
        assert f"the model of party {number} {name} after round 1" in by_name
        assert main([*command, str(number)]) == 0
        assert capsys.readouterr().out == by_name
        assert f"party {number} {name}" in (tmp_path / "run/export/README.md").read_text()
        moonfl.export(result, tmp_path / f"export{number}", party=name)
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(result.names))
    for wrong in ("Nowhere", "99"):
        assert main([*command, wrong]) == 2
        assert f"must be one of {listed}, got {wrong}" in capsys.readouterr().err


def test_numbers_that_are_names_select_a_party_by_name() -> None:
    """A number as text is a name first; an integer is always a number from 0."""
    x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    parties = {"7": (x[:30], y[:30]), "0": (x[30:], y[30:])}
    result = moonfl.federate("mlp", parties, algorithm="solo", rounds=1, epochs=1, workers=1)

    def predicted(party: int | str) -> list:
        return moonfl.predict(result, x, party=party).values.tolist()

    assert predicted("7") == predicted(0) != predicted("0")
    assert predicted("0") == predicted(1) == predicted("1")
    with pytest.raises(InputError, match="must be one of 0 7, 1 0, got 7"):
        predicted(7)


def test_an_unfinished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(fact: dict) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        moonfl.run(QUICK, tmp_path / "run", workers=1, watch=stop)
    assert main(["export", str(tmp_path / "run")]) == 0
    assert "after round 1 of 2" in capsys.readouterr().out


def test_best_exports_the_model_of_the_selected_round(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--best"]) == 2
    assert "selected no round" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"omit --best \(best=True\) for the model of the last"):
        moonfl.predict(run, "x.csv", best=True)
    result = moonfl.run(replace(QUICK, validation=0.2), tmp_path / "chosen", workers=1)
    assert result.chosen is not None
    other = {"global": tree.mul(result.models["global"], 0.5)}
    # A kill before the checkpoint may leave the model of a later round.
    tensor_files.save(tmp_path / "chosen" / "best.safetensors", other)
    assert main(["export", str(tmp_path / "chosen"), "--best"]) == 0
    output = capsys.readouterr()
    assert f"round {result.chosen['round']}, best on the validation samples" in output.out
    assert "best.safetensors is damaged" in output.err
    assert "the export is of the selected model in" in output.err
    moonfl.export(replace(result, chosen_models=other), tmp_path / "from-result", best=True)
    x, _ = run_outputs(result)
    for folder, models in (("chosen/export", result.chosen_models), ("from-result", other)):
        with torch.no_grad():
            z = moonfl.load_model(tmp_path / folder / "model.safetensors")(x).z
            assert torch.equal(z, replace(result, models=models).model(x).z)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "experiment.toml").unlink(), "holds no run"),
        (lambda run: shutil.rmtree(run / "checkpoint"), "has no checkpoint"),
        (lambda run: (run / "checkpoint" / "server-2.safetensors").write_bytes(b"x"), "is damaged"),
        (
            lambda run: (run / "partition.json").write_text("[]"),
            "partition.json is damaged",
        ),
        (
            lambda run: (run / "rounds.jsonl").write_text("{}\n{}\n"),
            "rounds.jsonl is damaged",
        ),
        (
            lambda run: (run / "experiment.toml").write_text(
                (run / "experiment.toml").read_text().replace('"mlp"', '"own"')
            ),
            "was passed as a Python object",
        ),
    ],
)
def test_a_run_that_cannot_be_exported_gets_one_line(
    run: Path, damage, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run)
    assert main(["export", str(run)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (run / "export").exists()


def remove_hashes(run: Path) -> None:
    """Remove the hashes of the files in the run directory, which runs of version 0.1 lack."""
    for path in (run / "checkpoint").glob("round-*.json"):
        index = json.loads(path.read_text())
        del index["files"]
        path.write_text(json.dumps(index))


def test_without_data_the_export_is_checked_on_random_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = experiment(tmp_path, "mlp", True, moonfl.MOON())
    moonfl.run(exp, tmp_path / "run", workers=1)
    (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
    assert main(["export", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert "100 random inputs" in out
    assert "data.npz" in err
    assert main(["export", str(tmp_path / "run"), "--data-dir", str(tmp_path / "moved.npz")]) == 0
    assert "30 samples of the data" in capsys.readouterr().out
    older = json.loads((tmp_path / "run" / "partition.json").read_text())
    del older["shape"]
    remove_hashes(tmp_path / "run")
    (tmp_path / "run" / "partition.json").write_text(json.dumps(older))
    assert main(["export", str(tmp_path / "run"), "--data-dir", str(tmp_path / "moved.npz")]) == 0
    assert main(["export", str(tmp_path / "run")]) == 2
    assert "--data-dir DIR" in capsys.readouterr().err


def test_a_run_over_sites(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a run over Flower sites, each site describes its samples."""
    site = SiteRecord(
        party=0,
        name="site",
        versions={},
        shape=[1, 8, 8],
        dtype="torch.uint8",
        classes=list("0123456789"),
        counts=[5] * 10,
        sha256="0" * 64,
        held_out=10,
        validation=0,
    )
    partition = PartitionRecord(
        classes=site.classes, counts=[site.counts] * 2, sites=[site, site], run="id", test=""
    )
    (run / "partition.json").write_text(encode(partition))
    remove_hashes(run)
    assert main(["export", str(run)]) == 0
    assert "100 samples" in capsys.readouterr().out


def test_other_folders_are_left_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "README.md").write_text("mine")
    assert main(["export", str(run), "--out", str(mine)]) == 2
    assert "--force" in capsys.readouterr().err
    assert os.listdir(mine) == ["README.md"]
    (mine / "notes.txt").write_text("mine, too")
    assert main(["export", str(run), "--out", str(mine), "--force"]) == 0
    assert sorted(os.listdir(mine)) == [*FILES, "notes.txt"]
    assert main(["export", str(run), "--out", str(mine / "notes.txt"), "--force"]) == 2
    assert (mine / "notes.txt").read_text() == "mine, too"


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("fails", ["write_program", "check_files", "readme"])
def test_nothing_is_half_written(
    digits: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool, fails: str
) -> None:
    def full_disk(*args: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    if earlier:
        exports.export(digits, out)
    before = {path.name: path.read_bytes() for path in out.glob("*")}
    monkeypatch.setattr(exports, fails, full_disk)
    with pytest.raises(RunError, match="No space left"):
        exports.export(
            replace(digits, models={"global": tree.mul(digits.models["global"], 2)}), out
        )
    assert {path.name: path.read_bytes() for path in out.glob("*")} == before
    assert out.exists() == earlier


def test_a_file_with_other_weights_is_refused(
    digits: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference of 0.001 in one weight is more than rounding; so is a NaN."""

    def changed(write, difference: float):
        def write_changed(path: Path, artifact: Artifact) -> None:
            params = dict(tree.copy(artifact.params))
            params["output.bias"][3] += difference
            write(path, replace(artifact, params=params))

        return write_changed

    for file, write in (("model.safetensors", "write_weights"), ("model.pt2", "write_program")):
        for difference in (1e-3, float("nan")):
            with monkeypatch.context() as patch:
                patch.setattr(exports, write, changed(getattr(exports, write), difference))
                with pytest.raises(RunError, match=f"{file} is not the run's model"):
                    exports.export(digits, tmp_path / "out")
            assert not (tmp_path / "out").exists()


def test_damaged_files_get_one_clear_message(digits: Result, tmp_path: Path) -> None:
    path = exports.export(digits, tmp_path / "out").directory / "model.safetensors"
    with safe_open(path, "pt") as file:
        head = json.loads(file.metadata()["moonfl"])
        names = file.keys()
        tensors = {name: file.get_tensor(name) for name in names}
    settings = head["experiment"]
    headers = [
        *(
            ("is damaged", head | {key: 7})
            for key in ("experiment", "shape", "classes", "preparation")
        ),
        *(
            ("is damaged", {k: v for k, v in head.items() if k != key})
            for key in ("experiment", "shape", "preparation")
        ),
        ("is not a dtype of torch", head | {"dtype": "text"}),
        ("is damaged", [head]),
        ("unknown model", head | {"experiment": settings | {"model": "mpl"}}),
        ("head must be true or false", head | {"experiment": settings | {"head": "perhaps"}}),
        ("is user code", head | {"experiment": settings | {"model": "own"}}),
        ("is user code", head | {"experiment": settings | {"model": "os:getcwd"}}),
        ("does not fit", head | {"shape": [1, 8, 9]}),
        ("does not fit", head | {"classes": ["a", "b"]}),
    ]
    for message, header in headers:
        save_file(tensors, tmp_path / "damaged.safetensors", {"moonfl": json.dumps(header)})
        with pytest.raises(InputError, match=message) as error:
            moonfl.load_model(tmp_path / "damaged.safetensors")
        assert str(tmp_path / "damaged.safetensors") in str(error.value)
    for content in (b"", path.read_bytes()[:-9]):
        (tmp_path / "damaged.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="or is damaged"):
            moonfl.load_model(tmp_path / "damaged.safetensors")
    with pytest.raises(InputError, match="does not exist; pass the folder of an export"):
        moonfl.load_model(tmp_path / "nowhere.safetensors")
    save_file(tensors, tmp_path / "foreign.safetensors")
    with pytest.raises(InputError, match="not a model that"):
        moonfl.load_model(tmp_path / "foreign.safetensors")


def test_a_model_passed_as_an_object(tmp_path: Path) -> None:
    """The result can build the model; the file needs the module again."""
    exp = replace(experiment(tmp_path, "mlp", True, moonfl.FedAvg()), model="own")
    result = moonfl.run(
        exp, task=build_task(exp, split(exp, read(exp)), model=CustomModel), workers=1
    )
    exports.export(result, tmp_path / "out")
    task = make_task(replace(exp, model="mlp"))
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    loaded = moonfl.load_model(tmp_path / "out" / "model.safetensors", CustomModel())
    with torch.no_grad():
        expected = tuple(result.model(task.test.x))
        assert_close([program(task.test.x), tuple(loaded(task.test.x))], [expected] * 2)
    with pytest.raises(InputError, match=r"moonfl.export\(result, out\)"):
        exports.export(result)


def test_code_that_only_the_file_names_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the model is passed, the module that the file names is not imported."""
    (tmp_path / "named_by_file.py").write_text("from test_exports import CustomModel as Net\n")
    monkeypatch.syspath_prepend(tmp_path)
    exp = replace(experiment(tmp_path, "mlp", True, moonfl.FedAvg()), model="named_by_file:Net")
    exports.export(moonfl.run(exp, workers=1), tmp_path / "out")
    monkeypatch.delitem(sys.modules, "named_by_file")
    random_state = torch.random.get_rng_state()
    assert not moonfl.load_model(tmp_path / "out", CustomModel).training
    assert "named_by_file" not in sys.modules
    assert torch.equal(torch.random.get_rng_state(), random_state)


def test_a_model_that_torch_cannot_export_gets_a_clear_message(tmp_path: Path) -> None:
    result = moonfl.run(replace(QUICK, model="test_exports:ValueDependent"), workers=1)
    with pytest.raises(
        RunError, match=r"torch.export cannot export model=test_exports:ValueDependent"
    ):
        exports.export(result, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_columns_of_a_table_are_listed_in_their_order(tmp_path: Path) -> None:
    """A model takes features by position, not by name."""
    (tmp_path / "t.csv").write_text(TABLE)
    exp = replace(
        QUICK,
        dataset="csv",
        model="mlp",
        data_dir=str(tmp_path / "t.csv"),
        label="outcome",
        ignore="site",
    )
    result = moonfl.run(exp, tmp_path / "run", workers=1)
    for number, run in enumerate((result, tmp_path / "run")):
        out = exports.export(run, tmp_path / f"out-{number}").directory
        assert (
            "Columns of the table in the order of a sample: age, sex.\n"
            in (out / "README.md").read_text()
        )
        with safe_open(out / "model.safetensors", "pt") as file:
            assert json.loads(file.metadata()["moonfl"])["features"] == ["age", "sex"]
