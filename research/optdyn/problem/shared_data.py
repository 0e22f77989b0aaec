"""The examples, which runs of one process share: loaded and put on their devices once."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import jax
import numpy as np

from optdyn.base import lookup
from optdyn.base.lookup import Is, Key
from optdyn.base.trees import examples_in
from optdyn.problem import problem
from optdyn.problem.data.arrays import Dataset
from optdyn.problem.data.kinds import Data
from optdyn.problem.models import Quadratic
from optdyn.problem.problem import BatchSettings, Examples

# Held while something is made that other threads then find in a cache.
COMPILE_LOCK = RLock()
Put = Callable[[Examples], Examples]
EVALUATED_AT_ONCE = 1000  # examples evaluated at a time
Parts = tuple[Examples, ...]  # of EVALUATED examples each; the last has what is left
CACHED = 2  # data sets: a sweep's threads may be in two groups of points at a time


class DeviceData(NamedTuple):
    """Examples on the devices of a run."""

    train: Examples  # empty if they are streamed
    train_evaluated: Parts
    test_evaluated: Parts


def is_drawn(config: BatchSettings) -> bool:
    """Whether every seed has examples of its own."""
    return isinstance(config.model, Quadratic)


def load(config: BatchSettings) -> Dataset:
    """`problem.load_data`, the same object for all configs that name the same examples."""
    if is_drawn(config):
        return problem.load_data(config.model, config.data, config.seed)
    own = lookup.user_objects(config, lookup.DATA)
    with COMPILE_LOCK:
        kind: Any = type(config.model)
        return _loaded(config.data, kind, own, config.data.data_root)


def put_on_devices(data: Dataset, put_examples: Put, config: BatchSettings) -> DeviceData:
    """The examples on devices, the same arrays for the same arguments."""
    chosen = config.data
    evaluated = chosen.train_evaluated, chosen.test_evaluated
    with COMPILE_LOCK:
        return _put(Is(data), put_examples, chosen.streaming, *evaluated)


@lru_cache(maxsize=CACHED)
def _loaded(chosen: Data, model: Any, own: Key, root: Path) -> Dataset:
    return problem.load_data(model(), chosen, seed=0)


@lru_cache(maxsize=CACHED)
def _put(of: Is, put_examples: Put, streaming: bool, train: int, test: int) -> DeviceData:
    train_set, test_set = of.thing.train, of.thing.test
    whole = {} if streaming else put_examples(train_set)
    return DeviceData(whole, sample(train_set, train), sample(test_set, test))


def sample(examples: Examples, most: int) -> Parts:
    """So many of the examples, evenly spread, or all of them."""
    count = examples_in(examples)
    chosen = np.linspace(0, count - 1, min(most or count, count)).astype(np.int32)
    parts = (
        chosen[start : start + EVALUATED_AT_ONCE]
        for start in range(0, len(chosen), EVALUATED_AT_ONCE)
    )
    return tuple(jax.device_put({n: leaf[part] for n, leaf in examples.items()}) for part in parts)
