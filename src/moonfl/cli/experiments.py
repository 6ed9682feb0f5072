"""Selection of an experiment by the words of a command line, and its description."""

import itertools
from pathlib import Path

from .. import presets, settings
from ..components import component_name, parts_of, short_name
from ..data.descriptions import describe_data
from ..data.locations import directory
from ..errors import InputError, notify, plural, quoted
from ..experiment import (
    Experiment,
    check_effects,
    from_toml,
    override,
    to_dict,
    unknown_name,
)
from ..optimizers import SGD
from ..runs.index import read_toml


def select_experiment(
    words: list[str], trust: bool, *, may_be_unused: bool = False
) -> tuple[str, Experiment]:
    """Return a name for the run directory and the experiment that the words describe.

    The words are one preset or TOML file (default: digits-moon) and key=value changes. If the
    changes set the dataset and there is no preset or file, every other key has its default. Code
    that the changes name is executed, code that only a file names if it is trusted. Changes without
    an effect are refused, and so are settings of a file that have none in the file, unless they
    `may_be_unused`, as by some settings of a sweep.
    """
    check_spaces(words)
    changes = [word for word in words if is_change(word)]
    names = [word for word in words if not is_change(word)]
    if len(names) > 1:
        raise InputError(f"one preset or file is allowed, got {len(names)}: {' '.join(names)}")
    keys = [change.partition("=")[0] for change in changes]
    if not names and "dataset" in keys:  # what suits the digits need not suit other data
        exp = override(Experiment(), changes)
        stem = f"{exp.dataset}-{short_name(exp.algorithm)}"
        may_lack_dataset = True
    else:
        name = names[0] if names else presets.DEFAULT
        base = read_experiment(name, trust)
        if not may_be_unused:
            check_file(name, base)
        exp = override(base, changes)
        stem = Path(name).stem
        may_lack_dataset = "data_dir" in keys or lacks_dataset(name)
    if not may_be_unused:
        check_effects(exp, keys)
    if may_lack_dataset:
        check_reads_files(exp)
    return stem, exp


def check_file(name: str, exp: Experiment) -> None:
    """Refuse settings without an effect in a TOML file, unless it is that of a stored run."""
    if name in presets.PRESETS:
        return
    values = read_toml(Path(name))
    if "versions" in values:
        return
    keys = set(values)
    if "dataset" not in values:
        keys.discard("augment")  # whether there is augmentation depends on the dataset
    try:
        check_effects(exp, keys)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def lacks_dataset(name: str) -> bool:
    """Return True for a TOML file that does not set the dataset."""
    return name.endswith(".toml") and "dataset" not in read_toml(Path(name))


def check_reads_files(exp: Experiment) -> None:
    """Refuse the location of data that are not read because another dataset was not set.

    Only for what the user writes now: stored runs on digits may have any location.
    """
    if exp.dataset != "digits" or exp.data_dir == Experiment.data_dir:
        return
    path = directory(exp.data_dir)
    dataset = dataset_of(path) if path.exists() or path.suffix else "csv, npz, folder or hub"
    raise InputError(
        f"dataset=digits reads no files, got data_dir={exp.data_dir}; set dataset={dataset}, or "
        "remove data_dir"
    )


def dataset_of(path: Path) -> str:
    """Return the dataset that reads a file or folder."""
    if path.suffix.lower() == ".npz":
        return "npz"
    if path.is_dir() and not (path / "train.csv").exists():
        return "folder"
    return "csv"


def check_spaces(words: list[str]) -> None:
    """Refuse `key = value`, `key= value` and `key =value`, which the shell splits into words."""
    for first, second in itertools.pairwise(words):
        if second.startswith("="):
            rest = words[words.index(second) :]
            value = "".join(rest[:2]) if second == "=" else second
            raise _spaces(first, value.removeprefix("="))
        if first.endswith("=") and "=" not in second:
            raise _spaces(first.removesuffix("="), second)


def _spaces(key: str, value: str) -> InputError:
    change = quoted(f"{key}={value or 'VALUE'}")
    return InputError(f"there is a space next to the = of {key}; write {change} without spaces")


def is_change(word: str) -> bool:
    """Return True for key=value, but not for the name of an existing TOML file with a = in it."""
    is_file = word.endswith(".toml") and Path(word).is_file()
    return "=" in word and not is_file


