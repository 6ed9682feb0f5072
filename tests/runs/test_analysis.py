"""The analysis of the final models: t-SNE, collapsed models and names of models."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_info

import moonfl
from moonfl import Experiment, FedAvg, InputError, Solo
from moonfl.cli import main
from moonfl.runs import analysis
from moonfl.runs.analysis import tsne
from moonfl.types import Params, Server


def test_tsne_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more threads, a dozen points take minutes while other programs use the cores."""
    threads: list[int] = []

    def fit(self: TSNE, z: Any) -> Any:
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return z[:, :2]

    monkeypatch.setattr(TSNE, "fit_transform", fit)
    tsne(np.eye(9, 4, dtype=np.float32))
    assert set(threads) == {1}


@pytest.mark.parametrize(
    "z",
    [
        np.zeros((360, 64)),
        np.full((400, 256), -1.25),
        np.full((5, 4), 0.3),
        np.full((400, 256), 0.37),
        np.full((9, 4), np.inf),
        np.full((9, 4), np.nan),
        np.zeros((3, 4)),
    ],
)
def test_tsne_of_constant_non_finite_or_few_points_is_zero(z: NDArray[np.float64]) -> None:
    assert tsne(z.astype(np.float32)) == [(0.0, 0.0)] * len(z)


def test_tsne_of_one_dimension_and_of_two_distinct_points() -> None:
    one_dimension = np.arange(40.0)[:, None]
    two_points = np.repeat(np.eye(2, 5), 20, axis=0)
    for z in (one_dimension, two_points, two_points * 1e-30):
        points = np.array(tsne(z.astype(np.float32)))
        assert np.isfinite(points).all()
        assert np.ptp(points) > 0


def test_a_run_with_a_collapsed_network_finishes(tmp_path: Path) -> None:
    """All units are dead, so z is the same for every sample."""
    exp = Experiment(algorithm=FedAvg(), parties=3, rounds=2, epochs=3, lr=1.0, head=False)
    assert len(moonfl.run(exp, tmp_path / "run", workers=1).rounds) == 2


@dataclass(frozen=True)
class NamedModels(FedAvg):
    """An algorithm that returns models with these names."""

    names: str = ""

    def deployed(self, server: Server) -> dict[str, Params]:
        return {name: {**server.params, **server.buffers} for name in self.names.split(", ")}


@pytest.mark.parametrize("names", [("averaged",), ("global", "party0"), ("party0", "party1")])
def test_unknown_names_of_models_are_refused_in_the_first_round(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    exp = Experiment(algorithm=NamedModels(", ".join(names)), parties=3, rounds=2, epochs=1)
    message = f"of NamedModels returns {', '.join(names)}; it must return"
    with pytest.raises(InputError, match=message):
        moonfl.run(exp, tmp_path / "run", workers=1)
    assert not (tmp_path / "run" / "rounds.jsonl").read_text()


def test_of_many_parties_a_sample_is_analysed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "MAX_PARTIES", 4)
    exp = Experiment(algorithm=FedAvg(), parties=9, rounds=1, epochs=1)
    moonfl.run(exp, tmp_path / "many", workers=1)
    final = json.loads((tmp_path / "many" / "final.json").read_text())
    assert final["sampled_from"] == 9
    assert len({party["party"] for party in final["parties"]}) == 4
    solo = Experiment(algorithm=Solo(), parties=9, rounds=1, epochs=1)
    moonfl.run(solo, tmp_path / "solo", workers=1)
    final = json.loads((tmp_path / "solo" / "final.json").read_text())
    assert len(final["parties"]) == 4
    assert np.sum(final["confusion"]) == 4 * 360
    moonfl.run(replace(exp, parties=4), tmp_path / "few", workers=1)
    final = json.loads((tmp_path / "few" / "final.json").read_text())
    assert final.get("sampled_from") is None
    assert len(final["parties"]) == 4
    report = main(["report", str(tmp_path), "--out", str(tmp_path / "report")])
    assert report == 0
    pages = (tmp_path / "report").rglob("*.html")
    assert any("a random sample of 4 parties was analysed" in page.read_text() for page in pages)
