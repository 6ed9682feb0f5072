"""Results in notebooks."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import moonfl
from helpers.problems import TINY, gaussians


def test_a_result_is_shown_as_table_and_curve(tmp_path: Path) -> None:
    out = tmp_path / "<b>run"
    result = moonfl.run(TINY, out, task=gaussians(), workers=1)
    page = result._repr_html_()
    HTMLParser().feed(page)
    assert f"{100 * result.accuracy:.1f} %" in page
    assert "&lt;b&gt;run" in page
    assert "<b>" not in page
    points = page.partition('points="')[2].partition('"')[0].split()
    heights = [float(point.partition(",")[2]) for point in points]
    accuracies = [record.accuracy for record in result.rounds]
    order = sorted(range(3), key=accuracies.__getitem__)
    assert [heights[k] for k in order] == sorted(heights, reverse=True)
    assert len(page) < 2000


def test_a_result_is_printed_on_one_line(tmp_path: Path) -> None:
    result = moonfl.run(TINY, tmp_path / "run", task=gaussians(), workers=1)
    score = f"accuracy {100 * result.accuracy:.1f} % after round 3"
    assert repr(result) == f"<Result of MOON: {score}, stored in {tmp_path / 'run'}>"


def test_a_single_round_has_no_curve() -> None:
    result = moonfl.run(replace(TINY, rounds=1), task=gaussians(), workers=1)
    assert "<svg" not in result._repr_html_()


def test_the_curve_shows_the_rounds_that_were_evaluated() -> None:
    result = moonfl.run(replace(TINY, rounds=5, evaluate_every=2), task=gaussians(), workers=1)
    points = result._repr_html_().partition('points="')[2].partition('"')[0].split()
    positions = [float(point.partition(",")[0]) for point in points]
    left, middle, right = positions  # of rounds 2, 4 and 5
    assert right - middle < middle - left
