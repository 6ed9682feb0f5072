"""The published results: the page is what the stored facts give, and the facts are those of whole runs."""

import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moonfl.experiment import from_toml
from moonfl.report.runs import Run
from moonfl.reproduce.runner import run_name
from moonfl.reproduce.targets import TARGETS

ROOT = Path(__file__).parents[1]
MAKE = runpy.run_path(str(ROOT / "results" / "make.py"))
STORED, QUIET = MAKE["stored"](), MAKE["stored"]("quiet")
BY_COMMAND = {
    MAKE["command"](from_toml(run.path / "experiment.toml")): run for run in STORED.values()
}


def test_every_page_and_picture_is_made_of_the_facts() -> None:
    made = MAKE["pages"](STORED, QUIET)
    assert {"results.md", "README.md", "comparison.md", "results-curves.svg"} <= {
        path.name for path in made
    }
    for path, text in made.items():
        assert path.read_text() == text


@pytest.mark.parametrize("name", [*STORED, *QUIET])
def test_a_stored_run_is_whole_and_small(name: str) -> None:
    run = (STORED | QUIET)[name]
    assert run.path.name == name
    assert run.finished
    assert size_of(run.path) < 200 * len(run.rounds) + 15_000
    for fact in run.rounds if run.federated else ():
        assert round(10_000 * fact["accuracy"]) == pytest.approx(
            10_000 * fact["accuracy"], abs=1e-6
        )


def test_every_run_has_a_command_of_its_own() -> None:
    assert len(BY_COMMAND) == len(STORED)


def test_all_that_is_stored_is_a_few_hundred_kilobytes() -> None:
    assert sum(size_of(run.path) for run in [*STORED.values(), *QUIET.values()]) < 700_000


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("name", MAKE["VARIANTS"])
def test_rows_of_a_variant_are_of_one_seed_and_had_the_same_choice(name: str) -> None:
    table = MAKE["variant"](name, STORED)
    entries, runs = MAKE["of_target"](name, STORED, seeds=(0,))
    whole = {(e.row, e.column): e for e in TARGETS[name].entries("cifar10")}
    assert len({tuple(e.trials) for e in entries if len(whole[e.row, e.column].trials) > 1}) <= 1
    assert all(
        len(e.trials) == 1 and set(runs[exp]) == {0} for e in entries for exp in e.trials.values()
    )
    assert any(
        not row[-1].startswith(("`moonfl run cifar10-fedavg`", "`moonfl run cifar10-moon`"))
        for row in table.rows
    )
    assert all(
        isinstance(row[-2], float) or "fedavg" in row[-1] or "solo" in row[-1] for row in table.rows
    )


def test_a_changed_fact_changes_the_page() -> None:
    name = next(iter(STORED))
    before = STORED[name].rounds[-1]["accuracy"]
    STORED[name].rounds[-1]["accuracy"] = before - 0.1
    try:
        made = MAKE["pages"](STORED, QUIET)
        assert any(path.read_text() != text for path, text in made.items())
    finally:
        STORED[name].rounds[-1]["accuracy"] = before


def of_command(words: str) -> Run:
    """The run that `moonfl run` with these words gives."""
    return BY_COMMAND[f"moonfl run cifar10-{words}"]


def curve(words: str) -> np.ndarray:
    """Its accuracies in %, by round."""
    return 100 * np.array([fact["accuracy"] for fact in of_command(words).rounds])


def percent(words: str) -> str:
    """Its accuracy after the last round."""
    return f"{curve(words)[-1]:.1f}"


def over_parties(words: str) -> str:
    return f"{percent(words)} ± {100 * of_command(words).rounds[-1]['accuracy_std']:.1f} %"


NOTES = " ".join((ROOT / "results" / "notes.md").read_text().split())
METHODS = ("moon", "fedavg", "fedprox", "scaffold")
BY_SEED = {
    name: np.array([curve(name), curve(f"{name} seed=1"), curve(f"{name} seed=2")])
    for name in METHODS
}
FIRST = {name: of[0] for name, of in BY_SEED.items()}  # of seed 0
BY_PARTITION = [
    {name: curve(name + more) for name in ("moon", "fedavg", "scaffold")}
    for more in ("", " partition_seed=1", " partition_seed=2")
]


