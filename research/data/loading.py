"""Images and text as arrays in memory: embedded data sets, and any that TFDS has prepared.

Nothing here goes to the network or imports TensorFlow. Decoded images are cached beside the
prepared records, so that a later run imports neither tensorflow-datasets nor array_record; of text
no more is read than is asked for, every time.
"""

import contextlib
import io
import logging
import os
import re
import tempfile
from pathlib import Path

import numpy as np

from research.data import text
from research.data.arrays import SEED, Data, DataError, arrays, one_line, take
from research.data.order import stratified

MNIST5K_VERSION = "1.0.0"  # as in mnist5k.py, which is imported only to prepare
SPEC = re.compile(r"(\w+)(?:/(\w[\w.+-]*))?(?::(\d+\.\d+\.\d+))?")


def load(
    name: str,
    data_dir: str | None = None,
    train_examples: int = 0,
    tokenizer: str = "character",
    sequence_length: int = 128,
) -> Data:
    """Reads the data set `name`.

    name: "mnist5k" (images, prepared at first use), "kjv" (the King James Bible), or
        "tfds:NAME[/CONFIG][:VERSION]", any data set that TFDS has prepared on this disk as
        array_record and that has an image and a label, or a text and no image. The highest
        version is taken if none is given, and the only config if there is but one.
    data_dir: the TFDS folder; default $OPTDYN_DATA_DIR, $TFDS_DATA_DIR or ~/tensorflow_datasets.
    train_examples: if positive, a smaller training objective. Of images it keeps the first so many
        of a seeded stratified order of the training split, of text the first so many sequences;
        so smaller ones lie within larger ones. A text of TFDS is read no further, in the test
        split either, and its characters are those read: compare sizes of it by "byte".
    tokenizer: of text, "character" or "byte".
    sequence_length: T of text, inputs (and targets) a sequence.

    The test split is "test", or where there is none "validation", or where there is only "train"
    a part of it, held out: a seeded stratified fifth of images, the last 5 % of the lines of text.
    Raises DataError.
    """
    root = data_root(data_dir)
    if name == "kjv":
        data = text.bible(tokenizer, sequence_length)
    elif name == "mnist5k":
        folder = root / "mnist5k" / MNIST5K_VERSION
        if not _is_prepared(folder):
            _prepare_mnist5k(folder, train_examples)
        data = arrays(folder)
    elif name.startswith("tfds:"):
        folder = _find(name.removeprefix("tfds:"), root)
        feature = text.feature(folder)
        if feature:
            data = text.records(folder, feature, tokenizer, sequence_length, train_examples)
        else:
            data = arrays(folder)
    else:
        raise DataError(
            f"unknown data set {name!r}: use 'mnist5k', 'kjv', or 'tfds:NAME' for a TFDS one"
        )
    available = len(next(iter(data.train.values())))
    _check_train_examples(train_examples, available)
    if train_examples:
        images = "label" in data.train
        order = stratified(data.train["label"], SEED) if images else np.arange(available)
        data = data._replace(train=take(data.train, order[:train_examples]))
    return data


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
            f"data set 'tfds:{spec}' is not prepared under {base}; prepare it where there are "
            f"TensorFlow and a network: python -m research.data.prepare {spec} --data_dir={root}"
        )
    configs = sorted({folder.parent.name for folder in found})
    if len(configs) > 1:
        raise DataError(
            f"data set 'tfds:{spec}' under {base} has several configs, name one: "
            + ", ".join(f"tfds:{name}/{config}" for config in configs)
        )
    return max(found, key=lambda folder: [int(part) for part in folder.name.split(".")])


def _prepare_mnist5k(folder: Path, train_examples: int) -> None:
    """Prepares mnist5k aside and renames it to `folder`, whole, whoever else is doing the same."""
    import tensorflow_datasets as tfds

    from research.data import mnist5k

    _check_train_examples(train_examples, mnist5k.TRAIN)
    root = folder.parent.parent
    logging.info("preparing mnist5k under %s, once", root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".mnist5k-", dir=root) as aside:
            builder = mnist5k.Mnist5k(data_dir=aside, file_format="array_record")
            tfds.disable_progress_bar()
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare()
            arrays(Path(builder.data_dir))
            folder.parent.mkdir(exist_ok=True)
            _rename(Path(builder.data_dir), folder)
    except OSError as error:
        raise DataError(
            f"cannot prepare mnist5k under {root}: {one_line(error)}; "
            "set OPTDYN_DATA_DIR or data_dir to a folder that can be written"
        ) from error


def _is_prepared(folder: Path) -> bool:
    return os.path.exists(folder / "features.json")  # False, too, where it is forbidden to look


def _rename(aside: Path, folder: Path) -> None:
    try:
        aside.rename(folder)
    except OSError:
        if not _is_prepared(folder):  # else another process was first, with the same records
            raise
