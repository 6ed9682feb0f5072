"""The published results: the facts of finished runs, and what is made of them.

    python results/make.py keep RUNS [quiet]    take over the facts of the finished runs in a folder
    python results/make.py                      write docs/results.md, its pictures, and the tables in other pages

Accuracies come from results/runs; times come from results/quiet, short runs on a machine that did nothing else. The
words are those of results/notes.md.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tomli_w

from moonfl.experiment import Experiment, from_toml, part_name, read_toml
from moonfl.presets import PRESETS
from moonfl.report.curves import accuracy_curves
from moonfl.report.groups import group_runs
from moonfl.report.labels import format_value
from moonfl.report.rendering import Picture
from moonfl.report.runs import Run, find_runs, read_run
from moonfl.report.statistics import mean_std, reach_target, rounds_and_bytes
from moonfl.report.tables import (
    Column,
    Table,
    byte_size,
    integer,
    markdown,
    percent,
    points,
    significant_digits,
)
from moonfl.reproduce import figures, tables
from moonfl.reproduce.runner import run_name
from moonfl.reproduce.targets import TARGETS, Entry, preset

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
KEPT = (
    "round",
    "accuracy",
    "accuracy_std",
    "accuracies",
    "loss",
    "seconds",
    "cpu_seconds",
    "bytes_down",
    "bytes_up",
)
DATASET, SEEDS = "cifar10", range(3)
PARTITIONS, ON_PARTITIONS = (1, 2), {"moon": "MOON", "fedavg": "FedAvg", "scaffold": "SCAFFOLD"}
METHODS = ("MOON", "FedAvg", "FedProx", "SCAFFOLD")
OTHERS = [  # what others report for this setting
    (
        "Flower's baseline (2023), 100 rounds, one run on the same partition",
        "70.7",
        None,
        "68.5",
        None,
    ),
    (
        "NIID-Bench (2021), 50 rounds, no projection head, mean over partitions",
        None,
        "68.2",
        "67.9",
        "69.8",
    ),
]
LATE, LAST = 20, 10  # the round a figure begins with, and how many rounds a mean is over
TIMED = "moonfl reproduce time --dataset cifar10 --seeds {seeds} --rounds {rounds}"
VARIANTS = ("fedavgm", "loss", "mu", "head", "negatives", "iid")
SETTING = """\
The paper's setting: 10 parties, Dirichlet 0.5 (partition seed 0, the paper's own as far as can be told), 100 rounds of
10 local epochs, batches of 64, the CNN with projection head. This page is made from the facts in `results/` by
`make results`; a test compares it with them. A command gives seed 0; with `seed=1` and `seed=2` it gives the others."""
VARIED = (
    "One run each, all of seed 0 (so FedAvg and MOON are those of seed 0 too). Where the paper chose among several "
    "settings, only those named here were run. "
    f"Last {LAST}: by the mean of the last {LAST} rounds. SOLO: ± over parties. "
    "The machine of each is in the last table."
)
STUDENT = 4.303  # 97.5 % of Student's t, of three values
PLOTTED = "<!-- accuracy in every round -->"  # where in the notes that section goes


def keep(folder: Path, where: str) -> None:
    """Settings, versions, and of each round what the page needs: a few kilobytes a run."""
    for path in find_runs([folder]):
        run = read_run(path)
        if not run.finished:
            print(f"{path} is not finished")
            continue
        settings = read_toml(path / "experiment.toml") | {"data_dir": "data"}
        out = HERE / where / run_name(from_toml(path / "experiment.toml"))
        shown = out.name in {
            run_name(exp)
            for entry in TARGETS["tsne"].entries(DATASET)
            for exp in entry.trials.values()
        }
        if shown and "tsne" not in run.final:
            print(f"{path} has no t-SNE: `moonfl resume` it to its end")
            continue
        out.mkdir(parents=True, exist_ok=True)
        (out / "experiment.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
        facts = [{key: short(fact[key]) for key in KEPT if key in fact} for fact in run.rounds]
        text = "".join(json.dumps(fact, separators=(",", ":")) + "\n" for fact in facts)
        (out / "rounds.jsonl").write_text(text, encoding="utf-8")
        if shown:
            more = {
                "final.json": {"tsne": short(run.final["tsne"])},
                "partition.json": run.partition,
            }
            for name, facts_of in more.items():
                (out / name).write_text(
                    json.dumps(facts_of, separators=(",", ":")) + "\n", encoding="utf-8"
                )
        print(f"{out} has the facts of {path}")


def short(value: object) -> object:
    """Six digits that count; accuracies are whole samples of 10,000 and lose none."""
    if isinstance(value, dict):
        return {key: short(of) for key, of in value.items()}
    if isinstance(value, list):
        return [short(of) for of in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def stored(where: str = "runs") -> dict[str, Run]:
    """By the name that an experiment and its seed have."""
    paths = find_runs([HERE / where])
    return {run_name(from_toml(path / "experiment.toml")): read_run(path) for path in paths}


def runs_of(
    entries: list[Entry], there: dict[str, Run], seeds: Iterable[int] = SEEDS
) -> tables.Runs:
    wanted = {exp for entry in entries for exp in entry.trials.values()}
    found = {exp: {s: there.get(run_name(replace(exp, seed=s))) for s in seeds} for exp in wanted}
    return {
        exp: kept
        for exp, of in found.items()
        if (kept := {s: run for s, run in of.items() if run is not None})
    }


def of_target(
    name: str, there: dict[str, Run], seeds: Iterable[int] = SEEDS
) -> tuple[list[Entry], tables.Runs]:
    """The entries of a target that have a run, with the settings that were run.

    Of rows that have several settings all get the same: none is the better for a choice that another did not have.
    """
    entries = TARGETS[name].entries(DATASET)
    runs = runs_of(entries, there, seeds)
    begun = [e for e in entries if any(exp in runs for exp in e.trials.values())]
    several = [e.trials for e in begun if len(e.trials) > 1]
    fair = [
        {
            label: exp
            for label, exp in e.trials.items()
            if len(e.trials) == 1 or all(trials.get(label) in runs for trials in several)
        }
        for e in begun
    ]
    return [
        replace(e, trials=trials) for e, trials in zip(begun, fair, strict=True) if trials
    ], runs


def first_table(there: dict[str, Run]) -> Table:
    target = TARGETS["table1"]
    entries, runs = of_target("table1", there)
    (table,) = tables.tables(
        target, "table1", f"{target.reference}: {target.title}", entries, runs, small=False
    )
    return with_columns(table, {Column("command"): commands(entries, runs)})


def variant(name: str, there: dict[str, Run]) -> Table:
    """Of seed 0, which all of its rows have."""
    target = TARGETS[name]
    entries, runs = of_target(name, there, seeds=(0,))
    cases = {e.column for e in target.entries(DATASET)}
    entries = [
        e for e in entries if {other.column for other in entries if other.row == e.row} == cases
    ]
    table, *_ = tables.tables(
        target, name, f"{target.title} ({target.reference})", entries, runs, small=False
    )
    found = [(e, runs[e.trials[tables.best(e, runs)]][0]) for e in entries]
    base = {"accuracy": there[run_name(preset(DATASET, "fedavg"))]}
    base |= {e.column: run for e, run in found if e.row in tables.FEDAVG}
    leads = [
        float(np.mean(ends(run)) - np.mean(ends(base[e.column])))
        if run.federated and run is not base[e.column]
        else None
        for e, run in found
    ]
    kept = [k for k, column in enumerate(table.columns) if column.name != "seeds"]
    short_table = replace(
        table,
        note="",
        columns=tuple(table.columns[k] for k in kept),
        rows=[tuple(row[k] for k in kept) for row in table.rows],
    )
    more = {
        Column(f"minus FedAvg, last {LAST}", points): leads,
        Column("command"): commands(entries, runs),
    }
    return with_columns(short_table, more)


def commands(entries: list[Entry], runs: tables.Runs) -> list[str]:
    """What gives each row."""
    return [f"`{command(e.trials[tables.best(e, runs)])}`" for e in entries]


def with_columns(table: Table, more: Mapping[Column, Sequence[object]]) -> Table:
    rows = [(*row, *values) for row, *values in zip(table.rows, *more.values(), strict=True)]
    return replace(table, columns=(*table.columns, *more), rows=rows)


def level(there: dict[str, Run]) -> Table:
    """Rounds to one accuracy for all: what the paper's FedAvg ends with, which its own table of rounds is to."""
    entries, runs = of_target("rounds", there)
    goal = float(
        next(e.paper for e in TARGETS["table1"].entries(DATASET) if e.row == "FedAvg").split()[0]
    )
    rows = []
    for e in entries:
        hits = [
            reach_target(run.rounds, goal / 100) for _, run in sorted(runs[e.trials[""]].items())
        ]
        rows.append((e.row, e.paper, *rounds_and_bytes(hits)))
    columns = (
        Column("method"),
        Column("paper"),
        Column("ours, each seed", integer),
        Column("sent both ways until then", byte_size),
    )
    note = (
        "ours: the first round at or above it; of the paper's FedAvg, which ends there, all rounds"
    )
    return Table("level", f"Rounds to {goal} %, where the paper's FedAvg ends", columns, rows, note)


