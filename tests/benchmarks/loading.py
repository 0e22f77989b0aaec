"""Bringing examples to the devices, beside the updates: `python -m tests.benchmarks.loading`.

    loader     examples a second of the loader alone over those of an update, data in memory
    streamed   an update whose examples are streamed over one of examples in memory
    augmented  an update with random crops and flips over one without

MLP 784-256-256-10 and LeNet-5, batch 64, as in `step_time.py`; every round runs all once, in random
order. `--data=tfds:fashion_mnist` is the whole Fashion-MNIST.
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from ml_collections import ConfigDict

from optdyn.training import driver, trainer
from optdyn.training.program import CHUNK
from tests.benchmarks.record import publish
from tests.benchmarks.step_time import BATCH, Timer, config_of, in_turn, spread
from tests.values import as_experiment

STEPS = 50 * CHUNK  # after which a run begins again


def config_with(model: str, data: str, **values: object) -> ConfigDict:
    config = config_of(model, 1)
    config.steps = STEPS
    config.data.update(name=data, **values)
    return config


def loader(config: ConfigDict) -> Timer:
    """Seconds an update for the examples of one, and nothing else."""
    run, step = trainer.prepare(as_experiment(config)), 0
    feed, batches = trainer.feed_of(run), trainer.batches_of(run)

    def once() -> float:
        nonlocal step
        start, first = time.perf_counter(), step
        for _ in range(4):
            block = feed(step, batches)
            jax.block_until_ready(block.examples)
            step = block.stop
        return (time.perf_counter() - start) / (step - first)

    return once


def updates(config: ConfigDict, n: int) -> Timer:
    """Seconds an update, as the trainer feeds and calls its program."""
    run, step = trainer.prepare(as_experiment(config)), 0
    state, feed = driver.initial(run), trainer.feed_of(run)

    def once() -> float:
        nonlocal state, step
        start = time.perf_counter()
        for chunk in driver.drive(run, state, step, [step + n], feed=feed):
            chunk.make()
        state, step = chunk.state, chunk.step if chunk.step + n <= STEPS else 0
        return (time.perf_counter() - start) / n

    return once


def measure(rounds: int, sizes: dict[str, int], data: str) -> pd.DataFrame:
    """One row a ratio: median and quartiles over the rounds, and examples a second."""
    rows = []
    for model, n in sizes.items():
        seconds = in_turn(
            {
                "loader": loader(config_with(model, data, streaming=True)),
                "memory": updates(config_with(model, data), n),
                "streamed": updates(config_with(model, data, streaming=True), n),
                "augmented": updates(config_with(model, data, augment="crop_flip"), n),
            },
            rounds,
        )
        ratios = {
            "loader / update, examples a second": seconds["memory"] / seconds["loader"],
            "streamed / in memory, seconds": seconds["streamed"] / seconds["memory"],
            "augmented / plain, seconds": seconds["augmented"] / seconds["memory"],
        }
        rate = {name: BATCH / np.median(values) for name, values in seconds.items()}
        rows += [
            {
                "model": model,
                "ratio": name,
                **spread(values),
                "examples/s in memory": rate["memory"],
            }
            | {"examples/s of the loader": rate["loader"]}
            for name, values in ratios.items()
        ]
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--data", default="mnist5k", help="as config.data.name")
    parser.add_argument("--out", type=Path, default=Path("workdirs/loading.json"))
    arguments = parser.parse_args()
    table = measure(arguments.rounds, {"mlp": 2 * CHUNK, "cnn": 60}, arguments.data)
    publish(table, arguments.out, rounds=arguments.rounds, data=arguments.data)


if __name__ == "__main__":
    main()
