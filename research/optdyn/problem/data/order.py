"""The order of examples, their division into shards, and their way to the devices."""

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from optdyn.base.trees import Examples
from optdyn.problem.data.arrays import Split, take

EPOCH_RAMP = 8  # updates
BLOCK = 2**16  # draws with replacement are generated in blocks of this many positions
BLOCK_BYTES = 2**26  # of a block of streamed examples, over all devices; two exist at a time


def batches(
    seed: int, start: int, stop: int, batch_size: int, examples: int, replacement: bool = False
) -> np.ndarray:
    """Returns the examples of the batches of updates start..stop-1, int32 (stop - start, B).

    Batches divide an endless stream: a permutation of all examples an epoch, so that batches cross
    epochs, or with `replacement` independent draws. Block k of it depends on (seed, k) only.
    """
    if examples < 1 or batch_size < 1 or not 0 <= start <= stop:
        raise ValueError(f"no batches {start}..{stop} of {batch_size} from {examples} examples")
    everything = np.arange(examples, dtype=np.int32)

    def block(k: int) -> np.ndarray:
        rng = np.random.default_rng([seed, k])
        if replacement:
            return rng.integers(examples, size=BLOCK, dtype=np.int32)
        return rng.permutation(everything)

    length = BLOCK if replacement else examples
    first, last = start * batch_size // length, -(-stop * batch_size // length)
    stream = np.concatenate([everything[:0], *map(block, range(first, last))])
    skipped = start * batch_size - first * length
    return stream[skipped:][: (stop - start) * batch_size].reshape(-1, batch_size)


def independent(
    seed: int,
    order: int,
    start: int,
    stop: int,
    batch_size: int,
    examples: int,
    replacement: bool = False,
) -> np.ndarray:
    """Returns second mini-batches of updates start..stop-1, int32 (stop - start, batch_size).

    Their gradients have the conditional mean of those of `batches(order, ...)`, given all batches
    before: examples are drawn independently from what is left of the epoch, and from all examples
    where the batch reaches into later epochs. Those of update t depend on (seed, order, t) only.
    """
    t = np.arange(start, stop)[:, None]
    chance = np.array([np.random.default_rng([seed, u]).random(batch_size) for u in t[:, 0]])
    chance = chance.reshape(-1, batch_size)
    if replacement:
        return (chance * examples).astype(np.int32)
    epoch = (t * batch_size + np.arange(batch_size)) // examples
    first = np.maximum(t * batch_size, epoch * examples)
    place = first + (chance * ((epoch + 1) * examples - first)).astype(np.int64)
    chosen = np.empty(place.shape, np.int32)
    for k in np.unique(epoch):
        stream = batches(order, k, k + 1, examples, examples)[0]
        chosen[epoch == k] = stream[place[epoch == k] - k * examples]
    return chosen


def distance_to_epoch(
    start: int, stop: int, batch_size: int, examples: int, past: int, replacement: bool = False
) -> np.ndarray:
    """Returns the distances of updates start..stop-1 from an epoch's begin, 0 to 1, float64 (T,).

    It is 0 if an epoch begins between the first of the `past` updates before and the update's last
    example, and 1 from EPOCH_RAMP updates on, and with `replacement`.
    """
    if replacement:
        return np.ones(stop - start)
    t = np.arange(max(start - EPOCH_RAMP, 0), stop + EPOCH_RAMP)
    first = np.maximum(t - past, 0) * batch_size // examples
    last = ((t + 1) * batch_size - 1) // examples
    begins = np.append(t[first != last], stop + EPOCH_RAMP)
    distance = np.abs(np.arange(start, stop)[:, None] - begins).min(axis=1)
    return np.minimum(distance / EPOCH_RAMP, 1.0)


def augmentation_seeds(seed: int, start: int, stop: int, batch_size: int) -> np.ndarray:
    """Returns int32 (stop - start, B), by `seed`, the update and the place in the batch."""
    most = np.iinfo(np.int32).max
    rows = [
        np.random.default_rng([seed, t]).integers(most, size=batch_size, dtype=np.int32)
        for t in range(start, stop)
    ]
    return np.array(rows, np.int32).reshape(-1, batch_size)


def shard_sizes(examples: int, nodes: int) -> np.ndarray:
    """Returns equal sizes but for one example, the larger ones first, int64 (nodes,)."""
    return examples // nodes + (np.arange(nodes) < examples % nodes)


def contiguous(examples: int, nodes: int) -> tuple[np.ndarray, ...]:
    return tuple(np.split(np.arange(examples), np.cumsum(shard_sizes(examples, nodes))[:-1]))


