"""The hardware model against this machine: `python -m analysis.benchmarks.hardware`.

Predicted over measured seconds of synchronous updates by k = 1, 2 and 4 processes, of `--batch`
examples together. The prediction is T_compute + T_wait + T_network:

    T_compute    mean seconds of a process for its share, when all k compute and send nothing
    T_wait       E max of k measured single updates, minus their mean
    T_network    an all-reduce of all parameters as one message, as of shard_map
"""

import json
import subprocess
import sys
import time
from argparse import SUPPRESS

import jax
import numpy as np
import pandas as pd
from jax.experimental import multihost_utils

import optdyn as od
from analysis.benchmarks.record import options, publish, spread
from analysis.benchmarks.step_time import repeated
from configs import quickstart
from optdyn.base import processes
from optdyn.plan.phases import Loop, all_reduces, measure, prepare
from optdyn.train import trainer
from optdyn.train.program import CHUNK

MODELS: dict[str, od.Model] = {"mlp": od.MLP(hidden=(256, 256)), "cnn": od.CNN(hidden=(120, 84))}
PROCESSES = (1, 2, 4)
SINGLES = 500  # updates timed one by one


def slowest(seconds: np.ndarray, k: int) -> float:
    """Returns E max of k processes that each take the seconds of a measured update at random.

    E max_k = sum_i x_(i) ((i / n)^k - ((i - 1) / n)^k)        x_(1) <= ... <= x_(n)
    """
    weights = np.diff((np.arange(len(seconds) + 1) / len(seconds)) ** k)
    return float(weights @ np.sort(seconds))


def config_of(model: str, batch: int) -> od.Experiment:
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


def measure_here(rounds: int, batch: int) -> dict[str, dict[str, list[float]]]:
    """Returns the seconds of an update in the processes of this job, and their parts, (rounds,)."""
    found = {}
    for model in MODELS:
        config = config_of(model, batch // jax.process_count())
        pieces = {
            name: loop for name, loop in prepare(config).loops.items() if "network" not in name
        }
        loops = pieces | {"measured": Loop(repeated(config_of(model, batch)))}
        if jax.process_count() > 1:
            loops["network"] = all_reduces(trainer.prepare(config).params)._replace(exchanges=1)
        seconds = measure(loops, rounds)
        compute = np.asarray(sum(seconds.pop(name) for name in pieces))
        by_process = np.reshape(multihost_utils.process_allgather(compute), (-1, rounds))
        single = multihost_utils.process_allgather(sum(map(singles, pieces.values()))).ravel()
        wait = slowest(single, jax.process_count()) - single.mean()
        times = {"compute": by_process.mean(axis=0), "wait": np.full(rounds, wait)}
        times |= {"network": np.zeros(rounds)} | seconds
        found[model] = {name: np.array(values).tolist() for name, values in times.items()}
    return found


def singles(loop: Loop) -> np.ndarray:
    """Returns the seconds of single updates, (SINGLES,), in all processes at once."""
    seconds = np.zeros(SINGLES)
    multihost_utils.sync_global_devices("singles")
    for i in range(SINGLES):
        start = time.perf_counter()
        jax.block_until_ready(loop.run(1))
        seconds[i] = time.perf_counter() - start
    return seconds


def measure_in_processes(count: int, *arguments: int) -> dict[str, dict[str, list[float]]]:
    """Returns `measure_here` of `count` processes; raises CalledProcessError if it fails."""
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
    rows = []
    for k in PROCESSES:
        for model, seconds in measure_in_processes(k, rounds, batch).items():
            samples = {name: np.array(values) for name, values in seconds.items()}
            row = {"model": model, "processes": k, "ratio": "predicted / measured seconds"}
            sent = samples["compute"] + samples["network"]
            row |= spread((sent + samples["wait"]) / samples["measured"])
            row["without T_wait"] = float(np.median(sent / samples["measured"]))
            row |= {f"{name}, ms": 1e3 * np.median(values) for name, values in samples.items()}
            rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    parser = options(__doc__, "workdirs/hardware.json", rounds=25)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--timed", type=int, nargs=2, help=SUPPRESS)
    arguments = parser.parse_args()
    if arguments.timed:
        processes.initialize()
        found = measure_here(*arguments.timed)
        return print(json.dumps(found)) if processes.is_writer() else None
    table = real_runs(arguments.rounds, arguments.batch)
    publish(table, arguments.out, rounds=arguments.rounds, batch=arguments.batch)


if __name__ == "__main__":
    with processes.leaving_on_failure():
        main()
