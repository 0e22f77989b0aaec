"""One ordinary run, and what the momentum meter reads off it (`momentum/moments.py`).

The run is the one that `trainer.train` does: same batches, same arrivals. Here all of it is one
window, kept in memory and in no workdir.
"""

from typing import NamedTuple

import numpy as np

from optdyn.experiment import Config
from optdyn.methods.compose import METERED
from optdyn.momentum.readings import Windows
from optdyn.train import trainer
from optdyn.train.loop import initial, updates


class Recording(NamedTuple):
    """float32; T is `config.steps`, q the sketch's size or that of the model if it is smaller."""

    displacements: np.ndarray  # (T, q)
    raw_steps: np.ndarray  # (T, q)
    gradients: np.ndarray  # (T, q)
    losses: np.ndarray  # (T,) of the update's own batch


def record(config: Config) -> Recording:
    """Trains the config for all its updates and returns what the meter needs of them.

    Raises what `trainer.prepare` raises. Where a run diverges its numbers are not finite.
    """
    run = trainer.prepare(config.with_({"probes.momentum": True}))
    windows = Windows(config.steps, config.steps, config.steps)
    parts: list[list[np.ndarray]] = []
    for chunk in updates(run, initial(run), 0, [config.steps], windows=windows):
        chunk.make()
        parts.append([chunk.infos[name] for name in (*METERED, "loss")])
    return Recording(*map(np.concatenate, zip(*parts, strict=True)))
