"""The order in which examples are seen, whose they are, and how they reach the devices."""

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from optdyn.base.trees import Examples
from optdyn.problem.data.arrays import Split, take

EPOCH_RAMP = 8  # updates
BLOCK = 2**16  # draws with replacement are generated in blocks of this many positions
BLOCK_BYTES = (
    2**26
)  # of a block of streamed examples, on all devices together; two of them are there


# Batches: pure functions of seeds and step numbers.


def batches(
    seed: int, start: int, stop: int, batch_size: int, examples: int, replacement: bool = False
) -> np.ndarray:
    """Indices of the batches of updates start..stop-1, int32 (stop - start, batch_size).

    The indices are an endless stream, of which batch t takes positions t*B .. (t+1)*B - 1. The
    stream is a permutation of range(examples) an epoch, so that batches run across epochs and no
    example is dropped, or with `replacement` independent uniform draws. Block k of the stream
    depends on (seed, k) only: any window equals the same window of the whole, without replay.
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
    """Second mini-batches of updates start..stop-1, int32 (stop - start, batch_size).

    A gradient of theirs has the conditional mean of the first's, `batches(order, ...)`, given all
    batches before: each example is drawn, by itself, from those that the first could still be,
    which are what is left of the epoch, or of later ones all. Those of update t depend on
    (seed, order, t) only. `seed` says nothing of the batches to come.
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
    """How far updates start..stop-1 are from where an epoch begins, 0 to 1, float64 (T,).

    0 where one begins between the first of the `past` updates before and its own last example;
    1 from RAMP updates on, or where examples are drawn `replacement`.
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
    """A seed for each example of the batches of updates start..stop-1, int32 (stop - start, B).

    Those of update t depend on (seed, t) and the example's place in the batch only.
    """
    most = np.iinfo(np.int32).max
    rows = [
        np.random.default_rng([seed, t]).integers(most, size=batch_size, dtype=np.int32)
        for t in range(start, stop)
    ]
    return np.array(rows, np.int32).reshape(-1, batch_size)


# Shards of the training set, where nodes hold unlike examples.


def shard_sizes(examples: int, nodes: int) -> np.ndarray:
    """(nodes,) int64, equal but for one example; the larger ones first."""
    return examples // nodes + (np.arange(nodes) < examples % nodes)


def contiguous(examples: int, nodes: int) -> tuple[np.ndarray, ...]:
    """The numbers of each node's examples, one stretch after the other."""
    return tuple(np.split(np.arange(examples), np.cumsum(shard_sizes(examples, nodes))[:-1]))


def dirichlet(
    labels: np.ndarray, nodes: int, alpha: float, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """The numbers of each node's examples, ascending; each example is one node's.

    Node i asks for labels in proportion to q_i ~ Dirichlet(alpha), as in arXiv 1909.06335 (there
    alpha times the classes' shares): a small alpha leaves it one or two labels, a large one all
    alike. All shards have one size, to one example, so what nodes ask for cannot be had by all to
    the last: labels that are in short supply are divided in proportion.
    """
    classes, numbers = np.unique(labels, return_inverse=True)
    mixtures = rng.dirichlet(np.full(len(classes), alpha), nodes)
    counts = divide(mixtures, np.bincount(numbers), shard_sizes(len(labels), nodes))
    node_of = np.empty(len(labels), np.int64)
    for label, share in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(numbers == label))
        node_of[members] = np.repeat(np.arange(nodes), share)
    return tuple(np.flatnonzero(node_of == node) for node in range(nodes))


def divide(mixtures: np.ndarray, supply: np.ndarray, shard_sizes: np.ndarray) -> np.ndarray:
    """(nodes, classes) int64 whose rows sum to `shard_sizes` and whose columns sum to `supply`.

    In rounds: each node asks for what it lacks, by its mixture of what is left; what is asked for
    too often is divided in proportion. Crumbs below one example go to who wants them most, one
    class a node and round. ValueError if the sums are not those of one table.
    """
    if supply.sum() != shard_sizes.sum():
        raise ValueError(f"{supply.sum()} examples for shards of {shard_sizes.sum()}")
    counts = np.zeros(mixtures.shape, np.int64)
    while (lack := shard_sizes - counts.sum(axis=1)).any():
        left = supply - counts.sum(axis=0)
        expected = mixtures * (left > 0)
        nothing = expected.sum(axis=1) < 1e-9  # of what is left a node wants any
        expected[nothing] = left
        asked = lack[:, None] * expected / expected.sum(axis=1, keepdims=True)
        many = asked.sum(axis=0)
        given = np.floor(asked * np.minimum(1, left / np.maximum(many, 1e-9))).astype(np.int64)
        if not given.any():
            for node in np.flatnonzero(lack):
                first = np.argmax(np.where(left > 0, expected[node], -1))
                given[node, first] += 1
                left[first] -= 1
        counts += given
    return counts


# Feeds: all examples on the devices at once, or block by block beside the updates. While the
# devices work on one block, a thread of the host gathers the next, so a training set need not fit
# the devices' memory, nor the host's if it is mapped from files. Where devices are given blocks of
# their own, a process reads those of its own devices and no others.

# (start, stop) -> (n, C) or (n, C, 2): what each device is given, one after the other, of the
# updates start..start+n-1; n is stop - start, or less where the timeline is not decided that far.
Batches = Callable[[int, int], np.ndarray]


class DataBlock(NamedTuple):
    """Examples on the devices, which the updates up to one before `stop` find all theirs in."""

    examples: Examples
    stop: int
    batches: Batches  # of some of those updates, by the numbers of the examples in this block


Feed = Callable[[int, Batches], DataBlock]  # the block that holds the examples of an update


def whole_set(examples: Examples) -> Feed:
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
    updates = int(np.clip(BLOCK_BYTES // (example * batch_size), 1, most))
    pool = ThreadPoolExecutor(1, "feed")
    coming: dict[int, Future[DataBlock]] = {}  # by their first updates

    def gathered(start: int, batches: Batches) -> DataBlock:
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
        for start, future in coming.items():
            if start <= step < future.result().stop:
                break
        else:
            coming.clear()
            start, future = step, pool.submit(gathered, step, batches)
        block = future.result()
        following = coming.get(block.stop)
        coming.clear()
        coming[start] = future
        coming[block.stop] = following or pool.submit(gathered, block.stop, batches)
        return block

    return feed


def _rows(train: Split, numbers: np.ndarray, rows: int) -> Split:
    """The examples of those numbers, and nothing in the rest of so many rows."""
    some = {name: np.zeros((rows, *leaf.shape[1:]), leaf.dtype) for name, leaf in train.items()}
    for name, chosen in take(train, numbers).items():
        some[name][: len(numbers)] = chosen
    return some
