"""Figures of a score by the values of a setting."""

import re

import pytest

from moonfl.report.setting_curves import score_by_setting
from moonfl.report.tables import MeanStd


@pytest.mark.parametrize(
    ("label", "factor", "alt"),
    [
        ("test accuracy, %", 100, "test accuracy by lr. In %: MOON: 25.0 ± 12.5 at 0.1."),
        ("test RMSE", 1, "test RMSE by lr. MOON: 0.250 ± 0.125 at 0.1."),
    ],
)
def test_numbers_are_in_the_unit_of_the_axis(label: str, factor: int, alt: str) -> None:
    lines = {"MOON": [MeanStd(0.25, 0.125, 3), None]}
    picture = score_by_setting(
        "name", ("title", ""), "lr", ["0.1", "1"], lines, axis_label=label, factor=factor
    )
    assert picture.alt == f"Line chart of {alt}"
    limits = re.search(r'data-ylim="(\S+) (\S+)"', picture.svg)
    assert limits is not None
    low, high = map(float, limits.groups())
    assert low < factor * 0.125
    assert factor * 0.375 < high
    assert high - low < 2 * factor * 0.25
