"""`moonfl list`: the presets by component, in the width of a terminal."""

from dataclasses import replace

import pytest

from moonfl.algorithms import MOON, Scaffold
from moonfl.cli import main
from moonfl.overview import COMPONENTS, read
from moonfl.presets import PRESETS, Preset
from moonfl.server_optimizers import Adam


def listing(capsys: pytest.CaptureFixture[str]) -> list[str]:
    main(["list"])
    return capsys.readouterr().out.splitlines()


def test_every_method_is_listed_once_below_its_component(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = listing(capsys)
    component = ""
    components = {}
    for line in lines:
        if line in COMPONENTS:
            component = line
        elif component and line and not line.startswith(("under", "(with")):
            assert line.split()[0] not in components
            components[line.split()[0]] = component
    methods = {name.removeprefix("digits-") for name in PRESETS if name.startswith("digits-")}
    assert set(components) == methods
    for method in methods:
        assert components[method] == PRESETS[f"digits-{method}"].component
    order = list(dict.fromkeys(components.values()))
    assert order == [name for name in COMPONENTS if name in order]


def test_the_listing_fits_a_terminal_and_shows_the_papers_accuracies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = listing(capsys)
    too_long = [line for line in lines if len(line) > 80]
    assert not too_long, "shorten the name or the description of the preset"
    moon = next(line for line in lines if line.startswith("moon "))
    assert "69.1 ± 0.4  67.5 ± 0.4  25.1 ± 0.1" in moon


def test_descriptions_hold_for_every_dataset() -> None:
    for preset in read().presets:
        method = preset.name.removeprefix(f"{preset.dataset}-")
        assert preset.description == PRESETS[f"digits-{method}"].description
        assert preset.component in COMPONENTS


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("fedavg", "baselines"),
        ("solo", "baselines"),
        ("centralised", "baselines"),
        ("moon", "local term"),
        ("feddyn", "local term"),
        ("fedsam", "local term"),
        ("fedper", "personal part"),
        ("fednova", "aggregation"),
        ("qfedavg", "aggregation"),
        ("fedavgm", "server optimizer"),
        ("moon-fedavgm", "several components"),
    ],
)
def test_components_of_presets(name: str, component: str) -> None:
    assert PRESETS[f"digits-{name}"].component == component


def test_components_are_derived_from_the_experiment() -> None:
    fedavg = PRESETS["digits-fedavg"].experiment
    both = replace(fedavg, algorithm=MOON() + Scaffold())
    assert Preset(both, "").component == "local term"
    assert Preset(replace(fedavg, clip=1.0), "").component == "privacy"
    assert Preset(replace(fedavg, aggregation="median"), "").component == "aggregation"
    private = replace(fedavg, clip=1.0, server=Adam())
    assert Preset(private, "").component == "several components"
