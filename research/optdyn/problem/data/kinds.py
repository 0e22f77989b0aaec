"""The data of an experiment: one of the embedded sets, of those that are prepared, or one's own."""

import copy
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from optdyn.base.fields import Custom, Returns, Value, field
from optdyn.base.in_memory import name_of
from optdyn.base.lookup import digest
from optdyn.base.ranges import A_CHANNEL, PIXELS

_arrays = dict[str, Any]()  # that were given, by their digest


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

    @property
    def source(self) -> str:
        """The name by which `data.load` finds the examples."""
        return str(self.name)

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
    def of(cls, given: Any) -> Any:
        """The data of a dict of arrays, or of a function that returns some.

        Arrays are copied: what is written into them later is other data. The same numbers are the
        same data.
        """
        if isinstance(given, Mapping):
            whole = given if "train" in given else {"train": given}
            copied = _copied(whole)
            kept = _arrays.setdefault(digest(copied), copied)
            return OwnData(name=name_of(Returns(kept), "arrays", kept))
        return super().of(given)


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
    tokenizer: str = field("character", "Tokenizer of text: 'character', 'byte' or 'bpe:N'.")
    sequence_length: int = field(
        128, "Tokens of text that are predicted in an example.", at_least=1
    )


@dataclass(frozen=True)
class MNIST5k(Images, name="mnist5k"):
    """5,000 images of MNIST, 28 x 28 x 1, 4,000 of them to train on; prepared at first use."""


@dataclass(frozen=True)
class KJV(Sequences, name="kjv"):
    """The King James Bible, 4 million characters, the last twentieth held out."""


@dataclass(frozen=True)
class StandardLibrary(Sequences, name="stdlib"):
    """The sources of Python's standard library, 10 million characters, as this Python has them."""


@dataclass(frozen=True)
class Packages(Sequences, name="packages"):
    """The sources of the installed packages, 100 MB and more, once `prepare packages` was run."""


@dataclass(frozen=True)
class TFDS(Images, Sequences, name="tfds"):
    """Images or text that TFDS has prepared on this disk (`optdyn prepare`)."""

    dataset: str = field("", "NAME, NAME/CONFIG or NAME:VERSION of tensorflow-datasets.")

    @property
    def source(self) -> str:
        return f"tfds:{self.dataset}"


@dataclass(frozen=True)
class Folder(Images, Sequences, name="folder"):
    """A folder of one's own: TFDS's records, images as idx files, or arrays as npz files."""

    path: str = field("", "The folder, or the text file.")

    @property
    def source(self) -> str:
        return f"folder:{self.path}"


@dataclass(frozen=True)
class TextFiles(Sequences, name="text"):
    """A text file of one's own, or all *.txt of a folder, the last twentieth of lines held out."""

    path: str = field("", "The folder, or the text file.")

    @property
    def source(self) -> str:
        return f"text:{self.path}"


@dataclass(frozen=True)
class OwnData(Images, Sequences, Custom, custom=True):
    """Data that a function of one's own returns, `function(**options)` (`data/own.py`)."""


def _copied(given: Any) -> Any:
    """Arrays of NumPy of whatever holds numbers, in dicts; what cannot be one stays as it is."""
    if isinstance(given, Mapping):
        return {key: _copied(value) for key, value in given.items()}
    try:
        return given if given is None else np.array(given)
    except ValueError:  # rows of unlike length, which are refused later
        return copy.deepcopy(given)
