"""`moonfl bench`: the speed of this machine."""

import argparse
from pathlib import Path

from ... import bench as benchmark
from ...data.locations import directory


def bench(args: argparse.Namespace) -> None:
    """Measure and print the results; with --out also write them as JSON."""
    out = None if args.out is None else Path(args.out)
    data_dir = directory(args.data_dir)
    benchmark.bench(data_dir, args.quick, out, print, phases=args.phases)
