"""What a report wants to know of the last models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_info

import moonfl
from moonfl import Experiment, FedAvg, InputError
from moonfl.runs.analysis import tsne
from moonfl.types import Params, Server


def test_tsne_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more, a dozen points take minutes where other programs keep the cores busy."""
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
def test_where_nothing_varies_there_is_nothing_to_lay_out(z: NDArray[np.float64]) -> None:
    assert tsne(z.astype(np.float32)) == [(0.0, 0.0)] * len(z)


def test_one_dimension_and_two_points_are_laid_out() -> None:
    one, two = np.arange(40.0)[:, None], np.repeat(np.eye(2, 5), 20, axis=0)
    for z in (one, two, two * 1e-30):
        points = np.array(tsne(z.astype(np.float32)))
        assert np.isfinite(points).all()
        assert np.ptp(points) > 0


def test_a_collapsed_network_ends_its_run(tmp_path: Path) -> None:
    """All units dead: z is the same for every sample."""
    exp = Experiment(algorithm=FedAvg(), parties=3, rounds=2, epochs=3, lr=1.0, head=False)
    assert len(moonfl.run(exp, tmp_path / "run", workers=1).rounds) == 2


@dataclass(frozen=True)
class Named(FedAvg):
    names: str = ""

    def deployed(self, server: Server) -> dict[str, Params]:
        return {name: {**server.params, **server.buffers} for name in self.names.split(", ")}


@pytest.mark.parametrize("names", [("averaged",), ("global", "party0"), ("party0", "party1")])
def test_models_that_reports_do_not_know_are_refused_in_the_first_round(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    exp = Experiment(algorithm=Named(", ".join(names)), parties=3, rounds=2, epochs=1)
    with pytest.raises(InputError, match=f"of Named returns {', '.join(names)}; it must return"):
        moonfl.run(exp, tmp_path / "run", workers=1)
    assert not (tmp_path / "run" / "rounds.jsonl").read_text()
