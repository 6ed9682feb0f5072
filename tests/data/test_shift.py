"""Feature shift: its level at every party, its data types, and equality of all ways to run it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import write_images, write_user_data
from moonfl.data.augment import AS_STORED, PIXELS
from moonfl.data.base import Dataset, Examples
from moonfl.data.descriptions import LEVELS, describe_shift
from moonfl.data.shift import Shift, shift_features, shift_unit
from moonfl.errors import InputError
from moonfl.experiment import Experiment, canonical_toml, fingerprint, override
from moonfl.task import make_task, read, split

SHIFTS = ("noise", "rotation", "scale")
QUICK = Experiment(parties=3, rounds=3, epochs=1, partition="iid")


def parts_of(parties: int, each: int) -> dict[int, np.ndarray]:
    return {i: np.arange(i * each, (i + 1) * each) for i in range(parties)}


def shifted(x: torch.Tensor, kind: str, level: float | None = None, *, parties: int = 2):
    """Shift samples that are split into consecutive parts of equal size."""
    data = Examples(x, torch.zeros(len(x), dtype=torch.long))
    preparation = PIXELS if x.dtype == torch.uint8 else AS_STORED
    unit = shift_unit(data, preparation)
    shift = Shift(kind=kind, level=level, parties=parties, seed=0, unit=unit)
    return shift_features(shift, data, parts_of(parties, len(x) // parties), "train").x


def test_noise_increases_from_party_to_party() -> None:
    x = torch.full((4000, 1, 5, 5), 128, dtype=torch.uint8)
    noise = shifted(x, "noise", 0.2, parties=4).view(4, -1).double() - 128
    expected = 255 * 0.2 * torch.arange(1, 5).double() / 4
    rounding = 1 / 12  # variance of rounding to integers
    assert torch.allclose(noise.std(dim=1), (expected**2 + rounding).sqrt(), rtol=0.02)
    assert noise.mean(dim=1).abs().max() < 1


def test_noise_of_pixels_stays_in_their_range() -> None:
    x = torch.tensor([0, 255], dtype=torch.uint8).repeat(500).view(1000, 1, 1, 1)
    noisy = shifted(x, "noise", 1.0)
    assert noisy.dtype == torch.uint8
    assert (noisy == 0).sum() > 200  # clipped, not wrapped around
    assert (noisy == 255).sum() > 200
    digits = split(Experiment(shift="noise", shift_level=2.0), read(Experiment())).train.x
    assert int(digits.max()) == 16  # the range of digits is 0 ... 16


def test_noise_of_features_is_relative_to_their_standard_deviation() -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([1.0, 1000.0, 0.0])
    x = torch.randn(20_000, 3, generator=generator) * spread + 7
    noise = (shifted(x, "noise", 0.5) - x)[10_000:]
    assert torch.allclose(noise[:, :2].std(dim=0), 0.5 * spread[:2], rtol=0.03)
    assert noise[:, 2].abs().max() == 0  # a constant column stays constant


def test_every_party_and_every_sample_has_its_own_noise() -> None:
    x = torch.full((200, 1, 8, 8), 128, dtype=torch.uint8)
    noise = shifted(x, "noise", 0.2).double() - 128
    assert len({tuple(row) for row in noise.flatten(1).tolist()}) == 200
    first, second = noise.view(2, -1)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.05


def test_a_quarter_turn_and_a_half_turn() -> None:
    x = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3).repeat(2, 1, 1, 1)
    quarter, half = shifted(x, "rotation", 180.0)
    assert torch.equal(half[0], x[0, 0].flip(0, 1))
    assert torch.equal(quarter[0], x[0, 0].rot90(1))  # counterclockwise
    corners = shifted(torch.full((2, 1, 9, 9), 5.0), "rotation", 45.0)[1, 0]
    assert corners[0, 0] == 0  # nothing is known outside of the image
    assert corners[4, 4] == 5


def test_scale_reduces_values() -> None:
    x = torch.tensor([100, 200], dtype=torch.uint8).view(2, 1, 1, 1)
    assert shifted(x, "scale", 0.5).flatten().tolist() == [75, 100]
    assert shifted(x.float(), "scale").flatten().tolist() == [75, 100]  # the default is 0.5


def test_the_input_is_not_modified_and_the_result_is_the_same_again() -> None:
    x = torch.full((20, 1, 4, 4), 9, dtype=torch.uint8)
    for kind in SHIFTS:
        assert torch.equal(shifted(x, kind), shifted(x, kind))
    assert bool((x == 9).all())


@pytest.mark.parametrize("kind", SHIFTS)
def test_held_out_samples_are_shifted_and_a_common_test_set_is_not(kind: str) -> None:
    exp = Experiment(parties=2, partition="iid", shift=kind, validation=0.25)
    data = read(exp)
    task = make_task(exp, data)
    plain = make_task(replace(exp, shift=None), data)
    assert torch.equal(task.test.x, plain.test.x)
    for i in range(2):
        assert not torch.equal(task.parties[i].x, plain.parties[i].x)
        assert torch.equal(task.parties[i].y, plain.parties[i].y)
    assert not torch.equal(task.validation.x, plain.validation.x)
    without_test = replace(data, test=None)
    held_out = make_task(replace(exp, validation=None), without_test).test
    plain_held_out = make_task(replace(exp, validation=None, shift=None), without_test).test
    assert not torch.equal(held_out.x, plain_held_out.x)
    assert torch.equal(held_out.y, plain_held_out.y)


def test_test_samples_of_parties_are_shifted_like_their_own() -> None:
    """With a column in the test set, its samples belong to parties."""
    y = torch.arange(40) % 2
    x = torch.full((40, 3), 8.0)
    site = np.repeat(["a", "b"], 20)
    data = Dataset(
        train=Examples(x, y),
        test=Examples(x, y),
        classes=("0", "1"),
        preparation=AS_STORED,
        columns={"site": site},
        test_columns={"site": site},
    )
    exp = override(Experiment(dataset="npz"), ["column=site", "shift=scale", "shift_level=0.5"])
    task = make_task(exp, data)
    assert task.test.x[:, 0].tolist() == [6.0] * 20 + [4.0] * 20
    assert [set(party.x.flatten().tolist()) for party in task.parties] == [{6.0}, {4.0}]


def test_the_noise_does_not_depend_on_validation_or_the_seed() -> None:
    """The noise belongs to the partition: runs with other seeds have the same data."""
    data = read(QUICK)
    exp = replace(QUICK, shift="noise")
    first, second = (split(e, data).train.x for e in (exp, replace(exp, validation=0.3, seed=5)))
    assert torch.equal(first, second)
    columns = replace(data, columns={"writer": np.arange(len(data.train.y)) % 3})
    by_writer = override(exp, ["column=writer"])
    third, fourth = (
        split(replace(by_writer, partition_seed=seed), columns).train.x for seed in (1, 2)
    )
    assert not torch.equal(third, fourth)


@pytest.mark.parametrize("kind", SHIFTS)
def test_workers_and_resumed_runs_are_bit_identical(kind: str, tmp_path: Path) -> None:
    exp = replace(QUICK, shift=kind)
    alone = results_of(moonfl.run(exp, workers=1))
    assert same(alone, results_of(moonfl.run(exp, workers=2)))
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=1, watch=stop_after(2))
    assert same(alone, results_of(moonfl.resume(tmp_path / "run", workers=2)))
    assert not same(alone, results_of(moonfl.run(replace(exp, shift=None), workers=1)))


def test_federate_shifts_the_parties() -> None:
    rng = np.random.default_rng(0)
    parties = [(rng.normal(size=(40, 4)), np.arange(40) % 2) for _ in range(2)]

    def train(**settings: object) -> dict:
        return moonfl.federate("mlp", parties, rounds=1, epochs=1, workers=1, **settings).models

    assert same(train(shift="noise"), train(shift="noise"))
    assert not same(train(shift="noise"), train())
    assert not same(train(shift="noise"), train(shift="noise", shift_level=0.5))
    with pytest.raises(InputError, match=r"shift=rotation requires images .* shape \[4\]"):
        train(shift="rotation")
    with pytest.raises(InputError, match="classes_per_party cannot be passed"):
        train(classes_per_party=2)


class Words(torch.nn.Module):
    """A model of token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embedding(x).mean(dim=1)


