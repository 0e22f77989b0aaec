"""What a data set is to a run: two splits of arrays in which the first axis counts examples.

What an array is follows from its name:

    image  uint8 (N, H, W, C) or (N, H, W), or floats, which the model then takes as they are
    x      floats of any shape (N, ...)
    text   tokens, integers (N, T) from 0; without a target each is predicted from those before it
    label  targets: classes, integers (N,) from 0
    y      targets: floats (N,) or (N, ..., D)

There is one of the first three; of targets as many as the loss asks for.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optdyn.base.errors import Check, InputError
from optdyn.base.ranges import LARGEST
from optdyn.base.trees import examples_in

SEED = 0  # of held-out and reduced training sets: the same objective whatever the run's seed
INPUTS, TARGETS = ("image", "x", "text"), ("label", "y")
WANTED = {
    "image": "uint8 or floats (examples, height, width) or (examples, height, width, channels)",
    "x": "floats, the first axis examples (images are called image, classes label)",
    "text": "integers (examples, tokens) from 0 up, two tokens or more",
    "label": "one integer an example, from 0 up",
    "y": "floats, the first axis examples",
}

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


def checked(splits: Mapping[str, Mapping[str, ArrayLike]], classes: int, where: str) -> Dataset:
    """Arrays in the types that runs take, and otherwise as `dataset` has them. DataError."""
    split = {name: _split(name, arrays, f"the data set {where}") for name, arrays in splits.items()}
    data = dataset(split, classes, where)
    if "text" in data.train:
        most = max(int(part["text"].max()) for part in data[:2])
        for part in data[:2]:
            part["text"] = part["text"].astype(np.min_scalar_type(most), copy=False)
    return data


def _split(name: str, arrays: Mapping[str, ArrayLike], whole: str) -> Split:
    of = f"the {name} split of {whole}"
    with DataError.at(f"an array of {of} cannot be read", ValueError):  # rows of unlike length
        made = {key: np.asarray(values) for key, values in arrays.items()}
    DataError.refuse(_wrong_split(made, of))
    return {key: _as_taken(key, leaf) for key, leaf in made.items()}


def _wrong_split(arrays: Split, of: str) -> Iterator[Check]:
    inputs = ", ".join(INPUTS)
    for key in arrays:
        line = f"{key!r} of {of}: must be one of {inputs}, with {' or '.join(TARGETS)}"
        yield key not in WANTED, line
    line = f"{of} has {' and '.join(arrays) or 'nothing'}: must have one of {inputs}"
    yield sum(key in arrays for key in INPUTS) != 1, line
    for key, leaf in arrays.items():
        floats, integers = leaf.dtype.kind == "f", leaf.dtype.kind in "iu"
        which = f"{key!r} of {of}"
        good = {
            "image": leaf.ndim in (3, 4) and (floats or leaf.dtype == np.uint8),
            "x": leaf.ndim >= 1 and floats,
            "text": leaf.ndim == 2 and integers and leaf.shape[1] > 1,
            "label": leaf.ndim == 1 and integers,
            "y": leaf.ndim >= 1 and floats,
        }[key]
        yield not good, f"{which} is {shape_of(leaf)}: must be {WANTED[key]}"
        yield not leaf.size, f"{which} is {shape_of(leaf)}: must not be empty"
        least, most = leaf.min(), leaf.max()
        finite = np.isfinite(np.float32(least)) and np.isfinite(np.float32(most))
        yield not finite, f"{which} has numbers that are not finite in float32"
        yield integers and least < 0, f"{which} goes down to {least}: must be {WANTED[key]}"
        line = f"{which} goes up to {most}: must be at most {LARGEST:,}"
        yield integers and most > LARGEST, line
    counts = {key: len(leaf) for key, leaf in arrays.items()}
    line = " and ".join(f"{count:,} of {key}" for key, count in counts.items())
    yield len({*counts.values()}) > 1, f"{of} has {line}: must be as many"


def _as_taken(key: str, leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype.kind == "f":
        leaf = leaf.astype(np.float32, copy=False)
    if key == "label":
        return leaf.astype(np.int32, copy=False)
    one_short = (key == "image" and leaf.ndim == 3) or (key in ("x", "y") and leaf.ndim == 1)
    return leaf[..., None] if one_short else leaf


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
) -> Iterator[Check]:
    """What keeps two splits, each good by itself, from being a data set."""
    few = f"{whole} has no test split, and too few to hold out any"
    yield held_out and not examples_in(test), few
    for name, split in (("train", train), ("test", test)):
        yield not examples_in(split), f"the {name} split of {whole} has no examples"
    line = f"{whole} has {', '.join(train)} in train and {', '.join(test)} in test: "
    yield train.keys() != test.keys(), f"{line}must be the same"
    for key, one in train.items():
        other = test[key]
        wrong = (one.shape[1:], one.dtype.kind) != (other.shape[1:], other.dtype.kind)
        line = f"{key!r} of {whole} is {shape_of(one)} in train and {shape_of(other)} in test: "
        yield wrong, f"{line}must differ in the number of examples only"
    if counted in ("label", "text"):
        least, most = _ends(train, test, counted)
        last = (classes or most + 1) - 1
        line = f"{counted!r} of {whole} runs from {least} to {most}, and should from 0 to {last}"
        yield not 0 <= least <= most <= last, line


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


def stratified(labels: np.ndarray, seed: int) -> np.ndarray:
    """A seeded order of the examples, int64 (N,), each prefix of which is stratified by class.

    Each class is shuffled and spread evenly over the order, so that a prefix of n holds n/N of
    every class: less than one example off where the classes are of equal size.
    """
    rng = np.random.default_rng(seed)
    when = np.empty(len(labels))  # where in the order each example comes, as a fraction
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        when[members] = (np.arange(len(members)) + 0.5) / len(members)
    return np.lexsort((rng.random(len(labels)), when))
