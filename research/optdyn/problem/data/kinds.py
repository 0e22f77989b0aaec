"""The data of an experiment: one of the embedded sets, of those that are prepared, or one's own.

Nothing here goes to the network or imports TensorFlow.
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
from optdyn.base.fields import Constant, Custom, Value, field, normalize, plain
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
    """What is trained on, and how a run draws its batches from it."""

    _: KW_ONLY
    dir: str = field(
        "", "Where prepared data lies; '': OPTDYN_DATA_DIR, or where tensorflow-datasets has it."
    )
    train_examples: int = field(
        0, "Images, or sequences of text, that are trained on; 0: all.", at_least=0
    )
    train_evaluated: int = field(
        5000,
        "Most examples that the log's train_loss is the mean over; 0: all. daso heeds it.",
        at_least=0,
    )
    test_evaluated: int = field(
        0, "Most examples that the log's test figures are the mean over; 0: all.", at_least=0
    )
    replacement: bool = field(False, "Whether batches are drawn independently, as theory assumes.")
    dirichlet: float = field(
        0.0,
        "Concentration of the labels' proportions in the shard of each node, or of each group; 0: "
        "all draw from one set.",
        at_least=0,
    )
    streaming: bool = field(False, "Whether examples are brought to devices as they are needed.")

    def load(self) -> Dataset:
        """The examples, of which at most `train_examples` are trained on.

        Of what has labels those are the first of a seeded stratified order, of the rest the first;
        so smaller training sets lie within larger ones. Raises DataError, and ConfigError where a
        function of the user's own cannot be used.
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
        """All examples. Raises DataError."""
        raise NotImplementedError

    @property
    def data_root(self) -> Path:
        """The folder of prepared data sets."""
        env = os.environ
        usual = env.get("OPTDYN_DATA_DIR") or env.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        return Path(self.dir or usual).expanduser()

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of pixels, a number a channel; () of what has none."""
        return ()

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of pixels; () of what has none."""
        return ()

    @property
    def augment(self) -> str:
        """What is done to training images at random; '' if nothing is."""
        return ""

    @classmethod
    def from_object(cls, thing: Any) -> Any:
        """The data of a dict of arrays, or of a function that returns some.

        Arrays are copied: what is written into them later is other data. The same numbers are the
        same data.
        """
        if isinstance(thing, Mapping):
            copied = _copy_arrays(thing if "train" in thing else {"train": thing})
            numbers = sys.intern(lookup.digest(copied))  # one text of equal numbers, as a key
            return OwnData(name=name_of(Constant(copied), "arrays", numbers))
        return super().from_object(thing)


def _copy_arrays(given: Any) -> Any:
    """Arrays of NumPy of whatever holds numbers, in dicts; what cannot be one stays as it is."""
    if isinstance(given, Mapping):
        return {key: _copy_arrays(value) for key, value in given.items()}
    try:
        return given if given is None else np.array(given)
    except ValueError:  # rows of unlike length, which are refused later
        return copy.deepcopy(given)


@dataclass(frozen=True)
class Images(Data):
    """Data that may be images."""

    _: KW_ONLY
    image_size: int = field(
        0, "Pixels a side that images are cut and scaled to; 0: as they are.",
        at_least=0, at_most=PIXELS,
    )  # fmt: skip
    mean: tuple[float, ...] = field(
        (), "Mean of pixels (0 to 1), a number a channel, which is subtracted.", **A_CHANNEL
    )
    std: tuple[float, ...] = field(
        (),
        "Standard deviation of pixels, a number a channel, by which they are divided.",
        **A_CHANNEL,
    )
    augment: str = field(
        "",
        "What is done to training images at random: 'crop', 'flip', 'crop_flip'.",
        one_of=("", "crop", "flip", "crop_flip"),
    )


