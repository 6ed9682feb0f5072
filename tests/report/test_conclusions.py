"""Intervals agree with scipy; verdicts are wrong no more often than stated; edge cases."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from helpers.run_files import make_run
from moonfl import InputError, report
from moonfl.report import conclusions
from moonfl.report.comparisons import compare_with_baseline
from moonfl.report.conclusions import (
    ONE_SEED,
    Conclusion,
    Pairing,
    Verdict,
    conclude,
    holm,
    mean_interval,
    p_value,
    power,
    seeds_needed,
    t_interval,
)
from moonfl.report.groups import Group, group_runs
from moonfl.report.headlines import headlines
from moonfl.report.result_tables import difference_table, overview_table
from moonfl.report.runs import load_runs
from moonfl.report.seed_summary import seeds_summary, summarise_seeds
from moonfl.report.statistics import target_by_group, target_scores

CLAIMS = (Verdict.BETTER, Verdict.WORSE)
Floats = NDArray[np.float64]


def conclude_one(*differences: float) -> Conclusion:
    return conclude([Pairing(differences)])[0]


def limit(rate: float, draws: int) -> float:
    """Return a rate plus four standard errors of its estimate."""
    return rate + 4 * math.sqrt(rate * (1 - rate) / draws)


# the method


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12))
def test_interval_and_p_value_agree_with_scipy(differences: list[float]) -> None:
    assume(np.std(differences) > 1e-6)
    expected = stats.ttest_1samp(differences, 0)
    interval = expected.confidence_interval(0.95)
    assert t_interval(differences).low == pytest.approx(interval.low, abs=1e-9)
    assert t_interval(differences).high == pytest.approx(interval.high, abs=1e-9)
    assert p_value(differences) == pytest.approx(expected.pvalue, abs=1e-9)
    verdict = conclude_one(*differences).verdict
    assert (verdict in CLAIMS) == (expected.pvalue < 0.05)
    assert (verdict is Verdict.BETTER) == (interval.low > 0)
    assert (verdict is Verdict.WORSE) == (interval.high < 0)


def test_the_test_is_that_of_paired_samples() -> None:
    ours, theirs = [0.69, 0.71, 0.70, 0.72], [0.66, 0.69, 0.68, 0.69]
    expected = stats.ttest_rel(ours, theirs)
    conclusion = conclude_one(*(a - b for a, b in zip(ours, theirs, strict=True)))
    assert conclusion.p_value == pytest.approx(expected.pvalue)
    assert conclusion.interval is not None
    assert conclusion.interval.low == pytest.approx(expected.confidence_interval().low)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_as_its_step_down_procedure(p_values: list[float]) -> None:
    expected = set()
    for rank, k in enumerate(sorted(range(len(p_values)), key=lambda k: p_values[k])):
        if p_values[k] * (len(p_values) - rank) >= 0.05:
            break
        expected.add(k)
    assert {k for k, p in enumerate(holm(p_values)) if p < 0.05} == expected


@pytest.mark.parametrize(
    ("effect", "seeds", "level"), [(1.0, 11, 0.05), (2.0, 5, 0.05), (0.5, 40, 0.0125)]
)
def test_power_agrees_with_scipy_and_with_simulation(
    effect: float, seeds: int, level: float
) -> None:
    shift = effect * math.sqrt(seeds)
    critical = stats.t.isf(level / 2, seeds - 1)
    assert power(effect, seeds, level) == pytest.approx(stats.nct.sf(critical, seeds - 1, shift))
    draws = np.random.default_rng(0).normal(effect, 1, (20_000, seeds))
    t = draws.mean(axis=1) / draws.std(axis=1, ddof=1) * math.sqrt(seeds)
    assert (t > critical).mean() == pytest.approx(power(effect, seeds, level), abs=0.012)


def test_seeds_needed_is_the_smallest_number_with_the_power() -> None:
    differences = [0.01, 0.03, -0.01]  # effect 0.5
    needed = seeds_needed(differences, 0.05)
    assert needed == 34  # the textbook number for a paired t-test, power 80 %, effect 0.5
    assert power(0.5, needed - 1, 0.05) < 0.8 <= power(0.5, needed, 0.05)
    corrected = seeds_needed(differences, 0.05 / 4)
    assert corrected is not None
    assert corrected > needed
    assert seeds_needed([0.01, -0.01], 0.05) is None
    assert "; more than 1000 seeds would be needed" in conclude_one(0.01, -0.01).text


# the frequency of wrong verdicts


def equal_methods(kind: str, seeds: int, tables: int, methods: int) -> Floats:
    """Return accuracies [tables, methods, seeds] of methods that are equally good.

    A part of the variation belongs to the seed and is shared, as by runs with equal weights.
    """
    random = np.random.default_rng([seeds, methods, len(kind)])
    shape = (tables, methods, seeds)
    shared = 0.01 * random.standard_normal((tables, 1, seeds))
    if kind == "normal":
        return 0.7 + shared + 0.01 * random.standard_normal(shape)
    if kind == "heavy tails":
        return 0.7 + shared + 0.01 * random.standard_t(3, shape)
    if kind == "skewed":
        return 0.9 + shared - 0.01 * random.lognormal(0, 1, shape)
    accuracy = np.clip(0.9 + shared + 0.01 * random.standard_normal(shape), 0, 1)
    return random.binomial(200, accuracy) / 200  # a test set of 200 samples


@pytest.fixture
def _without_seeds_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the number of seeds that a verdict would need, which takes most of the time."""
    monkeypatch.setattr(conclusions, "seeds_needed", lambda *_: None)


