"""Trains a config and records what is read of the training set: `rows_read.py CONFIG.json FOLDER`.

CONFIG.json: {dotted key: value}. Blocks are of an epoch. Process p leaves `FOLDER/P.json`: of every
block, in order, and each of its devices the numbers of the examples that it read.
"""

import json
import sys
from pathlib import Path

import jax

from optdyn.base import processes
from optdyn.experiment import Config
from optdyn.problem.data import order
from optdyn.train import trainer


def main(values: str, folder: str) -> None:
    processes.initialize()
    config = Config().with_(json.loads(Path(values).read_text()))
    run, rows, read = trainer.prepare(config), order._rows, []
    train = run.data.train
    order.BLOCK_BYTES = sum(leaf.nbytes // len(leaf) for leaf in train.values()) * run.examples

    def recorded(train, numbers, room):
        read.append(numbers.tolist())
        return rows(train, numbers, room)

    order._rows = recorded
    trainer.train(config, Path(folder) / "run")
    Path(folder, f"{jax.process_index()}.json").write_text(json.dumps(read))


if __name__ == "__main__":
    with processes.leaving_on_failure():
        main(*sys.argv[1:])
