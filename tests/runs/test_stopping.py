"""Which round is best, and when a run stops, if rounds were evaluated by different sites."""

import pytest

from moonfl.runs.schema import PartySum, RoundRecord
from moonfl.runs.stopping import absences, best_round, is_finished, selected_round

ALL = {"0": (80, 100), "1": (70, 100), "2": (24, 100)}  # 58 %
EASY = {"0": (80, 100), "1": (72, 100)}  # 76 %


def record(number: int, sites: dict[str, PartySum]) -> RoundRecord:
    """Return a round whose test and validation samples are evaluated at these sites."""
    accuracy = sum(hits for hits, _ in sites.values()) / sum(size for _, size in sites.values())
    return RoundRecord(
        round=number,
        accuracy=accuracy,
        sites=sites,
        validation_accuracy=accuracy,
        validation_sites=sites,
    )


@pytest.mark.parametrize(
    ("rounds", "best"),
    [
        ([ALL, EASY], 1),  # higher, but without a site
        ([EASY, ALL], 2),  # lower, but complete
        ([EASY, ALL, EASY], 2),
        ([ALL, EASY, ALL | {"2": (25, 100)}], 3),
        ([ALL, ALL], 1),
        ([EASY, EASY | {"1": (73, 100)}], 2),  # no round is complete
        ([{"0": (50, 100), "1": (10, 10)}, {"0": (51, 100), "2": (0, 10)}], 2),  # compared at 0
        ([{"0": (50, 100), "1": (0, 10)}, {"0": (49, 100), "2": (10, 10)}], 1),
        ([{"0": (50, 100)}, {"1": (99, 100)}], 1),  # cannot be compared
    ],
)
def test_the_best_round_is_compared_over_common_sites(
    rounds: list[dict[str, PartySum]], best: int
) -> None:
    records = [record(number, sites) for number, sites in enumerate(rounds, 1)]
    assert best_round(records).round == best
    selected = selected_round(records)
    assert selected is not None
    assert selected.round == best


def test_selection_never_returns_to_an_earlier_round() -> None:
    """The model of an earlier round is no longer there."""
    sites = [{"0": (5, 9), "1": (3, 9)}, {"1": (4, 9), "2": (1, 9)}, {"0": (6, 9), "2": (0, 9)}]
    records = [record(number, hits) for number, hits in enumerate(sites * 3, 1)]
    before = 0
    for count in range(1, len(records) + 1):
        selected = selected_round(records[:count])
        assert selected is not None
        assert selected.round in (before, count)
        before = selected.round


def test_rounds_without_all_sites_do_not_stop_a_run() -> None:
    worse = ALL | {"0": (79, 100)}
    records = [record(number, hits) for number, hits in enumerate([ALL, EASY, EASY, worse], 1)]
    assert not is_finished(9, 2, records[:3])
    assert not is_finished(9, 2, records)
    assert is_finished(9, 2, [*records, record(5, worse)])
    assert is_finished(9, 1, records)


def test_absent_parties_are_found_in_records_that_do_not_name_them() -> None:
    records = [record(1, ALL), record(2, EASY)]
    assert absences(records) == {2: [2]}
    records[0].absent = {"3": "not connected"}
    assert absences(records) == {1: [3], 2: [2]}