def check_said(*phrases: str) -> None:
    """Figures of results/notes.md that stand in no table."""
    for said in phrases:
        assert said in NOTES


def lead(of: str, over: str, last: int = 10) -> tuple[float, float]:
    """In points, by the mean of the last rounds: the mean over seeds, and half of its 95 % interval by Student's t."""
    found = (BY_SEED[of] - BY_SEED[over])[:, -last:].mean(axis=1)
    return float(found.mean()), 4.303 * float(found.std(ddof=1)) / len(found) ** 0.5


def ends(of: tuple[float, float]) -> str:
    """Of an interval, given by its middle and its half."""
    low, high = (f"{round(end, 1) + 0.0:.1f}" for end in (of[0] - of[1], of[0] + of[1]))
    return f"{low} to {high}"


def ahead(of: np.ndarray, over: np.ndarray) -> float:
    """By the mean of the last ten rounds."""
    return float((of - over)[-10:].mean())


def after_last(rounds: np.ndarray) -> int:
    """The round after the last in which this holds."""
    return int(np.flatnonzero(rounds).max()) + 2


def first_at(goals: Sequence[float], method: str) -> np.ndarray:
    """The first round at or above each seed's goal."""
    return np.array(
        [(of >= goal).argmax() + 1 for goal, of in zip(goals, BY_SEED[method], strict=True)]
    )


def test_notes_on_leads() -> None:
    moon, tell = lead("moon", "fedavg"), lead("moon", "fedprox")
    check_said(
        f"in every seed, by {lead('moon', 'fedavg', 1)[0]:.1f} points; the paper by 2.8",
        f"95 % interval of our lead is {ends(lead('moon', 'fedavg', 1))}, so",
        f"a lead better: {moon[0]:.1f}, from {ends(moon)}.",
        f"MOON from FedProx ({tell[0]:.1f}, from {ends(tell)}, ahead in two of three seeds)",
        f"FedProx from FedAvg ({lead('fedprox', 'fedavg')[0]:.1f}, from {ends(lead('fedprox', 'fedavg'))})",
        f"**MOON leads FedAvg by {moon[0]:.1f} points** (95 % interval {ends(moon)})",
        f"**and SCAFFOLD leads MOON by {lead('scaffold', 'moon')[0]:.1f}** ({ends(lead('scaffold', 'moon'))})",
        f"quite from SCAFFOLD ({lead('scaffold', 'fedprox')[0]:.1f}, {ends(lead('scaffold', 'fedprox'))})",
        f"ours has {percent('scaffold epochs=1')} % (seed 0)",
    )
    assert (BY_SEED["moon"] > BY_SEED["fedavg"])[:, -1].all()
    assert (BY_SEED["scaffold"] > BY_SEED["moon"])[:, -1].all()
    assert ((BY_SEED["moon"] - BY_SEED["fedprox"])[:, -10:].mean(axis=1) > 0).sum() == 2


def test_notes_on_what_is_above_the_paper() -> None:
    fedavg = BY_SEED["fedavg"]
    steps = np.abs(np.diff(fedavg[:, -21:])).mean(axis=1)
    check_said(
        f"first reaches the paper's final 66.3 % in round {first_at([66.3] * 3, 'fedavg').max()} at the latest",
        "for good from round {}, {} and {} on".format(*(after_last(of < 66.3) for of in fedavg)),
        f"have a standard error of {fedavg[:, -1].std(ddof=1) / 3**0.5:.1f} points",
        f"moves by {steps.min():.1f} to {steps.max():.1f} points in the mean of the last twenty",
        f"seed 1 has {fedavg[1, 97]:.1f} % in round 98 and {fedavg[1, 99]:.1f} % in round 100",
        f"the deviation over our seeds is {BY_SEED['fedprox'][:, -1].std(ddof=1):.1f}",
    )
    assert max(np.polyfit(range(20), of[-20:], 1)[0] * 20 for of in fedavg) == pytest.approx(
        0.3, abs=0.05
    )
    printed = {
        "moon": (69.1, 0.4),
        "fedavg": (66.3, 0.5),
        "fedprox": (66.9, 0.2),
        "scaffold": (66.6, 0.2),
    }
    for method, (mean, deviation) in printed.items():
        last = BY_SEED[method][:, -1]
        far = (last.mean() - mean) / ((last.var(ddof=1) + deviation**2) / 3) ** 0.5
        assert (far > 4.3) == (method != "moon"), (
            "what chance allows: Welch's t, of two degrees of freedom at the least"
        )


