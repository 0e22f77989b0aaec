"""Trains the configs it is given, wherever it is started: `train_all.py CONFIGS.json FOLDER`.

CONFIGS.json: {name: {dotted key: value}}. Each run leaves `FOLDER/NAME.npz`, its final parameters
as one array `flat`, with the model's state and the average that are evaluated, and `FOLDER/NAME/`,
its workdir.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from optdyn.base import processes
from optdyn.experiment import Config
from optdyn.train import trainer
from optdyn.train.checkpoints import Checkpoints
from tests.values import with_values


def main(configs: str, folder: str) -> None:
    processes.initialize()
    for name, values in json.loads(Path(configs).read_text()).items():
        config = with_values(Config(), values)
        trainer.train(config, Path(folder) / name)
        if processes.is_writer():
            run = trainer.prepare(config)
            with Checkpoints(Path(folder) / name) as checkpoints:
                _, state = checkpoints.restore(run.program.rule.init(run.start))
            flat, _ = ravel_pytree(jax.tree.map(np.asarray, run.evaluated(state)))
            np.savez(Path(folder) / f"{name}.npz", flat=np.asarray(flat))


if __name__ == "__main__":
    with processes.leaving_on_failure():
        main(*sys.argv[1:])