def test_token_ids_and_image_folders_are_refused(tmp_path: Path) -> None:
    tokens = [(np.arange(60).reshape(20, 3) % 9, np.arange(20) % 2)] * 2
    with pytest.raises(InputError, match=r"requires images or numeric .* token ids \(int64\)"):
        moonfl.federate(Words(), tokens, rounds=1, epochs=1, shift="noise")
    write_images(tmp_path / "scans", count=20)
    folder = Experiment(
        dataset="folder", data_dir=str(tmp_path / "scans"), parties=2, shift="noise"
    )
    with pytest.raises(InputError, match=r"shift needs samples in memory.*use dataset=npz"):
        make_task(folder)


def test_signals_can_be_shifted(tmp_path: Path) -> None:
    write_user_data(tmp_path)
    words = ["column=person", "shift=noise", f"data_dir={tmp_path / 'motion.npz'}"]
    exp = override(Experiment(dataset="npz", model="cnn1d"), words)
    shifted = make_task(exp).parties[0].x
    original = make_task(replace(exp, shift=None)).parties[0].x
    assert shifted.dtype == original.dtype
    assert not torch.equal(shifted, original)


def test_an_experiment_without_shift_has_the_fingerprint_of_the_previous_version() -> None:
    assert fingerprint(Experiment()) != fingerprint(Experiment(shift="noise"))
    assert "shift" not in canonical_toml(Experiment())


def test_descriptions() -> None:
    assert describe_shift("noise", None) == "noise up to 0.1"
    assert describe_shift("rotation", 90) == "rotation up to 90 degrees"
    assert describe_shift("scale", 0.25) == "values scaled down to 0.75"
    assert set(LEVELS) == set(SHIFTS)