def test_notes_on_rounds_and_time() -> None:
    level, last = (
        {m: first_at(goals, m) for m in ("moon", "fedavg")}
        for goals in ([66.3] * 3, BY_SEED["fedavg"][:, -1])
    )
    seconds = {
        name: np.mean(
            [
                fact["seconds"]
                for run in QUIET.values()
                if run.settings["algorithm.name"] == name
                for fact in run.rounds[1:]
            ]
        )
        for name in ("moon", "fedavg")
    }
    longer = seconds["moon"] / seconds["fedavg"] * last["moon"] / last["fedavg"]
    spent = [
        sum(
            fact["cpu_seconds"]
            for seed in ("", " seed=1", " seed=2")
            for fact in of_command(name + seed).rounds
        )
        for name in ("fedavg", "fedprox", "scaffold", "moon")
    ]
    check_said(
        "MOON needs {}, {} and {} rounds (the paper 27)".format(*level["moon"]),
        "FedAvg {}, {} and {} (the paper 100)".format(*level["fedavg"]),
        "MOON is {:.1f} to {:.1f} times as fast here".format(
            *sorted(level["fedavg"] / level["moon"])[::2]
        ),
        f"own last accuracy our speed-up is {(100 / last['moon']).mean():.1f}",
        "in round {}, {} and {}, and counted from there".format(*last["fedavg"]),
        f"(seed 0: {FIRST['moon'][2]:.1f} against {FIRST['fedavg'][2]:.1f} % after the third round",
        f"from the {after_last(~(BY_SEED['moon'] > BY_SEED['fedavg']).all(axis=0))}th on, in all three seeds",
        "in {:.1f} to {:.1f} times the time".format(*sorted(longer)[::2]),
        "SCAFFOLD and MOON cost {:.1f}, {:.1f} and {:.1f} times FedAvg".format(
            *(of / spent[0] for of in spent[1:])
        ),
    )
    assert np.abs(last["fedavg"] / last["moon"] - 1.4).max() < 0.1


def test_notes_on_solo() -> None:
    thirty = {
        words: percent(f"solo {words}".strip())
        for words in ("epochs=30", "epochs=30 augment=false")
    }
    check_said(
        f"Without the head we find {over_parties('solo head=false')} (seed 0)",
        f"and the same seed here {(curve('solo') - curve('solo head=false'))[-1]:.1f}",
        f"(seed 0: {percent('solo epochs=100')} % after 100, {percent('solo')} % after the paper's 300)",
        f"where seed 0 has {thirty['epochs=30']} %, no augmentation ({thirty['epochs=30 augment=false']} %)",
        f"0.03 have {percent('solo epochs=30 lr=0.003')} and {percent('solo epochs=30 lr=0.03')} %",
        "partitions 1, 2 and 3 ({}, {} and {} %)".format(
            *(percent(f"solo partition_seed={p} epochs=30") for p in (1, 2, 3))
        ),
        f"(seeds 1 and 2 have {percent('solo seed=1')} and {percent('solo seed=2')} %;",
        f"(partition 1 has {over_parties('solo partition_seed=1')})",
    )


