"""The published results: the page is what template and runs give, and the runs are complete."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import make
import result_tables
import stored_runs
from helpers.problems import MemoryRecorder, mean_variate, quadratics, train
from moonfl import federation
from moonfl.algorithms import Scaffold
from moonfl.algorithms.fednova import effective_steps
from moonfl.data.partition import PartitionRequest, by_quantity
from moonfl.engines.embedded import Embedded
from moonfl.experiment import Experiment, override
from moonfl.presets import PRESETS
from moonfl.report.conclusions import Pairing, Verdict, conclude
from moonfl.report.runs import Run
from moonfl.reproduce.runner import run_name
from moonfl.reproduce.targets import TARGETS
from moonfl.runs.schema import FinalRecord, RoundRecord
from note_values import Curves, NoteValues, fill, placeholder_functions
from scaffold_variants import CorrectionAfterStep, MeanOverSampled, NIIDBench, RandomStart

ROOT = Path(__file__).parents[1]
ALL = make.load()
STORED = ALL.cifar10
CIFAR100 = ALL.cifar100
SKEWS = ALL.skews
QUIET = ALL.quiet
BY_NAME = STORED | SKEWS | CIFAR100 | QUIET
CURVES = Curves(STORED)
FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/*/experiment.toml"))


def test_generated_files_are_up_to_date() -> None:
    files = make.files(ALL)
    names = {path.name for path in files}
    pages = {
        "results.md",
        "results-cifar100.md",
        "results-skews.md",
        "README.md",
        "comparison.md",
    }
    assert pages | {"results-curves.svg", "results-cifar100-curves.svg"} <= names
    for path, text in files.items():
        assert path.read_text() == text, f"{path} is not what `make results` writes"


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "skews"])
def test_pages_depend_on_every_run(dataset: str) -> None:
    runs = getattr(ALL, dataset)
    name = next(iter(runs))
    *first, last = runs[name].rounds
    lower = RoundRecord(**{**last, "accuracy": last["accuracy"] - 0.1})
    changed = replace(runs[name], rounds=[*first, lower])
    files = make.files(replace(ALL, **{dataset: runs | {name: changed}}))
    assert any(path.read_text() != text for path, text in files.items())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_name_of_a_stored_run_is_that_of_its_experiment(folder: Path) -> None:
    assert BY_NAME[folder.name].path == folder


@pytest.mark.parametrize("name", BY_NAME)
def test_stored_run_is_complete_and_small(name: str) -> None:
    run = BY_NAME[name]
    assert run.finished or run.diverged
    assert size_of(run.path) < 200 * len(run.rounds) + 15_000
    for record in run.rounds if run.federated else ():
        images = 10_000 * record["accuracy"]
        assert round(images) == pytest.approx(images, abs=1e-6)


def test_storing_a_stored_run_again_gives_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = TARGETS["tsne"].entries("cifar10")[0].trials[""]
    folder = STORED[run_name(exp)].path
    monkeypatch.setattr(stored_runs, "HERE", tmp_path)
    stored_runs.store(folder)
    assert "stored" in capsys.readouterr().out
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["experiment.toml", "final.json", "partition.json", "rounds.jsonl"]
    for name in names:
        copy = tmp_path / "cifar10" / folder.name / name
        assert copy.read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("runs", [STORED, CIFAR100, SKEWS], ids=["cifar10", "cifar100", "skews"])
def test_stored_runs_have_different_commands(runs: dict[str, Run]) -> None:
    assert len(Curves(runs).by_command) == len(runs)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("cifar10-moon", ["mu=1", "epochs=5"]),
        ("cifar10-moon", ["server=momentum", "server.momentum=0.7"]),
        ("cifar10-scaffold", ["algorithm=moon+scaffold", "moon.mu=3"]),
        ("cifar100-fedavg", ["model=simple-cnn", "parties=100", "sample_fraction=0.2"]),
    ],
)
def test_command_of_a_run_gives_its_experiment(preset: str, changes: list[str]) -> None:
    exp = override(PRESETS[preset].experiment, changes)
    _, _, name, *words = stored_runs.command(exp).split()
    assert override(PRESETS[name].experiment, words) == exp


def test_all_stored_runs_take_a_few_hundred_kilobytes() -> None:
    assert sum(size_of(run.path) for run in [*STORED.values(), *QUIET.values()]) < 700_000


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("name", make.VARIANTS)
def test_rows_of_a_variant_share_the_seed_and_the_choice_of_settings(name: str) -> None:
    table = result_tables.variant(name, STORED)
    entries, runs = stored_runs.target_runs(name, STORED, seeds=(0,))
    all_trials = {(e.row, e.column): e.trials for e in TARGETS[name].entries("cifar10")}
    choices = {tuple(e.trials) for e in entries if len(all_trials[e.row, e.column]) > 1}
    assert len(choices) <= 1
    for entry in entries:
        assert len(entry.trials) == 1
        assert all(set(runs[exp]) == {0} for exp in entry.trials.values())
    presets = ("`moonfl run cifar10-fedavg`", "`moonfl run cifar10-moon`")
    assert any(not row[-1].startswith(presets) for row in table.rows)
    for row in table.rows:
        assert isinstance(row[-2], float) or "fedavg" in row[-1] or "solo" in row[-1]


def test_later_version_repeats_the_first_rounds() -> None:
    """The short runs, made for their times, repeat the federated runs of Table 1."""
    assert len(QUIET) == 12
    for run in QUIET.values():
        exp = replace(stored_runs.experiment_of(run), rounds=100)
        long = STORED[run_name(exp)].rounds[: len(run.rounds)]
        assert [r["accuracy"] for r in run.rounds] == [r["accuracy"] for r in long]
        assert [r["loss"] for r in run.rounds] == [r["loss"] for r in long]


def test_weights_of_fednova_on_parties_of_different_sizes() -> None:
    """The page on kinds of skew says that they add up to 3.3, and nearly to N sum p_i^2 = 2.8."""
    request = PartitionRequest(labels=np.zeros(50_000, dtype=np.int64), parties=10, beta=0.5)
    sizes = by_quantity(request).sizes()
    assert (sizes.min(), sizes.max()) == (172, 23_554)
    assert 10 * np.square(sizes / sizes.sum()).sum() == pytest.approx(2.8, abs=0.05)
    steps = 10 * (sizes // 64)
    assert (steps.min(), steps.max()) == (20, 3680)
    effective = np.array([effective_steps(int(number), 0.9) for number in steps])
    weights = sizes / effective * (sizes @ effective) / sizes.sum() ** 2
    assert weights.sum() == pytest.approx(3.3, abs=0.05)


# statements in the text that have no number


def test_leads_in_every_seed() -> None:
    moon, fedavg, scaffold = (
        CURVES.method_accuracies(name) for name in ("moon", "fedavg", "scaffold")
    )
    assert (moon > fedavg)[:, -1].all()
    assert (scaffold > moon)[:, -1].all()


def test_pairs_that_differ_with_the_correction_for_all_pairs() -> None:
    pairs = list(itertools.combinations(("scaffold", "moon", "fedprox", "fedavg"), 2))
    leads = [CURVES.late_leads(method, base).tolist() for method, base in pairs]
    conclusions = conclude([Pairing(tuple(by_seed)) for by_seed in leads])
    better = {
        pair
        for pair, conclusion in zip(pairs, conclusions, strict=True)
        if conclusion.verdict is Verdict.BETTER
    }
    assert better == {("scaffold", "moon"), ("scaffold", "fedavg"), ("moon", "fedavg")}


def test_chance_does_not_explain_what_is_above_the_paper_except_for_moon() -> None:
    """Welch's t, with at least two degrees of freedom."""
    paper = {
        "moon": (69.1, 0.4),
        "fedavg": (66.3, 0.5),
        "fedprox": (66.9, 0.2),
        "scaffold": (66.6, 0.2),
    }
    for method, (mean, std) in paper.items():
        final = CURVES.method_accuracies(method)[:, -1]
        t = (final.mean() - mean) / ((final.var(ddof=1) + std**2) / 3) ** 0.5
        assert (t > 4.3) == (method != "moon")


