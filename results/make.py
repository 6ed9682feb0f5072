"""The published results: the facts of finished runs, and what is made of them.

    python results/make.py keep RUNS [quiet]    take over the facts of the finished runs in a folder
    python results/make.py                      write docs/results.md, its pictures, and the tables in other pages

Accuracies come from results/runs; times come from results/quiet, short runs on a machine that did nothing else. The
words are those of results/notes.md.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import tomli_w

from moonfl import beside, figures
from moonfl.experiment import Experiment, from_toml, part_name, read_toml
from moonfl.presets import PRESETS
from moonfl.report.curves import accuracy
from moonfl.report.groups import group
from moonfl.report.labels import show
from moonfl.report.numbers import reached, rounds_and_bytes, spread
from moonfl.report.pictures import Picture
from moonfl.report.runs import Run, find, read
from moonfl.report.tables import Column, Table, digits, markdown, percent, points, size, whole
from moonfl.reproduce import name_of
from moonfl.targets import TARGETS, Entry, preset

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
KEPT = ("round", "accuracy", "accuracy_std", "accuracies", "loss", "seconds", "cpu_seconds", "bytes_down", "bytes_up")
DATASET, SEEDS = "cifar10", range(3)
PARTITIONS, ON_PARTITIONS = (1, 2), {"moon": "MOON", "fedavg": "FedAvg", "scaffold": "SCAFFOLD"}
METHODS = ("MOON", "FedAvg", "FedProx", "SCAFFOLD")
OTHERS = [  # what others report for this setting
    ("Flower's baseline (2023), 100 rounds, one run on the same partition", "70.7", None, "68.5", None),
    ("NIID-Bench (2021), 50 rounds, no projection head, mean over partitions", None, "68.2", "67.9", "69.8"),
]
LATE, LAST = 20, 10  # the round a figure begins with, and how many rounds a mean is over
TIMED = "moonfl reproduce time --dataset cifar10 --seeds {seeds} --rounds {rounds}"
VARIANTS = ("fedavgm", "loss", "mu", "head", "negatives", "iid")
SETTING = """\
The paper's setting: 10 parties, Dirichlet 0.5 (partition seed 0, the paper's own as far as can be told), 100 rounds of
10 local epochs, batches of 64, the CNN with projection head. This page is made from the facts in `results/` by
`make results`; a test compares it with them. A command gives seed 0; with `seed=1` and `seed=2` it gives the others."""
TUNED = "Where the paper chose among several settings, only those named here were run."


def keep(folder: Path, where: str) -> None:
    """Settings, versions, and of each round what the page needs: a few kilobytes a run."""
    for path in find([folder]):
        run = read(path)
        if not run.finished:
            print(f"{path} is not finished")
            continue
        settings = read_toml(path / "experiment.toml") | {"data_dir": "data"}
        out = HERE / where / name_of(from_toml(path / "experiment.toml"))
        shown = out.name in {
            name_of(exp) for entry in TARGETS["tsne"].entries(DATASET) for exp in entry.trials.values()
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
            more = {"final.json": {"tsne": short(run.final["tsne"])}, "partition.json": run.partition}
            for name, facts_of in more.items():
                (out / name).write_text(json.dumps(facts_of, separators=(",", ":")) + "\n", encoding="utf-8")
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
    paths = find([HERE / where])
    return {name_of(from_toml(path / "experiment.toml")): read(path) for path in paths}


def runs_of(entries: list[Entry], there: dict[str, Run]) -> beside.Runs:
    wanted = {exp for entry in entries for exp in entry.trials.values()}
    found = {exp: {s: there.get(name_of(replace(exp, seed=s))) for s in SEEDS} for exp in wanted}
    return {exp: kept for exp, of in found.items() if (kept := {s: run for s, run in of.items() if run is not None})}


def of_target(name: str, there: dict[str, Run]) -> tuple[list[Entry], beside.Runs]:
    """The entries of a target that have a run, with the settings that were run."""
    entries = TARGETS[name].entries(DATASET)
    runs = runs_of(entries, there)
    tried = [replace(e, trials={label: exp for label, exp in e.trials.items() if exp in runs}) for e in entries]
    return [e for e in tried if e.trials], runs


def tables(there: dict[str, Run]) -> list[Table]:
    """Table 1; of the others those that say more than the ones before."""
    made: list[Table] = []
    told: set[Experiment] = set()
    for name in ("table1", *VARIANTS):
        target = TARGETS[name]
        entries, runs = of_target(name, there)
        columns = {e.column for e in target.entries(DATASET)}
        entries = [e for e in entries if {other.column for other in entries if other.row == e.row} == columns]
        shown = {exp for e in entries for exp in e.trials.values()}
        if not shown <= told:
            table, *grids = beside.tables(target, name, f"{target.where}: {target.title}", entries, runs, small=False)
            made += [with_commands(table, entries, runs), *grids]
            told |= shown
    return made


def with_commands(table: Table, entries: list[Entry], runs: beside.Runs) -> Table:
    """A row is what this gives."""
    words = [f"`{command(e.trials[beside.best(e, runs)])}`" for e in entries]
    rows = [(*row, of) for row, of in zip(table.rows, words, strict=True)]
    return replace(table, columns=(*table.columns, Column("command")), rows=rows)


def level(there: dict[str, Run]) -> Table:
    """Rounds to one accuracy for all: what the paper's FedAvg ends with, which its own table of rounds is to."""
    entries, runs = of_target("rounds", there)
    goal = float(next(e.paper for e in TARGETS["table1"].entries(DATASET) if e.row == "FedAvg").split()[0])
    rows = []
    for e in entries:
        hits = [reached(run.rounds, goal / 100) for _, run in sorted(runs[e.trials[""]].items())]
        rows.append((e.row, e.paper, *rounds_and_bytes(hits)))
    columns = (
        Column("method"), Column("paper"), Column("ours, each seed", whole), Column("sent both ways until then", size)
    )  # fmt: skip
    note = "ours: the first round at or above it; of the paper's FedAvg, which ends there, all rounds"
    return Table("level", f"Rounds to {goal} %, where the paper's FedAvg ends", columns, rows, note)


