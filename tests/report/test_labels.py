"""Names of methods in reports: algorithm, personal part, aggregation and server optimizer."""

from typing import Any

import pytest

from moonfl.algorithms import MOON, FedAvg, FedDecorr, FedRep, Scaffold
from moonfl.experiment import Experiment, to_dict
from moonfl.report.labels import AGGREGATION_NAMES, SERVER_NAMES, is_fedavg, method_labels
from moonfl.report.labels import method_name as name_of_settings
from moonfl.server_optimizers import SERVERS, Adam, Momentum


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of an experiment with dotted keys, as reports see them."""
    settings = {}
    for key, value in table.items():
        if isinstance(value, dict):
            settings |= flat(value, f"{prefix}{key}.")
        else:
            settings[prefix + key] = value
    return settings


def settings_of(**changes: Any) -> dict[str, Any]:
    """Return the settings of an experiment as reports see them."""
    return flat(to_dict(Experiment(**changes)))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"algorithm": FedAvg()}, "FedAvg"),
        ({"algorithm": MOON() + FedDecorr(), "personal": "batchnorm"}, "MOON + FedDecorr, FedBN"),
        ({"algorithm": FedAvg(), "personal": "output"}, "FedPer"),
        ({"algorithm": FedAvg(), "aggregation": "fednova"}, "FedNova"),
        ({"algorithm": MOON(), "aggregation": "fednova"}, "MOON, FedNova"),
        ({"algorithm": FedAvg(), "aggregation": "median"}, "FedAvg, median"),
        ({"algorithm": FedAvg(), "server": Momentum()}, "FedAvgM"),
        ({"algorithm": MOON(), "server": Momentum()}, "MOON, FedAvgM"),
        ({"algorithm": FedAvg(), "server": Adam(), "aggregation": "median"}, "FedAdam, median"),
        ({"algorithm": FedAvg(), "personal": "head"}, "FedAvg, personal head"),
        ({"algorithm": FedRep(), "personal": "output"}, "FedRep"),
        ({"algorithm": FedRep(), "personal": "encoder"}, "FedRep, LG-FedAvg"),
        (
            {
                "algorithm": MOON() + Scaffold(),
                "personal": "encoder",
                "aggregation": "fednova",
                "server": Momentum(),
            },
            "MOON + SCAFFOLD, LG-FedAvg, FedNova, FedAvgM",
        ),
        ({"algorithm": FedAvg(), "parties": 1}, "centralised"),
    ],
)
def test_names_of_methods(changes: dict[str, Any], name: str) -> None:
    assert name_of_settings(settings_of(**changes)) == name


def test_the_former_name_of_the_mean_is_not_shown() -> None:
    settings = {**settings_of(algorithm=FedAvg()), "aggregation": "none"}
    assert name_of_settings(settings) == "FedAvg"
    assert is_fedavg(settings)


def test_every_server_optimizer_has_a_published_name() -> None:
    assert set(SERVER_NAMES) == set(SERVERS) - {"average"}
    assert "fednova" in AGGREGATION_NAMES


def test_settings_of_the_aggregation_are_shown_if_they_differ() -> None:
    plain = settings_of(algorithm=FedAvg())
    clipped = settings_of(algorithm=FedAvg(), clip=2.5)
    trimmed = [
        settings_of(algorithm=FedAvg(), aggregation="trimmed-mean", trim=trim)
        for trim in (0.1, 0.3)
    ]
    groups = [plain, clipped, *trimmed]
    assert method_labels(groups, [True] * 4) == [
        "FedAvg",
        "FedAvg clip=2.5",
        "FedAvg, trimmed-mean trim=0.1",
        "FedAvg, trimmed-mean trim=0.3",
    ]
    assert [is_fedavg(settings) for settings in groups] == [True, False, False, False]