def steady(there: dict[str, Run]) -> Table:
    """One round is noisy; the mean over the last ones is less so."""
    entries, runs = of_target("rounds", there)
    last = {
        e.row: {seed: ends(run) for seed, run in sorted(runs[e.trials[""]].items())}
        for e in entries
    }
    means = {
        row: {seed: float(np.mean(values)) for seed, values in of.items()}
        for row, of in last.items()
    }
    base = means["FedAvg"]
    rows = []
    for row, of in means.items():
        lead = {
            seed: value - base[seed]
            for seed, value in of.items()
            if seed in base and row != "FedAvg"
        }
        within = np.mean([np.std(values, ddof=1) for values in last[row].values()])
        rows.append(
            (
                row,
                mean_std(of.values()),
                mean_std(lead.values()),
                interval(lead.values()),
                tuple(lead.values()),
                float(within),
            )
        )
    columns = (
        Column("method"),
        Column("ours, %", percent),
        Column("minus FedAvg", points),
        Column("95 % interval"),
        Column(f"seeds {', '.join(map(str, SEEDS))}", points),
        Column("within a run", percent),
    )
    note = (
        "ours and minus FedAvg: mean ± deviation over seeds; 95 % interval: of the lead, by Student's t; within a run: "
        "the deviation of its last rounds, in points"
    )
    return Table("steady", f"Mean of the last {LAST} rounds", columns, rows, note)


