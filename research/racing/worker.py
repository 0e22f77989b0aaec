"""What a worker of a race does: of what it is given and of its batches it makes a message."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from research import problem, program, resident
from research.run import Run, parted
from research.strategies.method import of_config
from research.timeline.versions import Order

AHEAD = 64  # batches whose numbers are made at a time

Compute = Callable[[Any, range], Any]


def worker(run: Run) -> Compute:
    """(what it is given, numbers of its batches) -> what it sends, NumPy arrays."""
    halves = program.raced(run.config, run.data.classes, run.timeline.slots)
    examples = resident.put(run.data, run.program.layout.put_examples, run.config).train
    chosen = numbered(run)
    hyper = {name: values[0] for name, values in run.hypers.items()}  # which some methods need

    def compute(given: Any, numbers: range) -> Any:
        return jax.device_get(halves.work(given, hyper, examples, chosen(numbers)))

    return compute


def order_of(run: Run) -> Order:
    """Who reads what when, from the beginning, written into the run's timeline."""
    read = of_config(run.config).read
    assert read and read.race
    return read.race.order(run.config, run.timeline)


def numbered(run: Run, independent: bool = False) -> Callable[[Iterable[int]], np.ndarray]:
    """Numbers of n batches -> those of their examples, (n, B) or (n, B, 2), for `Problem.batch`.

    Or of the second mini-batches beside them, the `independent` ones. Where updates are of several
    arrivals, of parts of batches (`run.parted`).
    """
    held: dict[int, np.ndarray] = {}
    parts = parts_of(run)

    def every(start: int, stop: int) -> np.ndarray:
        return problem.batches(run.config, run.examples, start, stop, independent=independent)

    def one(number: int) -> np.ndarray:
        first = number - number % AHEAD
        if first not in held:
            for old in [old for old in held if abs(old - first) > AHEAD]:
                del held[old]
            held[first] = parted(every, np.arange(first, first + AHEAD), parts)
        return held[first][number - first]

    return lambda numbers: np.stack([one(int(number)) for number in numbers])


def parts_of(run: Run) -> int:
    """Arrivals of an update, each of a part of a batch."""
    batch = (run.timeline.control or {})["batch"]
    return 1 if batch.ndim == 1 else batch.shape[1]
