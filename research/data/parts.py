"""Whose examples are whose: the part of every batch that each device is given."""

import numpy as np


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
