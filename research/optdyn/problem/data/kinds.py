"""The data sets of an experiment: embedded ones, prepared ones, and the user's.

Nothing here uses the network or imports TensorFlow.
"""

import copy
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optdyn.base import lookup
from optdyn.base.errors import Check, short_repr
from optdyn.base.fields import ConstantFunction, Custom, Value, field, normalize, plain
from optdyn.base.in_memory import name_of
from optdyn.base.ranges import A_CHANNEL, PIXELS
from optdyn.base.trees import examples_in
from optdyn.problem.data import folder, records, text, tokenizers
from optdyn.problem.data.arrays import (
    SEED,
    DataError,
    Dataset,
    Split,
    make_dataset,
    stratified,
    take,
)


@dataclass(frozen=True)
class Data(Value, section="data", union=True):
    """The data set, and how batches are drawn from it."""

    _: KW_ONLY
    dir: str = field(
        "", "Folder of prepared data; '': OPTDYN_DATA_DIR, or that of tensorflow-datasets."
    )
    train_examples: int = field(
        0, "Training examples: images, or sequences of text; 0: all.", at_least=0
    )
    train_evaluated: int = field(
        5000,
        "Most training examples that train_loss in the log is the mean over; 0: all. daso uses it.",
        at_least=0,
    )
    test_evaluated: int = field(
        0, "Most test examples that test figures in the log are means over; 0: all.", at_least=0
    )
    replacement: bool = field(False, "Draw examples independently, with replacement, as in theory.")
    dirichlet: float = field(
        0.0,
        "Dirichlet concentration of label proportions in the shards of nodes, or of groups; 0: no "
        "shards, all draw from one set.",
        at_least=0,
    )
    streaming: bool = field(False, "Bring examples to the devices block by block, when needed.")

    def load(self) -> Dataset:
        """Returns the data set with the first `train_examples` of a seeded, stratified order.

        Without labels the order is the data's. Raises `DataError`, and `ConfigError` if a function
        of the user's cannot be used.
        """
        data, count = self.read(), self.train_examples
        available = examples_in(data.train)
        if count > available:
            raise DataError(
                f"train_examples={count}: the training split has {available:,} examples; 0 takes "
                "them all"
            )
        labels = data.train.get("label")
        order = np.arange(available) if labels is None else stratified(labels, SEED)
        return data._replace(train=take(data.train, order[:count])) if count else data

    def read(self) -> Dataset:
        """Returns all examples. Raises `DataError`."""
        raise NotImplementedError

    @property
    def data_root(self) -> Path:
        env = os.environ
        default = env.get("OPTDYN_DATA_DIR") or env.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        return Path(self.dir or default).expanduser()

    @property
    def mean(self) -> tuple[float, ...]:
        return ()

    @property
    def std(self) -> tuple[float, ...]:
        return ()

    @property
    def augment(self) -> str:
        return ""

    def changed(self, changes: Mapping[str, Any]) -> Value:
        """Returns a copy with other values of some keys, or the data set of a dict of arrays."""
        first = changes.get("train", changes)
        if isinstance(first, Mapping) and any(hasattr(leaf, "shape") for leaf in first.values()):
            found: Value = self.from_object(changes)
            return found
        return super().changed(changes)

    @classmethod
    def from_object(cls, thing: Any) -> Any:
        """Returns the data set of a dict of arrays, which are copied, or of a function."""
        if isinstance(thing, Mapping):
            arrays = _copy_arrays(thing if "train" in thing else {"train": thing})
            digest = sys.intern(lookup.digest(arrays))  # interned, for it is compared by identity
            return OwnData(name=name_of(ConstantFunction(arrays), "arrays", digest))
        return super().from_object(thing)


def _copy_arrays(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _copy_arrays(value) for key, value in tree.items()}
    try:
        return tree if tree is None else np.array(tree)
    except ValueError:  # rows of unlike length, which are refused later
        return copy.deepcopy(tree)


@dataclass(frozen=True)
class Images(Data):
    _: KW_ONLY
    image_size: int = field(
        0, "Pixels a side that images are cropped and scaled to; 0: unchanged.",
        at_least=0, at_most=PIXELS,
    )  # fmt: skip
    mean: tuple[float, ...] = field(
        (), "Mean of pixels (0 to 1), a number a channel, that is subtracted.", **A_CHANNEL
    )
    std: tuple[float, ...] = field(
        (),
        "Standard deviation of pixels, a number a channel, that they are divided by.",
        **A_CHANNEL,
    )
    augment: str = field(
        "",
        "Random augmentation of training images: 'crop', 'flip' or 'crop_flip'.",
        one_of=("", "crop", "flip", "crop_flip"),
    )


