"""How examples reach the devices: all of them at once, or block by block beside the updates.

A block is what a fixed number of updates takes, gathered by the host. While the devices work on
one, a thread of the host gathers the next, so a training set need not fit their memory; one that
is mapped from files need not fit the host's either.
"""

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from research.data.arrays import Split, take

BYTES = 2**26  # of a block; two of them are on the devices

Batches = Callable[[int, int], np.ndarray]  # (start, stop) -> (stop - start, B) or (..., B, 2)


class Part(NamedTuple):
    """Examples on the devices, which the updates up to one before `stop` find all theirs in."""

    examples: Any
    stop: int
    batches: Batches  # of some of those updates, by the numbers of the examples in this part


Feed = Callable[[int], Part]  # the part that holds the examples of an update


def whole(examples: Any, batches: Batches) -> Feed:
    """The training set as one part, from the devices that it is on."""
    part = Part(examples, sys.maxsize, batches)
    return lambda step: part


def streamed(
    train: Split, put: Callable[[Split], Any], batches: Batches, batch_size: int, most: int
) -> Feed:
    """Parts for as many updates as BYTES hold, from 1 to `most`; `put` brings them to devices."""
    example = sum(leaf.nbytes // len(leaf) for leaf in train.values())
    updates = int(np.clip(BYTES // (example * batch_size), 1, most))
    pool = ThreadPoolExecutor(1, "feed")
    held: dict[int, Future[Part]] = {}

    def gathered(k: int) -> Part:
        start, stop = k * updates, (k + 1) * updates
        chosen = batches(start, stop)
        numbers = chosen if chosen.ndim == 2 else chosen[..., 0]
        examples = put(take(train, numbers.ravel()))
        here = np.arange(numbers.size, dtype=np.int32).reshape(numbers.shape)
        if chosen.ndim == 3:
            here = np.stack([here, chosen[..., 1]], axis=-1)
        return Part(examples, stop, lambda first, last: here[first - start : last - start])

    def feed(step: int) -> Part:
        k = step // updates
        for past in held.keys() - {k, k + 1}:
            del held[past]
        for coming in {k, k + 1} - held.keys():
            held[coming] = pool.submit(gathered, coming)
        return held[k].result()

    return feed
