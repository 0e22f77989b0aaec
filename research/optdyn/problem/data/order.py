"""The order in which examples are seen: pure functions of seeds and step numbers."""

import numpy as np

RAMP = 8  # updates
BLOCK = 2**16  # draws with replacement are generated in blocks of this many positions


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


def away(
    start: int, stop: int, batch_size: int, examples: int, past: int, replacement: bool = False
) -> np.ndarray:
    """How far updates start..stop-1 are from where an epoch begins, 0 to 1, float64 (T,).

    0 where one begins between the first of the `past` updates before and its own last example;
    1 from RAMP updates on, or where examples are drawn `replacement`.
    """
    if replacement:
        return np.ones(stop - start)
    t = np.arange(max(start - RAMP, 0), stop + RAMP)
    first = np.maximum(t - past, 0) * batch_size // examples
    last = ((t + 1) * batch_size - 1) // examples
    begins = np.append(t[first != last], stop + RAMP)
    distance = np.abs(np.arange(start, stop)[:, None] - begins).min(axis=1)
    return np.minimum(distance / RAMP, 1.0)


def draws(seed: int, start: int, stop: int, batch_size: int) -> np.ndarray:
    """A seed for each example of the batches of updates start..stop-1, int32 (stop - start, B).

    Those of update t depend on (seed, t) and the example's place in the batch only.
    """
    most = np.iinfo(np.int32).max
    rows = [
        np.random.default_rng([seed, t]).integers(most, size=batch_size, dtype=np.int32)
        for t in range(start, stop)
    ]
    return np.array(rows, np.int32).reshape(-1, batch_size)


def stratified(labels: np.ndarray, seed: int) -> np.ndarray:
    """A seeded order of the examples, int64 (N,), each prefix of which is stratified by class.

    Each class is shuffled and spread evenly over the order, so that a prefix of n holds n/N of
    every class: less than one example off where the classes are of equal size.
    """
    rng = np.random.default_rng(seed)
    when = np.empty(len(labels))  # where in the order each example comes, as a fraction
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        when[members] = (np.arange(len(members)) + 0.5) / len(members)
    return np.lexsort((rng.random(len(labels)), when))
