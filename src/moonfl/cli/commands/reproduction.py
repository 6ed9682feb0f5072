"""`moonfl reproduce`: the tables and figures of the paper."""

import argparse
from pathlib import Path

from ...errors import Interrupted, quoted
from ...reproduce import runner
from ...reproduce.estimates import listing
from ...runs.progress import Progress
from ..signals import Terminated

HINT = "the same command resumes it"


def reproduce(args: argparse.Namespace) -> None:
    """Run a target of the paper, or list the targets."""
    options = runner.Options(
        out=Path(args.out),
        data_dir=args.data_dir,
        dataset=args.dataset,
        model=args.model,
        seeds=args.seeds,
        rounds=args.rounds,
        small=args.scale == "small",
        workers=args.workers,
        progress=Progress,
    )
    if args.list:
        print(listing(options))
        return
    try:
        runner.reproduce(args.target, options)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {HINT}") from None
    except Terminated:
        raise Terminated(f"terminated; {HINT}") from None
    runs = quoted(options.out / "runs")
    print(f"tables in {args.out}; `moonfl report {runs}` writes a page about the runs")
