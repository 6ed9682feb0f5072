"""What a report wants to know of the last models."""

from typing import Any

import numpy as np
import pytest
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_info

from moonfl.analysis import tsne


def test_tsne_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more, a dozen points take minutes where other programs keep the cores busy."""
    threads: list[int] = []

    def fit(self: TSNE, z: Any) -> Any:
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return z[:, :2]

    monkeypatch.setattr(TSNE, "fit_transform", fit)
    tsne(np.zeros((9, 4), dtype=np.float32))
    assert set(threads) == {1}
