"""What a site may report about its data: implausible numbers are refused with a reason."""

import pytest

from moonfl.flower.protocol import pack, read_site
from moonfl.flower.refusals import RefusedError
from moonfl.flower.site_checks import read_moments

SITE = {
    "party": 0,
    "name": "site-1",
    "versions": {},
    "shape": [1],
    "dtype": "torch.float32",
    "classes": ["ill", "well"],
    "counts": [1, 0],
    "sha256": "0" * 64,
    "held_out": 0,
    "validation": 0,
}
VALUES = "must report number, mean and squares of its features"
INVALID_MOMENTS: list[tuple[object, str]] = [
    ({}, r"missing required field `number` - at `\$\.moments`"),
    ("x", r"got `str` - at `\$\.moments`"),
    ({"number": 1, "mean": [0.0], "squares": ["x"]}, r"got `str` - at `\$\.moments\.squares"),
    ({"number": 1, "mean": [0.0], "squares": [-1.0]}, VALUES),
    ({"number": 1, "mean": [1e300], "squares": [1.0]}, VALUES),
    ({"number": 1, "mean": [0.0], "squares": [1e300]}, VALUES),
    ({"number": 1, "mean": [float("nan")], "squares": [1.0]}, VALUES),
    ({"number": 2, "mean": [0.0], "squares": [1.0]}, VALUES),
    ({"number": 1, "mean": [0.0, 0.0], "squares": [1.0, 1.0]}, VALUES),
    ({"number": 1, "mean": [], "squares": []}, VALUES),
]


@pytest.mark.parametrize(("moments", "reason"), INVALID_MOMENTS)
def test_invalid_moments_are_refused(moments: object, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        read_site(pack(SITE | {"moments": moments}), 1)


def test_missing_moments_are_refused_where_they_are_needed() -> None:
    site = read_site(pack(SITE), 1)
    with pytest.raises(RefusedError, match=VALUES):
        read_moments(site)
