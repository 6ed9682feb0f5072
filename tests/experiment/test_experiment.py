"""Experiments: validation of settings, overrides, TOML files and fingerprints."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonfl.algorithms import ALGORITHMS, MOON, FedAvg, FedDyn, FedProx, Scaffold, Solo
from moonfl.cli.experiments import select_experiment
from moonfl.errors import InputError
from moonfl.experiment import (
    Experiment,
    fingerprint,
    from_dict,
    from_toml,
    override,
    to_dict,
    to_toml,
)
from moonfl.presets import PRESETS
from moonfl.server_optimizers import SERVERS, Adam, Average, Momentum


@pytest.mark.parametrize("name", PRESETS)
def test_toml_round_trip(name: str, tmp_path: Path) -> None:
    exp = PRESETS[name].experiment
    path = tmp_path / "experiment.toml"
    tables = {"versions": {"torch": "2.13.0"}, "choices": {"why": "for people"}}
    path.write_text(to_toml(exp, tables))
    assert from_toml(path) == exp


def test_overrides() -> None:
    exp = override(
        Experiment(),
        ["mu=7", "algorithm.tau=0.1", "rounds=3", "lr=1e-3", "head=false", "dataset=cifar10"],
    )
    assert exp.algorithm == MOON(mu=7, tau=0.1)
    assert (exp.rounds, exp.lr, exp.head, exp.model) == (3, 0.001, False, "simple-cnn")


@pytest.mark.parametrize(("model", "expected"), [("resnet18", "resnet18"), (None, "resnet50")])
def test_another_dataset_changes_the_model_only_if_it_is_the_default(
    model: str | None, expected: str
) -> None:
    exp = override(Experiment(dataset="cifar10", model=model), ["dataset=cifar100"])
    assert exp.model == expected


def test_moon_with_fedavgm_is_set_by_the_server_optimizer() -> None:
    exp = override(
        Experiment(),
        ["server.momentum=0.7", "server=momentum", "momentum=0.5", "algorithm=moon", "mu=1"],
    )
    assert exp.algorithm == MOON(mu=1)
    assert exp.server == Momentum(momentum=0.7, damped=True)
    assert exp.momentum == 0.5


def test_another_algorithm_has_its_own_defaults() -> None:
    base = PRESETS["cifar100-moon"].experiment
    assert override(base, ["mu=0.5", "algorithm=fedprox"]).algorithm == FedProx(mu=0.5)
    assert override(base, ["algorithm=fedprox"]).algorithm == FedProx()
    assert override(base, ["algorithm=moon"]).algorithm == MOON(mu=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("roundz=3", "unknown key 'roundz'; did you mean rounds"),
        ("mo=3", "unknown key 'mo'"),
        ("negativs=3", "did you mean negatives? `moonfl run --help` lists the keys"),
        ("learning_rate=3", "unknown key 'learning_rate'; did you mean lr?"),
        ("num_clients=3", "did you mean parties?"),
        ("alpha=0.5", "add algorithm=feddyn or fedrs or perfedavg, or write beta, if that is"),
        ("moon.muu=3", "did you mean moon.mu"),
        (
            "alpha=1",
            "alpha belongs to algorithm=feddyn or fedrs or perfedavg, and this experiment has",
        ),
        ("server.momentun=0.9", "unknown key 'server.momentun'"),
        ("algorithm=moom", "unknown algorithm 'moom'; did you mean moon"),
        ("server=adm", "unknown server 'adm'; did you mean adam"),
        ("dataset=cifar", "unknown dataset 'cifar'; did you mean"),
        ("model=resnet", "unknown model 'resnet'; did you mean resnet50 or resnet18"),
        ("rounds=ten", "rounds must be an integer >= 1, got 'ten'"),
        ("rounds=1.5", "rounds must be an integer >= 1"),
        ("rounds=0", "rounds must be an integer >= 1, got 0"),
        ("rounds=", "rounds must be an integer >= 1"),
        ("lr=nan", "lr must be a finite number > 0, got 'nan'"),
        ("lr=0", "lr must be a finite number > 0, got 0"),
        ("momentum=1", "momentum must be a finite number >= 0 and < 1"),
        ("sample_fraction=1.5", "sample_fraction must be"),
        ("sample_fraction=0", "sample_fraction must be"),
        ("seed=-1", "seed must be an integer >= 0 and <= 9223372036854775807"),
        ("head=yes", "head must be true or false, got 'yes'"),
        ("contrast=l3", "algorithm.contrast must be model or l2, got 'l3'"),
        ("tau=0", "algorithm.tau must be a finite number > 0"),
        ("negatives=0", "algorithm.negatives must be an integer >= 1"),
        (
            "partition=random",
            "unknown partition 'random' (allowed: column, dirichlet, dirichlet-balanced, iid, "
            "labels, quantity, shards)",
        ),
        ("classes_per_party=2", "classes_per_party belongs to partition=labels, not to partition="),
        ("shards_per_party=2", "shards_per_party belongs to partition=shards, not to partition="),
        ("shift=blur", "shift must be noise or rotation or scale or none, got 'blur'"),
        ("shift_level=1", "shift_level needs a kind of shift; set shift=noise, rotation or scale"),
        ("partition=column", "partition=column and column=NAME belong together"),
        ("rounds", "'rounds' is not of the form key=value, such as rounds=10"),
    ],
)
def test_invalid_overrides_get_a_clear_message(change: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        override(Experiment(), [change])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            "partition=labels beta=0.1",
            "beta=0.1 has no effect with partition=labels; remove beta, or use "
            "partition=dirichlet, dirichlet-balanced or quantity",
        ),
        ("partition=shards beta=0.1", "beta=0.1 has no effect with partition=shards"),
        ("partition=iid beta=0.1", "beta=0.1 has no effect with partition=iid"),
        ("partition=iid min_samples=9999", "min_samples=9999 has no effect with partition=iid"),
        ("head=false out_dim=16", "out_dim=16 has no effect with head=false; remove out_dim"),
        ("augment=false", "augment=false has no effect with dataset=digits, whose images are not"),
        ("dataset=csv augment=false", "augment=false has no effect with dataset=csv"),
    ],
)
def test_settings_without_an_effect_are_refused(changes: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        select_experiment(changes.split(), trust=False)
    assert message in str(error.value)


def test_settings_of_a_sweep_may_have_no_effect_for_some_of_its_values() -> None:
    words = ["partition=iid", "beta=0.1", "head=false", "out_dim=16"]
    _, exp = select_experiment(words, trust=False, may_be_unused=True)
    assert (exp.beta, exp.out_dim) == (0.1, 16)


@pytest.mark.parametrize("fault", ["aggregation=median", "algorithm=feddyn"])
def test_differential_privacy_names_only_the_setting_that_it_excludes(fault: str) -> None:
    with pytest.raises(InputError, match=f"it cannot be combined with {fault}: use ") as error:
        override(Experiment(), ["clip=0.5", "dp=server", "dp.noise=1", fault])
    assert " and " not in str(error.value)


def test_augmentation_can_be_turned_off_where_there_is_one() -> None:
    _, exp = select_experiment(["dataset=cifar10", "augment=false"], trust=False)
    assert not exp.augment


def test_settings_without_an_effect_are_refused_in_a_file(tmp_path: Path) -> None:
    """In the file itself: a change on the command line may leave some of its settings unused."""
    path = tmp_path / "mine.toml"
    path.write_text('partition = "iid"\nbeta = 0.1\n')
    with pytest.raises(InputError, match=r"mine\.toml: beta=0\.1 has no effect with partition=iid"):
        select_experiment([str(path)], trust=False)
    assert select_experiment([str(path)], trust=False, may_be_unused=True)[1].beta == 0.1
    path.write_text("beta = 0.1\n")
    assert select_experiment([str(path), "partition=iid"], trust=False)[1].partition == "iid"
    path.write_text("augment = false\n")  # of whatever dataset the command line sets
    assert not select_experiment([str(path), "dataset=cifar10"], trust=False)[1].augment
    path.write_text('partition = "iid"\nbeta = 0.1\n[versions]\nmoonfl = "0.1.0"\n')
    assert select_experiment([str(path)], trust=False)[1].beta == 0.1


def test_settings_without_an_effect_are_read_from_a_file(tmp_path: Path) -> None:
    """Runs that were stored before the check stay readable."""
    stored = Experiment(partition="iid", beta=0.1, min_samples=50, head=False, out_dim=16)
    path = tmp_path / "experiment.toml"
    path.write_text(to_toml(stored))
    assert from_toml(path) == stored
    assert override(stored, ["rounds=3", "beta=0.5"]).beta == 0.5


def test_a_key_that_is_set_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"mu is set twice, by mu and algorithm\.mu; remove one"):
        override(Experiment(), ["mu=1", "algorithm.mu=2"])
    with pytest.raises(InputError, match="rounds is set twice; remove one of the two"):
        override(Experiment(), ["rounds=1", "rounds=2"])


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": Solo(), "rounds": 1, "server": Momentum()},
        {"algorithm": FedDyn(), "server": Adam()},
        {"algorithm": Solo(), "rounds": 5},
        {"algorithm": "moon"},
        {"server": Momentum},
        {"algorithm": MOON(mu=-1)},
        {"algorithm": MOON(tau="x")},
        {"server": Momentum(momentum=1.0)},
        {"rounds": 2.5},
        {"rounds": True},
        {"dataset": 5},
    ],
)
def test_invalid_values_in_python_are_refused(changes: dict) -> None:
    with pytest.raises(InputError):
        Experiment(**changes)


def test_integers_are_converted_to_floats() -> None:
    exp = Experiment(beta=1, algorithm=MOON(mu=1))
    assert isinstance(exp.beta, float)
    assert isinstance(exp.algorithm.mu, float)


def test_lists_of_names_are_written_with_commas(tmp_path: Path) -> None:
    lists: dict[str, Any] = {"ignore": ["id", "ward"], "classes": ("a", "b")}
    exp = Experiment(dataset="csv", data_dir="t.csv", **lists)
    assert exp == Experiment(dataset="csv", data_dir="t.csv", ignore="id,ward", classes="a,b")
    (tmp_path / "e.toml").write_text(to_toml(exp).replace('"id,ward"', '["id", "ward"]'))
    assert from_toml(tmp_path / "e.toml") == exp


def test_scalars_of_numpy_are_converted() -> None:
    exp = Experiment(seed=np.int64(1), beta=np.float32(0.5), rounds=np.int8(3))
    assert exp == Experiment(seed=1, beta=0.5, rounds=3)
    assert [type(value) for value in (exp.seed, exp.beta, exp.rounds)] == [int, float, int]
    with pytest.raises(InputError, match="seed must be an integer >= 0"):
        Experiment(seed=np.float64(1.5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = ", "is not valid TOML"),
        ("roundz = 3", "unknown key 'roundz'; did you mean rounds"),
        ("rounds = '3x'", "rounds must be an integer >= 1"),
        ("algorithm = 'mon'", "unknown algorithm 'mon'"),
        ("[algorithm]\nmu = 3", '[algorithm] needs name = "...", one of moon, '),
        ("[server]\nlr = 3", '[server] needs name = "...", one of average, '),
        (
            "[algorithm]\nname = 'fedavg'\nmu = 1",
            "algorithm.mu belongs to algorithm=moon or fedprox",
        ),
        (
            "[algorithm]\nname = 'fedavg'\nxyz = 1",
            "algorithm=fedavg has no settings, got algorithm.xyz; remove xyz",
        ),
        (
            "[algorithm]\nname = 'moon'\nmuu = 3",
            "unknown key 'algorithm.muu'; did you mean algorithm.mu",
        ),
        ("[server]\nname = 'momentum'\nmomentum = 2", "server.momentum must be"),
        ("algorithm = 3", "algorithm"),
    ],
)
def test_invalid_files_get_a_clear_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        from_toml(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_settings_that_a_file_omits_have_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text("algorithm = 'scaffold'\nrounds = 2\n[server]\nname = 'momentum'\n")
    assert from_toml(path) == Experiment(algorithm=Scaffold(), rounds=2, server=Momentum())
    with pytest.raises(InputError, match="cannot be read"):
        from_toml(tmp_path / "missing.toml")


def test_parties_per_round() -> None:
    for parties, fraction, expected in [(100, 0.2, 20), (10, 0.01, 1), (3, 1, 3)]:
        exp = Experiment(parties=parties, sample_fraction=fraction)
        assert exp.parties_per_round() == expected


def test_to_dict_omits_unset_settings() -> None:
    values = to_dict(Experiment(algorithm=FedAvg(), server=Average()))
    assert values["algorithm"] == {"name": "fedavg"}
    assert "column" not in values


# The settings of the first version with published results. All are hashed: never change them.
FIRST_SETTINGS = {
    "dataset",
    "data_dir",
    "label",
    "ignore",
    "classes",
    "image_size",
    "holdout",
    "validation",
    "patience",
    "standardise",
    "model",
    "head",
    "out_dim",
    "algorithm",
    "server",
    "trim",
    "clip",
    "partition",
    "parties",
    "beta",
    "min_samples",
    "partition_seed",
    "column",
    "sample_fraction",
    "rounds",
    "epochs",
    "batch_size",
    "lr",
    "momentum",
    "weight_decay",
    "augment",
    "seed",
    "scale",
    "device",
}
FIRST_PART_SETTINGS = {
    "fedavg": {},
    "fedprox": {"mu"},
    "scaffold": {},
    "moon": {"mu", "tau", "negatives", "contrast"},
    "solo": {},
    "fednova": {},
    "feddyn": {"alpha"},
    "average": {},
    "momentum": {"momentum", "damped", "lr"},
    "adam": {"lr", "beta1", "beta2", "tau"},
    "yogi": {"lr", "beta1", "beta2", "tau"},
}


def test_a_setting_that_is_added_later_declares_its_version() -> None:
    """Without `added`, a new setting would change the fingerprint of every stored run."""
    fields = {field.name: field for field in dataclasses.fields(Experiment)}
    for name in fields.keys() - FIRST_SETTINGS:
        assert fields[name].metadata["added"], f"setting(..., added=VERSION) for {name}"


@pytest.mark.parametrize("name", [*FIRST_PART_SETTINGS])
def test_a_part_setting_that_is_added_later_declares_its_version(name: str) -> None:
    """The same holds for the settings of algorithms and server optimizers."""
    cls = {**ALGORITHMS, **SERVERS}[name]
    for field in dataclasses.fields(cls):
        is_first = field.name in FIRST_PART_SETTINGS[name]
        assert is_first or field.metadata["added"], f"setting(..., added=VERSION) for {field.name}"


def test_combination_is_the_former_name_of_aggregation() -> None:
    assert from_dict({"combination": "none"}) == Experiment()
    assert from_dict({"combination": "median"}) == Experiment(aggregation="median")
    with pytest.raises(InputError, match="aggregation and its former name combination"):
        from_dict({"combination": "median", "aggregation": "median"})


def test_former_class_attributes_of_methods_are_accepted() -> None:
    with pytest.warns(DeprecationWarning, match="call it takes_server_optimizer"):

        class Old(FedAvg):
            takes_server_step = False

    with pytest.raises(InputError, match="cannot be combined with server=momentum"):
        Experiment(algorithm=Old(), server=Momentum())


@pytest.mark.parametrize("name", ["cifar10-moon", "cifar10-fedavg", "digits-scaffold"])
def test_fingerprints_equal_those_of_the_first_version(name: str) -> None:
    known = {
        "cifar10-moon": "03319ff3adb20b85862c4ccc4b86e20bf1873aff0aa3a61aadc3b3ac75251b11",
        "cifar10-fedavg": "134257cfac7622c91b77012ed79040731ebf080b9d4b8a91bbdd2949ad75a695",
        "digits-scaffold": "a47b9526dd69dfd47851b4d61e1d9896f21e87e6ea5d4d00055817a6a53eb469",
    }
    assert fingerprint(PRESETS[name].experiment) == known[name]


def test_the_level_of_a_scale_is_below_one_and_sites_are_not_shifted() -> None:
    assert Experiment(shift="scale", shift_level=0.9).shift_level == 0.9
    with pytest.raises(InputError, match="shift_level must be < 1 with shift=scale, got 1"):
        Experiment(shift="scale", shift_level=1)
    with pytest.raises(InputError, match=r"shift=noise is for data that moonfl splits.*remove"):
        Experiment(dataset="sites", shift="noise")