def interval(values: Iterable[float]) -> str | None:
    """Of the mean, by Student's t."""
    of = mean_std(values)
    if of is None or of.std is None:
        return None
    half = STUDENT * of.std / of.count**0.5
    return f"{points(of.mean - half)} to {points(of.mean + half)}"


def ends(run: Run) -> list[float]:
    return [float(fact["accuracy"]) for fact in run.rounds[-LAST:]]


def to_fedavg(there: dict[str, Run]) -> Table:
    target = TARGETS["rounds"]
    entries, runs = of_target("rounds", there)
    (table,) = tables.tables(
        target,
        "rounds",
        f"{target.title}, the paper's table of communication",
        entries,
        runs,
        small=False,
    )
    return table


def partitions(there: dict[str, Run]) -> Table:
    """One trial each on other partitions than Table 1's: the last round, and leads by the mean of the last ones."""
    rows: list[tuple[object, ...]] = []
    for number in (0, *PARTITIONS):
        runs = {
            row: there[run_name(replace(preset(DATASET, method), partition_seed=number))]
            for method, row in ON_PARTITIONS.items()
        }
        last = {row: float(run.rounds[-1]["accuracy"]) for row, run in runs.items()}
        mean = {row: float(np.mean(ends(run))) for row, run in runs.items()}
        leads = [of[row] - of["FedAvg"] for of in (last, mean) for row in ("MOON", "SCAFFOLD")]
        rows.append(
            (f"{number}{' (that of Table 1)' if number == 0 else ''}", *last.values(), *leads)
        )
    columns = (
        Column("partition seed"),
        *(Column(f"{row}, %", percent) for row in ON_PARTITIONS.values()),
        *(
            Column(f"{row} minus FedAvg{by}", points)
            for by in ("", f", last {LAST}")
            for row in ("MOON", "SCAFFOLD")
        ),
    )
    note = f"one run each; last {LAST}: by the mean of the last {LAST} rounds"
    return Table("partitions", "Accuracy by partition, seed 0", columns, rows, note)


