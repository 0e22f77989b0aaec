"""What a worker of a race does: the gradient of a batch, at parameters that it is given."""

from collections.abc import Callable

import jax
import numpy as np

from research import problem, program, resident
from research.run import Run
from research.strategies.base import Message, Params

AHEAD = 64  # batches whose numbers are made at a time

Compute = Callable[[Params, int], Message]


def worker(run: Run) -> Compute:
    """(parameters, number of the batch) -> what it sends, NumPy arrays."""
    halves = program.raced(run.config, run.data.classes, run.timeline.slots)
    examples = resident.put(run.data, run.program.layout.put_examples, run.config).train
    chosen = numbered(run)

    def compute(params: Params, batch: int) -> Message:
        return jax.device_get(halves.gradient(params, examples, chosen(batch)))

    return compute


def numbered(run: Run, independent: bool = False) -> Callable[[int], np.ndarray]:
    """Number of a batch -> those of its examples, (B,) or (B, 2), as `Problem.batch` takes them.

    Or of the second mini-batch beside it, the `independent` one.
    """
    held: dict[int, np.ndarray] = {}

    def of(batch: int) -> np.ndarray:
        first = batch - batch % AHEAD
        if first not in held:
            for old in [old for old in held if abs(old - first) > AHEAD]:
                del held[old]
            window = run.config, run.examples, first, first + AHEAD
            held[first] = problem.batches(*window, independent=independent)
        return held[first][batch - first]

    return of