@pytest.mark.usefixtures("_without_seeds_needed")
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "skewed", "small test set"])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_better_and_worse_are_each_wrong_in_at_most_2_5_percent(kind: str, seeds: int) -> None:
    tables = 10_000
    accuracies = equal_methods(kind, seeds, tables, 2)
    differences = accuracies[:, 0] - accuracies[:, 1]
    verdicts = [conclude_one(*row).verdict for row in differences.tolist()]
    for claim in CLAIMS:
        rate = verdicts.count(claim) / tables
        assert rate < limit(0.025, tables)
        assert rate > 0.001, "the simulation must reach the claims it counts"


@pytest.mark.usefixtures("_without_seeds_needed")
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_table_of_equal_methods_has_a_wrong_verdict_in_at_most_5_percent(seeds: int) -> None:
    """The five methods are compared with the same runs of FedAvg, so their tests depend."""
    tables = 4_000
    accuracies = equal_methods("normal", seeds, tables, 6)
    differences = accuracies[:, 1:] - accuracies[:, :1]
    wrong = uncorrected = 0
    for table in differences.tolist():
        found = conclude([Pairing(tuple(row)) for row in table])
        wrong += any(conclusion.verdict in CLAIMS for conclusion in found)
        uncorrected += any(p_value(row) < 0.05 for row in table)
    assert 0.01 < wrong / tables < limit(0.05, tables)
    assert uncorrected / tables > 0.12, "without the correction the error is far higher"


def test_equal_methods_among_others_are_rarely_called_different() -> None:
    """Methods with a real difference do not spoil the verdicts on those without one."""
    tables = 4_000
    accuracies = equal_methods("normal", 5, tables, 5)
    effects = np.array([0.0, 0.0, 0.1, -0.1])[:, None]
    differences = accuracies[:, 1:] - accuracies[:, :1] + effects
    wrong = found = 0
    for table in differences.tolist():
        equal_1, equal_2, better, worse = conclude([Pairing(tuple(row)) for row in table])
        wrong += equal_1.verdict in CLAIMS or equal_2.verdict in CLAIMS
        wrong += better.verdict is Verdict.WORSE or worse.verdict is Verdict.BETTER
        found += better.verdict is Verdict.BETTER and worse.verdict is Verdict.WORSE
    assert wrong / tables < limit(0.05, tables)
    assert found / tables > 0.8


