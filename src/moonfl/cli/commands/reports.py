"""`moonfl report` and `moonfl compare`. Does not import torch."""

import argparse
from pathlib import Path

from ... import report as reports


def report(args: argparse.Namespace) -> None:
    """Write an HTML page about the runs."""
    runs = [Path(run) for run in args.runs]
    page = reports.write(runs, Path(args.out), args.target, args.baseline)
    print(f"report in {page}")


def compare(args: argparse.Namespace) -> None:
    """Print a table that compares the runs."""
    runs = [Path(run) for run in args.runs]
    print(reports.compare(runs, args.target, args.baseline))
