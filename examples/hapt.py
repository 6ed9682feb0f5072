"""Activities from the motion of a phone: 24 people are the parties, six others the test set.

    python examples/hapt.py hapt.npz

The data are windows of 2.56 s of accelerometer and gyroscope: x [N, 128, 6], y (six activities),
subject (1 to 30). A folder with the publisher's raw files is cut into such windows:
Reyes-Ortiz et al., Smartphone-Based Recognition of Human Activities and Postural Transitions,
UCI 2015. https://archive.ics.uci.edu/dataset/341
"""

import argparse
import statistics
from pathlib import Path

import numpy as np

import moonfl

UNSEEN = (5, 10, 15, 20, 25, 30)  # people who take no part in training
WINDOW = 128  # measurements per window
STRIDE = 64  # between the starts of two windows


def read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return windows, activities and subjects from an .npz file or the publisher's folder."""
    if path.is_file():
        with np.load(path) as file:
            return file["x"], file["y"], file["subject"]
    x, y, subjects = [], [], []
    labels = np.loadtxt(path / "RawData" / "labels.txt", dtype=int)
    for experiment, subject, activity, start, end in labels:
        if activity > 6:  # a transition between two postures
            continue
        name = f"exp{experiment:02}_user{subject:02}.txt"
        sensors = [np.loadtxt(path / "RawData" / f"{kind}_{name}") for kind in ("acc", "gyro")]
        signal = np.hstack(sensors)
        for first in range(start - 1, end - WINDOW + 1, STRIDE):
            x.append(signal[first : first + WINDOW])
            y.append(activity - 1)
            subjects.append(subject)
    return np.array(x, dtype=np.float32), np.array(y), np.array(subjects)


def methods(rounds: int, epochs: int) -> dict[str, dict]:
    """Return the settings of each method: the same amount of local training, nothing tuned."""
    federated = {"rounds": rounds, "epochs": epochs}
    return {
        "SOLO": {"algorithm": moonfl.Solo(), "rounds": 1, "epochs": rounds * epochs},
        "FedAvg": {"algorithm": moonfl.FedAvg(), **federated},
        "MOON": {"algorithm": moonfl.MOON(mu=1), **federated},
        "FedAvgM": {
            "algorithm": moonfl.FedAvg(),
            "server": moonfl.Momentum(momentum=0.7),
            **federated,
        },
    }


def main() -> None:
    """Train with each method and seed, and print accuracy and macro-F1 on the unseen people."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="hapt.npz, or the folder of the publisher's files")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    x, y, subject = read(args.data)
    unseen = np.isin(subject, UNSEEN)
    test = (x[unseen], y[unseen])
    people = {str(s): (x[subject == s], y[subject == s]) for s in np.unique(subject[~unseen])}
    others = len(np.unique(subject[unseen]))
    print(f"{len(people)} people train; the test set has {len(test[1])} windows of {others} others")
    for name, settings in methods(args.rounds, args.epochs).items():
        results = [
            moonfl.federate("cnn1d", people, test, seed=seed, batch_size=32, **settings)
            for seed in range(args.seeds)
        ]
        accuracies = [100 * result.accuracy for result in results]
        macro_f1 = statistics.fmean(100 * result.rounds[-1].macro_f1 for result in results)
        by_seed = ", ".join(f"{value:.1f}" for value in accuracies)
        mean = statistics.fmean(accuracies)
        print(f"{name:8} {mean:.1f} % ({by_seed}), macro-F1 {macro_f1:.1f} %")


if __name__ == "__main__":
    main()
