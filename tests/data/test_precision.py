"""Float64 samples keep their precision: they are standardised in float64, then float32."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, results_of, stop_after
from moonfl import Experiment
from moonfl.data.arrays import make_examples
from moonfl.data.base import Examples
from moonfl.data.npz import read_npz
from moonfl.errors import InputError
from moonfl.exports import export, load_model
from moonfl.flower.server import with_site_dtype
from moonfl.flower.site import load_site
from moonfl.models.base import Standardise
from moonfl.runs.schema import SiteRecord
from moonfl.task import Task, make_task

FAR = 1.7e9  # seconds since 1970
QUICK = {"rounds": 4, "epochs": 4, "batch_size": 16, "out_dim": 8, "lr": 0.1}
BIG = 2**53 + 2


def samples(far: float = FAR) -> tuple[NDArray[np.float64], NDArray[np.int64], list[str]]:
    """Return samples whose class depends on a small variation around `far`, labels and sites."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 2
    x = rng.normal(size=(240, 2)) + 4 * y[:, None]
    return x + far, y, ["A", "B", "C"] * 80


def write_table(path: Path, far: float = FAR) -> Path:
    """Write the samples as a table."""
    x, y, sites = samples(far)
    rows = [
        f"{a!r},{b!r},{site},{label}"
        for (a, b), label, site in zip(x.tolist(), y, sites, strict=True)
    ]
    path.write_text("\n".join(["time,start,site,label", *rows, ""]))
    return path


def experiment(path: Path, **values: object) -> Experiment:
    """Return an experiment with the samples of a file."""
    kind = {"dataset": path.suffix[1:], "data_dir": str(path)}
    return Experiment(**{**QUICK, "partition": "column", "column": "site", **kind, **values})


def standardised(task: Task) -> torch.Tensor:
    """Return the first party's samples as the first layer after standardisation gets them."""
    _, buffers = task.init_model(0)
    layer = Standardise(buffers["standardise.mean"].shape, buffers["standardise.mean"].dtype)
    layer.load_state_dict({key: buffers[f"standardise.{key}"] for key in ("mean", "std")})
    return layer(task.parties[0].x)


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_small_variation_around_a_large_mean_is_learned(kind: str, tmp_path: Path) -> None:
    results = []
    inputs = []
    for far in (0.0, FAR):
        path = tmp_path / f"data{far}.{kind}"
        x, y, sites = samples(far)
        if kind == "csv":
            write_table(path, far)
        else:
            np.savez(path, x=x, y=y, site=sites)
        task = make_task(experiment(path))
        assert task.parties[0].x.dtype == torch.float64
        inputs.append(standardised(task))
        results.append(moonfl.run(experiment(path), workers=1, task=task).accuracy)
    assert inputs[1].dtype == torch.float32
    assert torch.allclose(*inputs, atol=1e-6)
    assert results[1] == results[0]
    assert results[1] > 0.95


def test_arrays_in_python_keep_their_precision_too() -> None:
    x, y, _ = samples()
    near = (x - FAR, y)
    accuracies = []
    for party in (near, (x, y), ((x * 1e6).astype(np.int64), y)):
        test = tuple(part[::5] for part in party)
        parties = [tuple(part[k::3] for part in party) for k in range(3)]
        accuracies.append(moonfl.federate("mlp", parties, test, **QUICK, workers=1).accuracy)
    assert accuracies == [accuracies[0]] * 3
    assert accuracies[0] > 0.95


def test_parties_of_different_float_types_get_the_wider_one() -> None:
    x, y, _ = samples()
    narrow = ((x - FAR).astype(np.float32), y)
    result = moonfl.federate(
        "mlp", [narrow, (x - FAR, y)], narrow, **{**QUICK, "rounds": 1}, workers=1
    )
    assert result.blueprint.dtype == torch.float64
    assert result.models["global"]["standardise.mean"].dtype == torch.float64


@pytest.mark.parametrize("dtype", ["float16", "float32", "int16", "uint16", "bool", "int8"])
def test_types_that_float32_holds_stay_float32(dtype: str) -> None:
    x = np.arange(6).reshape(3, 2).astype(dtype)
    examples = make_examples("", x, np.array([0, 1, 0]), ("a", "b"))
    assert examples.x.dtype == torch.float32
    assert np.array_equal(examples.x.numpy(), x.astype(np.float32))


def test_float32_is_standardised_as_before() -> None:
    """Published runs with float32 samples are reproduced bit-identically."""
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 7 + 100
    layer = Standardise((3,))
    layer.load_state_dict({"mean": x.mean(dim=0), "std": x.std(dim=0)})
    assert torch.equal(layer(x), (x - x.mean(dim=0)) / x.std(dim=0))
    assert layer.mean.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_that_a_float_cannot_hold_are_refused(dtype: str, sign: int) -> None:
    if sign < 0 and dtype == "uint64":
        return
    x = np.array([[1], [2], [sign * BIG]]).astype(dtype)
    y = np.array([0, 1, 0])
    with pytest.raises(InputError, match=r"sample 2 of x has integers beyond 2\^53"):
        make_examples("", x, y, ("a", "b"))
    with pytest.raises(InputError, match=r"party 0: x has integers beyond 2\^53"):
        moonfl.federate("mlp", [(x, y), (x, y)], rounds=1)
    exact = make_examples("", np.array([[1], [sign * 2**53]]), y[:2], ("a", "b"))
    assert exact.x.tolist() == [[1.0], [sign * 2.0**53]]


