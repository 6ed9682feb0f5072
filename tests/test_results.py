"""The published results: the page is what the stored facts give, and the facts are those of whole runs."""

import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moonfl.experiment import Experiment, from_toml
from moonfl.report.runs import Run
from moonfl.reproduce import name_of
from moonfl.targets import TARGETS, preset

ROOT = Path(__file__).parents[1]
MAKE = runpy.run_path(str(ROOT / "results" / "make.py"))
STORED, QUIET = MAKE["stored"](), MAKE["stored"]("quiet")


def test_every_page_and_picture_is_made_of_the_facts() -> None:
    made = MAKE["pages"](STORED, QUIET)
    assert {"results.md", "README.md", "comparison.md", "results-curves.svg"} <= {path.name for path in made}
    for path, text in made.items():
        assert path.read_text() == text


@pytest.mark.parametrize("name", [*STORED, *QUIET])
def test_a_stored_run_is_whole_and_small(name: str) -> None:
    run = (STORED | QUIET)[name]
    assert run.path.name == name
    assert run.finished
    assert size_of(run.path) < 200 * len(run.rounds) + 15_000
    for fact in run.rounds if run.federated else ():
        assert round(10_000 * fact["accuracy"]) == pytest.approx(10_000 * fact["accuracy"], abs=1e-6)


def test_all_that_is_stored_is_a_few_hundred_kilobytes() -> None:
    assert sum(size_of(run.path) for run in [*STORED.values(), *QUIET.values()]) < 700_000


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def experiments_of(target: str) -> list[Experiment]:
    return [exp for e in TARGETS[target].entries("cifar10") for exp in e.trials.values()]


@pytest.mark.parametrize("name", MAKE["VARIANTS"])
def test_one_more_run_of_a_variant_has_its_table(name: str) -> None:
    """Beside what the tables before it have of it, with the setting that was run."""
    first = experiments_of("table1")
    some = STORED[name_of(first[0])]
    there = {name_of(exp): some for exp in first}
    before = MAKE["VARIANTS"][: MAKE["VARIANTS"].index(name)]
    told = [exp for other in ("table1", *before) for exp in experiments_of(other)]
    entry, label = next(
        (e, label) for e in TARGETS[name].entries("cifar10") for label, exp in e.trials.items() if exp not in told
    )
    there[name_of(entry.trials[label])] = some
    (table,) = (table for table in MAKE["tables"](there)[1:] if table.name == name)
    (row,) = (row for row in table.rows if row[0] == entry.row and (entry.column in row or entry.column == "accuracy"))
    assert any(label in str(cell) for cell in row)
    assert row[-1].startswith("`moonfl run cifar10-")


@pytest.mark.parametrize("missing", ["moon", "fedavg", "scaffold"])
def test_a_partition_is_told_of_before_all_its_runs_are_there(missing: str) -> None:
    some = STORED[name_of(preset("cifar10", "moon"))]
    wanted = [(method, number) for number in (0, 2) for method in ("moon", "fedavg", "scaffold")]
    there = {
        name_of(replace(preset("cifar10", method), partition_seed=number)): some
        for method, number in wanted
        if (method, number) != (missing, 2)
    }
    first, second = MAKE["partitions"](there).rows
    assert None not in first
    assert second.count(None) == {"moon": 3, "fedavg": 5, "scaffold": 3}[missing]


def test_a_changed_fact_changes_the_page() -> None:
    name = next(iter(STORED))
    before = STORED[name].rounds[-1]["accuracy"]
    STORED[name].rounds[-1]["accuracy"] = before - 0.1
    try:
        made = MAKE["pages"](STORED, QUIET)
        assert any(path.read_text() != text for path, text in made.items())
    finally:
        STORED[name].rounds[-1]["accuracy"] = before


def of_rounds(words: str) -> np.ndarray:
    """The accuracies of the run that this command gives."""
    (run,) = (run for run in STORED.values() if MAKE["command"](from_toml(run.path / "experiment.toml")) == words)
    return np.array([fact["accuracy"] for fact in run.rounds])


def percent(words: str) -> str:
    """The accuracy of the run that this command gives, after its last round."""
    return f"{100 * of_rounds(words)[-1]:.1f}"


def curves(method: str, trials: Sequence[tuple[int, int]] = ((0, 0), (0, 1), (0, 2))) -> np.ndarray:
    """Its accuracies, [trial, round]; a trial is a partition seed and a seed."""
    exp = preset("cifar10", method)
    runs = [STORED[name_of(replace(exp, partition_seed=partition, seed=seed))] for partition, seed in trials]
    return np.array([[fact["accuracy"] for fact in run.rounds] for run in runs])