def steady(there: dict[str, Run]) -> Table:
    """One round is noisy; the mean over the last ones is less so."""
    entries, runs = of_target("rounds", there)
    last = {e.row: {seed: ends(run) for seed, run in sorted(runs[e.trials[""]].items())} for e in entries}
    means = {row: {seed: float(np.mean(values)) for seed, values in of.items()} for row, of in last.items()}
    base = means["FedAvg"]
    rows = []
    for row, of in means.items():
        lead = {seed: value - base[seed] for seed, value in of.items() if seed in base and row != "FedAvg"}
        within = np.mean([np.std(values, ddof=1) for values in last[row].values()])
        rows.append((row, spread(of.values()), spread(lead.values()), tuple(lead.values()), float(within)))
    columns = (Column("method"), Column("ours, %", percent), Column("minus FedAvg", points),
               Column("each seed", points), Column("within a run", percent))  # fmt: skip
    note = (
        "ours and minus FedAvg: mean ± deviation over seeds; within a run: the deviation of its last rounds, in points"
    )
    return Table("steady", f"Mean of the last {LAST} rounds", columns, rows, note)


def ends(run: Run) -> list[float]:
    return [float(fact["accuracy"]) for fact in run.rounds[-LAST:]]


def to_fedavg(there: dict[str, Run]) -> Table:
    target = TARGETS["rounds"]
    entries, runs = of_target("rounds", there)
    (table,) = beside.tables(
        target, "rounds", f"{target.title}, the paper's table of communication", entries, runs, small=False
    )
    return table


