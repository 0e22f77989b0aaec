"""The hardware model against its queue and this machine: `-m analysis.benchmarks.hardware`.

    closed form   seconds an update of the queue over HE(g), in 20 random clusters: `constant`
                  service, which the closed form assumes, and others. These are slower by what the
                  table gives for exponential service: a group waits for the slowest of its k
                  workers, which takes 1 + ... + 1/k times the mean, and groups wait at the server
    real runs     predicted over measured seconds of synchronous updates by 1, 2 and 4 processes,
                  `--batch` examples among them, by the trainer's own program

The prediction is T_compute(k) + T_wait(k) + T_network(k). T_compute is what a process takes for its
share of the batch, all pieces together, in the mean, when all k compute at once and send nothing:
they share cores and memory. T_wait is how much longer the slowest of k takes, E max of k single
updates beyond their mean: of the measured times of single updates, nothing is fitted. T_network is
an all-reduce of all parameters among k processes as one message, which is what shard_map sends.
Every round times all of these and the program, in turn, in the same processes.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax.experimental import multihost_utils

import optdyn as od
from analysis.benchmarks.record import publish
from analysis.benchmarks.step_time import repeated, spread
from configs import quickstart
from optdyn.base import processes
from optdyn.clock.arrivals import t_conv
from optdyn.plan.phases import Loop, MeasurementPlan, all_reduces, measure, prepare
from optdyn.train import trainer
from optdyn.train.program import CHUNK
from tests.tune.hardware import random_cluster, saturation, seconds_per_iteration, simulate

MODELS: dict[str, od.Model] = {"mlp": od.MLP(hidden=(256, 256)), "cnn": od.CNN(hidden=(120, 84))}
PROCESSES = (1, 2, 4)
SINGLES = 500  # updates timed one by one
CLUSTERS, ITERATIONS = 20, 20_000
LAWS = {
    "constant": od.Constant().draw,
    "lognormal 0.5": od.LogNormal(0.5).draw,
    "exponential": od.Exponential().draw,
}


def closed_form() -> pd.DataFrame:
    """One row a cluster: seconds an update over the closed form's."""
    return pd.DataFrame(_cluster(seed) for seed in range(CLUSTERS))


def _cluster(seed: int) -> dict[str, Any]:
    pieces, groups, k = random_cluster(seed)
    form = seconds_per_iteration(pieces, groups, k)
    row = {"merged": pieces.merged, "groups": groups, "k": k, "g*": saturation(pieces, k)}
    for name, law in LAWS.items():
        found = simulate(pieces, groups, k, ITERATIONS, law, seed)
        row[name] = found.seconds_per_iteration / form
    longer = t_conv(pieces, k) * sum(1 / i for i in range(1, k + 1))
    slowest = pieces._replace(t_conv_compute_1=k * longer, t_conv_network_1=0.0)
    row["slowest of k"] = seconds_per_iteration(slowest, groups, k) / form
    return row | {"at the server": row["exponential"] / row["slowest of k"]}


def slowest(seconds: np.ndarray, k: int) -> float:
    """E max of k processes that each take what one of these measured updates took, at random.

    E max_k = sum_i x_(i) ((i / n)^k - ((i - 1) / n)^k)        x_(1) <= ... <= x_(n)
    """
    weights = np.diff((np.arange(len(seconds) + 1) / len(seconds)) ** k)
    return float(weights @ np.sort(seconds))


def config_of(model: str, batch: int) -> od.Experiment:
    """Synchronous training over all devices there are."""
    return quickstart.get_config().with_(
        model=MODELS[model],
        optimizer=od.SGD(learning_rate=0.01, momentum=0.9),
        method=od.Sync(),
        parallel=od.Parallel(api="shard_map"),
        steps=CHUNK,
        log_every=CHUNK,
        checkpoint_every=0,
        batch_size=batch,
    )


def timed(rounds: int, batch: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of an update in this many processes, (rounds,), and what was to predict them."""
    found = {}
    for model in MODELS:
        config = config_of(model, batch // jax.process_count())
        own = {name: loop for name, loop in prepare(config).loops.items() if "network" not in name}
        loops = own | {"measured": Loop(repeated(config_of(model, batch)))}
        if jax.process_count() > 1:
            loops["network"] = all_reduces(trainer.prepare(config).params)._replace(exchanges=1)
        seconds = measure(MeasurementPlan({}, loops, {}), rounds)
        compute = np.asarray(sum(seconds.pop(name) for name in own))
        every = np.reshape(multihost_utils.process_allgather(compute), (-1, rounds))
        single = multihost_utils.process_allgather(sum(map(singles, own.values()))).ravel()
        wait = slowest(single, jax.process_count()) - single.mean()
        about = {"compute": every.mean(axis=0), "wait": np.full(rounds, wait)}
        found[model] = about | {"network": np.zeros(rounds)} | seconds
    return {model: {n: np.array(s).tolist() for n, s in of.items()} for model, of in found.items()}


def singles(loop: Loop) -> np.ndarray:
    """Seconds of updates one by one, (SINGLES,), in all processes at once."""
    taken = np.zeros(SINGLES)
    multihost_utils.sync_global_devices("singles")
    for i in range(SINGLES):
        start = time.perf_counter()
        jax.block_until_ready(loop.run(1))
        taken[i] = time.perf_counter() - start
    return taken


def started(count: int, *arguments: int) -> dict[str, dict[str, list[float]]]:
    """`timed` in `count` processes. Raises CalledProcessError if it fails."""
    job = [sys.executable, "-m", "launch.local", f"--processes={count}", "--", sys.executable]
    out = subprocess.run(
        [*job, "-m", "analysis.benchmarks.hardware", "--timed", *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout
    (line,) = (line for line in out.splitlines() if "{" in line)  # gloo says things as well
    return json.loads(line[line.index("{") :])


def real_runs(rounds: int, batch: int) -> pd.DataFrame:
    """One row a model and number of processes."""
    rows = []
    for k in PROCESSES:
        for model, seconds in started(k, rounds, batch).items():
            of = {name: np.array(values) for name, values in seconds.items()}
            row = {"model": model, "processes": k, "ratio": "predicted / measured seconds"}
            sent = of["compute"] + of["network"]
            row |= spread((sent + of["wait"]) / of["measured"])
            row["without T_wait"] = float(np.median(sent / of["measured"]))
            row |= {f"{name}, ms": 1e3 * np.median(values) for name, values in of.items()}
            rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("workdirs/hardware.json"))
    parser.add_argument("--timed", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.timed:
        processes.initialize()
        found = timed(*arguments.timed)
        return print(json.dumps(found)) if processes.is_writer() else None
    clusters = closed_form()
    print(clusters.to_string(index=False, float_format="{:.3f}".format))
    table = real_runs(arguments.rounds, arguments.batch)
    about = {"rounds": arguments.rounds, "batch": arguments.batch}
    publish(table, arguments.out, **about, clusters=clusters.to_dict("records"))


if __name__ == "__main__":
    with processes.leaving_on_failure():
        main()