def test_the_notes_say_what_the_runs_say() -> None:
    """Figures in results/notes.md that stand in no table; those of trials that are not stored are not here."""
    notes = " ".join((ROOT / "results" / "notes.md").read_text().split())
    moon, fedavg, fedprox, scaffold = map(curves, ("moon", "fedavg", "fedprox", "scaffold"))
    on = {p: {name: 100 * curves(name, [(p, 0)])[0] for name in ("moon", "fedavg", "scaffold")} for p in (0, 1, 2)}
    leads = {name: [(on[p][name] - on[p]["fedavg"])[-10:].mean() for p in on] for name in ("moon", "scaffold")}
    behind = np.flatnonzero(on[2]["moon"] <= on[2]["fedavg"]) + 1
    level = {name: (of >= 0.663).argmax(axis=1) + 1 for name, of in (("moon", moon), ("fedavg", fedavg))}
    from_here = after_last(~(moon > fedavg).all(axis=0))
    first = {name: (of >= fedavg[:, -1:]).argmax(axis=1) + 1 for name, of in (("moon", moon), ("fedavg", fedavg))}
    steps = np.abs(np.diff(fedavg[:, -21:])).mean(axis=1) * 100
    solo = "moonfl run cifar10-solo"
    gain = float(percent(solo)) - float(percent(f"{solo} head=false"))
    pushed = [(100 * of, 100 * curves(f"{name}fedavgm", [(0, 0)])[0]) for of, name in ((fedavg, ""), (moon, "moon-"))]
    pooled = of_target("tsne", "all data in one place")
    bare = 100 * of_rounds("moonfl run cifar10-fedavg head=false")
    light = 100 * of_rounds("moonfl run cifar10-moon mu=1")
    far = 100 * of_rounds("moonfl run cifar10-moon mu=0.1 contrast=l2")
    gains = {name: (on[1][name] - on[0][name])[-10:].mean() for name in on[0]}
    last_of_pooled = np.mean([fact["accuracy"] for fact in pooled.rounds[-10:]])
    for said in (
        "FedAvg most (by {fedavg:.1f} points, MOON by {moon:.1f}, SCAFFOLD by {scaffold:.1f})".format(**gains),
        f"first reaches the paper's final 66.3 % in round {level['fedavg'].max()} at the latest",
        "for good from round {}, {} and {} on".format(*(after_last(of < 0.663) for of in fedavg)),
        f"have a standard error of {fedavg[:, -1].std(ddof=1) * 100 / 3**0.5:.1f} points",
        f"The lead is {lead(moon, fedavg, 1)[0]:.1f} points",
        f"± {lead(moon, fedavg, 1)[1]:.1f} by the last round, and {show(lead(moon, fedavg))} by the mean of the last",
        f"to tell MOON from FedProx (+{show(lead(moon, fedprox))}, ahead in two of three seeds)",
        f"FedProx from FedAvg (+{show(lead(fedprox, fedavg))})",
        f"**MOON leads FedAvg** by {show(lead(moon, fedavg))} points",
        f"**SCAFFOLD leads MOON** by {show(lead(scaffold, moon))}: means of the last ten rounds",
        f"Our speed-up over FedAvg, {(100 / first['moon']).mean():.1f}, is below",
        "MOON leads by {1:.1f} and {2:.1f} in the mean of the last ten rounds".format(*leads["moon"]),
        f"it takes until round {after_last(on[1]['moon'] <= on[1]['fedavg'])} to stay ahead",
        "MOON's lead over FedAvg is {:.1f}, {:.1f} and {:.1f} points".format(*leads["moon"]),
        "SCAFFOLD's {:.1f}, {:.1f} and {:.1f}.".format(*leads["scaffold"]),
        f"({on[2]['moon'][-1]:.1f} % both",
        f"ahead there in {100 - len(behind)} of 100 rounds",
        f"ours has {percent('moonfl run cifar10-scaffold epochs=1')} % (seed 0)",
        f"It has {percent('moonfl run cifar10-fedprox mu=1')} % after 100 rounds (seed 0)",
        "in round {}, {} and {}, and counted from there".format(*first["fedavg"]),
        f"moves by {steps.min():.1f} to {steps.max():.1f} points in the mean of the last twenty",
        f"({level['moon'].min()} to {level['moon'].max()}, the paper 27)",
        f"(seed 0: {100 * moon[0, 2]:.1f} against {100 * fedavg[0, 2]:.1f} % after the third round)",
        f"in every round from the {from_here}th on, in all three seeds",
        f"seed 1 has {100 * fedavg[1, 97]:.1f} % in round 98 and {100 * fedavg[1, 99]:.1f} % in round 100",
        f"Without the head we find {percent(f'{solo} head=false')} ±",
        f"and the same seed here {gain:.1f}",
        f"(seed 0: {percent(f'{solo} epochs=100')} % after 100, {percent(solo)} % after the paper's 300)",
        f"where seed 0 has {percent(f'{solo} epochs=30')} %, no augmentation",
        f"({percent(f'{solo} epochs=30 augment=false')} %), other step sizes",
        f"0.03 have {percent(f'{solo} epochs=30 lr=0.003')} and {percent(f'{solo} epochs=30 lr=0.03')} %",
        "partitions 1, 2 and 3 ({}, {} and {} %)".format(
            *(percent(f"{solo} partition_seed={p} epochs=30") for p in (1, 2, 3))
        ),
        "(seeds 1 and 2 have {} and {} %;".format(*(percent(f"{solo} seed={s}") for s in (1, 2))),
        f"(partition 1 has {percent(f'{solo} partition_seed=1')} ±",
        "by {:.1f} and {:.1f} points in the mean of the last ten. The paper".format(
            *(of[0, -10:].mean() - m[-10:].mean() for of, m in pushed)
        ),
        f"ours {(pushed[1][1] - pushed[0][1])[-10:].mean():.1f} by the same mean",
        "Our accuracies, {:.1f} and {:.1f} %, are 0.6 points below".format(*(m[-1] for _, m in pushed)),
        f"It has {percent('moonfl run cifar10-moon mu=1')} % (seed 0; the paper 68.4",
        "it is {:.1f} points above FedAvg, mu = 5 is {:.1f} above".format(
            *((of - on[0]["fedavg"])[-10:].mean() for of in (light, on[0]["moon"]))
        ),
        "After the third round it has {:.1f} %, with mu = 5 {:.1f} and FedAvg {:.1f} %".format(
            *(of[2] for of in (light, on[0]["moon"], on[0]["fedavg"]))
        ),
        f"Without it FedAvg has {bare[-1]:.1f} % (seed 0; the paper 66.7 %)",
        f"with the head in {(bare > on[0]['fedavg']).sum()} of 100 rounds, by "
        f"{(bare - on[0]['fedavg'])[-10:].mean():.1f} points in the mean of the last ten",
        f"The {bare[-1] - 66.7:.1f} points above the paper",
        f"ends at {percent('moonfl run cifar10-moon mu=0.1 contrast=l2')} %. In the mean of the last ten rounds it has "
        f"{far[-10:].mean():.1f} %, {(on[0]['fedavg'] - far)[-10:].mean():.1f} points below FedAvg",
        "rounds 41 to 60, 61 to 80 and 81 to 100 are {:.1f}, {:.1f} and {:.1f} %".format(
            *(far[k : k + 20].mean() for k in (40, 60, 80))
        ),
        f"of its own class is {kin('all data in one place')} % under the model of all data in one place",
        f"{kin('FedAvg: global model')} % under FedAvg's global model after ten rounds",
        f"{kin('FedAvg: a local model', 'local')} % under party 0's model after",
        f"and {kin('one party alone')} % under party 0's model alone",
        f"in one place give {100 * last_of_pooled:.1f} %** in the mean of the last ten of 300 epochs",
        f"({percent('moonfl run cifar10-centralised')} % after the last, "
        f"{100 * max(fact['accuracy'] for fact in pooled.rounds):.1f} % in the best one; seed 0)",
        "That is {:.1f} points above SCAFFOLD and {:.1f} above MOON by the same mean".format(
            *(100 * (last_of_pooled - of[:, -10:].mean()) for of in (scaffold, moon))
        ),
    ):
        assert said in notes
    assert np.abs(first["fedavg"] / first["moon"] - 1.4).max() < 0.1
    assert all(s > m > 0 for s, m in zip(leads["scaffold"], leads["moon"], strict=True))
    spans = {name: np.ptp([of[name][-10:].mean() for of in on.values()]) for name in on[0]}
    assert round(spans["fedavg"]) == round(np.ptp([of["fedavg"][-1] for of in on.values()])) == 4
    assert spans["scaffold"] / spans["fedavg"] == pytest.approx(0.5, abs=0.05)
    assert all((of[0] > m).all() for of, m in pushed)
    assert (np.flatnonzero(far >= on[0]["fedavg"]) == 0).all()
    assert behind.tolist() == [1, 2, 3, 4, 5, 93, 100]
    assert round(100 * (on[2]["fedavg"][-1] - on[2]["moon"][-1])) == 6
    assert (moon[:, -1] > fedavg[:, -1]).all()
    assert (moon[:, -1] > fedprox[:, -1]).sum() == 2
    assert (scaffold[:, -1] > moon[:, -1]).all()


def of_target(name: str, row: str) -> Run:
    (entry,) = (e for e in TARGETS[name].entries("cifar10") if e.row == row)
    return STORED[name_of(entry.trials[""])]


def kin(row: str, layout: str = "points") -> str:
    """Of the ten nearest neighbours in a map of the motivation, the percentage that are of the same class."""
    found = of_target("tsne", row).final["tsne"]
    points, labels = np.array(found[layout]), np.array(found["labels"])
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    nearest = apart.argsort(axis=1)[:, 1:11]
    return f"{100 * (labels[nearest] == labels[:, None]).mean():.0f}"


def after_last(rounds: np.ndarray) -> int:
    """The round after the last in which this holds."""
    return int(np.flatnonzero(rounds).max()) + 2


def lead(of: np.ndarray, over: np.ndarray, last: int = 10) -> tuple[float, float]:
    """In points, by the mean of the last rounds: the mean over seeds, and half of its 95 % interval by Student's t."""
    found = 100 * (of - over)[:, -last:].mean(axis=1)
    return float(found.mean()), 4.303 * float(found.std(ddof=1)) / len(found) ** 0.5


def show(value: tuple[float, float]) -> str:
    return f"{value[0]:.1f} ± {value[1]:.1f}"
