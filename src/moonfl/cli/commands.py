"""What the commands of the command line do; cli.py reads the words, and comes here for what needs torch."""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import exports, presets, settings
from ..algorithms import ALGORITHMS
from ..api import experiments as api
from ..data.datasets import DATASETS, load
from ..data.download import get
from ..data.locations import directory
from ..data.npz import read_npz
from ..errors import DivergenceError, InputError, Interrupted, RunError, notify, quoted, unknown
from ..experiment import Experiment, from_toml, override, part_name
from ..report.partition import check_image_format, heat_map, partition_table
from ..runs.directory import SETTINGS, claim_directory
from ..runs.recorder import Result, choices
from ..runs.summary import summarise_result
from ..server_optimizers import SERVERS
from ..task import make_partition, make_task, with_party_count
from .progress import Progress


def run(args: argparse.Namespace) -> None:
    name, exp = experiment(args)
    task = make_task(exp)
    exp = with_party_count(exp, task)
    notify(
        "\n".join(
            [describe(exp), *(f"  {key}: {choice}" for key, choice in choices(exp, task).items())]
        )
    )
    out = Path(args.out) if args.out is not None else claim_directory(Path("runs"), name)
    with Progress(exp.rounds) as progress:
        finish(
            args,
            out,
            lambda: api.run(exp, out, force=args.force, task=task, watch=progress, **engine(args)),
        )


def resume(args: argparse.Namespace) -> None:
    out = Path(args.directory)
    exp = api.experiment_of(out)
    notify(describe(exp))
    given = {"previous": args.previous, "data_dir": args.data_dir}
    with Progress(exp.rounds) as progress:
        finish(args, out, lambda: api.resume(out, **given, watch=progress, **engine(args)))


def export(args: argparse.Namespace) -> None:
    given = {key: getattr(args, key) for key in ("out", "party", "best", "data_dir", "force")}
    made = exports.export(args.directory, **given)
    print(f"{made.model}, is in {made.directory}")
    print(
        f"checked on {made.checked}: z and logits of both files differ from the run's own by at most "
        f"{made.difference:.0e} of their largest (allowed: {exports.TOLERANCE:.0e})"
    )


def engine(args: argparse.Namespace) -> dict[str, Any]:
    return {"workers": args.workers, "state_memory": args.state_memory}


def finish(args: argparse.Namespace, out: Path, work: Callable[[], Result]) -> None:
    """Do it and tell the result; where it stops early, tell how to go on."""
    way_on = f"`moonfl resume {quoted(out)}` goes on from the last finished round"
    try:
        result = work()
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {way_on}" if (out / SETTINGS).exists() else "interrupted"
        ) from None
    except RunError as error:
        raise told(error, out, way_on) from None
    print(json.dumps(result.summary()) if args.json else summarise_result(result))


def told(error: RunError, out: Path, way_on: str) -> RunError:
    """With the way on, where there is one: training that diverged would diverge again."""
    stored = (out / SETTINGS).exists() and not isinstance(error, DivergenceError)
    return RunError(f"{error}; {way_on}" if stored else str(error))