def partitions(there: dict[str, Run]) -> Table | None:
    """One trial each on other partitions than the paper's: the last round, and leads by the mean of the last ones."""
    rows: list[tuple[object, ...]] = []
    for number in (0, *PARTITIONS):
        found = {
            row: there.get(name_of(replace(preset(DATASET, method), partition_seed=number)))
            for method, row in ON_PARTITIONS.items()
        }
        runs = {row: run for row, run in found.items() if run is not None}
        if number > 0 and len(runs) < 2:
            continue
        last = {row: float(run.rounds[-1]["accuracy"]) for row, run in runs.items()}
        mean = {row: float(np.mean(ends(run))) for row, run in runs.items()}
        leads = [
            of[row] - of["FedAvg"] if {row, "FedAvg"} <= of.keys() else None
            for of in (last, mean)
            for row in ("MOON", "SCAFFOLD")
        ]
        rows.append(
            (f"{number}{' (the paper’s)' if number == 0 else ''}", *map(last.get, ON_PARTITIONS.values()), *leads)
        )
    if len(rows) < 2:
        return None
    columns = (
        Column("partition seed"), *(Column(f"{row}, %", percent) for row in ON_PARTITIONS.values()),
        *(Column(f"{row} minus FedAvg{by}", points) for by in ("", f", last {LAST}") for row in ("MOON", "SCAFFOLD")),
    )  # fmt: skip
    note = f"one run each; last {LAST}: by the mean of the last {LAST} rounds"
    return Table("partitions", "Other partitions, seed 0", columns, rows, note)


def seconds(quiet: dict[str, Run]) -> list[Table]:
    """Time of a round, from the short runs."""
    target, (rounds, *others) = TARGETS["time"], sorted({len(run.rounds) for run in quiet.values()})
    if others:
        raise SystemExit(f"the runs in results/quiet have {rounds} and {others} rounds; their times do not compare")
    seeds = len({run.seed for run in quiet.values()})
    short_runs = [
        replace(e, trials={label: replace(exp, rounds=rounds) for label, exp in e.trials.items()})
        for e in target.entries(DATASET)
    ]
    runs = runs_of(short_runs, quiet)
    entries = [e for e in short_runs if e.trials[""] in runs]
    words = TIMED.format(seeds=seeds, rounds=rounds)
    title = f"{target.where}: {target.title}; from `{words}` on two cores that did nothing else"
    return [*beside.tables(target, "time", title, entries, runs, small=False)]


def ledger(there: dict[str, Run]) -> Table:
    """Every run: its command, its end, its cost."""
    rows = []
    by_command = {command(from_toml(run.path / "experiment.toml")): run.rounds for run in there.values()}
    for words, facts in sorted(by_command.items()):
        cpu, sent = (sum(fact.get(key, 0) for fact in facts) for key in ("cpu_seconds", "bytes_up"))
        best = max(float(fact["accuracy"]) for fact in facts)
        rows.append((f"`{words}`", float(facts[-1]["accuracy"]), best, cpu / 60, sent))
    columns = (
        Column("command"), Column("accuracy, %", percent), Column("best round, %", percent),
        Column("processor minutes", digits), Column("sent by parties", size),
    )  # fmt: skip
    return Table("runs", "Every run", columns, rows, "processor minutes: of training, summed over the processes")


def command(exp: Experiment) -> str:
    """The shortest that gives this experiment: a preset of its method and what is changed."""
    near = {name: of.experiment for name, of in PRESETS.items() if name.startswith(f"{exp.dataset}-")}
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
        found += [(prefix + k, show(v)) for k, v in vars(own).items() if v != getattr(other, k)]
    plain = [(k, v) for k, v in vars(exp).items() if k not in ("algorithm", "server")]
    return found + [(k, show(v)) for k, v in plain if v != getattr(base, k)]


def pictures(there: dict[str, Run]) -> dict[str, Picture]:
    """By name. The motivation's is there when all of its models are."""
    made = {}
    for name in ("curves", "tsne"):
        entries, runs = of_target(name, there)
        if name == "curves" or len(entries) == len(TARGETS[name].entries(DATASET)):
            (made[name],) = figures.pictures(TARGETS[name], f"results-{name}", "CIFAR-10", entries, runs, small=False)
    entries, runs = of_target("rounds", there)
    groups, _ = group([run for e in entries for run in runs[e.trials[""]].values()])
    return made | {"late": accuracy("results-late", groups, f"CIFAR-10, from round {LATE} on", LATE)}


