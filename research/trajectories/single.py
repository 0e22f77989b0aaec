"""One ordinary run, and what the momentum meter reads off it (`analysis/moments.py`).

Of every update t, each under one fixed count sketch of `SKETCH` numbers:

    d_t = x_{t+1} - x_t                        displacement
    G_t = a mini-batch's gradient at x_t       independent of everything else in the run
    u_t = -the gradient that arrived           raw step, before the optimizer (on request)

The run is the one that `trainer.train` does: same batches, same arrivals. The mini-batches of G_t
are as large, drawn independently and with replacement from a stream of their own, so E G_t is the
gradient of the whole objective whatever happened before.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from research import problem, seeds, strategies, trainer
from research.config import ConfigError
from research.problem import Examples, Params
from research.program import Program
from research.strategies.base import Event
from research.trajectories.replicas import sketch

SKETCH = 2048


class Recording(NamedTuple):
    """float32; T is `config.steps`, q the sketch's size or that of the model if it is smaller."""

    displacements: np.ndarray  # (T, q)
    gradients: np.ndarray  # (T, q)
    losses: np.ndarray  # (T,) of the update's own batch
    raw_steps: np.ndarray | None  # (T, q)


def record(config: ConfigDict, raw: bool = False) -> Recording:
    """Trains the config for all its updates and returns what the meter needs of them.

    Any optimizer, strategies 'sync' and 'asynchronous' simulated on one device. Raises
    `ConfigError` for others, and what `trainer.prepare` raises. Where a run diverges its numbers
    are not finite. `raw` steps cost another gradient an update.
    """
    if not strategies.of_config(config).simple or config.parallel.api:
        raise ConfigError(
            "the momentum meter reads simulated runs (config.parallel.api = '') of "
            f"strategies of one gradient an update, not {config.strategy.name!r}"
        )
    run = trainer.prepare(config)
    other = config.copy_and_resolve_references()
    other.seed = int(seeds.generator(config.seed, "meter").integers(2**31))
    other.data.replacement = True
    own, second = (problem.batches(c, run.examples, 0, config.steps) for c in (config, other))
    examples = {name: jnp.asarray(leaf) for name, leaf in run.data.train.items()}
    events = Event(run.timeline.read, run.timeline.write, dict(run.hypers))
    key = seeds.key(config.seed, "subspace")
    recorder = _recorder(run.program, raw)
    return Recording(*jax.device_get(recorder(run.params, examples, key, events, own, second)))


@lru_cache(maxsize=32)
def _recorder(program: Program, raw: bool) -> Any:
    gradient = jax.grad(program.problem.loss)

    def record(
        params: Params, examples: Examples, key: jax.Array, events: Event, own: Any, second: Any
    ) -> tuple[jax.Array | None, ...]:
        project = sketch(key, params, SKETCH)

        def step(state: Any, inputs: tuple[Event, jax.Array, jax.Array]) -> Any:
            event, *chosen = inputs
            batch, another = (program.problem.batch(examples, indices) for indices in chosen)
            after, info = program.strategy.step(state, event, batch)
            moved = jax.tree.map(jnp.subtract, after.params, state.params)
            independent = gradient(state.params, another)
            arrived = None
            if raw:
                read = state.at(event.read) if hasattr(state, "at") else state.params
                arrived = -project(gradient(read, batch))
            return after, (project(moved), project(independent), info["loss"], arrived)

        return jax.lax.scan(step, program.strategy.init(params), (events, own, second))[1]

    return jax.jit(record)
