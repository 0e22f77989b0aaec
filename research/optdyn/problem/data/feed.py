"""How examples reach the devices: all of them at once, or block by block beside the updates.

A block holds the examples of a fixed number of updates, gathered by the host. While the devices
work on one, a thread of the host gathers the next, so a training set need not fit the devices'
memory. A set that is mapped from files need not fit the host's either. Where devices are given
blocks of their own, a process reads those of its own devices and no others.
"""

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from optdyn.base.trees import Examples
from optdyn.problem.data.arrays import Split, take

BYTES = 2**26  # of a block, on all devices together; two of them are there

# (start, stop) -> (n, C) or (n, C, 2): what each device is given, one after the other, of the
# updates start..start+n-1; n is stop - start, or less where the timeline is not decided that far.
Batches = Callable[[int, int], np.ndarray]


class DataBlock(NamedTuple):
    """Examples on the devices, which the updates up to one before `stop` find all theirs in."""

    examples: Examples
    stop: int
    batches: Batches  # of some of those updates, by the numbers of the examples in this block


Feed = Callable[[int, Batches], DataBlock]  # the block that holds the examples of an update


def whole(examples: Examples) -> Feed:
    """The training set as one block, from the devices that it is on."""
    return lambda step, batches: DataBlock(examples, sys.maxsize, batches)


def streamed(
    train: Split,
    put: Callable[[Callable[[int], Split]], Examples],
    devices: int,
    batch_size: int,
    most: int,
) -> Feed:
    """Blocks for as many updates as BYTES hold, from 1 to `most`.

    `put(of)` brings what `of(i)` gathers, the examples of device i of `devices`, to those of them
    that are this process's. A block ends early where batches are not known yet; its arrays have
    the shapes of a full one, so that nothing is compiled anew.
    """
    example = sum(leaf.nbytes // len(leaf) for leaf in train.values())
    updates = int(np.clip(BYTES // (example * batch_size), 1, most))
    pool = ThreadPoolExecutor(1, "feed")
    held: dict[int, Future[DataBlock]] = {}  # by their first updates

    def gathered(start: int, batches: Batches) -> DataBlock:
        chosen = batches(start, start + updates)
        if not len(chosen):
            return DataBlock({}, start, batches)
        numbers = np.split(chosen if chosen.ndim == 2 else chosen[..., 0], devices, axis=1)
        distinct, each = zip(*(np.unique(own, return_inverse=True) for own in numbers), strict=True)
        rows = updates * min(numbers[0].shape[1], batch_size)
        examples = put(lambda i: _rows(train, distinct[i], rows))
        here = np.concatenate([own.reshape(len(chosen), -1) for own in each], 1, dtype=np.int32)
        if chosen.ndim == 3:
            here = np.stack([here, chosen[..., 1]], axis=-1)
        stop = start + len(chosen)
        return DataBlock(examples, stop, lambda first, last: here[first - start : last - start])

    def feed(step: int, batches: Batches) -> DataBlock:
        for start, coming in held.items():
            if start <= step < coming.result().stop:
                break
        else:
            held.clear()
            start, coming = step, pool.submit(gathered, step, batches)
        block = coming.result()
        following = held.get(block.stop)
        held.clear()
        held[start] = coming
        held[block.stop] = following or pool.submit(gathered, block.stop, batches)
        return block

    return feed


def _rows(train: Split, numbers: np.ndarray, rows: int) -> Split:
    """The examples of those numbers, and nothing in the rest of so many rows."""
    some = {name: np.zeros((rows, *leaf.shape[1:]), leaf.dtype) for name, leaf in train.items()}
    for name, chosen in take(train, numbers).items():
        some[name][: len(numbers)] = chosen
    return some
