"""Activities from the motion of a phone: thirty people, each a party, and some that no party ever saw.

    python examples/hapt.py hapt.npz

The data are windows of 2.56 s of accelerometer and gyroscope: x [N, 128, 6], y (six activities), subject (1 to 30).
A folder with the raw files of the publisher is cut into such windows:
Reyes-Ortiz et al., Smartphone-Based Recognition of Human Activities and Postural Transitions, UCI 2015.
https://archive.ics.uci.edu/dataset/341
"""

import argparse
import statistics
from pathlib import Path

import numpy as np

import moonfl

ACTIVITIES = "walking,upstairs,downstairs,sitting,standing,lying"
UNSEEN = (5, 10, 15, 20, 25, 30)  # people who take no part in the training


def read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if path.is_file():
        with np.load(path) as file:
            return file["x"], file["y"], file["subject"]
    x, y, subject = [], [], []
    for experiment, user, activity, start, end in np.loadtxt(
        path / "RawData" / "labels.txt", dtype=int
    ):
        if activity <= 6:  # the others are the transitions between them
            name = f"exp{experiment:02}_user{user:02}.txt"
            signal = np.hstack(
                [np.loadtxt(path / "RawData" / f"{kind}_{name}") for kind in ("acc", "gyro")]
            )
            for first in range(start - 1, end - 127, 64):
                x.append(signal[first : first + 128])
                y.append(activity - 1)
                subject.append(user)
    return np.array(x, dtype=np.float32), np.array(y), np.array(subject)


def methods(rounds: int, epochs: int) -> dict[str, dict]:
    """The same amount of local training for all; nothing was tuned."""
    return {
        "SOLO": {"algorithm": moonfl.Solo(), "rounds": 1, "epochs": rounds * epochs},
        "FedAvg": {"algorithm": moonfl.FedAvg(), "rounds": rounds, "epochs": epochs},
        "MOON": {"algorithm": moonfl.MOON(mu=1), "rounds": rounds, "epochs": epochs},
        "FedAvgM": {
            "algorithm": moonfl.FedAvg(),
            "server": moonfl.Momentum(momentum=0.7),
            "rounds": rounds,
            "epochs": epochs,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="hapt.npz, or the folder of the publisher's files")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    x, y, subject = read(args.data)
    people = {
        str(s): (x[subject == s], y[subject == s]) for s in np.unique(subject) if s not in UNSEEN
    }
    unseen = np.isin(subject, UNSEEN)
    print(
        f"{len(people)} people train, {int(unseen.sum())} windows of {len(np.unique(subject[unseen]))} others judge"
    )
    for name, settings in methods(args.rounds, args.epochs).items():
        results = [
            moonfl.federate(
                "cnn1d", people, (x[unseen], y[unseen]), seed=seed, batch_size=32, **settings
            )
            for seed in range(args.seeds)
        ]
        accuracy, f1 = (
            [100 * result.rounds[-1][key] for result in results] for key in ("accuracy", "macro_f1")
        )
        shown = ", ".join(f"{value:.1f}" for value in accuracy)
        print(
            f"{name:8} {statistics.fmean(accuracy):.1f} % ({shown}), macro-F1 {statistics.fmean(f1):.1f} %"
        )


if __name__ == "__main__":
    main()
