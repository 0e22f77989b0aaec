"""Real workers, one slow: `python -m analysis.benchmarks.dynamic_batch`.

Four processes of this machine train LeNet-5 on MNIST with `service='measured'`; the last one goes
through every micro-batch `--slowdown` times, which is work really done. In turn, equal shares and
shares that follow the measured speeds: seconds an epoch of the one over those of the other, from
the runs' own traces, once the shares have settled.

`if all cores were shared evenly` is what to expect of fewer cores than workers: an epoch lasts as
long as all work takes on all cores, or the slowest worker on one, whichever is longer.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.benchmarks.record import publish
from analysis.benchmarks.step_time import spread

WORKERS, EPOCHS, SETTLED = 4, 6, 3
EXAMPLES, BATCH = 4000, 200  # an epoch of MNIST-5k, 20 updates
UPDATES = EXAMPLES // BATCH
CONFIG = {
    "steps": EPOCHS * UPDATES,
    "log_every": UPDATES,
    "checkpoint_every": 0,
    "batch_size": BATCH,
    "model.name": "cnn",
    "model.hidden": (120, 84),
    "method.name": "dynamic_batch",
    "method.micro_batch": 10,
    "cluster.nodes": WORKERS,
    "cluster.service.name": "measured",
    "parallel.api": "shard_map",
}


def traced(adapt: bool, slowdown: int) -> pd.DataFrame:
    """The trace of one run. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        values = CONFIG | {
            "method.adapt": adapt,
            "cluster.disturbances": ((WORKERS - 1, 0, EPOCHS, slowdown),),
        }
        flags = [f"--config.{name}={value}" for name, value in values.items()]
        job = [sys.executable, "-m", "launch.local", f"--processes={WORKERS}", "--"]
        train = [sys.executable, "-m", "launch.train", "--config=configs/quickstart.py"]
        command = [*job, *train, f"--workdir={folder}", *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return pd.read_csv(Path(folder, "trace.csv"))


def seconds(trace: pd.DataFrame) -> float:
    """Median seconds of an epoch after the first SETTLED."""
    ends = trace["seconds"].to_numpy()[UPDATES - 1 :: UPDATES]
    return float(np.median(np.diff(ends)[SETTLED - 1 :]))


def shares(trace: pd.DataFrame) -> np.ndarray:
    """(workers,) of the last epoch."""
    return trace[[f"control.shares.{n}" for n in range(WORKERS)]].to_numpy()[-1]


def expected(share: np.ndarray, slowdown: int) -> float:
    """Work of an epoch in examples, on all cores or on the one of the slowest worker."""
    work = share * np.array([1] * (WORKERS - 1) + [slowdown])
    return max(work.sum() / min(os.cpu_count() or 1, WORKERS), work.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slowdown", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("workdirs/dynamic_batch.json"))
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {"equal": [], "adapted": []}
    settled = []
    for _ in range(arguments.rounds):
        for name in found:
            trace = traced(name == "adapted", arguments.slowdown)
            found[name].append(seconds(trace))
            settled.append(shares(trace))
    equal, adapted = (np.array(values) for values in found.values())
    ideal = BATCH * np.array([1, 1, 1, 1 / arguments.slowdown])
    ideal /= WORKERS - 1 + 1 / arguments.slowdown
    even = np.full(WORKERS, BATCH / WORKERS)
    row = {
        "ratio": "seconds an epoch, equal / adapted shares",
        **spread(equal / adapted),
        "if all cores were shared evenly": expected(even, arguments.slowdown)
        / expected(ideal, arguments.slowdown),
        "equal, s": np.median(equal),
        "adapted, s": np.median(adapted),
        "shares at the end": str(np.median(settled[1::2], axis=0).tolist()),
    }
    about = {"slowdown": arguments.slowdown, "rounds": arguments.rounds}
    publish(pd.DataFrame([row]), arguments.out, **about)


if __name__ == "__main__":
    main()
