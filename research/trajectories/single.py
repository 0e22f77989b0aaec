"""One ordinary run, and what the momentum meter reads off it (`research/dynamics/moments.py`).

The run is the one that `trainer.train` does: same batches, same arrivals. Here all of it is one
window, kept in memory and in no workdir.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from optdyn import trainer
from optdyn.strategies.metered import METERED
from optdyn.trainer import METERED_CHUNK


class Recording(NamedTuple):
    """float32; T is `config.steps`, q the sketch's size or that of the model if it is smaller."""

    displacements: np.ndarray  # (T, q)
    raw_steps: np.ndarray  # (T, q)
    gradients: np.ndarray  # (T, q)
    losses: np.ndarray  # (T,) of the update's own batch


def record(config: ConfigDict) -> Recording:
    """Trains the config for all its updates and returns what the meter needs of them.

    Raises what `trainer.prepare` raises. Where a run diverges its numbers are not finite.
    """
    metered = config.copy_and_resolve_references()
    metered.probes.momentum = True
    run = trainer.prepare(metered)
    laid = run.program.metered
    assert laid
    feeds = trainer.feed_of(run), trainer.feed_of(run)
    batches = trainer.batches_of(run), trainer.batches_of(run, independent=True)
    state = laid.put_state(run.program.init(jax.tree.map(jnp.copy, run.params)))
    parts: list[list[np.ndarray]] = []
    step = 0
    while step < config.steps:
        own, second = (feed(step, of) for feed, of in zip(feeds, batches, strict=True))
        n = min(config.steps, step + METERED_CHUNK, own.stop, second.stop) - step
        events, indices = trainer.events_of(run, step, own, n, METERED_CHUNK)
        _, others = trainer.events_of(run, step, second, n, METERED_CHUNK)
        examples = own.examples, second.examples
        state, infos = laid.advance(state, examples, events, (indices, others), n)
        parts.append([np.asarray(infos[name])[:n] for name in (*METERED, "loss")])
        step += n
    return Recording(*map(np.concatenate, zip(*parts, strict=True)))
