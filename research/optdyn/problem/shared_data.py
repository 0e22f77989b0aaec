"""Data sets that the runs of a process share: loaded and put on the devices once."""

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

COMPILE_LOCK = RLock()  # for things that other threads will find in a cache
Put = Callable[[Examples], Examples]
EVALUATED_AT_ONCE = 1000  # examples
Parts = tuple[Examples, ...]  # of EVALUATED examples each; the last has what is left
CACHED = 2  # data sets: a sweep's threads may be in two groups of points at a time


class DeviceData(NamedTuple):
    train: Examples  # empty if they are streamed
    train_evaluated: Parts
    test_evaluated: Parts


def is_drawn(config: BatchSettings) -> bool:
    """Returns whether different seeds have different examples."""
    return isinstance(config.model, Quadratic)


def load(config: BatchSettings) -> Dataset:
    """Returns `problem.load_data`, the same object for all configs with the same examples."""
    if is_drawn(config):
        return problem.load_data(config.model, config.data, config.seed)
    code = lookup.user_objects(config, lookup.DATA)
    with COMPILE_LOCK:
        kind: Any = type(config.model)
        return _loaded(config.data, kind, code, config.data.data_root)


def put_on_devices(data: Dataset, put_examples: Put, config: BatchSettings) -> DeviceData:
    """Returns the examples on devices, the same arrays for the same arguments."""
    chosen = config.data
    evaluated = chosen.train_evaluated, chosen.test_evaluated
    with COMPILE_LOCK:
        return _put(Is(data), put_examples, chosen.streaming, *evaluated)


@lru_cache(maxsize=CACHED)
def _loaded(chosen: Data, model: Any, code: Key, root: Path) -> Dataset:
    return problem.load_data(model(), chosen, seed=0)


@lru_cache(maxsize=CACHED)
def _put(data: Is, put_examples: Put, streaming: bool, train: int, test: int) -> DeviceData:
    train_set, test_set = data.thing.train, data.thing.test
    on_devices = {} if streaming else put_examples(train_set)
    return DeviceData(on_devices, sample(train_set, train), sample(test_set, test))


def sample(examples: Examples, most: int) -> Parts:
    """Returns at most `most` examples, evenly spread, in parts; all for 0."""
    count = examples_in(examples)
    chosen = np.linspace(0, count - 1, min(most or count, count)).astype(np.int32)
    parts = (
        chosen[start : start + EVALUATED_AT_ONCE]
        for start in range(0, len(chosen), EVALUATED_AT_ONCE)
    )
    return tuple(jax.device_put({n: leaf[part] for n, leaf in examples.items()}) for part in parts)
