"""`moonfl predict`: the class, numbers or labels of every new sample."""

import argparse
import sys
from pathlib import Path

from ...api.prediction import predict as predict_samples
from ...runs.files import write_atomically, writing


def predict(args: argparse.Namespace) -> None:
    """Predict new samples and write a table, to a file or to stdout."""
    predictions = predict_samples(
        args.model, args.data, party=args.party, best=args.best, trust=args.trust
    )
    text = predictions.to_csv()
    if args.out is None:
        sys.stdout.write(text)
        return
    out = Path(args.out)
    with writing(out):
        write_atomically(out, text)
    print(f"{len(predictions.rows)} predictions are in {out}")
