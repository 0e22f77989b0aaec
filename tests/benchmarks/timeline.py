"""Timelines against events and workers: `python -m tests.benchmarks.timeline`.

Each is made in a process of its own, so that its peak of memory is its own, over that of one that
makes none. The kinds:

    groups      memoryless groups that never wait (`research/timeline/arrivals.py`)
    volunteers  the same in 100 regions, with a load by the hour, absences and a server's link
                (`research/timeline/volunteers.py`)
    nodes       nodes that meet after every 8th update, with all of that but the server
                (`research/strategies/mix/averaging_clock.py`); an event is one node's update

Exponents are of a fit to log seconds, s = c events^a workers^b, over the last two decades of
events, as start-up dominates what is smaller, and likewise of the memory beyond the start. The
limits of `--check` are those that the project set itself: a million events of 10,000 workers
within 60 s and 4 GiB.
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from optdyn.config import default
from optdyn.strategies.method import Network
from optdyn.training import program
from tests.benchmarks.record import publish
from tests.values import as_experiment

KINDS = ("groups", "volunteers", "nodes")
EVENTS, WORKERS = (10**4, 10**5, 10**6, 10**7), (10**2, 10**3, 10**4)
SECONDS, MEMORY = 60.0, 4 * 2**30  # of a million events over 10,000 workers
DECADES = 100  # the most events over the least of the fit
EARTH = {
    "regions": 100,
    "latency": 0.01,
    "bandwidth": 1e7,
    "bandwidth_variation": 1.0,
    "diurnal": 0.3,
    "presence": 7200.0,
    "absence": 3600.0,
}


def one(kind: str, events: int, workers: int) -> dict[str, float]:
    """Seconds and the peak of memory, bytes, of one timeline in this process; without events 0."""
    config = default()
    config.strategy.name = "diloco" if kind == "nodes" else "asynchronous"
    config.strategy.groups = workers
    config.cluster.nodes = workers
    config.cluster.seconds_per_example = 60.0
    config.batch_size = workers if kind == "nodes" else 1
    config.steps = max(events // workers, 1) if kind == "nodes" else events
    if kind != "groups":
        config.cluster.update(EARTH)
    if kind == "volunteers":
        config.cluster.server_bandwidth = 1e9
    config.model.name = "quadratic"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if events:
        network = Network(
            program.problem_of(as_experiment(config), 0), {"x": {"z": np.zeros(16, np.float32)}}, {}
        )
        known = {"steps_per_epoch": 1, "update_bytes": 10**6, "network": network}
        line = as_experiment(config).timeline(**known)
        assert len(line.seconds) == config.steps and (np.diff(line.seconds) >= 0).all()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "peak": 1024 * peak, "beyond": 1024 * (peak - before)}


def measure(events: list[int], workers: list[int], kinds: list[str]) -> pd.DataFrame:
    """A row a case."""
    rows = []
    for case in itertools.product(kinds, events, workers):
        command = [sys.executable, "-m", "tests.benchmarks.timeline", "--one", *map(str, case)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        figures = json.loads(said.splitlines()[-1])
        rows.append(dict(zip(("kind", "events", "workers"), case, strict=True)) | figures)
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def exponents(table: pd.DataFrame) -> list[dict[str, float | str | int]]:
    """Of every kind a in events and b in workers, of seconds and of memory beyond the start."""
    found: list[dict[str, float | str | int]] = []
    for kind, rows in table.groupby("kind", sort=False):
        for what in ("seconds", "beyond"):
            large = rows[(rows["events"] * DECADES >= rows["events"].max()) & (rows[what] > 0)]
            logs = np.log(large[["events", "workers"]].to_numpy(float))
            if min(np.ptp(logs, axis=0), default=0) == 0:
                continue
            design = np.column_stack([logs, np.ones(len(logs))])
            (a, b, _), *_ = np.linalg.lstsq(design, np.log(large[what].to_numpy(float)))
            found.append(
                {"kind": str(kind), "of": what, "events": a, "workers": b, "cases": len(large)}
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--events", type=int, nargs="+", default=list(EVENTS))
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--check", action="store_true", help="exit 1 beyond the limits")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("workdirs/timeline.json"))
    arguments = parser.parse_args()
    if arguments.one:
        kind, events, workers = arguments.one
        print(json.dumps(one(kind, int(events), int(workers))))
        return
    table = measure(arguments.events, arguments.workers, arguments.kinds)
    fits = exponents(table)
    print(pd.DataFrame(fits).to_string(index=False, float_format="{:.2f}".format))
    publish(table, arguments.out, exponents=fits, limits={"seconds": SECONDS, "bytes": MEMORY})
    asked = table[(table["events"] == 10**6) & (table["workers"] == 10**4)]
    if arguments.check and not ((asked["seconds"] < SECONDS) & (asked["peak"] < MEMORY)).all():
        sys.exit(1)


if __name__ == "__main__":
    main()
