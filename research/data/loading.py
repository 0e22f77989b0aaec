"""Images and text as arrays: embedded data sets, one's own, and any that TFDS has prepared.

Nothing here goes to the network or imports TensorFlow. Decoded images are cached beside the
prepared records, so that a later run imports neither tensorflow-datasets nor array_record; of text
no more is read than is asked for, every time.
"""

import logging
import os
import re
from pathlib import Path

import numpy as np

from research.data import folder as files
from research.data import records, text
from research.data.arrays import SEED, Data, DataError, take
from research.data.order import stratified
from research.data.records import is_prepared

MNIST5K_VERSION = "1.0.0"  # as in mnist5k.py, which is imported only to prepare
SPEC = re.compile(r"(\w+)(?:/(\w[\w.+-]*))?(?::(\d+\.\d+\.\d+))?")


def load(
    name: str,
    data_dir: str | None = None,
    train_examples: int = 0,
    tokenizer: str = "character",
    sequence_length: int = 128,
    image_size: int = 0,
) -> Data:
    """Reads the data set `name`.

    name: "mnist5k" (images, prepared at first use), "kjv" (the King James Bible),
        "tfds:NAME[/CONFIG][:VERSION]", any data set that TFDS has prepared on this disk as
        array_record and that has an image and a label, or a text and no image, or "folder:PATH",
        a folder that holds such records, or images as idx or npz files (`folder.py`). The highest
        version is taken if none is given, and the only config if there is but one.
    data_dir: the TFDS folder; default $OPTDYN_DATA_DIR, $TFDS_DATA_DIR or ~/tensorflow_datasets.
    train_examples: if positive, a smaller training objective. Of images it keeps the first so many
        of a seeded stratified order of the training split, of text the first so many sequences;
        so smaller ones lie within larger ones. A text of TFDS is read no further, in the test
        split either, and its characters are those read: compare sizes of it by "byte".
    tokenizer: of text, "character" or "byte".
    sequence_length: T of text, inputs (and targets) a sequence.
    image_size: if positive, images are cut to squares and scaled to so many pixels a side.

    The test split is "test", or where there is none (or images of none have labels) "validation",
    or where there is only "train" a part of it, held out: a seeded stratified fifth of images, the
    last 5 % of the lines of text.
    Raises DataError.
    """
    data = _read(name, data_root(data_dir), train_examples, tokenizer, sequence_length, image_size)
    available = len(next(iter(data.train.values())))
    _check_train_examples(train_examples, available)
    if train_examples:
        images = "label" in data.train
        order = stratified(data.train["label"], SEED) if images else np.arange(available)
        data = data._replace(train=take(data.train, order[:train_examples]))
    return data


def _read(
    name: str,
    root: Path,
    examples: int,
    tokenizer: str,
    sequence_length: int,
    image_size: int,
) -> Data:
    """All of the data set, or as much of a text as so many examples need."""
    kind, _, path = name.partition(":")
    if name == "kjv":
        return text.bible(tokenizer, sequence_length)
    if name == "mnist5k":
        folder = _mnist5k(root, examples)
    elif kind == "tfds":
        folder = _find(path, root)
    elif kind == "folder":
        folder = Path(path).expanduser()
        if not is_prepared(folder):
            return files.load(folder, image_size)
    else:
        raise DataError(
            f"unknown data set {name!r}: use 'mnist5k', 'kjv', 'tfds:NAME' for a TFDS one, or "
            "'folder:PATH' for files of one's own"
        )
    if feature := text.feature(folder):
        return text.records(folder, feature, tokenizer, sequence_length, examples)
    return records.load(folder, image_size)


def data_root(data_dir: str | None = None) -> Path:
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
    if match is None:
        raise DataError(f"'tfds:{spec}' does not read tfds:NAME, tfds:NAME/CONFIG or ...:1.2.3")
    name, config, version = match.groups()
    base = root / name / (config or "")

    def versions(pattern: str) -> list[Path]:
        wanted = re.escape(version) if version else r"\d+\.\d+\.\d+"
        folders = [path.parent for path in base.glob(pattern)]
        return [folder for folder in folders if re.fullmatch(wanted, folder.name)]

    found = versions("*/features.json") or ([] if config else versions("*/*/features.json"))
    if not found:
        raise DataError(
            f"data set 'tfds:{spec}' is not prepared under {base}; to prepare it, once: "
            f"python -m research.data.prepare {spec} --data_dir={root}"
        )
    configs = sorted({folder.parent.name for folder in found})
    if len(configs) > 1:
        raise DataError(
            f"data set 'tfds:{spec}' under {base} has several configs, name one: "
            + ", ".join(f"tfds:{name}/{config}" for config in configs)
        )
    return max(found, key=lambda folder: [int(part) for part in folder.name.split(".")])


def _mnist5k(root: Path, train_examples: int) -> Path:
    """Its folder, prepared at first use."""
    folder = root / "mnist5k" / MNIST5K_VERSION
    if not is_prepared(folder):
        from research.data import builder, mnist5k

        _check_train_examples(train_examples, mnist5k.TRAIN)
        logging.info("preparing mnist5k under %s, once", root)
        builder.write(root, "mnist5k", MNIST5K_VERSION, mnist5k.split())
    return folder