@dataclass(frozen=True)
class Sequences(Data):
    """Data that may be text."""

    _: KW_ONLY
    tokenizer: str = field(
        "character",
        "Tokenizer of text.",
        expected=tokenizers.EXPECTED,
        is_valid=tokenizers.is_known,
    )
    sequence_length: int = field(
        128, "Tokens of text that are predicted in an example.", at_least=1
    )

    def windows(self, texts: text.Texts, where: str) -> Dataset:
        """Both texts in windows of the tokens made for the first.

        Byte pairs are kept beside the data. `where` ends "the training text ...". DataError.
        """
        train, test = texts
        made = tokenizers.make(self.tokenizer, train, self.data_root / "tokenizers")

        def split(name: str, text_of: str) -> Split:
            tokens = made.encode(text_of)
            if len(tokens) <= self.sequence_length:
                raise DataError(
                    f"sequence_length={self.sequence_length}: must be less than the "
                    f"{len(tokens):,} tokens of the {name} text {where}"
                )
            return {"text": text.windows(tokens, self.sequence_length)}

        return Dataset(split("training", train), split("held-out", test), made.vocabulary)


@dataclass(frozen=True)
class Records(Images, Sequences):
    """Images or text in records of tensorflow-datasets."""

    def read_records(self, where: Path) -> Dataset:
        """The images in a folder, or as much of a text as is asked for. Raises DataError."""
        if feature := text.text_feature(where):
            asked = self.tokenizer, self.sequence_length, self.train_examples
            return self.windows(text.records(where, feature, *asked), f"in {where}")
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
    """The sources of the installed packages, 100 MB and more, once `prepare packages` was run."""

    def read(self) -> Dataset:
        return self.windows(text.packages(self.data_root), "of 'packages'")


@dataclass(frozen=True)
class TFDS(Records, name="tfds"):
    """Images or text that TFDS has prepared on this disk (`optdyn prepare`)."""

    dataset: str = field("", "NAME, NAME/CONFIG or NAME:VERSION of tensorflow-datasets.")

    def read(self) -> Dataset:
        return self.read_records(records.find(self.dataset, self.data_root))


@dataclass(frozen=True)
class Folder(Records, name="folder"):
    """A folder of one's own: TFDS's records, images as idx files, or arrays as npz files."""

    path: str = field("", "The folder, or the text file.")

    def read(self) -> Dataset:
        self.require("path", bool(self.path), "a folder")
        where = Path(self.path).expanduser()
        if records.is_prepared(where):
            return self.read_records(where)
        return folder.load(where, self.image_size)


@dataclass(frozen=True)
class TextFiles(Sequences, name="text"):
    """A text file of one's own, or all *.txt of a folder, the last twentieth of lines held out."""

    path: str = field("", "The folder, or the text file.")

    def read(self) -> Dataset:
        self.require("path", bool(self.path), "a folder or a text file")
        where = Path(self.path).expanduser()
        return self.windows(text.text_files(where), f"of {where}")


@dataclass(frozen=True)
class OwnData(Images, Sequences, Custom, custom=True):
    """Data that a function of one's own returns, `function(**options)` (`data/arrays.py`).

    It returns a `Dataset`, or a dict of `train`, and maybe `test` and `classes`.
    """

    def read(self) -> Dataset:
        key = "config.data.name"
        function = lookup.find(key, self.name, {})
        made = lookup.call_user_code(key, self.name, function, **plain(self.options))
        if isinstance(made, Dataset):
            made = made._asdict()
        where = f"of {lookup.key_value(key, self.name)}"
        DataError.refuse(_return_checks(made, f"the data set {where}"))
        splits = {key: made[key] for key in ("train", "test") if made.get(key) is not None}
        return make_dataset(splits, normalize(made.get("classes"), 0) or 0, where)


def _return_checks(made: Any, whole: str) -> Iterator[Check]:
    """What keeps what a function returned from being a data set."""
    expected = "must be optdyn.problem.data.Dataset, or a dict with 'train' and 'test', dicts of "
    line = f"{whole} is a {type(made).__name__}: {expected}arrays, and maybe 'classes'"
    yield not isinstance(made, Mapping) or not isinstance(made.get("train"), Mapping), line
    for key in sorted(set(made) - {"train", "test", "classes"}):
        yield True, f"{whole} has {key!r}: only train, test and classes"
    is_split = isinstance(made.get("test"), Mapping | None)
    yield not is_split, f"the test split of {whole} must be a dict of arrays"
    classes = normalize(made.get("classes"), 0)
    count = classes is None or (type(classes) is int and classes >= 0)
    yield not count, f"{whole} has classes = {short_repr(classes)}: must count them"
