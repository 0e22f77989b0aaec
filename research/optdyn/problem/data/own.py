"""Examples that the user brings as arrays: from a function of their own, or from npz files.

What an array is follows from its name, and its first axis counts examples:

    image  uint8 (N, H, W, C) or (N, H, W), or floats, which the model then takes as they are
    x      floats of any shape (N, ...)
    text   tokens, integers (N, T) from 0; without a target each is predicted from those before it
    label  targets: classes, integers (N,) from 0
    y      targets: floats (N,) or (N, ..., D)

There is one of the first three; of targets as many as the loss asks for.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from optdyn.base import lookup
from optdyn.base.errors import shown
from optdyn.base.fields import like, plain
from optdyn.base.trees import examples_in
from optdyn.base.type_checks import LARGEST
from optdyn.problem.data.arrays import SEED, DataError, Dataset, Split, first_line, take
from optdyn.problem.data.order import stratified

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
    if not isinstance(made, Mapping) or not isinstance(made.get("train"), Mapping):
        raise DataError(
            f"the data set {where} is a {type(made).__name__}: must be "
            "optdyn.problem.data.Dataset, or a dict with 'train' and 'test', dicts of arrays, "
            "and maybe 'classes'"
        )
    if strange := sorted(set(made) - {"train", "test", "classes"}):
        raise DataError(f"the data set {where} has {strange[0]!r}: only train, test and classes")
    splits = {key: made[key] for key in ("train", "test") if made.get(key) is not None}
    classes = like(made.get("classes"), 0)
    if classes is not None and (type(classes) is not int or classes < 0):
        raise DataError(f"the data set {where} has classes = {shown(classes)}: must count them")
    return checked(splits, classes or 0, where)


def checked(splits: Mapping[str, Mapping[str, ArrayLike]], classes: int, where: str) -> Dataset:
    """Splits "train" and, if there is one, "test", as a run takes them; else a fifth is held out.

    `classes` = 0 counts them: of `label` and of tokens the largest and one, of `y` its last axis.
    `where` ends "the data set ...". Raises `DataError`.
    """
    made = {name: _split(name, arrays, where) for name, arrays in splits.items()}
    train = made["train"]
    if "test" not in made:
        order = stratified(train.get("label", np.zeros(examples_in(train))), SEED)
        fifth = len(order) // 5
        if not fifth:
            raise DataError(f"the data set {where} has no test split, and too few to hold out any")
        made = {"train": take(train, order[fifth:]), "test": take(train, order[:fifth])}
    train, test = made["train"], made["test"]
    if train.keys() != test.keys():
        raise DataError(
            f"the data set {where} has {', '.join(train)} in train and {', '.join(test)} in test: "
            "must be the same"
        )
    for key in train:
        if train[key].shape[1:] != test[key].shape[1:] or train[key].dtype.kind != (
            test[key].dtype.kind
        ):
            raise DataError(
                f"{key!r} of the data set {where} is {_shown(train[key])} in train and "
                f"{_shown(test[key])} in test: must differ in the number of examples only"
            )
    counted = next((key for key in ("label", "y", "text") if key in train), "")
    if counted == "y":
        return Dataset(train, test, train["y"].shape[-1])
    if not counted:
        return Dataset(train, test, classes)
    least = min(int(split[counted].min()) for split in made.values())
    most = max(int(split[counted].max()) for split in made.values())
    classes = classes or most + 1
    if not 0 <= least <= most < classes:
        raise DataError(
            f"{counted!r} of the data set {where} runs from {least} to {most}, and should from 0 "
            f"to {classes - 1}"
        )
    if "text" in train:
        tokens = np.min_scalar_type(max(most, *(int(s["text"].max()) for s in made.values())))
        for split in made.values():
            split["text"] = split["text"].astype(tokens, copy=False)
    return Dataset(train, test, classes)


def _split(name: str, arrays: Mapping[str, ArrayLike], where: str) -> Split:
    """The arrays of a split in the types that runs take. Raises `DataError`."""
    of = f"of the {name} split of the data set {where}"
    if not isinstance(arrays, Mapping):
        raise DataError(f"the {name} split of the data set {where} must be a dict of arrays")
    if strange := [key for key in arrays if key not in (*INPUTS, *TARGETS)]:
        raise DataError(
            f"{strange[0]!r} {of}: must be one of {', '.join(INPUTS)}, with {' or '.join(TARGETS)}"
        )
    inputs = [key for key in INPUTS if key in arrays]
    if len(inputs) != 1:
        raise DataError(
            f"the {name} split of the data set {where} has {' and '.join(arrays) or 'nothing'}: "
            f"must have one of {', '.join(INPUTS)}"
        )
    try:
        made = {key: _array(key, np.asarray(values), of) for key, values in arrays.items()}
    except DataError:
        raise
    except ValueError as error:  # rows of unlike length
        raise DataError(f"an array {of} cannot be read: {first_line(error)}") from error
    counts = {key: len(leaf) for key, leaf in made.items()}
    if len(set(counts.values())) > 1:
        told = " and ".join(f"{count:,} of {key}" for key, count in counts.items())
        raise DataError(f"the {name} split of the data set {where} has {told}: must be as many")
    return made


def _array(key: str, leaf: np.ndarray, of: str) -> np.ndarray:
    floats, integers = leaf.dtype.kind == "f", leaf.dtype.kind in "iu"
    good = {
        "image": leaf.ndim in (3, 4) and (floats or leaf.dtype == np.uint8),
        "x": leaf.ndim >= 1 and floats,
        "text": leaf.ndim == 2 and integers and leaf.shape[1] > 1,
        "label": leaf.ndim == 1 and integers,
        "y": leaf.ndim >= 1 and floats,
    }[key]
    if not good:
        raise DataError(f"{key!r} {of} is {_shown(leaf)}: must be {WANTED[key]}")
    if not leaf.size:
        raise DataError(f"{key!r} {of} is {_shown(leaf)}: must not be empty")
    if floats:
        leaf = leaf.astype(np.float32, copy=False)
        if not (np.isfinite(leaf.min()) and np.isfinite(leaf.max())):
            raise DataError(f"{key!r} {of} has numbers that are not finite in float32")
    if integers and leaf.min() < 0:
        raise DataError(f"{key!r} {of} goes down to {leaf.min()}: must be {WANTED[key]}")
    if integers and leaf.max() > LARGEST:
        raise DataError(f"{key!r} {of} goes up to {leaf.max()}: must be at most {LARGEST:,}")
    if key == "label":
        return leaf.astype(np.int32, copy=False)
    one_short = (key == "image" and leaf.ndim == 3) or (key in ("x", "y") and leaf.ndim == 1)
    return leaf[..., None] if one_short else leaf


def _shown(leaf: np.ndarray) -> str:
    return f"{leaf.dtype} {leaf.shape}"
