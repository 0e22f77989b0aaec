"""A batch in whole examples, divided in proportion to rates, and whose examples are whose."""

import numpy as np

from optdyn.clock.base import TimelineError


def shares(rates: np.ndarray, batch_size: int, minimum: int = 1) -> np.ndarray:
    """Examples of each worker, (workers,) int32 with sum `batch_size`, none below `minimum`.

    Proportional to `rates`, (workers,) and positive, among those above the minimum; whole by the
    largest remainder. `TimelineError` if the batch is too small or a rate is not positive.
    """
    rates = np.asarray(rates, np.float64)
    few = f"{batch_size} examples for {len(rates)} workers, each needs {minimum} or more"
    good = np.all((rates > 0) & np.isfinite(rates))
    bad = f"rates {rates.tolist()}, all must be positive and finite"
    TimelineError.refuse(
        [(batch_size < minimum * len(rates), f"shares: {few}"), (not good, f"shares: {bad}")]
    )
    quotas = np.full(len(rates), float(minimum))
    free = np.ones(len(rates), bool)
    while free.any():
        left = batch_size - minimum * np.count_nonzero(~free)
        proportional = left * (rates / rates[free].sum())
        low = free & (proportional < minimum)
        if not low.any():
            quotas[free] = proportional[free]
            break
        free &= ~low
    whole = np.floor(quotas)
    # Equal remainders go to the faster worker, so that who comes first decides nothing.
    order = np.lexsort((-rates, whole - quotas))
    whole[order[: int(batch_size - whole.sum())]] += 1
    return whole.astype(np.int32)


def columns(shares: np.ndarray) -> int:
    """Examples that the largest of the shares fits in, a power of two: few sizes are compiled."""
    return 1 << (max(int(shares.max(initial=1)), 1) - 1).bit_length()


def cut(batches: np.ndarray, shares: np.ndarray, columns: int) -> np.ndarray:
    """Each device's own examples of every batch, `columns` a device: (n, devices * columns).

    `batches`, (n, B), or (n, B, 2) and so is the result; `shares`, (n, ..., devices) with sum B in
    each batch, of devices that take their examples one after the other. A part is filled up with
    its last example (the one before it, where it is empty). ValueError if a share is larger.
    """
    own = shares.reshape(len(shares), int(np.prod(shares.shape[1:])))
    if own.max(initial=0) > columns:
        raise ValueError(f"a share of {own.max()} examples: there is room for {columns}")
    stops = np.cumsum(own, axis=1)[..., None]
    places = np.minimum(stops - own[..., None] + np.arange(columns), np.maximum(stops - 1, 0))
    rows = np.arange(len(batches))[:, None]
    return batches[rows, places.reshape(len(batches), own.shape[1] * columns)]