def seconds(quiet: dict[str, Run]) -> list[Table]:
    """Time of a round, from the short runs."""
    target, (rounds, *others) = TARGETS["time"], sorted({len(run.rounds) for run in quiet.values()})
    if others:
        raise SystemExit(
            f"the runs in results/quiet have {rounds} and {others} rounds; their times do not compare"
        )
    seeds = len({run.seed for run in quiet.values()})
    short_runs = [
        replace(e, trials={label: replace(exp, rounds=rounds) for label, exp in e.trials.items()})
        for e in target.entries(DATASET)
    ]
    runs = runs_of(short_runs, quiet)
    entries = [e for e in short_runs if e.trials[""] in runs]
    words = TIMED.format(seeds=seeds, rounds=rounds)
    title = f"{target.reference}: {target.title}; from `{words}` on two cores that did nothing else"
    return [*tables.tables(target, "time", title, entries, runs, small=False)]


def ledger(there: dict[str, Run]) -> Table:
    """Every run: its command, its end, its cost."""
    rows = []
    for run in there.values():
        facts, words = run.rounds, command(from_toml(run.path / "experiment.toml"))
        cpu, up = (sum(fact.get(key, 0) for fact in facts) for key in ("cpu_seconds", "bytes_up"))
        best = max(float(fact["accuracy"]) for fact in facts)
        sent = up if run.federated else None
        rows.append(
            (
                f"`{words}`",
                float(facts[-1]["accuracy"]),
                best,
                cpu / 60,
                sent,
                run.versions["kernels"],
            )
        )
    columns = (
        Column("command"),
        Column("accuracy, %", percent),
        Column("best round, %", percent),
        Column("processor minutes", significant_digits),
        Column("sent by parties", byte_size),
        Column("kernels"),
    )
    note = "processor minutes: of training, summed over the processes; kernels: the instruction set of its machine"
    return Table("runs", "Commands, ends and costs", columns, sorted(rows), note)


def command(exp: Experiment) -> str:
    """The shortest that gives this experiment: a preset of its method and what is changed."""
    near = {
        name: of.experiment for name, of in PRESETS.items() if name.startswith(f"{exp.dataset}-")
    }
    ways = [
        [name, *(f"{key}={value}" for key, value in changed(exp, base) if key != "data_dir")]
        for name, base in near.items()
        if type(base.algorithm) is type(exp.algorithm)
    ]
    return " ".join(["moonfl run", *min(ways, key=len)])


def changed(exp: Experiment, base: Experiment) -> list[tuple[str, str]]:
    found = []
    for key in ("algorithm", "server"):
        own, other = getattr(exp, key), getattr(base, key)
        if key == "server" and type(own) is not type(other):
            found.append((key, part_name(own)))
            other = type(own)()
        prefix = "server." if key == "server" else ""
        found += [
            (prefix + k, format_value(v)) for k, v in vars(own).items() if v != getattr(other, k)
        ]
    plain = [(k, v) for k, v in vars(exp).items() if k not in ("algorithm", "server")]
    return found + [(k, format_value(v)) for k, v in plain if v != getattr(base, k)]


def pictures(there: dict[str, Run]) -> dict[str, Picture]:
    """By name."""
    made = {}
    for name in ("curves", "tsne"):
        entries, runs = of_target(name, there)
        (made[name],) = figures.pictures(
            TARGETS[name], f"results-{name}", "CIFAR-10", entries, runs, small=False
        )
    entries, runs = of_target("rounds", there)
    groups, _ = group_runs([run for e in entries for run in runs[e.trials[""]].values()])
    return made | {
        "late": accuracy_curves("results-late", groups, f"CIFAR-10, from round {LATE} on", LATE)
    }