def test_speed_up_is_about_the_same_in_each_seed() -> None:
    goals = CURVES.method_accuracies("fedavg")[:, -1]
    fedavg = CURVES.rounds_to("fedavg", goals)
    assert np.abs(fedavg / CURVES.rounds_to("moon", goals) - 1.4).max() < 0.1


def test_order_and_spans_over_partitions() -> None:
    means: dict[str, list[float]] = {}
    for method in ("fedavg", "moon", "scaffold"):
        runs = [method, f"{method} partition_seed=1", f"{method} partition_seed=2"]
        means[method] = [float(CURVES.run_accuracies(run)[-10:].mean()) for run in runs]
    for fedavg, moon, scaffold in zip(*means.values(), strict=True):
        assert fedavg < moon < scaffold
    assert [round(np.ptp(values)) for values in means.values()] == [4, 4, 2]


def test_runs_that_are_behind_in_every_round() -> None:
    for run, base in (("fedavgm", "fedavg"), ("moon-fedavgm", "moon")):
        assert (CURVES.run_accuracies(run) < CURVES.run_accuracies(base)).all()
    for run, base in (
        ("moon mu=0.1 contrast=l2", "fedavg"),
        ("moon head=false", "fedavg head=false"),
    ):
        assert (CURVES.run_accuracies(run) < CURVES.run_accuracies(base))[1:].all()
    assert (CURVES.run_accuracies("moon negatives=2") < CURVES.run_accuracies("moon"))[2:].all()


