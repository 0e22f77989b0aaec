"""One seed, many streams: repeatable, and different for every name and every seed."""

import jax
import numpy as np

from optdyn.base import seeds

NAMES = ("init", "order", "arrivals", "subspace")
SEEDS = (0, 1, 2**32 - 1)


def test_streams_repeat_and_differ_by_name_and_seed():
    for stream in (
        lambda seed, name: seeds.generator(seed, name).integers(2**62),
        lambda seed, name: tuple(np.asarray(jax.random.key_data(seeds.key(seed, name)))),
    ):
        first = {(seed, name): stream(seed, name) for seed in SEEDS for name in NAMES}
        assert len(set(first.values())) == len(first)
        assert first == {(seed, name): stream(seed, name) for seed, name in first}
