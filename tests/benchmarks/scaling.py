"""What updates cost as batches and grids grow: `python -m tests.benchmarks.scaling`.

    batch    seconds of an update of the MLP 784-256-256-10 and of LeNet-5 on MNIST, synchronous and
             asynchronous with 16 groups, from 8 to 2,048 examples
    points   seconds of an update of all points of a grid as one vmapped program, and of all of them
             one after the other, from 1 to 128 copies of the MLP 784-32-10, batch 64

Exponents are slopes of log seconds, over all sizes and over the upper half of them, as what is
small takes what any update takes. `tests.benchmarks.snapshots` has the axes of groups and
parameters, `tests.benchmarks.timeline` those of events and workers.
"""

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from optdyn.training import batched_runs, trainer
from optdyn.training.program import CHUNK
from tests.benchmarks.record import publish
from tests.benchmarks.step_time import Timer, config_of, in_turn, ours
from tests.values import as_experiment

BATCHES = (8, 32, 128, 512, 2048)
POINTS = (1, 4, 16, 64, 128)
EXAMPLES = 4096  # that a timing computes, about


def batches(rounds: int) -> Iterator[dict[str, Any]]:
    for model in ("mlp", "cnn"):
        for groups in (1, 16):
            timers = {str(batch): timer(model, groups, batch) for batch in BATCHES}
            seconds = {int(b): float(np.median(s)) for b, s in in_turn(timers, rounds).items()}
            yield from rows("batch", f"{model}, groups = {groups}", seconds)


def timer(model: str, groups: int, batch: int) -> Timer:
    config = config_of(model, groups)
    config.batch_size = batch
    return ours(config, int(np.clip(EXAMPLES // batch, 4, CHUNK)))


def points() -> Iterator[dict[str, Any]]:
    found = {count: rates(count) for count in POINTS}
    of = {"one program": "vmap", "one by one": "threads"}
    for name, way in of.items():
        seconds = {count: count / getattr(found[count], way) for count in POINTS}
        yield from rows("points", name, seconds)


def rates(count: int) -> batched_runs.Rates:
    runs = []
    for i in range(count):
        config = config_of("mlp", 1)
        config.model.hidden, config.seed = (32,), i
        runs.append(trainer.prepare(as_experiment(config)))
    return batched_runs.measure(runs, count, 1)


def rows(axis: str, of: str, seconds: Mapping[int, float]) -> Iterator[dict[str, Any]]:
    """One a size, with the exponents of all and of the upper half."""
    sizes, taken = np.log(list(seconds)), np.log(list(seconds.values()))
    slope = partial(np.polyfit, deg=1)
    half = len(sizes) // 2
    both = [float(slope(sizes[k:], taken[k:])[0]) for k in (0, half)]
    for size, own in seconds.items():
        yield {
            "axis": axis,
            "of": of,
            "size": size,
            "ms": 1e3 * own,
            "exponent": both[0],
            "of the upper half": both[1],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("workdirs/scaling.json"))
    arguments = parser.parse_args()
    table = pd.DataFrame([*batches(arguments.rounds), *points()])
    publish(table, arguments.out, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