def test_iid_parties_are_level() -> None:
    moon, fedavg = (
        CURVES.run_accuracies("moon mu=1 partition=iid"),
        CURVES.run_accuracies("fedavg partition=iid"),
    )
    assert f"{moon[-1]:.1f}" == f"{fedavg[-1]:.1f}"
    assert abs((moon - fedavg)[-10:].mean()) < 0.1
    assert np.abs((moon - fedavg)[40:].reshape(-1, 10).mean(axis=1)).max() < 0.3
    central = CURVES.run_accuracies("centralised")[-50:].mean()
    assert min(moon[-10:].mean(), fedavg[-10:].mean()) > central


def test_all_data_in_one_place_is_little_above_scaffold_and_moon() -> None:
    central = CURVES.run_accuracies("centralised")[-50:].mean()
    assert round(central - CURVES.method_accuracies("scaffold")[:, -10:].mean()) == 1
    assert 2.5 < central - CURVES.method_accuracies("moon")[:, -10:].mean() < 3


def test_maps_show_400_samples() -> None:
    for entry in TARGETS["tsne"].entries("cifar10"):
        assert len(STORED[run_name(entry.trials[""])].final["tsne"]["labels"]) == 400


# the functions that compute the numbers of the text


def make_run(accuracies: list[float], **fields: float) -> Run:
    """Return a run with these accuracies in %."""
    records = [
        RoundRecord(round=t, accuracy=value / 100, **fields)
        for t, value in enumerate(accuracies, 1)
    ]
    return Run(
        path=Path("run"),
        settings={"rounds": len(records), "algorithm.name": "fedavg"},
        versions={},
        code={},
        choices={},
        rounds=records,
        partition=None,
        final=FinalRecord(),
    )