def test_intervals_cover_the_true_difference_in_95_percent() -> None:
    differences = np.random.default_rng(1).normal(0.02, 0.01, (10_000, 3)).tolist()
    intervals = [t_interval(row) for row in differences]
    covered = sum(interval.low <= 0.02 <= interval.high for interval in intervals)
    assert covered / len(intervals) == pytest.approx(0.95, abs=0.009)


@pytest.mark.parametrize(
    "values", [(), (0.9,), (0.0, 0.0), (0.972, 0.972, 0.972), (0.1 + 0.2, 0.3), (-3e12, -3e12 - 1)]
)
def test_equal_values_have_no_interval(values: tuple[float, ...]) -> None:
    assert mean_interval(values) is None


def test_values_of_any_size_have_an_interval() -> None:
    for size in (1e-12, 1.0, 1e12):
        values = [0.3 * size, 0.4 * size]
        assert mean_interval(values) == t_interval(values)


# verdicts in words


def test_texts_of_the_verdicts() -> None:
    assert conclude_one(0.030, 0.031, 0.032).text == "better"
    assert conclude_one(-0.030, -0.031, -0.032).text == "worse"
    open_verdict = conclude_one(0.19, 0.02, -0.05)
    assert open_verdict.text == "not distinguishable with 3 seeds; about 44 seeds would be needed"
    assert conclude_one(0.0, 0.0).text == "equal with each of 2 seeds"
    assert conclude_one(0.05).text == f"no verdict: {ONE_SEED}"
    assert conclude_one().text == "no verdict: there is no common seed"


def test_rounding_errors_are_no_variance() -> None:
    constant = conclude_one(0.9 - 0.8, 0.7 - 0.6, 0.3 - 0.2)
    assert constant.verdict is Verdict.NONE
    assert "leaves no variance to estimate" in constant.text
    assert conclude_one(0.1 + 0.2 - 0.3, 0.0, 0.0).verdict is Verdict.EQUAL


def test_a_verdict_that_only_the_correction_prevents_says_so() -> None:
    close = Pairing((0.030, 0.034, 0.040))
    assert conclude([close])[0].verdict is Verdict.BETTER
    others = [Pairing((0.01 * k, -0.01, 0.0)) for k in range(9)]
    corrected = conclude([close, *others])[0]
    assert corrected.interval is not None
    assert corrected.interval.low > 0
    assert corrected.text.startswith("not distinguishable with 3 seeds in 10 comparisons; about ")


def test_pairings_that_cannot_be_tested_do_not_count_as_comparisons() -> None:
    close = Pairing((0.030, 0.034, 0.040))
    useless = [Pairing((0.1,)), Pairing((0.0, 0.0)), Pairing((0.1, 0.2), "a run diverged"), close]
    assert [c.verdict for c in conclude(useless)] == [
        Verdict.NONE,
        Verdict.EQUAL,
        Verdict.NONE,
        Verdict.BETTER,
    ]
    assert conclude([]) == []


# runs


def make_runs(folder: Path, algorithm: str, finals: list[float], **settings: Any) -> list[Path]:
    """Write runs of two rounds with these final accuracies and the seeds 0, 1, ..."""
    paths = []
    for seed, accuracy in enumerate(finals):
        name = f"{algorithm.replace(':', '-')}-{len(settings)}-{seed}"
        path = make_run(folder / name, algorithm, seed, rounds=2, **settings)
        set_accuracies(path, [0.1, accuracy])
        paths.append(path)
    return paths


def test_a_summary_of_equal_accuracies_has_no_interval(tmp_path: Path) -> None:
    make_runs(tmp_path, "fedavg", [0.972] * 3)
    runs = load_runs([tmp_path])[0]
    assert seeds_summary(runs, [])["interval"] is None
    text = summarise_seeds(runs)
    assert "final accuracy 97.2 ± 0.0 %: mean and standard deviation over 3 seeds" in text
    assert "Student's t: none; the same accuracy with every seed leaves no variance" in text


