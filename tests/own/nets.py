"""A network and data of a reader's own, with batch norms and dropout."""

import flax.linen as nn
import jax
import numpy as np

CLASSES, INPUTS = 5, 16


class Layer(nn.Module):
    rate: float = 0.1
    decay: float = 0.9

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(8)(x.reshape(len(x), -1))
        x = nn.BatchNorm(use_running_average=not train, momentum=self.decay)(x)
        return nn.Dropout(self.rate, deterministic=not train)(nn.relu(x))


def make(classes, rate=0.1, decay=0.9):
    """As blocks, which pipelines and local losses need."""
    layer = Layer(rate, decay)
    return [("first", layer), ("second", layer), ("out", nn.Dense(classes))]


class Net(nn.Module):
    """As one module."""

    classes: int

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(self.classes)(Layer()(Layer()(x, train), train))


def start(key, x):
    return 0.1 * jax.random.normal(key, (x.shape[-1], 2))


def outputs(params, x):
    return x @ params


def data(train=384, test=96, images=False):
    """Returns points around the centers of their classes, which overlap a little."""
    rng, count = np.random.default_rng(0), train + test
    centers, labels = rng.normal(size=(CLASSES, INPUTS)), rng.integers(CLASSES, size=count)
    x = (centers[labels] + rng.normal(size=(count, INPUTS))).astype(np.float32)
    inputs = {"image": x.reshape(count, 4, 4, 1)} if images else {"x": x}
    rows = inputs | {"label": labels.astype(np.int32)}
    splits = {"train": slice(train), "test": slice(train, None)}
    return {split: {k: leaf[part] for k, leaf in rows.items()} for split, part in splits.items()}
