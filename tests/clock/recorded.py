"""Timelines of all methods, their traces, and the timelines that are made of these again."""

from functools import cache

import jax
import numpy as np

from optdyn import methods
from optdyn.train import program
from optdyn.train.recorder import Recorder
from tests.methods import test_battery as battery

# Of one update and the next: what the other methods of a pair do differs between them.
STEPS = 40


def config_of(name, **values):
    """The battery's config of a method or several, with times that are drawn where they can be."""
    config = battery.config_of(name, {"steps": STEPS, **values})
    if "exponential" in config.methods.outermost.laws:
        law = values.get("cluster.service.name", "exponential")
        return config.with_({"cluster.service.name": law})
    return config


def line_of(config, update_bytes=1000):
    """The timeline of a config; a loss of 1 ends each of its epochs."""
    model_info = network_of(program.problem_of(config, battery.CLASSES))
    ends = [{"train_loss": 1.0}] * (config.steps // battery.EPOCH)
    known = {
        "steps_per_epoch": battery.EPOCH,
        "update_bytes": update_bytes,
        "model_info": model_info,
    }
    return config.timeline(epochs=ends, **known)


@cache
def network_of(problem):
    batch = {
        "image": jax.ShapeDtypeStruct((battery.BATCH, 3, 3, 1), np.uint8),
        "label": jax.ShapeDtypeStruct((battery.BATCH,), np.int32),
    }
    params = jax.eval_shape(problem.init, jax.random.key(0), batch)
    one = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in batch.items()}
    return methods.ModelInfo(problem, params, one)


def record(line, path, raced=False):
    """Writes the trace of a real run with this timeline, in two pieces, as the trainer does."""
    recorder, half = Recorder(path, 0), len(line.seconds) // 2
    for window in (slice(0, half), slice(half, len(line.seconds))):
        if raced:
            recorder.append_raced(line, window, np.zeros_like(line.seconds[window]))
        else:
            recorder.append(line, window, 1.0)


def replayed(config, path):
    """The same config, of the arrivals that a trace holds."""
    return config.with_({"cluster.service.name": "trace", "cluster.service.path": str(path)})
