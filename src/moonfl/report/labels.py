"""Labels and order of groups: the method as papers write it, then the settings that differ."""

import functools
from collections import Counter
from typing import Any

from .. import overview
from .run_checks import Settings

DATASET_NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
}
# Settings of the other components, as papers write them.
PERSONAL_NAMES = {"batchnorm": "FedBN", "output": "FedPer", "encoder": "LG-FedAvg"}
IMPLIED_PERSONAL = {"fedrep": "output"}  # what a method is published with, and reports do not name
AGGREGATION_NAMES = {"fednova": "FedNova"}
SERVER_NAMES = {
    "momentum": "FedAvgM",
    "adam": "FedAdam",
    "yogi": "FedYogi",
    "adagrad": "FedAdagrad",
}
PRIVACY_NAMES = {"server": "DP-FedAvg"}
METHOD_KEYS = (  # belong to the method, like algorithm.* and server.*
    "personal",
    "finetune",
    "aggregation",
    "trim",
    "clip",
)
ALWAYS_SHOWN = ("mu", "alpha")  # settings of methods that papers always name
SHOWN_FIRST = (
    "dataset",
    "partition",
    "beta",
    "parties",
    "sample_fraction",
    "epochs",
    "rounds",
    "model",
    "head",
    "optimizer.name",
    "schedule.name",
    "lr",
)
NEVER_SHOWN = ("seed", "data_dir", "scale")
IN_METHOD_NAME = (  # settings that the name of the method contains
    "personal",
    "finetune",
    "aggregation",
)
MIN_GROUPS = 5  # from this many groups on, the most common value of a setting is not shown


def format_value(value: Any) -> str:
    """Return the value of a setting as it is written on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def dataset_name(settings: Settings) -> str:
    """Return the dataset of a run as papers write it."""
    dataset = settings["dataset"]
    name = DATASET_NAMES.get(dataset, str(dataset))
    task = settings.get("task", "classification")
    return name if task == "classification" else f"{name}, {task}"


def server_optimizer(settings: Settings) -> str:
    """Return the name of the server optimizer."""
    return str(settings.get("server.name", "average"))


def privacy(settings: Settings) -> str:
    """Return the name of the privacy mechanism."""
    return str(settings.get("dp.name", "none"))


def aggregation_rule(settings: Settings) -> str:
    """Return the name of the aggregation rule; runs of 0.1 call the mean "none"."""
    rule = str(settings.get("aggregation", "mean"))
    return "mean" if rule == "none" else rule


def is_of_method(key: str) -> bool:
    """Return True if a setting belongs to the method and not to the problem that it solves."""
    return key.startswith(("algorithm.", "server.", "dp.")) or key in METHOD_KEYS


def is_fedavg(settings: Settings) -> bool:
    """Return True for plain FedAvg: one model, its weighted mean, and nothing else."""
    return (
        settings["algorithm.name"] == "fedavg"
        and settings.get("personal") is None
        and settings.get("finetune") is None
        and server_optimizer(settings) == "average"
        and aggregation_rule(settings) == "mean"
        and settings.get("clip") is None
        and privacy(settings) == "none"
    )


def sort_key(settings: Settings, federated: bool) -> tuple[Any, ...]:
    """Return the key that sorts groups: by setting, then MOON, FedAvg and the other methods.

    Groups that are not federated come last.
    """
    name = str(settings["algorithm.name"])
    names = list(method_names())
    ranks = []
    for method in name.split("+"):
        is_known = method in names
        ranks.append(names.index(method) if is_known else len(names) - 1.5)  # before SOLO
    shared: list[tuple[str, Any]] = []
    of_method: list[tuple[str, Any]] = []
    for key, value in sorted(settings.items()):
        if isinstance(value, str | int | float) and key not in NEVER_SHOWN:
            part = of_method if is_of_method(key) else shared
            part.append((key, sortable(value)))
    return (
        str(settings["dataset"]),
        not federated,
        shared,
        ranks,
        name,
        server_optimizer(settings) != "average",
        of_method,
    )


def sortable(value: str | float) -> tuple[int, float, str]:
    """Return a key that sorts numbers by size and before text."""
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")


def common_value(key: str, all_settings: list[Settings]) -> str | None:
    """Return the value that most groups have, which labels need not show.

    Return None if there are fewer than MIN_GROUPS groups or no value has a majority.
    """
    values = Counter(repr(settings.get(key)) for settings in all_settings)
    value, count = values.most_common(1)[0]
    has_majority = 2 * count > len(all_settings)
    return value if len(all_settings) >= MIN_GROUPS and has_majority else None


@functools.cache
def method_names() -> dict[str, str]:
    """Return the methods of the table of algorithms as papers write them."""
    return {method.name: method.label for method in overview.read().methods}


def method_labels(all_settings: list[Settings], federated: list[bool]) -> list[str]:
    """Return labels such as `MOON mu=5`, with the method's settings that differ between groups."""
    names = [method_name(settings) for settings in all_settings]
    labels = []
    for name, settings, is_federated in zip(names, all_settings, federated, strict=True):
        peers = [other for n, other in zip(names, all_settings, strict=True) if n == name]
        words = [name]
        for key in settings:
            if not is_of_method(key) or key.endswith(".name") or key in IN_METHOD_NAME:
                continue
            always = key.rpartition(".")[2] in ALWAYS_SHOWN and is_federated
            if always or repr(settings[key]) not in uninformative_values(key, peers):
                words.append(f"{short_key(key, settings)}={format_value(settings[key])}")
        labels.append(" ".join(words))
    return labels


