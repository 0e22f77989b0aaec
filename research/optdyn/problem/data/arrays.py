"""What a data set is to a run: two splits of arrays in which the first axis counts examples."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from optdyn.base.errors import InputError, Wrong
from optdyn.base.trees import examples_in
from optdyn.problem.data.order import stratified

SEED = 0  # of held-out and reduced training sets: the same objective whatever the run's seed

Split = dict[str, np.ndarray]


class DataError(InputError):
    """One line: what is wrong with the data, where it was looked for, and the way out."""


class Dataset(NamedTuple):
    """Two splits of N examples each, and how many classes a model chooses from.

    Images: {"image": uint8 (N, H, W, C), "label": int32 (N,)}, labels < classes. Text: {"text":
    (N, T + 1)}, tokens < classes, the vocabulary, in the smallest unsigned integers that hold them.
    Arrays may be mapped from files: they are read when they are used, and cannot be written.
    """

    train: Split
    test: Split
    classes: int


def images(splits: Mapping[str, Split], classes: int, where: str) -> Dataset:
    """Splits "train" and, if there is one, "test", as `both` has them.

    `classes` = 0 counts them from the labels; `where` ends "the data set ...". Raises DataError if
    the splits are not images of one shape with labels of those classes.
    """
    train, test = both(splits)
    labels = np.concatenate([train["label"], test["label"]])
    classes = classes or int(labels.max(initial=-1)) + 1
    DataError.refuse(_wrong(train, test, classes, f"the data set {where}"))
    return Dataset(train, test, classes)


def _wrong(train: Split, test: Split, classes: int, whole: str) -> Iterator[Wrong]:
    """What keeps two splits of images from being a data set."""
    for name, split in (("train", train), ("test", test)):
        yield not len(split["label"]), f"the {name} split of {whole} has no examples"
    least = min(train["label"].min(), test["label"].min())
    most = max(train["label"].max(), test["label"].max())
    said = f"the labels of {whole} run from {least} to {most}, and should from 0 to {classes - 1}"
    yield not 0 <= least <= most < classes, said
    one, other = (split["image"].shape[1:] for split in (train, test))
    said = f"images of {whole} differ in shape: {one} in the train split, {other} in the test "
    yield one != other, f"{said}split; all must have one"


def both(splits: Mapping[str, Split]) -> tuple[Split, Split]:
    """Splits "train" and "test"; where there is none a seeded stratified fifth is held out."""
    train, test = splits["train"], splits.get("test")
    if test is not None:
        return train, test
    order = stratified(train.get("label", np.zeros(examples_in(train))), SEED)
    fifth = len(order) // 5
    return take(train, order[fifth:]), take(train, order[:fifth])


def take(split: Split, chosen: np.ndarray) -> Split:
    """The chosen examples, in that order."""
    return {key: values[chosen] for key, values in split.items()}
