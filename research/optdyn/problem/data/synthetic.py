"""Synthetic images and tokens of any shape, to measure models and pipelines of real size.

    --config.data.name=optdyn.problem.data.synthetic:images --config.data.options.side=224
    --config.data.name=optdyn.problem.data.synthetic:tokens --config.data.options.vocabulary=50257

The same arguments give the same examples. A model can learn them, but they mean nothing.
"""

import numpy as np

from optdyn.base.trees import examples_in
from optdyn.problem.data.arrays import Dataset, Split

PATCHES = 4  # a side, of the picture of a class
TESTED = 5  # of so many examples one is held out


def images(side: int = 32, classes: int = 10, examples: int = 1000, channels: int = 3) -> Dataset:
    """Returns uint8 images (side, side, channels): the coarse patches of their class, and noise.

    `side` is a multiple of 4; a fifth of `examples` is held out. Raises `ValueError`.
    """
    if side < PATCHES or side % PATCHES or min(classes, channels) < 1 or examples < TESTED:
        raise ValueError(
            f"images of side {side} (a multiple of {PATCHES}), {channels} channels and {classes} "
            f"classes (at least 1), {examples} of them (at least {TESTED})"
        )
    rng = np.random.default_rng(0)
    patches = rng.integers(0, 128, (classes, PATCHES, PATCHES, channels), np.uint8)
    label = rng.integers(0, classes, examples).astype(np.int32)
    noise = rng.integers(0, 128, (examples, side, side, channels), np.uint8)
    size = side // PATCHES
    for start, picture in zip(noise, label, strict=True):
        start += patches[picture].repeat(size, 0).repeat(size, 1)
    return _split({"image": noise, "label": label}, classes)


def tokens(vocabulary: int = 256, length: int = 128, examples: int = 1000) -> Dataset:
    """Returns sequences (length + 1,), random walks of least loss ln 4. Raises `ValueError`."""
    if vocabulary < 2 or length < 1 or examples < TESTED:
        raise ValueError(
            f"{examples} sequences (at least {TESTED}) of {length} tokens (at least 1) of "
            f"{vocabulary} (at least 2)"
        )
    rng = np.random.default_rng(0)
    steps = rng.choice(rng.integers(1, vocabulary, 4), (examples, length + 1)).cumsum(1)
    return _split({"text": (steps % vocabulary).astype(np.min_scalar_type(vocabulary))}, vocabulary)


def _split(examples: Split, classes: int) -> Dataset:
    test = examples_in(examples) // TESTED
    train = {key: leaf[test:] for key, leaf in examples.items()}
    return Dataset(train, {key: leaf[:test] for key, leaf in examples.items()}, classes)
