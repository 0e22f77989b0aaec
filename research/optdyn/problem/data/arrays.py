"""What a data set is to a run: two splits of arrays in which the first axis counts examples."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from optdyn.base.errors import InputError
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
    """Splits "train" and, if there is one, "test"; else a seeded stratified fifth is held out.

    `classes` = 0 counts them from the labels; `where` ends "the data set ...". Raises DataError if
    the splits are not images of one shape with labels of those classes.
    """
    for name, split in splits.items():
        if len(split["image"]) != len(split["label"]):
            raise DataError(
                f"the {name} split of the data set {where} has {len(split['image']):,} images and "
                f"{len(split['label']):,} labels"
            )
    train, test = splits["train"], splits.get("test")
    if test is None:
        order = stratified(train["label"], SEED)
        fifth = len(order) // 5
        train, test = take(train, order[fifth:]), take(train, order[:fifth])
    for name, split in (("train", train), ("test", test)):
        if not len(split["label"]):
            raise DataError(f"the {name} split of the data set {where} has no examples")
    labels = np.concatenate([train["label"], test["label"]])
    classes = classes or int(labels.max()) + 1
    if not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(
            f"the labels of the data set {where} run from {labels.min()} to {labels.max()}, "
            f"and should from 0 to {classes - 1}"
        )
    if train["image"].shape[1:] != test["image"].shape[1:]:
        raise DataError(
            f"images of the data set {where} differ in shape: {train['image'].shape[1:]} in the "
            f"train split, {test['image'].shape[1:]} in the test split; all must have one"
        )
    return Dataset(train, test, classes)


def take(split: Split, chosen: np.ndarray) -> Split:
    """The chosen examples, in that order."""
    return {key: values[chosen] for key, values in split.items()}


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
