"""A table over clinics that see different patients: scikit-learn's breast cancer data, no download.

    python examples/clinics.py

There are five clinics; the later in the list, the larger the tumours it sees. Each clinic sets
aside a tenth of its training rows for early stopping and holds out a fifth of its rows for
evaluation. The trained model is exported for use without moonfl.
"""

import argparse
import statistics
from pathlib import Path

from sklearn.datasets import load_breast_cancer

import moonfl

CLINICS = 5
METHODS = {"FedAvg": moonfl.FedAvg(), "SCAFFOLD": moonfl.Scaffold(), "MOON": moonfl.MOON(mu=1)}


def load_clinics() -> dict[str, tuple]:
    """Split the rows between the clinics by the rank of the tumour's mean radius."""
    x, y = load_breast_cancer(return_X_y=True)
    rank = x[:, 0].argsort().argsort()
    clinic = rank * CLINICS // len(rank)
    return {f"clinic {k + 1}": (x[clinic == k], y[clinic == k]) for k in range(CLINICS)}


def describe(results: list[moonfl.Result]) -> str:
    """Return the metrics of the selected rounds: means over seeds, and the worst clinic."""
    records = [result.chosen for result in results]
    accuracy = statistics.fmean(record.accuracy for record in records)
    balanced = statistics.fmean(record.balanced_accuracy for record in records)
    shares = [correct / total for record in records for correct, total in record.sites.values()]
    rounds = ", ".join(str(record.round) for record in records)
    return (
        f"{100 * accuracy:.1f} %, balanced {100 * balanced:.1f} %, "
        f"worst clinic {100 * min(shares):.1f} %, selected rounds {rounds}"
    )


def main() -> None:
    """Train with each method and seed, print the metrics, and export MOON's model of seed 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("clinics-model"))
    args = parser.parse_args()
    parties = load_clinics()
    benign = ", ".join(f"{int(y.sum())}/{len(y)}" for _, y in parties.values())
    print(f"benign rows of all rows: {benign}")
    for name, algorithm in METHODS.items():
        results = [
            moonfl.federate(
                "mlp",
                parties,
                algorithm=algorithm,
                rounds=args.rounds,
                epochs=2,
                batch_size=16,
                seed=seed,
                validation=0.1,
                patience=10,
            )
            for seed in range(args.seeds)
        ]
        print(f"{name:8} {describe(results)}")
    moonfl.export(results[0], args.out, best=True)
    print(f"MOON's model of seed 0, from its selected round, is in {args.out}")


if __name__ == "__main__":
    main()