@pytest.fixture
def values() -> NoteValues:
    """Return the functions for two methods with three seeds of four rounds."""
    functions = NoteValues({}, {})
    functions._curves.by_command = {
        "fedavg": make_run([10, 66.3, 66.0, 67], cpu_seconds=1),
        "fedavg seed=1": make_run([10, 20, 66.4, 67], cpu_seconds=1),
        "fedavg seed=2": make_run([10, 20, 30, 67], cpu_seconds=1),
        "moon": make_run([5, 67, 68, 69], cpu_seconds=3, accuracy_std=0.0123),
        "moon seed=1": make_run([5, 67, 68, 70], cpu_seconds=3),
        "moon seed=2": make_run([5, 67, 68, 71], cpu_seconds=3),
        "moon partition_seed=1": make_run([1, 2, 3, 70]),
        "moon partition_seed=2": make_run([1, 2, 3, 71]),
    }
    return functions


@pytest.mark.parametrize(
    ("placeholder", "text"),
    [
        ("accuracy(moon)", "69.0"),
        ("accuracy_with_std(moon)", "69.0 ± 1.2"),
        ("accuracy_after(2, moon)", "67.0"),
        ("mean_of_rounds(2, 3, moon)", "67.5"),
        ("span_of_rounds(2, 4, moon)", "67.0 to 69.0"),
        ("last_mean(moon)", "52.2"),
        ("above_number(moon, 68.5)", "0.5"),
        ("below_number(moon, 69.5)", "0.5"),
        ("ahead(moon, fedavg)", "-0.1"),
        ("ahead_at_end(moon, fedavg)", "2.0"),
        ("images_ahead(moon, fedavg)", "200"),
        ("rounds_ahead(moon, fedavg)", "3"),
        ("rounds_not_ahead(fedavg, moon)", "2, 3 and 4"),
        ("ahead_from(moon, fedavg)", "2"),
        ("lead(moon, fedavg, 1)", "3.0"),
        ("lead_interval(moon, fedavg, 1)", "0.5 to 5.5"),
        ("lead_span(moon, fedavg)", "-0.1 to 21.0"),
        ("seeds_ahead(moon, fedavg)", "2"),
        ("seeds_ahead_from(moon, fedavg)", "2"),
        ("std_over_seeds(moon)", "1.0"),
        ("standard_error(moon)", "0.6"),
        ("change_per_round(moon)", "21.3 to 22.0"),
        ("rounds_to_paper(fedavg)", "2, 3 and 4"),
        ("latest_round_to_paper(fedavg)", "4"),
        ("above_paper_from(fedavg)", "4, 3 and 4"),
        ("speed_up_to_paper(moon)", "1.0 to 2.0"),
        ("rounds_to_fedavg(moon)", "2, 2 and 2"),
        ("speed_up(moon)", "2.0"),
        ("speed_up_from_first(moon)", "2.0"),
        ("cpu_ratio(moon)", "3.0"),
        ("std_over_partitions(moon)", "1.0"),
        ("run_count()", "0"),
    ],
)
def test_value(values: NoteValues, placeholder: str, text: str) -> None:
    assert fill(f"a {{{{{placeholder}}}}} b", placeholder_functions(values)) == f"a {text} b"


def test_goal_that_a_seed_does_not_reach_is_refused(values: NoteValues) -> None:
    curves = values._curves
    with pytest.raises(ValueError, match="fedavg does not reach"):
        curves.rounds_to("fedavg", np.array([60.0, 60.0, 70.0]))


def test_time_ratio_uses_the_times_of_the_short_runs(values: NoteValues) -> None:
    fedavg = make_run([1, 1], seconds=2)
    moon = replace(make_run([1, 1], seconds=6), settings={"algorithm.name": "moon"})
    values._quiet = {"fedavg": fedavg, "moon": moon}
    assert values.time_ratio("moon") == "1.5 to 1.5"


