"""Update rules, one a file.

`make` knows by name those that need but a loss; those that know of devices or blocks are put
together in `research.parallel`.
"""

import optax

from research.strategies.asynchronous import asynchronous
from research.strategies.base import Event, Loss, Strategy
from research.strategies.daso import daso
from research.strategies.dynamic_batch import dynamic_batch
from research.strategies.local import local
from research.strategies.sync import sync

__all__ = [
    "NAMES",
    "PARALLEL",
    "Event",
    "Strategy",
    "asynchronous",
    "daso",
    "dynamic_batch",
    "local",
    "make",
    "sync",
]

NAMES = ("sync", "asynchronous")
PARALLEL = ("daso", "dynamic_batch", "local")


def make(
    name: str,
    loss: Loss,
    optimizer: optax.GradientTransformationExtraArgs,
    slots: int,
    fresh: tuple[str, ...] = (),
) -> Strategy:
    """The strategy called `name`; `slots` is the number of snapshots its timeline addresses.

    `fresh`: the blocks of `asynchronous` that are never read from a snapshot.
    """
    if name == "sync":
        return sync(loss, optimizer)
    if name == "asynchronous":
        return asynchronous(loss, optimizer, slots, fresh)
    raise ValueError(f"strategy {name!r}: one of {', '.join(NAMES)}")