def dirichlet(
    labels: np.ndarray, nodes: int, alpha: float, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Returns the examples of each node, ascending; together all, each once.

    Node i demands labels in proportion to q_i ~ Dirichlet(alpha), as in arXiv 1909.06335 (there
    alpha times the classes' shares). Shards have one size, to one example, so that demands cannot
    all be met; labels in short supply are divided in proportion.
    """
    classes, numbers = np.unique(labels, return_inverse=True)
    mixtures = rng.dirichlet(np.full(len(classes), alpha), nodes)
    counts = divide(mixtures, np.bincount(numbers), shard_sizes(len(labels), nodes))
    node_of = np.empty(len(labels), np.int64)
    for label, share in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(numbers == label))
        node_of[members] = np.repeat(np.arange(nodes), share)
    return tuple(np.flatnonzero(node_of == node) for node in range(nodes))


def divide(mixtures: np.ndarray, supply: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns counts, int64 (nodes, classes), with row sums `sizes` and column sums `supply`.

    In rounds nodes demand what they lack, by their mixtures of what is left, and scarce classes are
    divided in proportion; at last each node takes one of the class that it wants most. Raises
    `ValueError` if the sums disagree.
    """
    if supply.sum() != sizes.sum():
        raise ValueError(f"{supply.sum()} examples for shards of {sizes.sum()}")
    counts = np.zeros(mixtures.shape, np.int64)
    while (lack := sizes - counts.sum(axis=1)).any():
        left = supply - counts.sum(axis=0)
        expected = mixtures * (left > 0)
        nothing = expected.sum(axis=1) < 1e-9  # where a node wants nothing that is left
        expected[nothing] = left
        demand = lack[:, None] * expected / expected.sum(axis=1, keepdims=True)
        total = demand.sum(axis=0)
        granted = np.floor(demand * np.minimum(1, left / np.maximum(total, 1e-9))).astype(np.int64)
        if not granted.any():
            for node in np.flatnonzero(lack):
                first = np.argmax(np.where(left > 0, expected[node], -1))
                granted[node, first] += 1
                left[first] -= 1
        counts += granted
    return counts


# (start, stop) -> (n, C) or (n, C, 2): the examples of updates start..start+n-1, device by device;
# n is stop - start, or less where the timeline is not decided that far.
Batches = Callable[[int, int], np.ndarray]


class DataBlock(NamedTuple):
    """Examples on the devices: all those of the updates before `stop`."""

    examples: Examples
    stop: int
    batches: Batches  # of those updates, by places in this block


Feed = Callable[[int, Batches], DataBlock]  # returns the block with the examples of an update


def whole_set(examples: Examples) -> Feed:
    """Returns a feed of the training set, which is on the devices, as one block."""
    return lambda step, batches: DataBlock(examples, sys.maxsize, batches)


def streamed(
    train: Split,
    put: Callable[[Callable[[int], Split]], Examples],
    devices: int,
    batch_size: int,
    most: int,
) -> Feed:
    """Returns a feed of blocks of BLOCK_BYTES at most, with 1 to `most` updates.

    While the devices work on a block, a thread of the host gathers the next.

    `put(gather)` puts `gather(i)`, the examples of device i of `devices`, on those of this process.
    A block that ends early, where batches are not known yet, has the shapes of a full one, so that
    nothing is compiled again.
    """
    example = sum(leaf.nbytes // len(leaf) for leaf in train.values())
    updates = int(np.clip(BLOCK_BYTES // (example * batch_size), 1, most))
    pool = ThreadPoolExecutor(1, "feed")
    blocks: dict[int, Future[DataBlock]] = {}  # this one and the next, by their first updates

    def gather(start: int, batches: Batches) -> DataBlock:
        chosen = batches(start, start + updates)
        if not len(chosen):
            return DataBlock({}, start, batches)
        numbers = np.split(chosen if chosen.ndim == 2 else chosen[..., 0], devices, axis=1)
        distinct, places = zip(*(np.unique(n, return_inverse=True) for n in numbers), strict=True)
        rows = updates * min(numbers[0].shape[1], batch_size)
        examples = put(lambda i: _rows(train, distinct[i], rows))
        here = np.concatenate([n.reshape(len(chosen), -1) for n in places], 1, dtype=np.int32)
        if chosen.ndim == 3:
            here = np.stack([here, chosen[..., 1]], axis=-1)
        stop = start + len(chosen)
        return DataBlock(examples, stop, lambda first, last: here[first - start : last - start])

    def feed(step: int, batches: Batches) -> DataBlock:
        for start, future in blocks.items():
            if start <= step < future.result().stop:
                break
        else:
            blocks.clear()
            start, future = step, pool.submit(gather, step, batches)
        block = future.result()
        following = blocks.get(block.stop)
        blocks.clear()
        blocks[start] = future
        blocks[block.stop] = following or pool.submit(gather, block.stop, batches)
        return block

    return feed


def _rows(train: Split, numbers: np.ndarray, rows: int) -> Split:
    padded = {name: np.zeros((rows, *leaf.shape[1:]), leaf.dtype) for name, leaf in train.items()}
    for name, chosen in take(train, numbers).items():
        padded[name][: len(numbers)] = chosen
    return padded
