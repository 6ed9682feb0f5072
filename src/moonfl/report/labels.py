"""Short names for groups: the method as papers write it, then only the settings that tell groups apart."""

from collections import Counter
from typing import Any

from .run_checks import Fact

NAMES = {
    "moon": "MOON",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fednova": "FedNova",
    "feddyn": "FedDyn",
    "solo": "SOLO",
}
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet"}
FEDAVG = ("fedavg", "average")
WEIGHTS = ("algorithm.mu", "algorithm.alpha")  # always named: papers do
FIRST = (
    "dataset",
    "partition",
    "beta",
    "parties",
    "sample_fraction",
    "epochs",
    "rounds",
    "model",
    "head",
    "lr",
)
NEVER = ("seed", "data_dir", "scale")


def format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def order(settings: Fact, federated: bool) -> tuple[Any, ...]:
    """By setting, then MOON, FedAvg and the others; what is not federated last. Numbers as numbers."""
    name = str(settings["algorithm.name"])
    place = list(NAMES).index(name) if name in NAMES else len(NAMES) - 1.5
    plain_text = [
        (k, v)
        for k, v in sorted(settings.items())
        if isinstance(v, (str, int, float)) and k not in NEVER
    ]
    values = [(k, (1, 0.0, v) if isinstance(v, str) else (0, float(v), "")) for k, v in plain_text]
    shared, own = (
        [pair for pair in values if ("." in pair[0]) is dotted] for dotted in (False, True)
    )
    return (
        str(settings["dataset"]),
        not federated,
        shared,
        place,
        name,
        settings.get("server.name", "average") != "average",
        own,
    )


def usual(key: str, all_settings: list[Fact]) -> str | None:
    """The value that most of five groups or more have: it need not be said, what differs from it is."""
    value, count = Counter(repr(s.get(key)) for s in all_settings).most_common(1)[0]
    return value if len(all_settings) >= 5 and 2 * count > len(all_settings) else None


def method_labels(all_settings: list[Fact], federated: list[bool]) -> list[str]:
    """`MOON mu=5`; further settings of the method where two groups of it differ in them."""
    bases = []
    for settings in all_settings:
        name, server = str(settings["algorithm.name"]), settings.get("server.name", "average")
        base = "centralised" if settings.get("parties") == 1 else NAMES.get(name, name)
        bases.append(base + ("" if server == "average" else f" + server {server}"))
    labels = []
    for base, settings, counts in zip(bases, all_settings, federated, strict=True):
        peers = [other for b, other in zip(bases, all_settings, strict=True) if b == base]
        own = [
            key
            for key in settings
            if key.startswith(("algorithm.", "server.")) and not key.endswith(".name")
        ]
        named = [
            key
            for key in own
            if (key in WEIGHTS and counts) or repr(settings[key]) not in said_by_all(key, peers)
        ]
        labels.append(
            " ".join(
                [
                    base,
                    *(
                        f"{key.removeprefix('algorithm.')}={format_value(settings[key])}"
                        for key in named
                    ),
                ]
            )
        )
    return labels


def said_by_all(key: str, peers: list[Fact]) -> set[str | None]:
    """The values of a key that tell nothing: the only one there is, or the usual one."""
    values: set[str | None] = {repr(p.get(key)) for p in peers}
    return values if len(values) == 1 else {usual(key, peers)}


def distinguish(
    all_settings: list[Fact], federated: list[bool], length: tuple[str, ...]
) -> list[str]:
    """For each group the settings beside the method that are needed to tell the federated ones apart."""
    compared = [s for s, f in zip(all_settings, federated, strict=True) if f] or all_settings
    keys = {key for s in compared for key in s if "." not in key and key not in NEVER}
    chosen: list[str] = []
    for key in [*FIRST, *sorted(keys - set(FIRST))]:
        before, after = (
            len({repr([s.get(k) for k in k_list]) for s in compared})
            for k_list in (chosen, [*chosen, key])
        )
        if after > before:
            chosen.append(key)
    texts = []
    for settings, counts in zip(all_settings, federated, strict=True):
        unusual = [key for key in chosen if repr(settings.get(key)) != usual(key, compared)]
        named = [key for key in unusual if key in settings and (counts or key not in length)]
        texts.append(
            " ".join(
                DATASETS.get(settings[k], format_value(settings[k]))
                if k == "dataset"
                else f"{k}={format_value(settings[k])}"
                for k in named
            )
        )
    return texts
