"""An update of asynchronous methods as workers become more: `python -m tests.benchmarks.workers`.

What workers have read, or have, are rows of tables. An update reads one and writes one, so it
should not take longer the more there are, but for memory that is further away. On a noisy quadratic
of 256 dimensions, 4 examples, and on the MLP 784-256-256-10, 16 examples, SGD with momentum 0.9:

    ms          milliseconds of an update, the median of the rounds
    over sync   of the synchronous one that was run in turn, the median of ratios

The exponents `a` are slopes of logarithms of `ms`, along workers.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from ml_collections import ConfigDict

from optdyn.config import default
from optdyn.training.program import CHUNK
from tests.benchmarks.record import publish
from tests.benchmarks.snapshots import SECONDS, Updates, in_turn

METHODS = ("asynchronous", "buffered", "elastic", "async_local_sgd", "ad_psgd")
QUADRATIC = {
    "model.name": "quadratic",
    "model.dimension": 256,
    "model.noise": 0.5,
    "data.train_examples": 1000,
    "batch_size": 4,
}
MLP = {"model.hidden": (256, 256), "batch_size": 16}
WORKERS = {"quadratic": (10, 100, 1000, 10_000), "mlp": (4, 16, 64, 256)}


def config_of(model: str, method: str, workers: int) -> ConfigDict:
    config = default()
    config.update_from_flattened_dict(QUADRATIC if model == "quadratic" else MLP)
    config.steps = config.log_every = CHUNK
    config.checkpoint_every = 0
    config.optimizer.momentum, config.optimizer.learning_rate = 0.9, 0.001
    config.cluster.nodes = workers
    config.strategy.name = method
    if method != "sync":
        config.strategy.groups = workers
    if method == "buffered":
        config.strategy.arrivals = 2
    return config


def rows_of(model: str, method: str, counts: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    plain = Updates(config_of(model, "sync", 1))
    n = int(np.clip(SECONDS / plain.seconds(4), 1, CHUNK))
    for count in counts:
        updates = Updates(config_of(model, method, count))
        updates.seconds(n)  # which touches rows for the first time
        seconds, ratio = in_turn(updates, plain, n, rounds)
        yield {
            "model": model,
            "method": method,
            "workers": count,
            "ms": 1000 * seconds,
            "over sync": ratio,
        }
        del updates


def exponents(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Along workers."""
    found = []
    for (model, method), line in table.groupby(["model", "method"], sort=False):
        logs = np.log(line[["workers", "ms"]].to_numpy())
        found.append({"model": model, "method": method, "a": np.polyfit(*logs.T, 1)[0]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=WORKERS, default=list(WORKERS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--workers", type=int, nargs="+", default=[], help="all: as many as these")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("workdirs/workers.json"))
    asked = parser.parse_args()
    table = pd.DataFrame(
        row
        for model in asked.models
        for method in asked.methods
        for row in rows_of(model, method, asked.workers or WORKERS[model], asked.rounds)
    )
    slopes = exponents(table)
    print(pd.DataFrame(slopes).to_string(index=False, float_format="{:.2f}".format))
    publish(table, asked.out, rounds=asked.rounds, exponents=slopes)


if __name__ == "__main__":
    main()