def read_experiment(name: str, trust: bool) -> Experiment:
    """Return the experiment of a preset or a TOML file."""
    if name in presets.PRESETS:
        return presets.PRESETS[name].experiment
    if name.endswith(".toml"):
        notify_renamed(Path(name))
        return from_toml(Path(name), trust=trust)
    path = Path(name)
    if path.suffix.lower() in (".csv", ".npz"):
        raise InputError(
            f"{name} is not a preset or a TOML file; for the data of a run write "
            f"dataset={dataset_of(path)} {quoted(f'data_dir={name}')}"
        )
    raise unknown_name("preset", name, presets.PRESETS, "`moonfl list` shows all")


def notify_renamed(path: Path) -> None:
    """Print a note for every setting of a TOML file that has a former name."""
    for old in settings.RENAMED.keys() & read_toml(path).keys():
        notify(f"moonfl: {path}: the key {old} is deprecated; use {settings.RENAMED[old]}")


def describe(exp: Experiment) -> str:
    """Describe the run in two lines, and one more each for local training and privacy."""
    algorithm = " + ".join(map(describe_component, parts_of(exp.algorithm)))
    parties = plural(exp.parties, "party", "parties")
    if exp.sample_fraction < 1:
        about = "about " if exp.dp.is_private else ""
        parties += f", {about}{exp.parties_per_round()} of them per round"
    method = f"{algorithm}, server {describe_component(exp.server)}"
    if exp.personal is not None:
        method += f", personal {exp.personal}"
    if exp.finetune is not None:
        method += f", evaluated after {plural(exp.finetune, 'epoch')} of fine-tuning"
    head = "" if exp.head else " without projection head"
    rate = "" if exp.has_schedule else f"learning rate {exp.lr:g}, "
    return (
        f"{method}, on {exp.dataset} with {exp.model}{head}\n"
        f"{describe_training(exp)}"
        f"{describe_privacy(exp)}"
        f"{parties}, {describe_partition(exp)}; "
        f"{plural(exp.rounds, 'round')} of {plural(exp.epochs, 'epoch')}, {rate}"
        f"batch size {exp.batch_size}, seed {exp.seed}"
    )


def describe_privacy(exp: Experiment) -> str:
    """Describe differential privacy in one line; return nothing without it."""
    if not exp.dp.is_private:
        return ""
    guarantee = exp.dp.guarantee(exp.sample_fraction, exp.rounds)
    return f"{exp.dp.describe()}, clip {exp.clip:g}: {guarantee} after round {exp.rounds}\n"


def describe_training(exp: Experiment) -> str:
    """Describe local training in one line; return nothing for plain SGD at a constant rate."""
    words = []
    if exp.optimizer != SGD():
        words.append(f"local optimizer {describe_component(exp.optimizer)}")
    if exp.nesterov:
        words.append("nesterov")
    if exp.grad_clip is not None:
        words.append(f"gradients clipped to {exp.grad_clip:g}")
    if exp.precision != "float32":
        words.append(f"precision {exp.precision}")
    if exp.has_schedule:
        rates = [exp.learning_rate(t) for t in (0, exp.rounds - 1)]
        first, last = (f"{rate:.3g}" for rate in rates)
        warmup = f", {plural(exp.warmup, 'round')} of warm-up" if exp.warmup > 0 else ""
        schedule = describe_component(exp.schedule)
        words.append(f"learning rate {first} to {last}, {schedule}{warmup}")
    return f"{'; '.join(words)}\n" if words else ""


def describe_component(component: object) -> str:
    """Return the name of a method with its settings, as in `moon(mu=5.0, tau=0.5)`."""
    values = [f"{name}={getattr(component, name)}" for name in settings.names(type(component))]
    name = component_name(component)
    return f"{name}({', '.join(values)})" if values else name


def describe_partition(exp: Experiment) -> str:
    """Describe how the samples are partitioned, in a few words."""
    if exp.dataset == "sites":
        return "each with its own data"
    description = describe_data(to_dict(exp))
    if exp.partition == "column" and exp.shift is None:
        return description
    return f"{description}, partition seed {exp.partition_seed}"
