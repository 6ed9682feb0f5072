"""A table over clinics that see different patients: scikit-learn's breast cancer data, no download.

    python examples/clinics.py

Five clinics; the further along the list, the larger the tumours it sees. Each keeps a tenth of its training rows apart
to say when to stop, and a fifth to judge the model by. The trained model is exported for use without moonfl.
"""

import argparse
import statistics
from pathlib import Path

from sklearn.datasets import load_breast_cancer

import moonfl

CLINICS = 5


def clinics() -> dict[str, tuple]:
    x, y = load_breast_cancer(return_X_y=True)
    size = x[:, 0].argsort().argsort()  # the rank of the tumour's mean radius
    clinic = size * CLINICS // len(size)
    return {f"clinic {k + 1}": (x[clinic == k], y[clinic == k]) for k in range(CLINICS)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("clinics-model"))
    args = parser.parse_args()
    parties = clinics()
    print(
        "benign, of how many:", ", ".join(f"{int(y.sum())}/{len(y)}" for _, y in parties.values())
    )
    for name, algorithm in (
        ("FedAvg", moonfl.FedAvg()),
        ("SCAFFOLD", moonfl.Scaffold()),
        ("MOON", moonfl.MOON(mu=1)),
    ):
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
        chosen = [result.chosen for result in results]
        accuracy, balanced = (
            [100 * fact[key] for fact in chosen] for key in ("accuracy", "balanced_accuracy")
        )
        worst = min(right / total for fact in chosen for right, total in fact["sites"].values())
        rounds = ", ".join(str(fact["round"]) for fact in chosen)
        print(
            f"{name:8} {statistics.fmean(accuracy):.1f} %, balanced {statistics.fmean(balanced):.1f} %, "
            f"worst clinic {100 * worst:.1f} %, chosen rounds {rounds}"
        )
    moonfl.export(results[0], args.out, best=True)
    print(f"MOON's model of seed 0, of its chosen round, is in {args.out}")


if __name__ == "__main__":
    main()
