"""The table of who gains and who loses by personal models."""

from pathlib import Path

import numpy as np
import pytest

import moonfl
from moonfl.experiment import Experiment, override
from moonfl.report.build import write
from moonfl.report.comparisons import compare_with_baseline
from moonfl.report.gains import GLOBAL_MODEL, gains_chart, gains_table, personal_groups
from moonfl.report.groups import group_runs
from moonfl.report.runs import load_runs

QUICK = Experiment(parties=3, rounds=2, epochs=1, out_dim=16)


def test_gains_are_those_of_the_records(tmp_path: Path) -> None:
    solo = override(QUICK, ["algorithm=solo", "rounds=1", "epochs=2"])
    ditto = override(QUICK, ["algorithm=ditto"])
    fedper = override(QUICK, ["algorithm=fedavg", "personal=output"])
    records = {}
    for name, exp in {"solo": solo, "ditto": ditto, "fedper": fedper}.items():
        records[name] = moonfl.run(exp, tmp_path / name, workers=1).rounds[-1]
    groups = group_runs(load_runs([tmp_path])[0])[0]
    rows = {(row[0], row[1]): row for row in gains_table(groups).rows}
    assert {label for label, _ in rows} == {"Ditto", "FedPer"}
    assert {other for _, other in rows} == {GLOBAL_MODEL, "SOLO"}
    assert ("FedPer", GLOBAL_MODEL) not in rows  # there is no complete global model
    for label, reference, own, other in (
        ("Ditto", GLOBAL_MODEL, records["ditto"].sites, records["ditto"].global_sites),
        ("Ditto", "SOLO", records["ditto"].sites, records["solo"].sites),
        ("FedPer", "SOLO", records["fedper"].sites, records["solo"].sites),
    ):
        differences = [own[i][0] / own[i][1] - other[i][0] / other[i][1] for i in own]
        row = rows[label, reference]
        assert row[2] == sum(d > 0 for d in differences)
        assert row[4] == sum(d < 0 for d in differences)
        assert abs(row[5] - sum(differences) / 3) < 1e-9
        assert (row[6], row[8]) == (min(differences), max(differences))
    alts = {g.label: gains_chart("gains", g, groups).alt for g in personal_groups(groups)}
    for label, reference, own in (
        ("Ditto", GLOBAL_MODEL, records["ditto"].global_sites),
        ("Ditto", "personal model", records["ditto"].sites),
        ("FedPer", "personal model", records["fedper"].sites),
        ("FedPer", "SOLO", records["solo"].sites),
    ):
        percent = [100 * correct / number for correct, number in own.values()]
        assert f"{reference} from {min(percent):.3g} to {max(percent):.3g}" in alts[label]
    assert GLOBAL_MODEL not in alts["FedPer"]
    page = write([tmp_path], tmp_path / "report").read_text()
    assert "Personal models: Ditto" in page
    assert "Who gains and who loses by personal models" in page


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_solo_and_personal_models_of_other_tasks_get_no_verdict(task: str, tmp_path: Path) -> None:
    """SOLO is evaluated on all test samples, and personal models on those of their party."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype(np.float32)
    y = x @ rng.normal(size=(3, 2)).astype(np.float32)
    y = (y > 0).astype(int) if task == "multilabel" else y
    parties = [(x[k::3], y[k::3]) for k in range(3)]
    for name, settings in (("solo", {}), ("fedper", {"personal": "output"})):
        algorithm = "solo" if name == "solo" else "fedavg"
        for seed in (0, 1):
            moonfl.federate(
                "mlp",
                parties,
                algorithm=algorithm,
                rounds=1,
                epochs=1,
                seed=seed,
                task=task,
                out=tmp_path / f"{name}{seed}",
                workers=1,
                **settings,
            )
    groups = group_runs(load_runs([tmp_path])[0], "FedPer")[0]
    (comparison,) = compare_with_baseline(groups)
    assert comparison.group.is_solo
    assert comparison.baseline.has_party_models
    assert comparison.conclusion.text.startswith("no verdict: SOLO is evaluated on all test")
    assert "compare party_score" in comparison.conclusion.text
    assert personal_groups(groups) == []


def test_without_party_models_there_is_no_table(tmp_path: Path) -> None:
    moonfl.run(override(QUICK, ["algorithm=fedavg", "evaluate_every=2"]), tmp_path / "a", workers=1)
    assert gains_table(group_runs(load_runs([tmp_path])[0])[0]) is None


def test_a_report_of_runs_with_rounds_that_were_not_evaluated(tmp_path: Path) -> None:
    exp = override(QUICK, ["algorithm=fedavg", "rounds=5", "evaluate_every=2"])
    for seed in range(2):
        moonfl.run(override(exp, [f"seed={seed}"]), tmp_path / str(seed), workers=1)
    groups = group_runs(load_runs([tmp_path])[0])[0]
    matrix = groups[0].metric_matrix("accuracy")
    assert np.isfinite(matrix).tolist() == [[False, True, False, True, True]] * 2
    page = write([tmp_path], tmp_path / "report").read_text()
    assert "nan" not in page.partition("<main")[2].lower().replace("finance", "")
