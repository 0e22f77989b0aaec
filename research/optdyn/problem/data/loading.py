"""Examples as arrays: embedded data sets, one's own, and any that TFDS has prepared.

Nothing here goes to the network or imports TensorFlow. Decoded images are cached beside the
prepared records, so that a later run imports neither tensorflow-datasets nor array_record; of text
no more is read than is asked for, every time.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from optdyn.base.errors import Wrong, meant
from optdyn.base.trees import examples_in
from optdyn.problem.data import folder as files
from optdyn.problem.data import own, records, text, tokenizers
from optdyn.problem.data.arrays import SEED, DataError, Dataset, take
from optdyn.problem.data.order import stratified
from optdyn.problem.data.records import is_prepared

MNIST5K_VERSION = "1.0.0"  # as in mnist5k.py, which is imported only to prepare
SPEC = re.compile(r"(\w+)(?:/(\w[\w.+-]*))?(?::(\d+\.\d+\.\d+))?")


class LoadRequest(NamedTuple):
    """How data are to be read."""

    root: Path  # of prepared TFDS data sets
    train_examples: int
    tokenizer: str
    sequence_length: int
    image_size: int


def load(
    name: str,
    data_dir: str | None = None,
    train_examples: int = 0,
    tokenizer: str = "character",
    sequence_length: int = 128,
    image_size: int = 0,
    options: Mapping[str, object] = {},
) -> Dataset:
    """Reads the data set `name`.

    - `name`: "mnist5k" (images, prepared at first use), "kjv" (the King James Bible),
      "stdlib" (the sources of Python's standard library, 10 MB), "packages" (those of the
      installed packages, 174 MB of the set-up's, once they are prepared),
      `"tfds:NAME[/CONFIG][:VERSION]"`, any data set that TFDS has prepared on this disk as
      array_record and that has an image and a label, or a text and no image, "folder:PATH", a
      folder that holds such records, or images as idx or arrays as npz files (`folder.py`),
      "text:PATH", a text file or a folder of them, or MODULE:FUNCTION of the user's own (`own.py`).
      The highest version is taken if none is given, and the only config if there is but one.
    - `data_dir`: the TFDS folder; default $OPTDYN_DATA_DIR, $TFDS_DATA_DIR or
      ~/tensorflow_datasets.
    - `train_examples`: if positive, a smaller training objective. Of what has labels it keeps the
      first so many of a seeded stratified order of the training split, of the rest the first so
      many; so smaller ones lie within larger ones. A text of TFDS is read no further, in the test
      split either, and its characters are those read: compare sizes of it by "byte".
    - `tokenizer`: of text, "character", "byte" or "bpe:N" (`bpe.py`), which is kept in `data_dir`.
    - `sequence_length`: T of text, inputs (and targets) a sequence.
    - `image_size`: if positive, images are cut to squares and scaled to so many pixels a side.
    - `options`: arguments of a function of the user's own.

    The test split is "test", or where there is none (or images of none have labels) "validation",
    or where there is only "train" a part of it, held out: a seeded stratified fifth of images and
    of arrays, the last 5 % of the lines of text.
    Raises DataError, and ConfigError where a function of the user's own cannot be used.
    """
    kind, _, path = name.partition(":")
    asked = LoadRequest(data_root(data_dir), train_examples, tokenizer, sequence_length, image_size)
    DataError.refuse(_wrong(name, asked, options))
    data = SOURCES[kind](path, asked) if kind in SOURCES else own.load(name, options)
    available = examples_in(data.train)
    _check_train_examples(train_examples, available)
    if train_examples:
        labelled = "label" in data.train
        order = stratified(data.train["label"], SEED) if labelled else np.arange(available)
        data = data._replace(train=take(data.train, order[:train_examples]))
    return data


def _wrong(name: str, asked: LoadRequest, options: Mapping[str, object]) -> Iterator[Wrong]:
    kind, _, path = name.partition(":")
    said = f"config.data.options: of functions of your own, not of {name!r}"
    yield options and (kind in SOURCES or not path), said
    said = f"unknown data set {name!r}: use 'mnist5k', 'kjv', 'stdlib', 'packages', 'tfds:NAME' "
    said += "for TFDS, 'folder:PATH' or 'text:PATH' for files of one's own, or MODULE:FUNCTION"
    yield bool(path) == (kind in NAMED), f"{said}{meant(name, NAMED)}"
    known = tokenizers.is_known(asked.tokenizer)
    yield not known, f"unknown tokenizer {asked.tokenizer!r}: use {tokenizers.WANTED}"
    length = asked.sequence_length
    yield length < 1, f"sequence_length={length}: must be at least 1"


def mnist5k(_: str, asked: LoadRequest) -> Dataset:
    """5,000 images of MNIST, 28 x 28 x 1, 4,000 of them to train on."""
    return _records(_mnist5k(asked.root, asked.train_examples), asked)


def kjv(_: str, asked: LoadRequest) -> Dataset:
    """The King James Bible, 4 million characters, the last twentieth held out."""
    return text.bible(asked.tokenizer, asked.sequence_length, _kept(asked))


def stdlib(_: str, asked: LoadRequest) -> Dataset:
    """The sources of Python's standard library, 10 million characters, as this Python has them."""
    return text.sources_of_python(asked.tokenizer, asked.sequence_length, _kept(asked))


def packages(_: str, asked: LoadRequest) -> Dataset:
    """The sources of the installed packages, 100 MB and more, once `prepare packages` was run."""
    return text.of_packages(asked.root, asked.tokenizer, asked.sequence_length, _kept(asked))


def tfds(path: str, asked: LoadRequest) -> Dataset:
    """Images or text that TFDS has prepared on this disk (`optdyn prepare`)."""
    return _records(_find(path, asked.root), asked)


def folder(path: str, asked: LoadRequest) -> Dataset:
    """A folder of one's own: TFDS's records, images as idx files, or arrays as npz files."""
    where = Path(path).expanduser()
    return _records(where, asked) if is_prepared(where) else files.load(where, asked.image_size)


def texts(path: str, asked: LoadRequest) -> Dataset:
    """A text file of one's own, or all *.txt of a folder, the last twentieth of lines held out."""
    where = Path(path).expanduser()
    return text.own(where, asked.tokenizer, asked.sequence_length, _kept(asked))


Source = Callable[[str, LoadRequest], Dataset]
NAMED: Mapping[str, Source] = {
    "mnist5k": mnist5k,
    "kjv": kjv,
    "stdlib": stdlib,
    "packages": packages,
}
SOURCES: Mapping[str, Source] = {**NAMED, "tfds": tfds, "folder": folder, "text": texts}


def _records(where: Path, asked: LoadRequest) -> Dataset:
    """The images in a folder of TFDS's records, or as much of a text as is asked for."""
    if feature := text.feature(where):
        reading = asked.tokenizer, asked.sequence_length, asked.train_examples
        return text.records(where, feature, *reading, _kept(asked))
    return records.load(where, asked.image_size)


def _kept(asked: LoadRequest) -> Path:
    """The folder that byte pairs are kept in, beside the data."""
    return asked.root / "tokenizers"


def data_root(data_dir: str | None) -> Path:
    """The folder of prepared TFDS data sets."""
    env = os.environ
    default = env.get("OPTDYN_DATA_DIR") or env.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(data_dir or default).expanduser()


def _check_train_examples(train_examples: int, available: int) -> None:
    if not 0 <= train_examples <= available:
        raise DataError(
            f"train_examples={train_examples}: the training split has {available:,} examples; "
            "0 takes them all"
        )


def _find(spec: str, root: Path) -> Path:
    """The folder root/NAME[/CONFIG]/VERSION of a prepared data set."""
    match = SPEC.fullmatch(spec)
    name, config, version = match.groups() if match else ("", "", "")
    base, tfds = root / name / (config or ""), f"data set 'tfds:{spec}'"

    def versions(pattern: str) -> list[Path]:
        wanted = re.escape(version) if version else r"\d+\.\d+\.\d+"
        folders = [path.parent for path in base.glob(pattern)]
        return [folder for folder in folders if re.fullmatch(wanted, folder.name)]

    found = versions("*/features.json") or ([] if config else versions("*/*/features.json"))
    configs = sorted({f"tfds:{name}/{folder.parent.name}" for folder in found})
    unread = f"'tfds:{spec}' does not read tfds:NAME, tfds:NAME/CONFIG or ...:1.2.3"
    missing = f"{tfds} is not prepared under {base}; to prepare it, once: optdyn prepare {spec} "
    missing += f"--data_dir={root}"
    several = f"{tfds} under {base} has several configs, name one: {', '.join(configs)}"
    DataError.refuse([(not match, unread), (not found, missing), (len(configs) > 1, several)])
    return max(found, key=lambda folder: [int(part) for part in folder.name.split(".")])


def _mnist5k(root: Path, train_examples: int) -> Path:
    """The folder of the data set, prepared at first use."""
    folder = root / "mnist5k" / MNIST5K_VERSION
    if not is_prepared(folder):
        from optdyn.problem.data import builder, mnist5k

        _check_train_examples(train_examples, mnist5k.TRAIN)
        logging.info("preparing mnist5k under %s, once", root)
        builder.write(root, "mnist5k", MNIST5K_VERSION, mnist5k.split())
    return folder
