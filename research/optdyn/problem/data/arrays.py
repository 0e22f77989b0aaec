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


def dataset(splits: Mapping[str, Split], classes: int, where: str) -> Dataset:
    """Splits "train" and, if there is one, "test"; else a seeded stratified fifth is held out.

    `classes` = 0 counts them: of `label` and of tokens the largest and one, of `y` its last axis.
    `where` ends "the data set ...". Raises DataError.
    """
    train, test = splits["train"], splits.get("test")
    if test is None:
        order = stratified(train.get("label", np.zeros(examples_in(train))), SEED)
        fifth = len(order) // 5
        train, test = take(train, order[fifth:]), take(train, order[:fifth])
    counted = next((key for key in ("label", "y", "text") if key in train), "")
    held_out = "test" not in splits
    DataError.refuse(_wrong(train, test, held_out, counted, classes, f"the data set {where}"))
    if counted == "y":
        classes = train["y"].shape[-1]
    elif counted:
        classes = classes or _ends(train, test, counted)[1] + 1
    return Dataset(train, test, classes)


def _wrong(
    train: Split, test: Split, held_out: bool, counted: str, classes: int, whole: str
) -> Iterator[Wrong]:
    """What keeps two splits, each good by itself, from being a data set."""
    few = f"{whole} has no test split, and too few to hold out any"
    yield held_out and not examples_in(test), few
    for name, split in (("train", train), ("test", test)):
        yield not examples_in(split), f"the {name} split of {whole} has no examples"
    said = f"{whole} has {', '.join(train)} in train and {', '.join(test)} in test: "
    yield train.keys() != test.keys(), f"{said}must be the same"
    for key, one in train.items():
        other = test[key]
        wrong = (one.shape[1:], one.dtype.kind) != (other.shape[1:], other.dtype.kind)
        said = f"{key!r} of {whole} is {shape_of(one)} in train and {shape_of(other)} in test: "
        yield wrong, f"{said}must differ in the number of examples only"
    if counted in ("label", "text"):
        least, most = _ends(train, test, counted)
        last = (classes or most + 1) - 1
        said = f"{counted!r} of {whole} runs from {least} to {most}, and should from 0 to {last}"
        yield not 0 <= least <= most <= last, said


def _ends(train: Split, test: Split, key: str) -> tuple[int, int]:
    """The least and the largest."""
    both = train[key], test[key]
    return min(int(leaf.min()) for leaf in both), max(int(leaf.max()) for leaf in both)


def shape_of(leaf: np.ndarray) -> str:
    """Its type and shape, in words."""
    return f"{leaf.dtype} {leaf.shape}"


def take(split: Split, chosen: np.ndarray) -> Split:
    """The chosen examples, in that order."""
    return {key: values[chosen] for key, values in split.items()}