def set_accuracies(run: Path, accuracies: list[float]) -> None:
    """Replace the rounds of a run by rounds with these accuracies."""
    records = [{"round": t, "accuracy": value} for t, value in enumerate(accuracies, 1)]
    (run / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def groups_of(path: Path) -> list[Group]:
    return group_runs(load_runs([path])[0])[0]


def verdicts(path: Path) -> dict[str, str]:
    """Return the verdict in words of each group that is compared with FedAvg."""
    comparisons = compare_with_baseline(groups_of(path))
    return {comparison.group.label: comparison.conclusion.text for comparison in comparisons}


def test_a_clear_difference(tmp_path: Path) -> None:
    make_runs(tmp_path, "moon", [0.70, 0.71, 0.69])
    make_runs(tmp_path, "fedavg", [0.67, 0.681, 0.66])
    assert verdicts(tmp_path) == {"MOON mu=5": "better"}
    assert headlines(groups_of(tmp_path)) == [
        "Better than FedAvg: MOON mu=5 (+3.0 points, 95 % interval +2.8 to +3.1)."
    ]
    text = report.compare([tmp_path])
    assert "MOON mu=5 compared with FedAvg: better\n" in text
    assert "  +3.0 ± 0.1 points, 95 % interval +2.8 to +3.1; by seed +3.0, +2.9, +3.0\n" in text
    table = difference_table(groups_of(tmp_path))
    assert table is not None
    assert table.cells() == [
        ["MOON mu=5", "FedAvg", "3", "+3.0 ± 0.1", "+3.0, +2.9, +3.0", "+2.8 to +3.1", "better"]
    ]
    assert "it would be wrong in 5 % of such comparisons" in table.note


def test_an_interval_that_contains_0_supports_no_claim(tmp_path: Path) -> None:
    """A gain of 5 points in the mean, with an interval from -3 to +14."""
    make_runs(tmp_path, "moon", [0.75, 0.71, 0.67])
    make_runs(tmp_path, "fedavg", [0.66, 0.66, 0.65])
    (headline,) = headlines(groups_of(tmp_path))
    assert headline == (
        "Not distinguishable from FedAvg: MOON mu=5 (+5.3 points, 95 % interval -3.4 to +14.1, "
        "with 3 seeds; about 6 seeds would be needed)."
    )


def test_methods_are_listed_by_verdict_and_corrected_together(tmp_path: Path) -> None:
    make_runs(tmp_path, "fedavg", [0.66, 0.67, 0.68])
    make_runs(tmp_path, "moon", [0.70, 0.711, 0.72])
    make_runs(tmp_path, "scaffold", [0.60, 0.612, 0.62])
    make_runs(tmp_path, "fedprox", [0.66, 0.69, 0.67])
    make_runs(tmp_path, "fednova", [0.66, 0.67, 0.68])
    (headline,) = headlines(groups_of(tmp_path))
    assert headline == (
        "Better than FedAvg: MOON mu=5 (+4.0 points, 95 % interval +3.9 to +4.2). "
        "Worse than FedAvg: SCAFFOLD (-5.9 points, 95 % interval -6.2 to -5.6). "
        "Not distinguishable from FedAvg: FedProx mu=0.01 (+0.3 points, 95 % interval -3.5 to "
        "+4.1, 3 seeds). "
        "Equal to FedAvg: FedNova (with each of 3 seeds)."
    )
    assert "corrected for 3 comparisons by Holm's method" in " ".join(
        report.compare([tmp_path]).split()
    )


def test_one_seed(tmp_path: Path) -> None:
    make_runs(tmp_path, "moon", [0.75])
    make_runs(tmp_path, "fedavg", [0.66])
    assert headlines(groups_of(tmp_path)) == [
        f"No verdict on: MOON mu=5 (+9.0 points, {ONE_SEED})."
    ]
    text = report.compare([tmp_path])
    assert f"MOON mu=5 compared with FedAvg: no verdict: {ONE_SEED}\n  +9.0 points" in text
    assert "t-test" not in text


def test_different_seeds(tmp_path: Path) -> None:
    moon = make_runs(tmp_path, "moon", [0.70, 0.71, 0.69])
    make_runs(tmp_path, "fedavg", [0.66, 0.67])
    (comparison,) = compare_with_baseline(groups_of(tmp_path))
    assert comparison.conclusion.differences == pytest.approx((0.04, 0.04))
    for path in moon:
        change_setting(path, "seed = ", "seed = 1")
    assert verdicts(tmp_path) == {"MOON mu=5": "no verdict: there is no common seed"}


def change_setting(run: Path, old: str, new: str) -> None:
    """Replace the start of a line of experiment.toml."""
    path = run / "experiment.toml"
    text = path.read_text()
    assert f"\n{old}" in text
    path.write_text(text.replace(f"\n{old}", f"\n{new}"))


def test_a_method_that_diverges_with_some_seeds_gets_no_verdict(tmp_path: Path) -> None:
    """Neither if the diverged run has rounds, nor if it diverged in its first."""
    moon = make_runs(tmp_path, "moon", [0.70, 0.71, 0.695, 0.7])
    make_runs(tmp_path, "fedavg", [0.66, 0.67, 0.66, 0.65])
    assert verdicts(tmp_path) == {"MOON mu=5": "better"}
    set_accuracies(moon[3], [0.1])
    assert verdicts(tmp_path) == {"MOON mu=5": "better"}, "an unfinished seed is left out"
    (moon[3] / "diverged.txt").write_text("the loss became nan\n")
    expected = {"MOON mu=5": "no verdict: 1 of 4 runs of MOON mu=5 diverged"}
    assert verdicts(tmp_path) == expected
    set_accuracies(moon[3], [])
    assert verdicts(tmp_path) == expected
    assert "diverged in its first round and is left out" in report.compare([tmp_path])


def test_a_diverged_baseline_gives_no_verdict(tmp_path: Path) -> None:
    make_runs(tmp_path, "moon", [0.70, 0.71])
    for path in make_runs(tmp_path, "fedavg", [0.66, 0.67]):
        set_accuracies(path, [0.1])
        (path / "diverged.txt").write_text("the loss became nan\n")
    assert verdicts(tmp_path) == {"MOON mu=5": "no verdict: 2 of 2 runs of FedAvg diverged"}


def test_unfinished_runs_get_no_verdict(tmp_path: Path) -> None:
    for path in make_runs(tmp_path, "moon", [0.70, 0.71, 0.72]):
        set_accuracies(path, [0.5])
    make_runs(tmp_path, "fedavg", [0.66, 0.67, 0.66])
    assert verdicts(tmp_path) == {"MOON mu=5": "no verdict: MOON mu=5 is unfinished"}


def test_other_settings_give_no_verdict_and_are_named(tmp_path: Path) -> None:
    make_runs(tmp_path, "fedavg", [0.66, 0.67])
    make_runs(tmp_path, "moon", [0.70, 0.71], lr=0.1, partition_seed=1)
    make_runs(tmp_path, "scaffold", [0.70, 0.71], lr=0.1)
    assert sorted(verdicts(tmp_path).values()) == [
        "no verdict: FedAvg has lr=0.01 instead of 0.1",
        "no verdict: FedAvg has lr=0.01 instead of 0.1, partition_seed=0 instead of 1",
    ]


def test_personal_models_are_compared_with_plain_fedavg(tmp_path: Path) -> None:
    """FedPer and fine-tuning are methods of their own, and FedAvg is the baseline of both."""
    make_runs(tmp_path, "fedavg", [0.60, 0.61, 0.60])
    for number, changes in enumerate(({"personal": "output"}, {"finetune": 1})):
        make_runs(tmp_path / str(number), "fedavg", [0.70, 0.712, 0.70], **changes)
    assert verdicts(tmp_path) == {"FedPer": "better", "FedAvg, fine-tuned 1": "better"}


def test_runs_on_different_data_are_different_groups(tmp_path: Path) -> None:
    """They are no seeds of each other, and each has the baseline on its own data."""
    for name, digest, accuracy in (("easy", "a", 0.8), ("hard", "b", 0.5)):
        for algorithm, lead in (("fedavg", 0.0), ("moon", 0.05)):
            values = [accuracy + share * lead for share in (0.9, 1.0, 1.1)]
            for run in make_runs(tmp_path / name, algorithm, values, data_dir=f"{name}.csv"):
                set_digest(run, digest)
    groups, notes = group_runs(load_runs([tmp_path])[0])
    assert sorted(len(group.runs) for group in groups) == [3, 3, 3, 3]
    assert {group.label for group in groups} == {
        f"{method} data_dir={name}.csv"
        for method in ("FedAvg", "MOON mu=5")
        for name in ("easy", "hard")
    }
    assert (
        sum("other data, another partition, another model or other code" in note for note in notes)
        == 2
    )
    assert set(verdicts(tmp_path).values()) == {"better"}


def set_size(run: Path, size: int) -> None:
    """Record the bytes that are sent to a party."""
    change = {"parties": [{"party": 0, "bytes_down": size}]}
    records = [json.loads(line) | change for line in (run / "rounds.jsonl").open()]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run / "rounds.jsonl").write_text(text)


