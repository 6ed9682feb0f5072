"""Run, fail at the n-th write, resume, compare: for every n until a run gets through. Started by test_resume.py with
faults.c loaded before the C library:

    LD_PRELOAD=faults.so python tests/faults.py faults.so FOLDER kill|full

Every trial is a fork, so that torch is imported once. Prints how many places there were.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

import torch

import moonfl
from moonfl import analysis
from moonfl.experiment import Experiment

EXPERIMENT = Experiment(parties=3, rounds=3, epochs=1, batch_size=64, algorithm=moonfl.MOON(mu=1), sample_fraction=0.7)


def in_a_fork(work) -> int:
    """Its exit code: 0 done, 1 an unexpected end, 3 a clear refusal, -9 killed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        finally:
            sys.stderr.flush()
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def main() -> None:
    library, folder, disk_full = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "full"
    torch.set_num_threads(1)
    analysis.POINTS = 20  # a t-SNE of few points, the rest of a run as it is
    expected = moonfl.run(EXPERIMENT, workers=1)

    def run_with_a_fault() -> int:
        library.faults_arm(str(out).encode(), ctypes.c_long(n), int(disk_full))
        try:
            moonfl.run(EXPERIMENT, out, workers=1)
        except moonfl.RunError as error:
            return 3 if "cannot be written" in str(error) else 1
        return 0

    def go_on() -> int:
        started = (out / "experiment.toml").exists()
        result = (moonfl.resume if started else lambda out, workers: moonfl.run(EXPERIMENT, out, workers=workers))(
            out, workers=1
        )
        same = all(torch.equal(v, expected.models["global"][k]) for k, v in result.models["global"].items())
        losses = [[fact["loss"] for fact in r.rounds] for r in (result, expected)]
        return 0 if same and losses[0] == losses[1] else 4

    n = 0
    while True:
        n += 1
        out = folder / str(n)
        ended = in_a_fork(run_with_a_fault)
        if ended == 0:
            break
        assert ended == (3 if disk_full else -signal.SIGKILL), (n, ended)
        resumed = in_a_fork(go_on)
        assert resumed == 0, (n, resumed)
    print(n - 1)


if __name__ == "__main__":
    main()
