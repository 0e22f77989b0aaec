"""The momentum meter's record of a whole run, in memory (`implicit_momentum/moments.py` fits it).

The run has the batches and arrivals that `trainer.train` has; all of it is one window.
"""

from typing import NamedTuple

import numpy as np

from optdyn.experiment import Config
from optdyn.implicit_momentum.readings import Windows
from optdyn.methods.compose import METERED
from optdyn.train import trainer
from optdyn.train.loop import initial_state, updates


class Recording(NamedTuple):
    """float32; T is `config.steps`, q the sketch's size or that of the model if it is smaller."""

    displacements: np.ndarray  # (T, q)
    raw_steps: np.ndarray  # (T, q)
    gradients: np.ndarray  # (T, q)
    losses: np.ndarray  # (T,) of the update's own batch


def record(config: Config) -> Recording:
    """Trains the config and returns the meter's record; that of a diverged run is not finite."""
    run = trainer.prepare(config.with_({"probes.momentum": True}))
    windows = Windows(config.steps, config.steps, config.steps)
    parts: list[list[np.ndarray]] = []
    for chunk in updates(run, initial_state(run), 0, [config.steps], windows=windows):
        chunk.compute()
        parts.append([chunk.infos[name] for name in (*METERED, "loss")])
    return Recording(*map(np.concatenate, zip(*parts, strict=True)))