def list_presets(args: argparse.Namespace) -> None:
    rows = [
        ("preset", "what it runs", "paper"),
        *((n, p.about, p.paper) for n, p in presets.PRESETS.items()),
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    print(
        "\npaper: top-1 test accuracy; with FedAvgM that of the best of three server momenta, 0.1, 0.7 and 0.9"
    )


def partition(args: argparse.Namespace) -> None:
    _, exp = experiment(args)
    check_image_format(Path(args.out))
    data = load(exp.dataset, directory(exp.data_dir), exp.reading)
    made = make_partition(exp, data)
    counts = made.counts(data.train.y.numpy(), len(data.classes))
    heat_map(
        counts,
        data.classes,
        f"{exp.dataset}: {describe_partition(exp)}",
        Path(args.out),
        made.names,
    )
    print(
        partition_table(counts, data.classes, made.names) + (f"\n{made.note}" if made.note else "")
    )
    print(f"heat map in {args.out}")


def data(args: argparse.Namespace) -> None:
    if (args.action == "get") != (args.name is not None):
        names = ", ".join(DATASETS)
        raise InputError(
            f"`data get` takes the name of a data set ({names}), `data list` takes none"
        )
    data_dir = directory(args.data_dir)
    if args.action == "get":
        print(f"{args.name} is in {get(args.name, data_dir, args.origin)}")
        return
    for name, source in DATASETS.items():
        archive = source.archive
        if archive is None:
            where = source.where
        elif all((data_dir / archive.folder / file).exists() for file in archive.files):
            where = f"in {data_dir / archive.folder}"
        else:
            where = f"not in {data_dir}; `moonfl data get {name}` fetches {archive.url}"
        print(f"{name:14} {where}")


def reproduce(args: argparse.Namespace) -> None:
    from ..reproduce import runner as paper

    given = {
        key: getattr(args, key)
        for key in ("data_dir", "dataset", "model", "seeds", "rounds", "workers")
    }
    options = paper.Options(Path(args.out), small=args.scale == "small", progress=Progress, **given)
    if args.list:
        from ..reproduce.estimates import listing

        print(listing(options))
        return
    try:
        paper.reproduce(paper.check(args.target), options)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on where it was") from None
    print(
        f"tables in {args.out}; `moonfl report {quoted(Path(args.out) / 'runs')}` makes a page of the runs"
    )


def bench(args: argparse.Namespace) -> None:
    from ..bench import bench as measure

    measure(directory(args.data_dir), args.quick, Path(args.out) if args.out else None, print)


def flower_simulate(args: argparse.Namespace) -> None:
    from ..flower.simulation import simulate

    name, exp = experiment(args)
    task = make_task(exp)
    exp = with_party_count(exp, task)
    notify(describe(exp))
    out = Path(args.out) if args.out is not None else claim_directory(Path("runs"), name)
    given = {"force": args.force, "workers": args.workers, "ray_address": args.ray_address}
    with Progress(exp.rounds) as progress:
        finish(args, out, lambda: simulate(exp, out, task=task, watch=progress, **given))


def flower_init(args: argparse.Namespace) -> None:
    from ..flower.init import init

    _, exp = experiment(args)
    init(Path(args.folder), exp, args.sites, args.address, args.with_data)
    print(
        f"{args.folder} has the deployment; {Path(args.folder) / 'README.md'} says what to start where"
    )


def flower_run(args: argparse.Namespace) -> None:
    from ..flower import run as follow
    from ..flower.init import check_path
    from ..flower.membership import Rules
    from ..flower.server import check_config

    folder = Path(args.folder)
    exp = follow.experiment_of(folder)
    if (args.resume or args.previous) and args.out is None:
        raise InputError("--resume goes on with the run that --out names")
    keys = settings.names(Rules)
    changes = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    check_config(exp, changes | {"out": "set"})
    if args.test is not None:
        check_path(Path(args.test))
        read_npz(Path(args.test))
        changes["test"] = str(Path(args.test).resolve())
    follow.reached(folder)
    runs, name = folder / "server" / "runs", method_name(exp)
    out = Path(args.out) if args.out is not None else claim_directory(runs, name)
    changes |= {"resume": args.resume or args.previous, "previous": args.previous}
    notify(describe(exp))
    test = f" --test {quoted(args.test)}" if args.test is not None else ""
    way_on = f"`moonfl flower run {quoted(folder)} --out {quoted(out)} --resume{test}` goes on from the last finished round"
    with Progress(exp.rounds) as progress:
        try:
            done = follow.run(folder, out, changes, progress)
        except RunError as error:
            raise told(error, out, way_on) from None
    print(done["told"])


def experiment(args: argparse.Namespace) -> tuple[str, Experiment]:
    """The preset or file named first (or the default), with the key=value changes after it; and a name for its runs."""
    changes = [
        word
        for word in args.what
        if "=" in word and not (word.endswith(".toml") and Path(word).is_file())
    ]
    named = [word for word in args.what if word not in changes]
    if len(named) > 1:
        raise InputError(f"give one preset or file, not {len(named)}: {' '.join(named)}")
    what = named[0] if named else presets.DEFAULT
    own = not named and any(word.partition("=")[0] == "dataset" for word in changes)
    if own:  # what suits the digits need not suit other data
        base = Experiment()
    elif what in presets.PRESETS:
        base = presets.PRESETS[what].experiment
    elif what.endswith(".toml"):
        base = from_toml(Path(what))
    else:
        raise unknown("preset", what, presets.PRESETS)
    exp = override(base, changes)
    return (f"{exp.dataset}-{method_name(exp)}" if own else Path(what).stem), exp


def method_name(exp: Experiment) -> str:
    """As it stands in the name of a folder."""
    return part_name(exp.algorithm).rpartition(":")[2].lower()


def describe(exp: Experiment) -> str:
    """The run in two lines."""
    shown = ", ".join(
        f"{name}={getattr(exp.algorithm, name)}" for name in settings.names(type(exp.algorithm))
    )
    chosen = f", {exp.parties_per_round()} of them a round" if exp.sample_fraction < 1 else ""
    return (
        f"{part_name(exp.algorithm)}({shown}), server {part_name(exp.server)}, on {exp.dataset} with {exp.model}\n"
        f"{exp.parties} parties{chosen}, {describe_partition(exp)}; "
        f"{exp.rounds} rounds of {exp.epochs} epochs, seed {exp.seed}"
    )


def describe_partition(exp: Experiment) -> str:
    if exp.dataset == "sites":
        return "each with its own data"
    titles = {"dirichlet": f"Dirichlet {exp.beta:g}", "iid": "IID", "column": f"by {exp.column}"}
    kind = titles.get(exp.partition, exp.partition)
    return kind + (f", partition seed {exp.partition_seed}" if exp.partition != "column" else "")


def keys() -> str:
    """Every key with its default and meaning, for --help."""
    lines = ["keys (key=value, any number) [the default where no preset or file sets another]:"]
    groups = [
        ("", Experiment),
        *(("", cls) for cls in ALGORITHMS.values()),
        *(("server.", c) for c in SERVERS.values()),
    ]
    for prefix, cls in groups:
        rows = [
            (prefix + f.name, settings.format_default(f), f.metadata["doc"])
            for f in dataclasses.fields(cls)
            if "doc" in f.metadata
        ]
        if rows and cls is not Experiment:
            lines.append(f"  of {cls.__name__}:")
        lines += [f"  {name:22} {doc} [{default}]" for name, default, doc in rows]
    parts = (("algorithm", ALGORITHMS, "moon"), ("server", SERVERS, "average"))
    lines[2:2] = [
        f"  {key:22} {', '.join(of)}, or package.module:Name [{first}]" for key, of, first in parts
    ]
    return "\n".join(lines)
