"""The tables that describe runs: settings, implementation choices, folders, classes, parties."""

from collections import Counter

from ..measures import ACCURACY
from .formats import value_format
from .groups import IGNORED, Group
from .labels import format_value
from .result_tables import mark_small
from .runs import Run
from .statistics import class_accuracies, held_out_scores, party_metric
from .tables import Column, Table, integer, percent, significant_digits


def settings_and_versions(group: Group) -> dict[str, str]:
    """Return all settings and versions of a group as text; different values are all listed."""
    values: dict[str, dict[str, None]] = {}
    for run in group.runs:
        items = {key: value for key, value in run.settings.items() if key not in IGNORED}
        items |= {f"versions.{name}": version for name, version in run.versions.items()}
        for key, value in items.items():
            values.setdefault(key, {})[format_value(value)] = None
    return {key: ", ".join(texts) for key, texts in values.items()}


def settings_tables(groups: list[Group]) -> list[Table]:
    """Return the table of settings that differ, if any do, and that of the equal ones."""
    texts = [settings_and_versions(group) for group in groups]
    keys = list(dict.fromkeys(key for text in texts for key in text))
    different = [key for key in keys if len({text.get(key) for text in texts}) > 1]
    tables = []
    if different:
        tables.append(different_settings(groups, texts, different))
    equal = [(key, texts[0][key]) for key in keys if key not in different]
    tables.append(
        Table(
            name="settings-same",
            title=mark_small("Settings that are equal in all runs", groups),
            columns=(Column("setting"), Column("value")),
            rows=list(equal),
            collapsed=bool(different),
        )
    )
    return tables


def different_settings(groups: list[Group], texts: list[dict[str, str]], keys: list[str]) -> Table:
    """Return the table of settings that differ, one row per group, with unusual values marked."""
    common = {key: most_common_value(key, texts) for key in keys}
    rows = []
    highlighted = set()
    for i, (group, text) in enumerate(zip(groups, texts, strict=True)):
        seeds = ", ".join(map(str, group.seeds))
        rows.append((group.label, seeds, *(text.get(key) for key in keys)))
        for k, key in enumerate(keys, 2):  # after the columns method and seeds
            if text.get(key) not in (common[key], None):
                highlighted.add((i, k))
    return Table(
        name="settings-different",
        title=mark_small("Settings that differ", groups),
        columns=(Column("method"), Column("seeds"), *map(Column, keys)),
        rows=rows,
        note="Marked values differ from the most common value of their column.",
        highlighted=frozenset(highlighted),
    )


def most_common_value(key: str, texts: list[dict[str, str]]) -> str | None:
    """Return the most common value of a setting; None if no two groups share one."""
    value, count = Counter(text.get(key) for text in texts).most_common(1)[0]
    return value if count > 1 else None


def choices_table(groups: list[Group]) -> Table | None:
    """Return the table of implementation choices; None if no run recorded them."""
    labels: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        for key, text in group.runs[0].choices.items():
            labels.setdefault((key, text), []).append(group.label)
    if not labels:
        return None
    rows = []
    for (key, text), methods in sorted(labels.items()):
        rows.append((key, text, "all" if len(methods) == len(groups) else ", ".join(methods)))
    return Table(
        name="choices",
        title=mark_small("Implementation choices", groups),
        columns=(Column("question"), Column("choice"), Column("used by")),
        rows=rows,
        collapsed=True,
    )


def describe_rounds(run: Run) -> str:
    """Return how many rounds a run has, and why not all."""
    status = ""
    if run.stopped_early:
        status = ", stopped early"
    elif run.diverged:
        status = ", diverged"
    return f"{len(run.rounds)} of {run.settings['rounds']}{status}"


def runs_table(groups: list[Group]) -> Table:
    """Return the table of all runs with their directories."""
    rows = []
    for group in groups:
        for run in group.runs:
            rows.append((group.label, run.seed, describe_rounds(run), str(run.path)))
    return Table(
        name="runs",
        title=mark_small("Runs", groups),
        columns=(
            Column("method"),
            Column("seed", integer),
            Column("finished rounds"),
            Column("folder"),
        ),
        rows=rows,
        collapsed=True,
    )


def class_tables(groups: list[Group]) -> list[Table]:
    """Return the tables of accuracy per class, one for each set of classes."""
    diagonals: dict[tuple[str, ...], list[tuple[Group, list[float | None]]]] = {}
    for group in groups:
        accuracies = class_accuracies(group)
        if accuracies:
            names = tuple(group.class_names(len(accuracies)))
            diagonals.setdefault(names, []).append((group, accuracies))
    tables = []
    for number, (names, entries) in enumerate(diagonals.items(), 1):
        members = [group for group, _ in entries]
        rows = [
            (name, *(accuracies[k] for _, accuracies in entries)) for k, name in enumerate(names)
        ]
        tables.append(
            Table(
                name="classes" if len(diagonals) == 1 else f"classes-{number}",
                title=mark_small("Accuracy per class", members),
                columns=(
                    Column("class"),
                    *(Column(f"{group.label}, %", percent) for group in members),
                ),
                rows=rows,
                note=(
                    "Percentage of the test samples of a class that are classified correctly, over "
                    "all seeds; empty: the class has no test samples."
                ),
                collapsed=True,
            )
        )
    return tables


def describe_sample(groups: list[Group]) -> str:
    """Return a sentence if only a sample of the parties was analysed after the last round."""
    finals = [run.final for group in groups for run in group.runs]
    sampled = [final for final in finals if final.sampled_from is not None]
    if not sampled:
        return ""
    total = max(final.sampled_from or 0 for final in sampled)
    return (
        f" Of runs with up to {total:,} parties per round, a random sample of "
        f"{len(sampled[0].parties)} parties was analysed."
    )


def party_table(groups: list[Group]) -> Table | None:
    """Return the table of metrics per party after the last round; None if none were recorded."""
    if not groups:
        return None
    measure = groups[0].measure
    shown = value_format(measure)
    unit = ", %" if measure.is_share else ""
    values = "Accuracies" if measure is ACCURACY else f"Values of {measure.name}"
    rows = []
    for group in groups:
        metrics = [
            party_metric(group, "samples"),
            party_metric(group, "accuracy" if measure is ACCURACY else "score"),
            held_out_scores(group),
            party_metric(group, "distance"),
            party_metric(group, "similarity"),
        ]
        for party in sorted({party for values in metrics for party in values}):
            cells = [values.get(party) for values in metrics]
            rows.append((group.label, group.party_name(party), *cells))
    if not rows:
        return None
    return Table(
        name="parties",
        title=mark_small("Parties", groups),
        columns=(
            Column("method"),
            Column("party"),
            Column("samples", integer),
            Column(f"{measure.name} on training data{unit}", shown),
            Column(f"held-out {measure.with_unit}", shown),
            Column("distance", significant_digits),
            Column("similarity", significant_digits),
        ),
        rows=rows,
        note=(
            f"After the last round, mean over seeds. {values} are those of the final global model "
            "on the party's training data and on the test samples that the party holds out. "
            "Distance is ||w_i - w|| of the party's last local model; similarity is the mean "
            "cosine of the representations z of both models."
            f"{describe_sample(groups)}"
        ),
        collapsed=True,
    )