def set_digest(run: Path, digest: str) -> None:
    """Record a hash of the data."""
    record = json.loads((run / "partition.json").read_text())
    (run / "partition.json").write_text(json.dumps(record | {"sha256": digest}))


def test_the_target_is_that_of_the_same_data(tmp_path: Path) -> None:
    """Files of one reader have their own, and so do other data from the same place."""
    finals = {("easy.csv", "a"): 0.8, ("hard.csv", "b"): 0.5, ("hard.csv", "c"): 0.3}
    for (name, digest), accuracy in finals.items():
        for algorithm, lead in (("fedavg", 0.0), ("moon", 0.05)):
            folder = tmp_path / digest
            for run in make_runs(folder, algorithm, [accuracy + lead], data_dir=name):
                set_digest(run, digest)
    (moved,) = make_runs(tmp_path / "moved", "scaffold", [0.5], data_dir="elsewhere/hard.csv")
    set_digest(moved, "b")
    make_runs(tmp_path / "other", "moon", [0.4], data_dir="hard.csv", beta=0.1)
    groups = groups_of(tmp_path)
    assert sorted(target_scores(groups, None).values()) == pytest.approx([0.3, 0.5, 0.8])
    assert {name.split(" (")[0] for name in target_scores(groups, None)} == {
        "CIFAR-10 easy.csv",
        "CIFAR-10 hard.csv",
    }
    targets = target_by_group(groups, None)
    for group in groups:
        digest = group.runs[0].partition.sha256
        expected = {"a": 0.8, "b": 0.5, "c": 0.3}.get(digest)
        assert expected is None or targets[group.label] == pytest.approx(expected)
    for target in targets.values():
        assert f" {100 * target:.1f} %" in overview_table(groups, None).note


