"""Image data sets as arrays in memory: the embedded one, and any that TFDS has prepared.

Nothing here goes to the network or imports TensorFlow. The decoded arrays are cached beside the
prepared records, so that a later run imports neither tensorflow-datasets nor array_record.
"""

import contextlib
import io
import logging
import os
import re
import tempfile
from pathlib import Path

from research.data.arrays import SEED, Data, DataError, arrays, one_line, take
from research.data.order import stratified

MNIST5K_VERSION = "1.0.0"  # as in mnist5k.py, which is imported only to prepare
SPEC = re.compile(r"(\w+)(?:/(\w[\w.+-]*))?(?::(\d+\.\d+\.\d+))?")


def load(name: str, data_dir: str | None = None, train_examples: int = 0) -> Data:
    """Reads the data set `name` whole.

    name: "mnist5k" (prepared at first use), or "tfds:NAME[/CONFIG][:VERSION]", any data set that
        TFDS has prepared on this disk as array_record and that has an image and a label. The
        highest version is taken if none is given, and the only config if there is but one.
    data_dir: the TFDS folder; default $OPTDYN_DATA_DIR, $TFDS_DATA_DIR or ~/tensorflow_datasets.
    train_examples: if positive, keep the first so many of a seeded stratified order of the
        training split: a smaller training objective. Smaller ones lie within larger ones.

    The test split is "test", or where there is none "validation", or where there is only "train"
    a seeded stratified fifth of it, held out. Raises DataError.
    """
    root = data_root(data_dir)
    if name == "mnist5k":
        folder = root / "mnist5k" / MNIST5K_VERSION
        if not _is_prepared(folder):
            _prepare_mnist5k(folder, train_examples)
    elif name.startswith("tfds:"):
        folder = _find(name.removeprefix("tfds:"), root)
    else:
        raise DataError(f"unknown data set {name!r}: use 'mnist5k', or 'tfds:NAME' for a TFDS one")
    data = arrays(folder)
    _check_train_examples(train_examples, len(data.train["label"]))
    if train_examples:
        order = stratified(data.train["label"], SEED)
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