def test_notes_on_partitions() -> None:
    leads = {
        name: [ahead(of[name], of["fedavg"]) for of in BY_PARTITION]
        for name in ("moon", "scaffold")
    }
    gains = {
        name: ahead(BY_PARTITION[1][name], FIRST[name]) for name in ("fedavg", "moon", "scaffold")
    }
    second = BY_PARTITION[2]
    behind = np.flatnonzero(second["moon"] <= second["fedavg"]) + 1
    check_said(
        "MOON leads FedAvg by {1:.1f} and {2:.1f} only".format(*leads["moon"]),
        "MOON leads by {1:.1f} and {2:.1f} in the mean of the last ten rounds".format(
            *leads["moon"]
        ),
        f"it takes until round {after_last(BY_PARTITION[1]['moon'] <= BY_PARTITION[1]['fedavg'])} to stay ahead",
        "MOON's lead over FedAvg is {:.1f}, {:.1f} and {:.1f} points".format(*leads["moon"]),
        "SCAFFOLD's {:.1f}, {:.1f} and {:.1f}.".format(*leads["scaffold"]),
        f"({second['moon'][-1]:.1f} % both",
        f"ahead there in {100 - len(behind)} of 100 rounds",
        "FedAvg most (by {fedavg:.1f} points, MOON by {moon:.1f}, SCAFFOLD by {scaffold:.1f})".format(
            **gains
        ),
        f"our FedAvg deviates by {np.std([of['fedavg'][-1] for of in BY_PARTITION], ddof=1):.1f} points",
    )
    assert behind.tolist() == [1, 2, 3, 4, 5, 93, 100]
    assert round(100 * (second["fedavg"][-1] - second["moon"][-1])) == 6
    assert all(s > m > 0 for s, m in zip(leads["scaffold"], leads["moon"], strict=True))
    spans = [
        np.ptp([of[name][-10:].mean() for of in BY_PARTITION])
        for name in ("fedavg", "moon", "scaffold")
    ]
    assert [round(span) for span in spans] == [4, 4, 2]


def test_notes_on_mu_momentum_and_distance() -> None:
    fedavg, moon, light, far = (
        FIRST["fedavg"],
        FIRST["moon"],
        curve("moon mu=1"),
        curve("moon mu=0.1 contrast=l2"),
    )
    pushed = {
        name: curve(words) for name, words in (("fedavg", "fedavgm"), ("moon", "moon-fedavgm"))
    }
    check_said(
        "by {fedavg:.1f} and {moon:.1f} points in the mean of the last ten. The paper".format(
            **{name: ahead(FIRST[name], of) for name, of in pushed.items()}
        ),
        f"ours {ahead(pushed['moon'], pushed['fedavg']):.1f} by the same mean",
        "Our accuracies, {:.1f} and {:.1f} %, are 0.6 points below".format(
            *(of[-1] for of in pushed.values())
        ),
        f"It has {light[-1]:.1f} % (seed 0; the paper 68.4",
        f"it is {ahead(light, fedavg):.1f} points above FedAvg, mu = 5 is {ahead(moon, fedavg):.1f} above",
        f"After the third round it has {light[2]:.1f} %, with mu = 5 {moon[2]:.1f} and FedAvg {fedavg[2]:.1f} %",
        f"It has {percent('fedprox mu=1')} % after 100 rounds (seed 0)",
        f"ends at {far[-1]:.1f} %. In the mean of the last ten rounds it has {far[-10:].mean():.1f} %, "
        f"{-ahead(far, fedavg):.1f} points below FedAvg",
        "rounds 41 to 60, 61 to 80 and 81 to 100 are {:.1f}, {:.1f} and {:.1f} %".format(
            *(far[k : k + 20].mean() for k in (40, 60, 80))
        ),
    )
    assert all((FIRST[name] > of).all() for name, of in pushed.items())
    assert (np.flatnonzero(far >= fedavg) == 0).all()


def test_notes_on_iid_parties() -> None:
    moon, fedavg = curve("moon mu=1 partition=iid"), curve("fedavg partition=iid")
    check_said(
        f"With mu = 1 MOON has {moon[-1]:.1f} %, and so has FedAvg (seed 0; the paper 73.6 and 73.4 %)",
        f"Both are above the paper's, by {moon[-1] - 73.6:.1f} and {fedavg[-1] - 73.4:.1f} points",
        f"starts more slowly, with {moon[2]:.1f} against {fedavg[2]:.1f} % after the third round",
    )
    assert f"{moon[-1]:.1f}" == f"{fedavg[-1]:.1f}"
    assert abs(ahead(moon, fedavg)) < 0.1
    assert np.abs((moon - fedavg)[40:].reshape(-1, 10).mean(axis=1)).max() < 0.3
    assert min(moon[-10:].mean(), fedavg[-10:].mean()) > curve("centralised")[-50:].mean()