def test_runs_of_different_code_are_different_groups(tmp_path: Path) -> None:
    """As of a method before and after an edit; runs of older versions have no hash."""
    for name, code in (("old", "a"), ("new", "b"), ("unknown", None)):
        (run,) = make_runs(tmp_path / name, "fedavg", [0.5])
        if code is not None:
            (run / "experiment.toml").open("a").write(f'\n[code]\n"my:Mine" = "{code}"\n')
    runs = load_runs([tmp_path])[0]
    assert len(runs) == 3
    groups, notes = group_runs(runs)
    assert len(groups) == 2
    assert sum("other code, so they are different groups" in note for note in notes) == 1


def test_models_of_different_size_are_different_groups(tmp_path: Path) -> None:
    """Models that are passed to moonfl.federate have no name."""
    for number, size in enumerate((100, 100, 200)):
        for run in make_runs(tmp_path / str(number), "fedavg", [0.60, 0.61, 0.60]):
            set_size(run, size)
    for run in make_runs(tmp_path / "3", "moon", [0.70, 0.712, 0.70]):
        set_size(run, 200)
    groups, notes = group_runs(load_runs([tmp_path])[0])
    assert len(groups) == 3
    assert sum("repeats" in note for note in notes) == 3
    assert verdicts(tmp_path) == {"MOON mu=5": "better"}