@pytest.mark.parametrize(
    ("placeholder", "message"),
    [
        ("{{acuracy(moon)}}", "unknown placeholder {{acuracy(moon)}}; known: .*accuracy"),
        ("{{accuracy(mooon)}}", "{{accuracy(mooon)}} cannot be filled in: KeyError"),
        ("{{accuracy()}}", "{{accuracy()}} cannot be filled in: TypeError"),
        ("{{curve(moon)}}", "unknown placeholder {{curve(moon)}}"),
    ],
)
def test_wrong_placeholder_is_refused(values: NoteValues, placeholder: str, message: str) -> None:
    with pytest.raises(SystemExit) as error:
        fill(placeholder, placeholder_functions(values))
    start, _, rest = message.partition(".*")
    assert str(error.value).startswith(start)
    assert rest in str(error.value)


def test_fedavg_without_the_head_after_50_rounds() -> None:
    """The page on kinds of skew compares it with NIID-Bench's."""
    assert CURVES.run_accuracies("fedavg head=false")[40:50].mean() == pytest.approx(68.1, abs=0.05)


SAMPLED = Experiment(
    parties=4,
    sample_fraction=0.25,
    rounds=40,
    epochs=1,
    batch_size=8,
    lr=0.1,
    momentum=0.0,
    weight_decay=0.0,
)


@pytest.mark.parametrize(
    ("variant", "factor"), [(Scaffold(), 1), (RandomStart(), 1), (MeanOverSampled(), 4)]
)
def test_c_without_the_share_of_sampled_parties_is_too_large(
    variant: Scaffold, factor: int
) -> None:
    """With gradients that hardly change, c is N/|S| times the mean of the c_i."""
    c, mean, _ = control_variates(variant)
    assert c == pytest.approx(factor * mean, rel=1e-3)


def test_random_variates_remain_in_c_without_the_share_of_sampled_parties() -> None:
    """With N/|S| = 4 it contains W - 4 W for good."""
    c, mean, start = control_variates(NIIDBench())
    assert start != 0
    assert c == pytest.approx(4 * mean - 3 * start, rel=1e-3)


def control_variates(variant: Scaffold) -> tuple[float, float, float]:
    """Return c, the mean of the c_i, and the initial c after all parties have taken part."""
    task = quadratics([1e-6] * 4, [1e6, 2e6, 3e6, 5e6], [8] * 4)
    exp = replace(SAMPLED, algorithm=variant)
    start = federation.init_server(exp, task).shared["c"]["w"]
    engine = Embedded(exp, task)
    server = federation.run(exp, task, engine, MemoryRecorder())
    return float(server.shared["c"]["w"]), mean_variate(exp, engine), float(start)


def test_random_variates_do_harm_in_the_first_rounds() -> None:
    """The page on kinds of skew says so."""
    words = "head=false parties=100 sample_fraction=0.1 rounds=500"
    name = f"scaffold algorithm=scaffold_variants:RandomStart {words}"
    accuracies = Curves(SKEWS).run_accuracies(name)
    assert (accuracies[:16] < 25).all()
    assert accuracies[16] >= 25


@pytest.mark.parametrize("variant", [RandomStart(), MeanOverSampled()])
def test_the_differences_do_not_matter_if_all_parties_take_part(variant: Scaffold) -> None:
    task = quadratics([1.0, 4.0], [0.0, 1.0], [8, 8])
    exp = replace(SAMPLED, parties=2, sample_fraction=1)
    models = [
        train(replace(exp, algorithm=method), task).params for method in (Scaffold(), variant)
    ]
    assert float(models[1]["w"]) == pytest.approx(float(models[0]["w"]), abs=1e-5)


def test_a_correction_after_the_step_is_one_through_the_momentum() -> None:
    """Up to the first steps of a round, which are few of 500."""
    task = quadratics([1.0, 4.0], [0.0, 1.0], [8, 8])
    exp = replace(SAMPLED, parties=2, sample_fraction=1, epochs=500, lr=1e-4, momentum=0.9)
    models = [
        train(replace(exp, algorithm=method), task).params
        for method in (Scaffold(), CorrectionAfterStep())
    ]
    assert float(models[1]["w"]) == pytest.approx(float(models[0]["w"]), abs=1e-2)
