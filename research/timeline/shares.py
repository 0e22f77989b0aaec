"""A batch in whole examples, divided in proportion to rates."""

import numpy as np

from optdyn.timeline.base import TimelineError


def shares(rates: np.ndarray, batch_size: int, minimum: int = 1) -> np.ndarray:
    """Examples of each worker, (workers,) int32 with sum `batch_size`, none below `minimum`.

    Proportional to `rates`, (workers,) and positive, among those above the minimum; whole by the
    largest remainder. `TimelineError` if the batch is too small or a rate is not positive.
    """
    rates = np.asarray(rates, np.float64)
    if batch_size < minimum * len(rates):
        raise TimelineError(
            f"shares: {batch_size} examples for {len(rates)} workers, each needs {minimum} or more"
        )
    if not np.all((rates > 0) & np.isfinite(rates)):
        raise TimelineError(f"shares: rates {rates.tolist()}, all must be positive and finite")
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