def versions(there: dict[str, Run]) -> str:
    told = Counter(
        ", ".join(f"{k} {v}" for k, v in sorted(run.versions.items())) for run in there.values()
    )
    return "\n".join(f"- {count} runs: {line}" for line, count in sorted(told.items()))


def page(
    there: dict[str, Run], quiet: dict[str, Run], drawn: dict[str, Picture], first: Table
) -> str:
    shown = {
        name: f"![{picture.alt}](pictures/{picture.name}.svg)" for name, picture in drawn.items()
    }
    seconds_of = {
        key: sum(float(fact.get(key, 0)) for run in there.values() for fact in run.rounds)
        for key in ("cpu_seconds", "seconds")
    }
    took = (
        f"Runs: {len(there)}, {significant_digits(seconds_of['cpu_seconds'] / 3600)} processor hours in all; "
        "their own clocks, of which two often went at a time, add up to "
        f"{significant_digits(seconds_of['seconds'] / 3600)} hours. Software and machine:"
    )
    plotted = ["## Accuracy in every round", shown["late"], text_of(steady(there)), shown["curves"]]
    notes = (
        (HERE / "notes.md")
        .read_text(encoding="utf-8")
        .strip()
        .replace(PLOTTED, "\n\n".join(plotted))
    )
    sections = {
        "Rounds and bytes": [text_of(level(there)), text_of(to_fedavg(there))],
        "Other partitions": [text_of(partitions(there))],
        "Variants of the paper": [VARIED, *(text_of(variant(name, there)) for name in VARIANTS)],
        "Representations": [shown["tsne"]],
        "Time": [text_of(table) for table in seconds(quiet)],
        "Every run": [text_of(ledger(there)), took, versions(there)],
    }
    told = [part for title, parts in sections.items() for part in (f"## {title}", *parts)]
    return "\n\n".join(["# Results on CIFAR-10", SETTING, text_of(first), notes, *told]) + "\n"


def text_of(table: Table) -> str:
    return markdown(table).strip()


def numbers(there: dict[str, Run]) -> Table:
    """The paper's, others' and ours."""
    entries = {e.row: e for e in TARGETS["table1"].entries(DATASET) if e.row in METHODS}
    runs = runs_of([*entries.values()], there)
    ours = [tables.reported(entries[row], runs) for row in METHODS]
    papers = ("the paper, 100 rounds, three trials", *(entries[row].paper for row in METHODS))
    rows = [papers, *OTHERS, ("moonfl, 100 rounds, three trials", *ours)]
    return Table("numbers", "", (Column(""), *(Column(row, percent) for row in METHODS)), rows)


def blocks(first: Table, there: dict[str, Run]) -> dict[Path, str]:
    """Pages of which a part is made here, as they should be."""
    made = {HERE.parent / "README.md": first, DOCS / "comparison.md": numbers(there)}
    return {
        path: with_block(path.read_text(encoding="utf-8"), table) for path, table in made.items()
    }


def with_block(text: str, table: Table) -> str:
    """The text with what stands between the two marks replaced by the table, without its title."""
    _, block = markdown(table).strip().split("\n\n", 1)
    found, count = re.subn(
        r"(<!-- made by results/make.py -->\n\n).*?(\n\n<!-- end -->)",
        lambda m: m[1] + block + m[2],
        text,
        flags=re.S,
    )
    if count != 1:
        raise SystemExit(f"{count} places for results in a page, there should be one")
    return found


def pages(there: dict[str, Run], quiet: dict[str, Run]) -> dict[Path, str]:
    """Every file that is made of the facts, as it should be."""
    drawn, first = pictures(there), first_table(there)
    svgs = {DOCS / "pictures" / f"{picture.name}.svg": picture.svg for picture in drawn.values()}
    return {DOCS / "results.md": page(there, quiet, drawn, first), **blocks(first, there), **svgs}


def write() -> None:
    there = stored()
    for path, text in pages(there, stored("quiet")).items():
        path.write_text(text, encoding="utf-8")
    print(f"docs/results.md is made of the facts of {len(there)} runs")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            write()
        case ["keep", folder]:
            keep(Path(folder), "runs")
        case ["keep", folder, "quiet"]:
            keep(Path(folder), "quiet")
        case _:
            raise SystemExit(__doc__)
