"""Data sets: two splits, dicts of arrays whose first axis counts examples. Names give meanings:

    image  uint8 (N, H, W, C) or (N, H, W), or floats, which the model takes as they are
    x      floats of any shape (N, ...)
    text   tokens, integers (N, T) from 0; without a target, each is predicted from those before it
    label  targets: classes, integers (N,) from 0
    y      targets: floats (N,) or (N, ..., D)

There is one of the first three, and the targets that the loss needs.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optdyn.base.errors import Check, InputError
from optdyn.base.ranges import LARGEST
from optdyn.base.trees import examples_in

SEED = 0  # of held-out and reduced training sets, so that all seeds of runs have one objective
INPUTS, TARGETS = ("image", "x", "text"), ("label", "y")
EXPECTED = {
    "image": "uint8 or floats (examples, height, width) or (examples, height, width, channels)",
    "x": "floats, the first axis examples (images are called image, classes label)",
    "text": "integers (examples, tokens) from 0 up, two tokens or more",
    "label": "one integer an example, from 0 up",
    "y": "floats, the first axis examples",
}

Split = dict[str, np.ndarray]


class DataError(InputError):
    """Data cannot be had or used."""


class Dataset(NamedTuple):
    """Two splits, and the number of classes or tokens; arrays may be read-only maps of files."""

    train: Split
    test: Split
    classes: int


def make_dataset(
    splits: Mapping[str, Mapping[str, ArrayLike]], classes: int, where: str
) -> Dataset:
    """Returns the `dataset` of arrays, checked and converted. Raises `DataError`."""
    split = {
        name: _read_split(name, arrays, f"the data set {where}") for name, arrays in splits.items()
    }
    data = dataset(split, classes, where)
    if "text" in data.train:
        most = max(int(part["text"].max()) for part in data[:2])
        for part in data[:2]:
            part["text"] = part["text"].astype(np.min_scalar_type(most), copy=False)
    return data


def _read_split(name: str, arrays: Mapping[str, ArrayLike], whole: str) -> Split:
    where = f"the {name} split of {whole}"
    with DataError.at(f"an array of {where} cannot be read", ValueError):  # rows of unlike length
        split = {key: np.asarray(values) for key, values in arrays.items()}
    DataError.refuse(_split_checks(split, where))
    return {key: _converted(key, leaf) for key, leaf in split.items()}


def _split_checks(arrays: Split, where: str) -> Iterator[Check]:
    inputs = ", ".join(INPUTS)
    for key in arrays:
        line = f"{key!r} of {where}: must be one of {inputs}, with {' or '.join(TARGETS)}"
        yield key not in EXPECTED, line
    line = f"{where} has {' and '.join(arrays) or 'nothing'}: must have one of {inputs}"
    yield sum(key in arrays for key in INPUTS) != 1, line
    for key, leaf in arrays.items():
        floats, integers = leaf.dtype.kind == "f", leaf.dtype.kind in "iu"
        which = f"{key!r} of {where}"
        good = {
            "image": leaf.ndim in (3, 4) and (floats or leaf.dtype == np.uint8),
            "x": leaf.ndim >= 1 and floats,
            "text": leaf.ndim == 2 and integers and leaf.shape[1] > 1,
            "label": leaf.ndim == 1 and integers,
            "y": leaf.ndim >= 1 and floats,
        }[key]
        yield not good, f"{which} is {shape_of(leaf)}: must be {EXPECTED[key]}"
        yield not leaf.size, f"{which} is {shape_of(leaf)}: must not be empty"
        least, most = leaf.min(), leaf.max()
        finite = np.isfinite(np.float32(least)) and np.isfinite(np.float32(most))
        yield not finite, f"{which} has numbers that are not finite in float32"
        yield integers and least < 0, f"{which} goes down to {least}: must be {EXPECTED[key]}"
        line = f"{which} goes up to {most}: must be at most {LARGEST:,}"
        yield integers and most > LARGEST, line
    counts = {key: len(leaf) for key, leaf in arrays.items()}
    line = " and ".join(f"{count:,} of {key}" for key, count in counts.items())
    yield len({*counts.values()}) > 1, f"{where} has {line}: must be as many"


def _converted(key: str, leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype.kind == "f":
        leaf = leaf.astype(np.float32, copy=False)
    if key == "label":
        return leaf.astype(np.int32, copy=False)
    one_short = (key == "image" and leaf.ndim == 3) or (key in ("x", "y") and leaf.ndim == 1)
    return leaf[..., None] if one_short else leaf


def dataset(splits: Mapping[str, Split], classes: int, where: str) -> Dataset:
    """Returns the data set of "train" and "test", or with a seeded, stratified fifth held out.

    `classes` = 0 counts them: one more than the largest label or token, or the last axis of `y`.
    `where` ends "the data set ...". Raises `DataError`.
    """
    train, test = splits["train"], splits.get("test")
    if test is None:
        order = stratified(train.get("label", np.zeros(examples_in(train))), SEED)
        fifth = len(order) // 5
        train, test = take(train, order[fifth:]), take(train, order[:fifth])
    counted = next((key for key in ("label", "y", "text") if key in train), "")
    held_out = "test" not in splits
    DataError.refuse(
        _dataset_checks(train, test, held_out, counted, classes, f"the data set {where}")
    )
    if counted == "y":
        classes = train["y"].shape[-1]
    elif counted:
        classes = classes or _range(train, test, counted)[1] + 1
    return Dataset(train, test, classes)


def _dataset_checks(
    train: Split, test: Split, held_out: bool, counted: str, classes: int, whole: str
) -> Iterator[Check]:
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
        least, most = _range(train, test, counted)
        last = (classes or most + 1) - 1
        line = f"{counted!r} of {whole} runs from {least} to {most}, and should from 0 to {last}"
        yield not 0 <= least <= most <= last, line


def _range(train: Split, test: Split, key: str) -> tuple[int, int]:
    both = train[key], test[key]
    return min(int(leaf.min()) for leaf in both), max(int(leaf.max()) for leaf in both)


def shape_of(leaf: np.ndarray) -> str:
    return f"{leaf.dtype} {leaf.shape}"


def take(split: Split, chosen: np.ndarray) -> Split:
    return {key: values[chosen] for key, values in split.items()}


def stratified(labels: np.ndarray, seed: int) -> np.ndarray:
    """Returns a seeded order, int64 (N,), of the examples: a prefix has classes in proportion."""
    rng = np.random.default_rng(seed)
    place = np.empty(len(labels))  # in the order, from 0 to 1
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    return np.lexsort((rng.random(len(labels)), place))