@pytest.mark.parametrize("number", [str(BIG), f"-{BIG}", f"+{BIG} "])
def test_a_table_with_integers_that_a_float_cannot_hold_is_refused(
    number: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"age,site,label\n1,A,a\n{number},B,b\n")
    with pytest.raises(InputError, match=r"line 3: column 'age' is .* not a number that a float"):
        make_task(experiment(path))


def test_values_that_are_too_large_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([[1.0], [1e300]]), y=[0, 1])
    with pytest.raises(InputError, match=r"sample 1 of .*: x has values that are too large"):
        read_npz(tmp_path / "a.npz")


def test_an_exported_model_takes_raw_rows(tmp_path: Path) -> None:
    exp = experiment(write_table(tmp_path / "t.csv"))
    result = moonfl.run(exp, tmp_path / "run", workers=1)
    assert export(tmp_path / "run").checked.startswith("100 samples of the data")
    x, y, _ = samples()
    rows = torch.from_numpy(x)
    program = torch.export.load(tmp_path / "run" / "export" / "model.pt2").module()
    for model in (result.model, load_model(tmp_path / "run" / "export"), program):
        with torch.no_grad():
            predictions = model(rows)[1].argmax(dim=1).numpy()
        assert (predictions == y).mean() > 0.95
    with pytest.raises(InputError, match=r"takes samples .*float64 \[B, 2\], got float32"):
        result.model(rows.float())


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.layer(x)
        return z, z


def test_without_standardisation_samples_that_float32_holds_are_converted(tmp_path: Path) -> None:
    exp = experiment(write_table(tmp_path / "t.csv", 0.0), standardise=False)
    task = make_task(exp)
    for examples in (*task.parties, task.test):
        assert examples.x.dtype == torch.float32
    moonfl.run(exp, tmp_path / "run", workers=1)
    assert export(tmp_path / "run").checked.startswith("100 samples of the data")
    x, y, _ = samples(0.0)
    result = moonfl.federate(Classifier, [(x, y), (x, y)], rounds=1, workers=1)
    assert result.blueprint.dtype == torch.float32


def test_without_standardisation_a_variation_that_float32_loses_is_refused(tmp_path: Path) -> None:
    exp = experiment(write_table(tmp_path / "t.csv"), standardise=False)
    with pytest.raises(InputError, match=r"feature 'time' has mean 1\.7e\+09 .*float32 cannot"):
        make_task(exp)
    x, y, _ = samples()
    with pytest.raises(InputError, match=r"feature 0 has mean 1\.7e\+09"):
        moonfl.federate(Classifier, [(x, y), (x, y)], rounds=1)


def test_a_run_that_began_with_float32_is_resumed_with_float32(tmp_path: Path) -> None:
    """Earlier versions read float64 as float32."""
    x, y, sites = samples(0.0)
    path = tmp_path / "a.npz"
    exp = experiment(path)
    np.savez(path, x=x.astype(np.float32), y=y, site=sites)
    expected = moonfl.run(exp, workers=1)
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=1, watch=stop_after(2))
    np.savez(path, x=x, y=y, site=sites)
    resumed = moonfl.resume(tmp_path / "run", workers=1)
    assert same(results_of(resumed), results_of(expected))
    assert export(tmp_path / "run").checked.startswith("100 samples of the data")


def test_a_site_keeps_the_precision_of_its_table(tmp_path: Path) -> None:
    exp = Experiment(dataset="sites", model="mlp", ignore="site", parties=1, rounds=1)
    inputs = []
    for far in (0.0, FAR):
        write_table(tmp_path / "rows.csv", far)
        (tmp_path / "site.toml").write_text("party = 0\ndata = 'rows.csv'\n")
        task = load_site(tmp_path / "site.toml", exp)[1].task
        assert task.parties[0].x.dtype == torch.float64
        inputs.append(standardised(task))
    assert torch.allclose(*inputs, atol=1e-6)


@pytest.mark.parametrize(("site", "stored"), [("float64", np.float32), ("float32", np.float64)])
def test_the_test_set_of_a_server_gets_the_float_type_of_the_sites(
    site: str, stored: type[np.floating], tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2).astype(stored), y=[0, 1])
    record = SiteRecord(
        party=0,
        name="site-1",
        versions={},
        shape=[2],
        dtype=f"torch.{site}",
        classes=["0", "1"],
        counts=[1, 1],
        sha256="0" * 64,
        held_out=0,
        validation=0,
    )
    test = with_site_dtype(read_npz(tmp_path / "a.npz"), [record])
    assert test is not None
    assert str(test.train.x.dtype) == f"torch.{site}"


def test_images_and_token_ids_keep_their_type() -> None:
    for dtype in (torch.uint8, torch.int64):
        examples = Examples(torch.zeros(2, 3, dtype=dtype), torch.zeros(2, dtype=torch.long))
        assert examples.with_dtype(torch.float64).x.dtype == dtype
