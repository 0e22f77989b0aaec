"""Networks and data of a reader's own, with batch norms and dropout, as names and as modules."""

import flax.linen as nn
import numpy as np

CLASSES, INPUTS = 5, 16


class Layer(nn.Module):
    """A dense layer with a norm over the batch, and dropout."""

    width: int = 8
    rate: float = 0.1
    decay: float = 0.9

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(self.width)(x.reshape(len(x), -1))
        x = nn.BatchNorm(use_running_average=not train, momentum=self.decay)(x)
        return nn.Dropout(self.rate, deterministic=not train)(nn.relu(x))


class Net(nn.Module):
    """Two such layers as one module."""

    classes: int = CLASSES
    rate: float = 0.1
    decay: float = 0.9

    @nn.compact
    def __call__(self, x, train: bool):
        for _ in range(2):
            x = Layer(8, self.rate, self.decay)(x, train)
        return nn.Dense(self.classes)(x)


def make(classes, rate=0.1, decay=0.9):
    """As blocks, which pipelines and local losses need."""
    layer = Layer(8, rate, decay)
    return [("first", layer), ("second", layer), ("out", nn.Dense(classes))]


def net(classes, rate=0.1, decay=0.9):
    return Net(classes, rate, decay)


def data(train=384, test=96):
    """Returns points around the centers of their classes, which overlap a little."""
    rng = np.random.default_rng(0)
    centers, labels = rng.normal(size=(CLASSES, INPUTS)), rng.integers(CLASSES, size=train + test)
    x = (centers[labels] + rng.normal(size=(train + test, INPUTS))).astype(np.float32)
    rows = {"x": x, "label": labels.astype(np.int32)}
    return {
        "train": {name: leaf[:train] for name, leaf in rows.items()},
        "test": {name: leaf[train:] for name, leaf in rows.items()},
    }