@dataclass(frozen=True)
class Sequences(Data):
    _: KW_ONLY
    tokenizer: str = field(
        "character",
        "Tokenizer of text.",
        expected=tokenizers.EXPECTED,
        is_valid=tokenizers.is_known,
    )
    sequence_length: int = field(
        128, "Tokens that are predicted in an example of text.", at_least=1
    )

    def windows(self, texts: text.Texts, where: str) -> Dataset:
        """Returns both texts as windows of tokens. Raises `DataError`, which ends in `where`."""
        train, test = texts
        tokenizer = tokenizers.make(self.tokenizer, train, self.data_root / "tokenizers")

        def split(name: str, content: str) -> Split:
            tokens = tokenizer.encode(content)
            if len(tokens) <= self.sequence_length:
                raise DataError(
                    f"sequence_length={self.sequence_length}: must be less than the "
                    f"{len(tokens):,} tokens of the {name} text {where}"
                )
            return {"text": text.windows(tokens, self.sequence_length)}

        return Dataset(split("training", train), split("held-out", test), tokenizer.vocabulary)


@dataclass(frozen=True)
class Records(Images, Sequences):
    def read_records(self, where: Path) -> Dataset:
        """Returns the images in a folder, or as much text as is needed. Raises `DataError`."""
        if feature := text.text_feature(where):
            size = self.tokenizer, self.sequence_length, self.train_examples
            return self.windows(text.records(where, feature, *size), f"in {where}")
        return records.load(where, self.image_size)


@dataclass(frozen=True)
class MNIST5k(Images, name="mnist5k"):
    """5,000 images of MNIST, 28 x 28 x 1, 4,000 of them to train on; prepared at first use."""

    def read(self) -> Dataset:
        where = self.data_root / "mnist5k" / records.VERSION
        if not records.is_prepared(where):
            from optdyn.problem.data import prepare  # which needs this module

            prepare.mnist5k(self.data_root)
        return records.load(where, self.image_size)


@dataclass(frozen=True)
class KJV(Sequences, name="kjv"):
    """The King James Bible, 4 million characters, the last twentieth held out."""

    def read(self) -> Dataset:
        return self.windows(text.hold_lines_out(text.verses()), "of 'kjv'")


@dataclass(frozen=True)
class StandardLibrary(Sequences, name="stdlib"):
    """The sources of Python's standard library, 10 million characters, as this Python has them."""

    def read(self) -> Dataset:
        return self.windows(text.standard_library(), "of 'stdlib'")


@dataclass(frozen=True)
class Packages(Sequences, name="packages"):
    """The sources of installed packages, 100 MB and more; needs `optdyn prepare packages`."""

    def read(self) -> Dataset:
        return self.windows(text.packages(self.data_root), "of 'packages'")


@dataclass(frozen=True)
class TFDS(Records, name="tfds"):
    """Images or text that tensorflow-datasets has prepared on this disk (`optdyn prepare`)."""

    dataset: str = field("", "NAME, NAME/CONFIG or NAME:VERSION of tensorflow-datasets.")

    def read(self) -> Dataset:
        return self.read_records(records.find(self.dataset, self.data_root))


@dataclass(frozen=True)
class Folder(Records, name="folder"):
    """A folder of yours: TFDS's records, images as idx files, or arrays as npz files."""

    path: str = field("", "The folder, or the text file.")

    def read(self) -> Dataset:
        self.require("path", bool(self.path), "a folder")
        where = Path(self.path).expanduser()
        if records.is_prepared(where):
            return self.read_records(where)
        return folder.load(where, self.image_size)


@dataclass(frozen=True)
class TextFiles(Sequences, name="text"):
    """A text file of yours, or all *.txt of a folder, the last twentieth of lines held out."""

    path: str = field("", "The folder, or the text file.")

    def read(self) -> Dataset:
        self.require("path", bool(self.path), "a folder or a text file")
        where = Path(self.path).expanduser()
        return self.windows(text.text_files(where), f"of {where}")


@dataclass(frozen=True)
class OwnData(Images, Sequences, Custom, custom=True):
    """Data that your `function(**options)` returns (`data/arrays.py`).

    It returns a `Dataset`, or a dict of `train` and optionally `test` and `classes`.
    """

    def read(self) -> Dataset:
        key = "config.data.name"
        function = lookup.find(key, self.name, {})
        result = lookup.call_user_code(key, self.name, function, **plain(self.options))
        if isinstance(result, Dataset):
            result = result._asdict()
        where = f"of {lookup.key_value(key, self.name)}"
        DataError.refuse(_return_checks(result, f"the data set {where}"))
        splits = {key: result[key] for key in ("train", "test") if result.get(key) is not None}
        return make_dataset(splits, normalize(result.get("classes"), 0) or 0, where)


def _return_checks(result: Any, whole: str) -> Iterator[Check]:
    expected = "must be optdyn.problem.data.Dataset, or a dict with 'train' and 'test', dicts of "
    line = f"{whole} is a {type(result).__name__}: {expected}arrays, and maybe 'classes'"
    yield not isinstance(result, Mapping) or not isinstance(result.get("train"), Mapping), line
    for key in sorted(set(result) - {"train", "test", "classes"}):
        yield True, f"{whole} has {key!r}: only train, test and classes"
    is_split = isinstance(result.get("test"), Mapping | None)
    yield not is_split, f"the test split of {whole} must be a dict of arrays"
    classes = normalize(result.get("classes"), 0)
    count = classes is None or (type(classes) is int and classes >= 0)
    yield not count, f"{whole} has classes = {short_repr(classes)}: must count them"
