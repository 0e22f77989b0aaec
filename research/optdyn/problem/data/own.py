"""Examples that the user brings as arrays: from a function of their own, or from npz files.

What an array is follows from its name, and its first axis counts examples:

    image  uint8 (N, H, W, C) or (N, H, W), or floats, which the model then takes as they are
    x      floats of any shape (N, ...)
    text   tokens, integers (N, T) from 0; without a target each is predicted from those before it
    label  targets: classes, integers (N,) from 0
    y      targets: floats (N,) or (N, ..., D)

There is one of the first three; of targets as many as the loss asks for.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from optdyn.base import lookup
from optdyn.base.errors import Wrong, shown
from optdyn.base.fields import like, plain
from optdyn.base.ranges import LARGEST
from optdyn.problem.data.arrays import DataError, Dataset, Split, dataset, shape_of

KEY = "config.data.name"
INPUTS, TARGETS = ("image", "x", "text"), ("label", "y")
WANTED = {
    "image": "uint8 or floats (examples, height, width) or (examples, height, width, channels)",
    "x": "floats, the first axis examples (images are called image, classes label)",
    "text": "integers (examples, tokens) from 0 up, two tokens or more",
    "label": "one integer an example, from 0 up",
    "y": "floats, the first axis examples",
}


def load(name: str, options: Mapping[str, object]) -> Dataset:
    """What a function of one's own returns: `Dataset`, or a dict of `train`, `test` and `classes`.

    Raises `ConfigError` if it fails, `DataError` if no run can use what it returns.
    """
    function = lookup.find(KEY, name, {})
    made = lookup.call(KEY, name, function, **plain(options))
    if isinstance(made, Dataset):
        made = made._asdict()
    where = f"of {lookup.setting(KEY, name)}"
    DataError.refuse(_wrong_return(made, f"the data set {where}"))
    splits = {key: made[key] for key in ("train", "test") if made.get(key) is not None}
    return checked(splits, like(made.get("classes"), 0) or 0, where)


def _wrong_return(made: Any, whole: str) -> Iterator[Wrong]:
    """What keeps what a function returned from being a data set."""
    said = "must be optdyn.problem.data.Dataset, or a dict with 'train' and 'test', dicts of "
    said = f"{whole} is a {type(made).__name__}: {said}arrays, and maybe 'classes'"
    yield not isinstance(made, Mapping) or not isinstance(made.get("train"), Mapping), said
    for key in sorted(set(made) - {"train", "test", "classes"}):
        yield True, f"{whole} has {key!r}: only train, test and classes"
    is_split = isinstance(made.get("test"), Mapping | None)
    yield not is_split, f"the test split of {whole} must be a dict of arrays"
    classes = like(made.get("classes"), 0)
    count = classes is None or (type(classes) is int and classes >= 0)
    yield not count, f"{whole} has classes = {shown(classes)}: must count them"


def checked(splits: Mapping[str, Mapping[str, ArrayLike]], classes: int, where: str) -> Dataset:
    """Splits as a run takes them, and otherwise as `dataset` has them. Raises `DataError`."""
    split = {name: _split(name, arrays, f"the data set {where}") for name, arrays in splits.items()}
    data = dataset(split, classes, where)
    if "text" in data.train:
        most = max(int(part["text"].max()) for part in data[:2])
        for part in data[:2]:
            part["text"] = part["text"].astype(np.min_scalar_type(most), copy=False)
    return data


def _split(name: str, arrays: Mapping[str, ArrayLike], whole: str) -> Split:
    """The arrays of a split in the types that runs take. Raises `DataError`."""
    of = f"the {name} split of {whole}"
    with DataError.at(f"an array of {of} cannot be read", ValueError):  # rows of unlike length
        made = {key: np.asarray(values) for key, values in arrays.items()}
    DataError.refuse(_wrong_arrays(made, of))
    return {key: _as_taken(key, leaf) for key, leaf in made.items()}


def _wrong_arrays(arrays: Split, of: str) -> Iterator[Wrong]:
    inputs = ", ".join(INPUTS)
    for key in arrays:
        said = f"{key!r} of {of}: must be one of {inputs}, with {' or '.join(TARGETS)}"
        yield key not in WANTED, said
    said = f"{of} has {' and '.join(arrays) or 'nothing'}: must have one of {inputs}"
    yield sum(key in arrays for key in INPUTS) != 1, said
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
        said = f"{which} goes up to {most}: must be at most {LARGEST:,}"
        yield integers and most > LARGEST, said
    counts = {key: len(leaf) for key, leaf in arrays.items()}
    said = " and ".join(f"{count:,} of {key}" for key, count in counts.items())
    yield len({*counts.values()}) > 1, f"{of} has {said}: must be as many"


def _as_taken(key: str, leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype.kind == "f":
        leaf = leaf.astype(np.float32, copy=False)
    if key == "label":
        return leaf.astype(np.int32, copy=False)
    one_short = (key == "image" and leaf.ndim == 3) or (key in ("x", "y") and leaf.ndim == 1)
    return leaf[..., None] if one_short else leaf
