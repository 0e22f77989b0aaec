"""The hardware model against its queue, and against this machine: `-m tests.benchmarks.hardware`.

    closed form   seconds an update of the queue over HE(g), in 20 random clusters: `constant`
                  service, which the closed form assumes, and others. These are slower by what the
                  table gives for exponential service: a group waits for the slowest of its k
                  workers, which takes 1 + ... + 1/k times the mean, and groups wait at the server
    real runs     predicted over measured seconds of synchronous updates by 1, 2 and 4 processes,
                  `--batch` examples among them; measured ones from the runs' own traces

The prediction is T_compute(k) + T_network(k). T_compute is what the slowest of k processes takes
for its share of the batch, all pieces together, when all compute at once and send nothing: they
share cores and memory. T_network is an all-reduce of all parameters among k processes as one
message, which is what shard_map sends. Both are measured in turn with the runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax.experimental import multihost_utils

from configs import quickstart
from research import trainer
from research.parallel import processes
from research.program import CHUNK
from research.timeline import service
from research.timeline.server import t_conv
from research.tuning.hardware import saturation, seconds_per_iteration, simulate
from research.tuning.pieces import COMPUTING, Work, all_reduces, measure, prepare
from tests.benchmarks.record import publish
from tests.benchmarks.step_time import spread
from tests.tuning.clusters import random_cluster

MODELS = {"mlp": (256, 256), "cnn": (120, 84)}  # and the widths of their dense layers
PROCESSES = (1, 2, 4)
CLUSTERS, ITERATIONS = 20, 20_000
LAWS = {
    "constant": service.constant(),
    "lognormal 0.5": service.lognormal(0.5),
    "exponential": service.exponential(),
}
TIMED = 5  # timings of a piece, in each round


def closed_form() -> pd.DataFrame:
    """One row a cluster: seconds an update over the closed form's."""
    return pd.DataFrame(_cluster(seed) for seed in range(CLUSTERS))


def _cluster(seed: int) -> dict[str, Any]:
    pieces, groups, k = random_cluster(seed)
    form = seconds_per_iteration(pieces, groups, k)
    row = {"merged": pieces.merged, "groups": groups, "k": k, "g*": saturation(pieces, k)}
    for name, law in LAWS.items():
        found = simulate(pieces, groups, k, ITERATIONS, law, np.random.default_rng(seed))
        row[name] = found.seconds_per_iteration / form
    longer = t_conv(pieces, k) * sum(1 / i for i in range(1, k + 1))
    slowest = pieces._replace(t_conv_compute_1=k * longer, t_conv_network_1=0.0)
    row["slowest of k"] = seconds_per_iteration(slowest, groups, k) / form
    return row | {"at the server": row["exponential"] / row["slowest of k"]}


def values(model: str, batch: int) -> dict[str, Any]:
    """Synchronous training over all devices there are, as differences from the quickstart."""
    return {
        "steps": 3 * CHUNK,
        "log_every": 3 * CHUNK,
        "checkpoint_every": 0,
        "batch_size": batch,
        "model.name": model,
        "model.hidden": MODELS[model],
        "optimizer.learning_rate": 0.01,
        "optimizer.momentum": 0.9,
        "strategy.name": "sync",
        "parallel.api": "shard_map",
    }


def timed(share: int) -> dict[str, tuple[float, float]]:
    """Seconds of an update of `share` examples a process, and of an exchange, by model."""
    found = {}
    for model in MODELS:
        config = quickstart.get_config()
        config.update_from_flattened_dict(values(model, share))
        work = prepare(config)
        loops = {name: loop for name, loop in work.loops.items() if name in COMPUTING.values()}
        if jax.process_count() > 1:
            loops["network"] = all_reduces(trainer.prepare(config).params)._replace(exchanges=1)
        taken = {n: np.median(s) for n, s in measure(Work({}, loops, {}), TIMED).items()}
        network = float(taken.pop("network", 0.0))
        own = np.array([sum(taken.values())])
        found[model] = float(np.max(multihost_utils.process_allgather(own))), network
    return found


def started(count: int, batch: int) -> dict[str, tuple[float, float]]:
    """`timed` in so many processes, which share a batch."""
    out = launched(count, "tests.benchmarks.hardware", [f"--timed={batch // count}"])
    (line,) = (line for line in out.splitlines() if "{" in line)  # gloo says things as well
    return json.loads(line[line.index("{") :])


def measured(model: str, count: int, batch: int) -> float:
    """Median seconds an update of `launch.train` in so many processes."""
    flags = [f"--config.{name}={value}" for name, value in values(model, batch).items()]
    with tempfile.TemporaryDirectory() as folder:
        first = ["--config=configs/quickstart.py", f"--workdir={folder}"]
        launched(count, "launch.train", [*first, *flags])
        seconds = pd.read_csv(Path(folder, "trace.csv"))["seconds"]
    return float(np.median(np.diff(seconds)[CHUNK:]))


def launched(count: int, module: str, flags: Sequence[str]) -> str:
    """What `python -m module` prints in so many processes. CalledProcessError if it fails."""
    job = [sys.executable, "-m", "launch.local", f"--processes={count}", "--", sys.executable]
    return subprocess.run(
        [*job, "-m", module, *flags],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout


def real_runs(rounds: int, batch: int) -> pd.DataFrame:
    """One row a model and number of processes."""
    found = []
    for _ in range(rounds):
        for k in PROCESSES:
            pieces = started(k, batch)
            found += [(model, k, *pieces[model], measured(model, k, batch)) for model in MODELS]
    columns = ["model", "processes", "compute, ms", "network, ms", "measured, ms"]
    rows = []
    for (model, k), of in pd.DataFrame(found, columns=columns).groupby(columns[:2], sort=False):
        compute, network, run = (of[name].to_numpy() for name in columns[2:])
        row = {"model": model, "processes": k, "ratio": "predicted / measured seconds"}
        row |= spread((compute + network) / run) | {"wanted": "0.85 to 1.15"}
        rows.append(row | (1e3 * of[columns[2:]].median()).to_dict())
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("workdirs/hardware.json"))
    parser.add_argument("--timed", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.timed:
        processes.initialize()
        found = timed(arguments.timed)
        return print(json.dumps(found)) if processes.is_writer() else None
    clusters = closed_form()
    print(clusters.to_string(index=False, float_format="{:.3f}".format))
    table = real_runs(arguments.rounds, arguments.batch)
    about = {"rounds": arguments.rounds, "batch": arguments.batch}
    publish(table, arguments.out, **about, clusters=clusters.to_dict("records"))


if __name__ == "__main__":
    with processes.leaving_on_failure():
        main()