def versions(there: dict[str, Run]) -> str:
    told = sorted({", ".join(f"{k} {v}" for k, v in sorted(run.versions.items())) for run in there.values()})
    return "\n".join(f"- {line}" for line in told)


def page(there: dict[str, Run], quiet: dict[str, Run], drawn: dict[str, Picture], made: list[Table]) -> str:
    first, *variants = map(text_of, made)
    apart = partitions(there)
    hours = sum(float(fact.get("cpu_seconds", 0)) for run in there.values() for fact in run.rounds) / 3600
    shown = {name: f"![{picture.alt}](pictures/{picture.name}.svg)" for name, picture in drawn.items()}
    notes = (HERE / "notes.md").read_text(encoding="utf-8").strip()
    sections = {
        "Accuracy in every round": [shown["curves"], shown["late"], text_of(steady(there))],
        "Rounds and bytes": [text_of(level(there)), text_of(to_fedavg(there))],
        "Other partitions": [text_of(apart)] if apart is not None else [],
        "Variants of the paper": [TUNED, *variants] if variants else [],
        "Representations": [shown["tsne"]] if "tsne" in shown else [],
        "Time": [text_of(table) for table in seconds(quiet)],
        "Every run": [
            text_of(ledger(there)),
            f"Runs: {len(there)}, {digits(hours)} processor hours in all. Software and machine:",
            versions(there),
        ],
    }
    told = [part for title, parts in sections.items() if parts for part in (f"## {title}", *parts)]
    return "\n\n".join(["# Results on CIFAR-10", SETTING, first, notes, *told]) + "\n"


def text_of(table: Table) -> str:
    return markdown(table).strip()


def numbers(there: dict[str, Run]) -> Table:
    """The paper's, others' and ours."""
    entries = {e.row: e for e in TARGETS["table1"].entries(DATASET) if e.row in METHODS}
    runs = runs_of([*entries.values()], there)
    ours = [beside.reported(entries[row], runs) for row in METHODS]
    counts = [spread.count for spread in ours if spread is not None]
    least, most = min(counts), max(counts)
    trials = f"{least} to {most} trials" if least < most else "one trial" if most == 1 else f"{most} trials"
    papers = ("the paper, 100 rounds, three trials", *(entries[row].paper for row in METHODS))
    rows = [papers, *OTHERS, (f"moonfl, 100 rounds, {trials}", *ours)]
    return Table("numbers", "", (Column(""), *(Column(row, percent) for row in METHODS)), rows)


def blocks(first: Table, there: dict[str, Run]) -> dict[Path, str]:
    """Pages of which a part is made here, as they should be."""
    made = {HERE.parent / "README.md": first, DOCS / "comparison.md": numbers(there)}
    return {path: with_block(path.read_text(encoding="utf-8"), table) for path, table in made.items()}


def with_block(text: str, table: Table) -> str:
    """The text with what stands between the two marks replaced by the table, without its title."""
    _, block = markdown(table).strip().split("\n\n", 1)
    found, count = re.subn(
        r"(<!-- made by results/make.py -->\n\n).*?(\n\n<!-- end -->)", lambda m: m[1] + block + m[2], text, flags=re.S
    )
    if count != 1:
        raise SystemExit(f"{count} places for results in a page, there should be one")
    return found


def pages(there: dict[str, Run], quiet: dict[str, Run]) -> dict[Path, str]:
    """Every file that is made of the facts, as it should be."""
    drawn, made = pictures(there), tables(there)
    svgs = {DOCS / "pictures" / f"{picture.name}.svg": picture.svg for picture in drawn.values()}
    return {DOCS / "results.md": page(there, quiet, drawn, made), **blocks(made[0], there), **svgs}


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