def short_key(key: str, settings: Settings) -> str:
    """Return a key of the method as the command line accepts it: with the part's name if needed."""
    component, _, rest = key.partition(".")
    if component != "algorithm":
        return key
    name = rest.rpartition(".")[2]
    keys = [other for other in settings if other.startswith("algorithm.")]
    is_unique = [other.rpartition(".")[2] for other in keys].count(name) == 1
    return name if is_unique else rest


def method_name(settings: Settings) -> str:
    """Return the name of the method as papers write it, such as "MOON + FedDecorr, FedBN".

    The other components follow the algorithm. FedAvg is not named next to a published method.
    """
    algorithm = str(settings["algorithm.name"])
    name = " + ".join(method_names().get(part, part) for part in algorithm.split("+"))
    if settings.get("parties") == 1:
        name = "centralised"
    published, others = component_names(settings)
    if name == method_names()["fedavg"] and published:
        return ", ".join([*published, *others])
    return ", ".join([name, *published, *others])


def component_names(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the names of the components besides the algorithm, if they are not the default.

    Those that were published under a name come first, then the descriptions of the others.
    """
    published: list[str] = []
    others: list[str] = []
    implied = IMPLIED_PERSONAL.get(str(settings["algorithm.name"]))
    for value, default, names, prefix in (
        (settings.get("personal"), implied, PERSONAL_NAMES, "personal "),
        (aggregation_rule(settings), "mean", AGGREGATION_NAMES, ""),
        (privacy(settings), "none", PRIVACY_NAMES, "dp "),
        (server_optimizer(settings), "average", SERVER_NAMES, "server "),
    ):
        if value is None or value == default:
            continue
        if str(value) in names:
            published.append(names[str(value)])
        else:
            others.append(f"{prefix}{value}")
    if settings.get("finetune") is not None:
        others.append(f"fine-tuned {settings['finetune']}")
    return published, others


def uninformative_values(key: str, peers: list[Settings]) -> set[str | None]:
    """Return the values of a setting that a label need not show: the only or the common one."""
    values: set[str | None] = {repr(settings.get(key)) for settings in peers}
    return values if len(values) == 1 else {common_value(key, peers)}


def setting_labels(
    all_settings: list[Settings], federated: list[bool], hidden: tuple[str, ...]
) -> list[str]:
    """Return for each group the settings, apart from the method's, that tell groups apart.

    `hidden` are settings that the labels of groups without federation do not show.
    """
    pairs = list(zip(all_settings, federated, strict=True))
    compared = [settings for settings, is_federated in pairs if is_federated] or all_settings
    keys = distinguishing_keys(compared)
    common = {key: common_value(key, compared) for key in keys}
    labels = []
    for settings, is_federated in pairs:
        words = []
        for key in keys:
            shown = key in settings and (is_federated or key not in hidden)
            if not shown or repr(settings[key]) == common[key]:
                continue
            is_dataset = key == "dataset"
            text = f"{key.removesuffix('.name')}={format_value(settings[key])}"
            words.append(dataset_name(settings) if is_dataset else text)
        labels.append(" ".join(words))
    return labels


def distinguishing_keys(all_settings: list[Settings]) -> list[str]:
    """Return a short list of settings whose values together differ between as many as possible."""
    others = {key for settings in all_settings for key in settings}
    others = {
        key for key in others if not is_of_method(key) and key not in NEVER_SHOWN + IN_METHOD_NAME
    }
    keys: list[str] = []
    distinct = 1
    for key in [*SHOWN_FIRST, *sorted(others - set(SHOWN_FIRST))]:
        values = {repr([settings.get(k) for k in [*keys, key]]) for settings in all_settings}
        if len(values) > distinct:
            keys.append(key)
            distinct = len(values)
    return keys
