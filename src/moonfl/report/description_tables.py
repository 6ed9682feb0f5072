"""The tables that describe runs: settings with their differences, choices, classes, parties."""

from collections import Counter

from .groups import PLACE, Group
from .labels import format_value
from .result_tables import titled
from .runs import Run
from .statistics import confusion, held_out, party_values
from .tables import Column, Table, integer, percent, significant_digits


def everything(g: Group) -> dict[str, str]:
    """Settings and versions as text; what the runs of the group differ in stands side by side."""
    found: dict[str, dict[str, None]] = {}
    for run in g.runs:
        values = {k: v for k, v in run.settings.items() if k not in PLACE}
        for key, value in (values | {f"versions.{k}": v for k, v in run.versions.items()}).items():
            found.setdefault(key, {})[format_value(value)] = None
    return {key: ", ".join(values) for key, values in found.items()}


def settings(groups: list[Group]) -> list[Table]:
    """What differs, a row a group, the unusual value marked; and what is the same in all."""
    texts = [everything(g) for g in groups]
    keys = list(dict.fromkeys(key for text in texts for key in text))
    differ = [key for key in keys if len({text.get(key) for text in texts}) > 1]
    tables = []
    if differ:
        rows, marked = [], set()
        common = {key: Counter(text.get(key) for text in texts).most_common(1)[0] for key in differ}
        usual = {key: value for key, (value, times) in common.items() if times > 1}
        for i, (g, text) in enumerate(zip(groups, texts, strict=True)):
            rows.append((g.label, ", ".join(map(str, g.seeds)), *(text.get(key) for key in differ)))
            marked |= {
                (i, k + 2)
                for k, key in enumerate(differ)
                if text.get(key) not in (usual.get(key), None)
            }
        columns = (Column("method"), Column("seeds"), *map(Column, differ))
        note = "Marked: not the most common value of its column."
        tables.append(
            Table(
                "settings-different",
                titled("Settings that differ", groups),
                columns,
                rows,
                note,
                frozenset(marked),
            )
        )
    same = [(key, texts[0][key]) for key in keys if key not in differ]
    title = titled("Settings that are the same in all runs", groups)
    tables.append(
        Table(
            "settings-same",
            title,
            (Column("setting"), Column("value")),
            list(same),
            folded=bool(differ),
        )
    )
    return tables


def choices(groups: list[Group]) -> Table | None:
    """What the runs do where implementations differ; a text that several groups share stands once."""
    made: dict[tuple[str, str], list[str]] = {}
    for g in groups:
        for key, text in g.runs[0].choices.items():
            made.setdefault((key, text), []).append(g.label)
    rows = [
        (key, text, "all" if len(who) == len(groups) else ", ".join(who))
        for (key, text), who in sorted(made.items())
    ]
    columns = (Column("question"), Column("choice"), Column("made by"))
    return (
        Table(
            "choices",
            titled("Choices where implementations differ", groups),
            columns,
            rows,
            folded=True,
        )
        if rows
        else None
    )


def done(run: Run) -> str:
    how = ", stopped early" if run.stopped_early else ", diverged" if run.diverged else ""
    return f"{len(run.rounds)} of {run.settings['rounds']}{how}"


def sources(groups: list[Group]) -> Table:
    rows = [(g.label, run.seed, done(run), str(run.path)) for g in groups for run in g.runs]
    columns = (Column("method"), Column("seed", integer), Column("rounds done"), Column("folder"))
    return Table("runs", titled("Runs", groups), columns, rows, folded=True)


def per_class(groups: list[Group]) -> list[Table]:
    """One table for each set of classes; a row a class."""
    sets: dict[tuple[str, ...], list[Group]] = {}
    for g in groups:
        shares = confusion(g)
        if shares is not None:
            sets.setdefault(tuple(g.class_names(len(shares))), []).append(g)
    tables = []
    for number, (names, there) in enumerate(sets.items(), 1):
        diagonals = [shares.diagonal() for g in there if (shares := confusion(g)) is not None]
        rows = [(name, *(float(d[k]) for d in diagonals)) for k, name in enumerate(names)]
        columns = (Column("class"), *(Column(f"{g.label}, %", percent) for g in there))
        note = "Share of the test samples of a class that are recognised, over all seeds."
        name = "classes" if len(sets) == 1 else f"classes-{number}"
        tables.append(
            Table(name, titled("Accuracy per class", there), columns, rows, note, folded=True)
        )
    return tables


def per_party(groups: list[Group]) -> Table | None:
    rows = []
    for g in groups:
        facts = [party_values(g, key) for key in ("samples", "accuracy", "distance", "similarity")]
        facts.insert(2, held_out(g))
        parties = sorted({party for values in facts for party in values})
        rows += [
            (g.label, g.party(party), *(values.get(party) for values in facts)) for party in parties
        ]
    columns = (
        Column("method"),
        Column("party"),
        Column("samples", integer),
        Column("accuracy on its own data, %", percent),
        Column("on what it holds out, %", percent),
        Column("distance", significant_digits),
        Column("similarity", significant_digits),
    )
    note = "After the last round, mean over seeds: the final global model on the party's training data, and on test "
    note += "samples that the party holds out, where it does; the distance "
    note += (
        "||w_i - w|| of its last local model; the mean cosine of both models' representations z."
    )
    return (
        Table("parties", titled("Parties", groups), columns, rows, note, folded=True)
        if rows
        else None
    )