def test_seeds_with_different_splits_of_the_same_data_are_one_group(tmp_path: Path) -> None:
    for algorithm, finals in (("fedavg", [0.60, 0.61, 0.60]), ("moon", [0.70, 0.712, 0.70])):
        for run, digest in zip(make_runs(tmp_path, algorithm, finals), "abc", strict=True):
            set_digest(run, digest)
    _, notes = group_runs(load_runs([tmp_path])[0])
    assert sum("add to the variance between seeds" in note for note in notes) == 4
    assert verdicts(tmp_path) == {"MOON mu=5": "better"}


def test_a_baseline_on_other_data_only_is_named(tmp_path: Path) -> None:
    for name, algorithm in (("a", "fedavg"), ("b", "fedavg"), ("c", "moon")):
        for run in make_runs(tmp_path / name, algorithm, [0.6, 0.7]):
            set_digest(run, name)
    expected = "no verdict: FedAvg has other data or another partition"
    assert verdicts(tmp_path)["MOON mu=5"] == expected


def test_other_data_under_the_same_settings_give_no_verdict(tmp_path: Path) -> None:
    """Only the recorded partition tells custom data of the same shape apart."""
    moon = make_runs(tmp_path, "moon", [0.70, 0.71])
    fedavg = make_runs(tmp_path, "fedavg", [0.66, 0.672])
    assert "different data" not in verdicts(tmp_path)["MOON mu=5"]
    for run, digest in ((moon[1], "a"), (fedavg[1], "b")):
        record = json.loads((run / "partition.json").read_text())
        (run / "partition.json").write_text(json.dumps(record | {"sha256": digest}))
    expected = {
        "MOON mu=5": "no verdict: the runs with seed 1 have different data or partitions",
    }
    assert verdicts(tmp_path) == expected
    for run in moon:
        record = json.loads((run / "partition.json").read_text())
        record["counts"][0], record["counts"][1] = record["counts"][1], record["counts"][0]
        (run / "partition.json").write_text(json.dumps(record | {"sha256": "b"}))
    verdict = verdicts(tmp_path)["MOON mu=5"]
    assert verdict == "no verdict: the runs with seed 0 have different data or partitions"


def test_solo_and_centralised_training_are_compared_with_fedavg(tmp_path: Path) -> None:
    """They train for another number of rounds; all data in one party are the same data."""
    make_runs(tmp_path, "fedavg", [0.66, 0.67, 0.66])
    for seed in range(3):
        make_run(tmp_path / f"solo-{seed}", "solo", seed)
    for path in make_runs(tmp_path, "fedavg", [0.73, 0.74, 0.731], parties=1):
        record = json.loads((path / "partition.json").read_text())
        fedavg = json.loads((tmp_path / "fedavg-0-0" / "partition.json").read_text())
        record["counts"] = np.sum(fedavg["counts"], axis=0, keepdims=True).tolist()
        (path / "partition.json").write_text(json.dumps(record))
    assert verdicts(tmp_path) == {"centralised": "better", "SOLO": "worse"}


def test_without_fedavg_the_highest_mean_is_no_verdict(tmp_path: Path) -> None:
    make_runs(tmp_path, "moon", [0.70, 0.72])
    assert headlines(groups_of(tmp_path)) == [
        "Final accuracy: MOON mu=5, 71.0 ± 1.4 % over 2 seeds."
    ]
    make_runs(tmp_path, "scaffold", [0.71, 0.73])
    assert headlines(groups_of(tmp_path)) == [
        "Final accuracy, highest mean of 2: SCAFFOLD, 72.0 ± 1.4 % over 2 seeds. "
        "Without runs of FedAvg there is no verdict."
    ]
    make_run(tmp_path / "prox", "fedprox", rounds=9, done=3)
    assert headlines(groups_of(tmp_path))[0].startswith("Accuracy so far, highest mean of 3: ")


