"""A site: its site.toml, its data, and what its errors reveal."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.flower_deployment import (
    Deployment,
)
from helpers.problems import TABLE, write_cifar10, write_images
from moonfl import Experiment, InputError, RunError
from moonfl.data.augment import default_preparation
from moonfl.data.npz import write_npz
from moonfl.flower.client import MISCONFIGURED
from moonfl.flower.init import init
from moonfl.flower.run import read_experiment
from moonfl.flower.site import load_site


def test_every_site_may_have_its_own_file_format(tmp_path: Path) -> None:
    exp = replace(
        Experiment(dataset="sites", model="mlp", label="outcome", ignore="site", rounds=1),
        parties=2,
    )
    init(tmp_path / "federation", exp, 2, "127.0.0.1:8000", with_data=False)
    for k in (1, 2):
        site = tmp_path / "federation" / f"site-{k}"
        (site / "rows.csv").write_text(TABLE)
        text = (site / "site.toml").read_text().replace('"data.npz"', '"rows.csv"')
        (site / "site.toml").write_text(text)
    site_1 = load_site(tmp_path / "federation" / "site-1" / "site.toml", exp)[1].task
    assert (len(site_1.parties[0].y), len(site_1.test.y)) == (96, 24)
    (tmp_path / "federation" / "site-1" / "tables").mkdir()
    for name in ("train.csv", "test.csv"):
        (tmp_path / "federation" / "site-1" / "tables" / name).write_text(TABLE)
    (tmp_path / "federation" / "site-1" / "site.toml").write_text("party = 0\ndata = 'tables'\n")
    site_1 = load_site(tmp_path / "federation" / "site-1" / "site.toml", exp)[1].task
    assert (len(site_1.parties[0].y), len(site_1.test.y)) == (120, 120)
    write_images(tmp_path / "federation" / "site-2" / "images")
    (tmp_path / "federation" / "site-2" / "site.toml").write_text("party = 1\ndata = 'images'\n")
    assert load_site(tmp_path / "federation" / "site-2" / "site.toml", exp)[1].task.classes == (
        "blue",
        "red",
    )


def test_a_site_prepares_pixels_as_the_server_does(tmp_path: Path) -> None:
    """The preparation does not depend on the file format, since all sites train one model."""
    exp = Experiment(dataset="sites", model="simple-cnn", parties=1, rounds=1)
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    prepared = []
    for name in ("cifar-10-batches-py", "data.npz"):
        (tmp_path / "site.toml").write_text(f"party = 0\ndata = '{name}'\nholdout = 0.0\n")
        task = load_site(tmp_path / "site.toml", exp)[1].task
        write_npz(tmp_path / "data.npz", task.parties[0], None, task.classes)
        prepared.append(task.preparation.batch(task.parties[0].x, torch.arange(100)))
    assert torch.equal(*prepared)
    assert task.preparation == default_preparation(torch.uint8, 3)  # the server's


def test_a_site_without_a_test_part_holds_out_a_fifth(
    deployment: Deployment,
) -> None:
    for k in range(3):
        path = deployment.folder / f"site-{k + 1}" / "data.npz"
        np.savez(
            path,
            **{name: value for name, value in np.load(path).items() if not name.endswith("_test")},
        )
    result = deployment.serve()
    total = sum(
        len(np.load(deployment.folder / f"site-{k + 1}" / "data.npz")["y"]) for k in range(3)
    )
    held_out = sum(n for _, n in result.rounds[0]["sites"].values())
    assert held_out == pytest.approx(total / 5, abs=3)
    assert sum(p["samples"] for p in result.rounds[0]["parties"]) == total - held_out


def test_unprintable_class_names_are_refused(deployment: Deployment) -> None:
    path = deployment.folder / "site-1" / "data.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"classes": np.array(["ill\nacute", *arrays["classes"][1:]])})
    with pytest.raises(InputError, match="a class has the name"):
        load_site(deployment.folder / "site-1" / "site.toml", deployment.exp)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("party = 2\ndevice = 'cuda:7'", "device=cuda:7 is not available"),
        ("party = 2\ndata = 'site.toml'", "site.toml is not an .npz file of plain arrays"),
        ("party = -1", "party must be an integer >= 0"),
        ("parti = 1", "did you mean party"),
        ("party = 2\nholdout = 1.0", "holdout must be"),
        ("party = 2\ndata = 'nowhere.npz'", "nowhere.npz cannot be read: No such file"),
        ("party = 2\ndata = '.'", "has no class folders"),
        ("party =", "is not valid TOML"),
    ],
)
def test_errors_of_a_site_are_printed_in_its_own_log(
    deployment: Deployment, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (deployment.folder / "site-3" / "site.toml").write_text(text)
    with pytest.raises(RunError, match=MISCONFIGURED):
        deployment.serve()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train.csv", "ill/Jane Doe.txt"])
def test_no_cell_and_no_file_name_reaches_the_server(
    deployment: Deployment, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error message contains neither."""
    site, path = (
        deployment.folder / "site-3" / "site.toml",
        deployment.folder / "site-3" / "data" / name,
    )
    path.parent.mkdir(parents=True)
    path.write_text("age,label\n50,1\nJane Doe,2\n")
    site.write_text(site.read_text().replace("data.npz", "data"))
    with pytest.raises(RunError, match=MISCONFIGURED) as failure:
        deployment.serve()
    assert "Jane" not in str(failure.value)
    out, err = capsys.readouterr()
    assert "Jane" not in out
    assert "Jane Doe" in next(line for line in err.splitlines() if str(site.parent) in line)


def test_sites_ignore_the_device_of_the_experiment(deployment: Deployment) -> None:
    path = deployment.folder / "app" / "experiment.toml"
    path.write_text(path.read_text().replace('device = "cpu"', 'device = "cuda:7"'))
    assert read_experiment(deployment.folder).device == "cpu"
    assert len(deployment.serve().rounds) == 3
