"""Custom methods, server optimizers and models by dotted path; messages for unknown names."""

import contextlib
import functools
import importlib
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
import tomli_w

import moonfl
from helpers.custom import SETTINGS, custom_experiment
from helpers.equality import same
from moonfl import Experiment
from moonfl.cli import main
from moonfl.experiment import from_toml, override, to_toml


def test_custom_method_and_model_by_dotted_path(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results are bit-identical with and without workers, and after a resume."""
    words = [*SETTINGS, "parties=3", "epochs=1", "rounds=2"]
    assert main(["run", *words, "--out", "run", "--workers", "2"]) == 0, capsys.readouterr().err
    assert main(["resume", "run", "--trust"]) == 0
    assert main(["report", "run", "--out", "report"]) == 0
    exp = from_toml(Path("run/experiment.toml"), trust=True)
    assert exp.algorithm.lam == 0.5
    alone = moonfl.run(exp, workers=1)
    assert alone.models["global"]["encoder.1.weight"].shape == (7, 64)
    assert same(alone.models, moonfl.resume("run", trust=True).models)
    plain = moonfl.run(override(exp, ["server=average"]), workers=1)
    assert not same(alone.models, plain.models)


def test_a_class_variable_is_not_a_setting(module: Path) -> None:
    exp = override(Experiment(), ["algorithm=mymethod:Unweighted"])
    assert exp.algorithm.weighting.startswith("a class variable")
    bare = importlib.import_module("mymethod").Bare()
    with pytest.raises(moonfl.InputError, match=r"write @dataclass\(frozen=True\) above Bare"):
        Experiment(algorithm=bare)


def test_a_dotted_path_survives_the_file(module: Path) -> None:
    exp = custom_experiment()
    Path("e.toml").write_text(to_toml(exp))
    assert from_toml(Path("e.toml"), trust=True) == exp


class Undeclared(moonfl.MOON):
    mu = 7.0


@dataclass(frozen=True)
class Decorated(moonfl.MOON):
    mu = 7.0


class Derived(Undeclared):
    pass


@pytest.mark.parametrize("cls", [Undeclared, Decorated, Derived])
def test_a_default_without_a_type_is_refused(cls: type) -> None:
    """Python ignores it: the instance has the value of the parent."""
    message = r" sets mu, a setting that it inherits, .* write mu: float = 7\.0"
    with pytest.raises(moonfl.InputError, match=message):
        override(Experiment(), [f"algorithm={__name__}:{cls.__name__}"])
    with pytest.raises(moonfl.InputError, match=message):
        Experiment(algorithm=cls())


class Hidden(moonfl.Algorithm):
    def __init__(self, lam: float = 1.0) -> None:
        self.lam = lam


class HiddenBelow(Hidden):
    """Inherits the __init__ of a class that is not a dataclass."""


class HiddenServer(moonfl.ServerOptimizer):
    def __init__(self, lam: float = 1.0) -> None:
        self.lam = lam


class HiddenOptimizer(moonfl.optimizers.SGD):
    def __init__(self, lam: float = 1.0) -> None:
        self.lam = lam


class HiddenSchedule(moonfl.optimizers.Schedule):
    def __init__(self, lam: float = 1.0) -> None:
        self.lam = lam


class HiddenNoise(moonfl.privacy.ServerNoise):
    def __init__(self, noise: float = 1.0) -> None:
        super().__init__(noise=noise)


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("algorithm", Hidden),
        ("algorithm", HiddenBelow),
        ("server", HiddenServer),
        ("optimizer", HiddenOptimizer),
        ("schedule", HiddenSchedule),
        ("dp", HiddenNoise),
    ],
)
def test_arguments_that_would_not_be_stored_are_refused(kind: str, cls: type) -> None:
    """A run with another value would have the same experiment.toml and fingerprint."""
    with pytest.raises(moonfl.InputError, match=f"{kind}=.*Hidden.* has an __init__, whose"):
        Experiment(**{kind: cls(5)})
    with pytest.raises(moonfl.InputError, match=r"write @dataclass\(frozen=True\) above Hidden"):
        override(Experiment(), [f"{kind}={__name__}:{cls.__name__}", "lam=5"])


@dataclass(frozen=True)
class Doubling(moonfl.FedAvg):
    lam: float = 1.0

    def __init__(self, lam: float = 1.0) -> None:
        object.__setattr__(self, "lam", 2 * lam)


def test_fields_that_change_when_they_are_stored_and_read_are_refused() -> None:
    with pytest.raises(moonfl.InputError, match="Doubling changes its fields when it is built"):
        Experiment(algorithm=Doubling(1.0))


class Plain(moonfl.FedAvg):
    lam = 1.0

    @functools.cached_property
    def double(self) -> float:
        return 2 * self.lam


def test_attributes_that_are_not_fields_are_refused() -> None:
    method = Plain()
    assert method.double == 2
    Experiment(algorithm=method)  # a cached property follows from the class and its fields
    method.lam = 5.0
    with pytest.raises(moonfl.InputError, match="lam is not a field of Plain, so it is not stored"):
        Experiment(algorithm=method)


HOSTILE = """
from pathlib import Path

Path({marker!r}).touch()
"""


@pytest.mark.parametrize(
    ("key", "name"),
    [("algorithm", "evil:Method"), ("server", "evil:Server"), ("model", "evil:network")],
)
def test_code_that_only_a_file_names_is_not_executed(
    key: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    exp = replace(Experiment(parties=2, rounds=1, epochs=1), dataset="digits")
    moonfl.run(exp, tmp_path / "run", workers=1)
    monkeypatch.chdir(tmp_path / "run")
    marker = tmp_path / "executed"
    Path("evil.py").write_text(HOSTILE.format(marker=str(marker)))
    values = tomllib.loads(Path("experiment.toml").read_text())
    values[key] = name if key == "model" else {"name": name}
    Path("experiment.toml").write_text(tomli_w.dumps(values))
    origin = f"{key}={name}, from {Path('evil.py').resolve()}"
    commands = (
        ["resume", "."],
        ["export", "."],
        ["run", "experiment.toml"],
        ["partition", "experiment.toml"],
        ["flower", "simulate", "experiment.toml"],
        ["flower", "init", "deployment", "experiment.toml", "--sites", "2"],
    )
    for command in commands:
        assert main(command) == 2
        err = capsys.readouterr().err
        assert origin in err
        assert "if you trust it, add --trust (trust=True)" in err
    for function in (moonfl.resume, moonfl.export):
        with pytest.raises(moonfl.InputError, match="not part of moonfl"):
            function(".")
    main(["report", ".", "--out", "report"])
    main(["compare", "."])
    assert not marker.exists()
    main(["resume", ".", "--trust"])
    assert marker.exists()
    monkeypatch.delitem(sys.modules, "evil")


def test_a_function_of_a_loaded_module_is_not_called(tmp_path: Path) -> None:
    """An algorithm that is already imported is accepted; any function would be a model."""
    path = tmp_path / "e.toml"
    path.write_text('model = "os:abort"')
    with pytest.raises(moonfl.InputError, match="model=os:abort"):
        from_toml(path)
    path.write_text(f'algorithm = "{__name__}:Optional"')
    assert from_toml(path) == Experiment(algorithm=Optional())


def test_the_current_folder_is_searched_for_named_code_only(tmp_path: Path) -> None:
    """A library's optional dependency must not be imported from a folder of somebody else."""
    program = (
        "import sys; from moonfl.cli import main; sys.path = [p for p in sys.path if p]; "
        "assert main(['run', 'parties=2', 'rounds=1', 'epochs=1', '--workers', '1']) == 0; "
        "assert '' not in sys.path"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)


@dataclass(frozen=True)
class Optional(moonfl.FedAvg):
    lam: float | None = 0.5


@dataclass(frozen=True)
class Sizes(moonfl.FedAvg):
    sizes: tuple[int, ...] = (1, 2)


def test_a_setting_that_is_none_survives_the_file(tmp_path: Path) -> None:
    """TOML has no null, and a missing key would mean the default."""
    experiments = (
        Experiment(algorithm=Optional(None)),
        override(Experiment(algorithm=Optional()), ["lam=none"]),
    )
    for exp in experiments:
        (tmp_path / "e.toml").write_text(to_toml(exp))
        assert from_toml(tmp_path / "e.toml") == exp == Experiment(algorithm=Optional(None))


def test_a_field_type_that_toml_cannot_hold_is_refused() -> None:
    with pytest.raises(
        moonfl.InputError, match="Sizes: its field sizes must be bool, int, float, str"
    ):
        Experiment(algorithm=Sizes())
    with pytest.raises(
        moonfl.InputError, match="Ambiguous: its field size must be bool, int, float, str"
    ):
        Experiment(algorithm=Ambiguous())


@dataclass(frozen=True)
class Ambiguous(moonfl.FedAvg):
    size: int | str = 1


@dataclass(frozen=True)
class Number(moonfl.FedAvg):
    c: int | float | None = 0.5


def test_an_integer_is_accepted_as_a_float() -> None:
    exp = Experiment(algorithm=Number(2))
    assert override(exp, ["c=2"]).algorithm.c == 2.0
    assert override(exp, ["c=0.25"]).algorithm.c == 0.25


@dataclass(frozen=True)
class Choosy(moonfl.FedAvg):
    k: Literal[1, 2, None] = 1
    square: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        if self.k == 1:
            raise ValueError("k must be even, not 1")
        object.__setattr__(self, "square", (self.k or 0) ** 2)


@pytest.mark.parametrize(("word", "k"), [("2", 2), ("none", None)])
def test_literals_of_integers_and_none_survive_the_file(
    word: str, k: int | None, tmp_path: Path
) -> None:
    """Fields that the class computes (init=False) cannot be set."""
    exp = override(Experiment(algorithm=Choosy(2)), [f"k={word}"])
    assert (exp.algorithm.k, exp.algorithm.square) == (k, (k or 0) ** 2)
    (tmp_path / "e.toml").write_text(to_toml(exp))
    assert from_toml(tmp_path / "e.toml") == exp
    with pytest.raises(moonfl.InputError, match="unknown key 'square'"):
        override(exp, ["square=3"])
    with pytest.raises(moonfl.InputError, match=r"algorithm\.k must be 1 or 2 or none, got '3'"):
        override(exp, ["k=3"])
    with pytest.raises(moonfl.InputError, match="Choosy: k must be even, not 1"):
        override(exp, ["k=1"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algorithm=mymethod:Smal", "unknown algorithm in mymethod 'Smal'; did you mean Small"),
        (
            "model=mymethod:quux",
            "(allowed: Bare, Demanding, Halfway, NotAnAlgorithm, Shadow, Small, Unweighted, na",
        ),
        ("algorithm=:Small", "algorithm=:Small is not a dotted path; write package.module:Name"),
        ("algorithm=mymethod:", "algorithm=mymethod: is not a dotted path"),
        ("algorithm=mymthod:Small", "there is no module 'mymthod' in the current folder"),
        ("algorithm=mymethod:NotAnAlgorithm", "must be a dataclass that extends Algorithm"),
        ("algorithm=mymethod:plain", "must be a dataclass that extends Algorithm"),
        ("algorithm=mymethod:Demanding", "algorithm.lam has no default and must be set"),
        ("algorithm=mymethod:Bare", "write @dataclass(frozen=True) above Bare"),
        ("server=mymethod:Small", "must be a dataclass that extends ServerOptimizer"),
        ("algorithm=broken:X", "importing broken failed: No module named 'missing_dependency'"),
        ("algorithm=worse:X", "importing worse failed: ZeroDivisionError"),
        ("algorithm=__main__:Gone", "was defined in a script that is not running now"),
        ("model=mymethod:narow", "unknown model in mymethod 'narow'; did you mean narrow"),
        (
            "model=torch.nn:Linear",
            "model 'torch.nn:Linear' cannot be built from the shape of a sample",
        ),
        (
            "model=mymethod:plain",
            "model must be a torch.nn.Module, a function that returns one, or a name",
        ),
    ],
)
def test_a_wrong_dotted_path_gets_a_clear_message(
    word: str, message: str, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", word, "--out", "run"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("run").exists()


def test_settings_of_a_custom_method_are_checked(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "algorithm=mymethod:Small", "lm=3"]) == 2
    assert "unknown key 'lm'; did you mean lam" in capsys.readouterr().err
    assert main(["run", "algorithm=mymethod:Small", "lam=-1"]) == 2
    assert "algorithm.lam must be a finite number >= 0, got -1" in capsys.readouterr().err
    assert main(["run", "algorithm=mymethod:Shadow", "lr=0.5"]) == 2
    assert (
        "mymethod:Shadow has a setting lr, which every experiment has; rename it"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "unknown command 'rnu'; did you mean run"),
        (["run", "--jsn"], "unknown argument of moonfl run '--jsn'; did you mean --json"),
        (
            ["run", "--out", "x", "rounds=3", "--jsn"],
            "unknown argument of moonfl run '--jsn'; did you mean --json",
        ),
        (
            ["run", "--rounds", "3"],
            "--rounds is not an option; settings have no dashes: write rounds=3",
        ),
        (["run", "--batch-size=3"], "settings have no dashes: write batch_size=3"),
        (["run", "--mu", "--json"], "settings have no dashes: write mu=VALUE"),
        (
            ["reproduce", "--list", "--dataset", "cifar1"],
            "unknown dataset of the paper 'cifar1'; did you mean cifar1",
        ),
        (["reproduce", "--scale", "smal"], "unknown scale 'smal'; did you mean small"),
        (["run", "dataset=cvs"], "unknown dataset 'cvs'; did you mean csv"),
        (["run", "model=cnn2d"], "unknown model 'cnn2d'; did you mean cnn1d"),
    ],
)
def test_an_unknown_word_gets_the_closest_match(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):  # argparse exits with status 2
        assert main(words) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_name_of_the_library_gets_the_closest_match() -> None:
    with pytest.raises(AttributeError, match="did you mean federate"):
        _ = moonfl.federat