def test_every_dataset_has_its_headline_but_one_correction(tmp_path: Path) -> None:
    for dataset in ("cifar10", "cifar100"):
        make_runs(tmp_path / dataset, "moon", [0.700, 0.714, 0.723], dataset=dataset)
        make_runs(tmp_path / dataset, "fedavg", [0.66, 0.67, 0.68], dataset=dataset)
    alone = compare_with_baseline(groups_of(tmp_path / "cifar10"))
    both = compare_with_baseline(groups_of(tmp_path))
    assert alone[0].conclusion.p_value is not None
    assert [comparison.conclusion.p_value for comparison in both] == pytest.approx(
        [2 * alone[0].conclusion.p_value] * 2
    )
    starts = [text.partition(": ")[0] for text in headlines(groups_of(tmp_path))]
    assert starts == ["CIFAR-10", "CIFAR-100"]


def test_names_of_custom_methods_are_shown_as_written(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs", "my_lib:ownMethod", [0.70, 0.71])
    page = report.write([tmp_path / "runs"], tmp_path / "alone").read_text()
    assert ">Final accuracy: my_lib:ownMethod, 70.5" in page
    make_runs(tmp_path / "runs", "fedavg", [0.66, 0.672])
    page = report.write([tmp_path / "runs"], tmp_path / "compared").read_text()
    assert ": my_lib:ownMethod (" in page
    assert "My_lib" not in page


def test_another_baseline(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs", "moon", [0.70, 0.71, 0.69])
    make_runs(tmp_path / "runs", "fedavg", [0.67, 0.681, 0.66])
    for name in ("moon", "MOON", "moon mu=5", "MOON mu=5"):
        text = report.compare([tmp_path / "runs"], baseline=name)
        assert "FedAvg compared with MOON mu=5: worse\n" in text
        assert "minus MOON mu=5" in text
    page = report.write([tmp_path / "runs"], tmp_path / "report", baseline="moon").read_text()
    assert "Worse than MOON mu=5: FedAvg (-3.0 points" in page
    assert "Difference to MOON mu=5, paired by seed" in page
    assert "FedAvg&#x27;s" not in page


def test_a_baseline_must_be_one_method_with_runs(tmp_path: Path) -> None:
    make_runs(tmp_path, "moon", [0.70, 0.71, 0.69])
    make_runs(tmp_path, "fedavg", [0.67, 0.681, 0.66])
    with pytest.raises(InputError, match=r"unknown baseline 'fedprox'.*FedAvg, MOON mu=5"):
        report.compare([tmp_path], baseline="fedprox")
    make_runs(tmp_path, "moon", [0.70, 0.70, 0.71], mu=1)
    with pytest.raises(InputError, match=r"ambiguous: MOON mu=[15] and MOON mu=[15]; write"):
        report.compare([tmp_path], baseline="moon")
    assert "compared with MOON mu=1" in report.compare([tmp_path], baseline="MOON mu=1")


def test_the_report_draws_the_differences(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs", "moon", [0.70, 0.71, 0.69])
    make_runs(tmp_path / "runs", "fedavg", [0.67, 0.681, 0.66])
    make_run(tmp_path / "runs" / "solo", "solo", 0)
    page = report.write([tmp_path / "runs"], tmp_path / "report")
    assert "Dot chart of differences to FedAvg. MOON mu=5: better." in page.read_text()
    assert "MOON" in page.with_name("differences.svg").read_text()
    assert "95 % interval" in page.with_name("differences.csv").read_text()


def test_level_and_power_are_those_of_the_texts() -> None:
    assert (conclusions.LEVEL, conclusions.POWER) == (0.05, 0.8)


def test_a_final_round_without_all_sites_is_not_compared(tmp_path: Path) -> None:
    """Its accuracy covers other samples, and it is no target for others either."""
    make_runs(tmp_path, "moon", [0.70, 0.71])
    for path in make_runs(tmp_path, "fedavg", [0.9, 0.91]):
        records = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        records[-1]["absent"] = {"2": "did not answer"}
        (path / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (text,) = verdicts(tmp_path).values()
    assert "no verdict: the final round of FedAvg" in text
    assert "without all sites" in text
    assert target_scores(groups_of(tmp_path), None) == {"CIFAR-10": pytest.approx(0.1)}
    table = difference_table(groups_of(tmp_path))
    assert table is not None
    assert [row[2:6] for row in table.rows] == [(0, None, (), None)]