def test_notes_on_the_head_and_on_negatives() -> None:
    bare, bald, two = (
        curve("fedavg head=false"),
        curve("moon head=false"),
        curve("moon negatives=2"),
    )
    check_said(
        f"Without it FedAvg has {bare[-1]:.1f} % (seed 0; the paper 66.7 %)",
        f"in {(bare > FIRST['fedavg']).sum()} of 100 rounds, by {ahead(bare, FIRST['fedavg']):.1f} points in the mean",
        f"The {bare[-1] - 66.7:.1f} points above the paper",
        f"MOON without the head ends at {bald[-1]:.1f} % (seed 0; {bald[-10:].mean():.1f} % in the mean",
        f"by {ahead(bare, bald):.1f} points in the mean of the last ten: it has {bald[4]:.1f} % after the fifth round, "
        f"{bald[50:60].mean():.1f} % in the mean of rounds 51 to 60, and falls again",
        f"it then has {percent('moon mu=1 head=false rounds=20')} % and 14 % of its units on, "
        f"FedAvg without the head has {bare[19]:.1f} and mu = 5 has {bald[19]:.1f} %",
        f"With k = 2 MOON has {two[-1]:.1f} % (mu 5, seed 0); the paper has 67.2 %",
        f"are the same, they have {FIRST['moon'][0]:.1f} and {two[0]:.1f} %",
        f"it is {ahead(FIRST['moon'], two):.1f} points below k = 1 (the paper 1.9 at the end) and "
        f"{ahead(FIRST['fedavg'], two):.1f} below FedAvg",
    )
    assert (np.flatnonzero(bald >= bare) == 0).all()
    assert (two < FIRST["moon"])[2:].all()


def test_notes_on_representations_and_on_all_data_in_one_place() -> None:
    late = curve("centralised")[-50:]
    check_said(
        f"is {kin('all data in one place')} % under the model of all data in one place",
        f"{kin('FedAvg: global model')} % under FedAvg's global model",
        f"{kin('FedAvg: a local model', 'local')} % under party 0's model after",
        f"and {kin('one party alone')} % under party 0's model alone",
        f"in one place gives {late.mean():.1f} %** in the mean of the last fifty of 300 epochs",
        f"({late.min():.1f} to {late.max():.1f} % in single ones, {late[-1]:.1f} % after the last; seed 0)",
    )
    above = {name: late.mean() - BY_SEED[name][:, -10:].mean() for name in ("scaffold", "moon")}
    assert round(above["scaffold"]) == 1
    assert 2.5 < above["moon"] < 3


def kin(row: str, layout: str = "points") -> str:
    """Of the ten nearest neighbours in a map of the motivation, the percentage that are of the same class."""
    (entry,) = (e for e in TARGETS["tsne"].entries("cifar10") if e.row == row)
    found = STORED[run_name(entry.trials[""])].final["tsne"]
    points, labels = np.array(found[layout]), np.array(found["labels"])
    assert len(labels) == 400
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    nearest = apart.argsort(axis=1)[:, 1:11]
    return f"{100 * (labels[nearest] == labels[:, None]).mean():.0f}"


def test_a_later_version_repeats_the_first_rounds() -> None:
    """Of the federated runs of Table 1, to the digits that are kept; the short runs were made for their times."""
    assert len(QUIET) == 12
    for run in QUIET.values():
        exp = from_toml(run.path / "experiment.toml")
        long = STORED[run_name(replace(exp, rounds=100))]
        told = [
            [(f["accuracy"], f["loss"]) for f in of.rounds[: len(run.rounds)]] for of in (run, long)
        ]
        assert told[0] == told[1]
