"""What a price costs: `python -m analysis.benchmarks.price`, half a minute.

`optdyn price` of 64 nodes, 124 million parameters and every method, each time in a process of its
own: seconds from its start to its end, and the peak of its memory. 5 s and 1 GB were wanted.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.benchmarks.record import publish

ASKED = ("--parameters=124e6", "--step_seconds=0.5", "--config.cluster.nodes=64", "--methods=all")


def once() -> tuple[float, float]:
    """(seconds, bytes) of one process. Raises `CalledProcessError` if it fails."""
    command = [sys.executable, "-m", "launch.price", *ASKED]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(status, command)
    return time.perf_counter() - begun, used.ru_maxrss * 1024.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("workdirs/price.json"))
    given = parser.parse_args()
    seconds, size = np.array([once() for _ in range(given.rounds)]).T
    rows = [
        {"what": what, "median": float(np.median(each)), "most": float(each.max()), "wanted": most}
        for what, each, most in (("seconds", seconds, 5.0), ("megabytes", size / 1e6, 1000.0))
    ]
    publish(pd.DataFrame(rows), given.out, rounds=given.rounds)


if __name__ == "__main__":
    main()
