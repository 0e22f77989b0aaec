"""Prepares a data set for `config.data.name=tfds`, from the network or from files of this machine.

    optdyn prepare NAME[/CONFIG][:VERSION] [--data_dir=DIR] [--image_size=N]
    optdyn prepare fashion_mnist           [--data_dir=DIR] [--source=FOLDER]
    optdyn prepare packages                [--data_dir=DIR]

What TFDS knows (mnist, cifar10, cifar100, imagenet2012, lm1b, ...) is downloaded and prepared by
TFDS, which needs a network, and TensorFlow for most; the archives of imagenet2012 are put into
DIR/downloads/manual by hand. With --source it is the images of a folder (`folder.py`), under any
name, and needs neither; fashion_mnist is taken from Debian's package dataset-fashion-mnist if no
other folder is named. `packages` is the text of the installed Python packages (`packages.py`).

Ends with one line: what is ready and where, or what is in the way (exit status 1). Of images it
says the mean and standard deviation of every channel, for config.data.mean and .std.
"""

import http.client
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np

from optdyn.base.arguments import Parser
from optdyn.base.errors import first_line
from optdyn.problem.data import builder as own
from optdyn.problem.data import folder as files
from optdyn.problem.data import packages, records, text
from optdyn.problem.data.arrays import DataError
from optdyn.problem.data.loading import data_root

PATIENCE = 10  # seconds for a first answer; TFDS itself retries for minutes
VERSION = "1.0.0"  # of what is prepared from a folder
DEBIAN = {"fashion_mnist": Path("/usr/share/datasets/fashion-mnist")}
SLICE = 1000  # images at a time


def prepare(spec: str, data_dir: str | None = None, source: str = "", image_size: int = 0) -> str:
    """Prepares as array_record and decodes images; a line that says what is ready.

    Raises DataError: there is no such data set, it cannot be had, or it cannot be used.
    """
    root = data_root(data_dir)
    if spec == packages.FOLDER and not source:
        folder = packages.prepare(root)
        sizes = " + ".join(f"{len(part) / 1e6:.1f}" for part in packages.split(root))
        return f"packages is ready under {folder}: {sizes} million characters of text"
    if source or spec in DEBIAN:
        folder = _of_folder(spec, Path(source) if source else DEBIAN[spec], root)
    else:
        folder = _of_tfds(spec, root)
    ready = f"tfds:{spec} is ready under {folder}:"
    if feature := text.feature(folder):
        first, second = text.sources(folder)
        return f"{ready} {len(first):,} + {len(second):,} examples of text, {feature!r}"
    data = records.load(folder, image_size)
    train, test = data.train["image"], data.test["image"]
    mean, std = channels(train)
    return (
        f"{ready} {len(train):,} + {len(test):,} images {train.shape[1:]}, {data.classes} classes; "
        f"config.data.mean={mean} config.data.std={std}"
    )


def channels(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the channels of uint8 (N, H, W, C), of pixels from 0 to 1."""
    counts = np.zeros((images.shape[-1], 256))
    for start in range(0, len(images), SLICE):
        for c, count in enumerate(counts):
            part = images[start : start + SLICE, ..., c]
            count += np.bincount(part.ravel(), minlength=256)
    weights, pixels = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = weights @ pixels
    std = np.sqrt(weights @ pixels**2 - mean**2)
    return tuple(mean.round(4).tolist()), tuple(std.round(4).tolist())


def _of_folder(name: str, source: Path, root: Path) -> Path:
    """The folder of the records. Raises DataError."""
    folder = root / name / VERSION
    if records.is_prepared(folder):
        return folder
    bare = f"{name!r} cannot be the name of a data set; use letters, digits and _"
    none = f"no folder {source}: install Debian's package dataset-{source.name}, or name the folder"
    is_missing = not source.is_dir() and source == DEBIAN.get(name)
    none += " of the same idx files with --source"
    DataError.refuse([(not name.isidentifier(), bare), (is_missing, none)])
    train, test, classes = files.load(source)
    splits = {
        key: split | {"number": np.arange(len(split["label"]))}
        for key, split in (("train", train), ("test", test))
    }
    about = own.ImageSplits(f"The images of {source}.", splits, classes)
    return own.write(root, name, VERSION, about)


def _of_tfds(spec: str, root: Path) -> Path:
    """The folder of the records. Raises DataError."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.util import DownloadError

    with DataError.at(f"TFDS cannot make {spec!r}", ValueError, AssertionError, ImportError):
        builder = tfds.builder(spec, data_dir=root, file_format="array_record")
    then = " ".join(["", *(builder.MANUAL_DOWNLOAD_INSTRUCTIONS or "").split()])
    kinds = (OSError, AssertionError, DownloadError, NonMatchingChecksumError)
    with (
        DataError.at(f"preparing {spec!r} needs a package that is not here", ImportError),
        DataError.at(f"cannot prepare {spec!r} under {root}", *kinds, then=then),
    ):
        if not builder.data_path.exists():
            by_hand = builder.MANUAL_DOWNLOAD_INSTRUCTIONS
            for url in [] if by_hand else list(builder.url_infos or ())[:1]:
                _reach(url)
            builder.download_and_prepare(file_format="array_record")
    return Path(builder.data_dir)


def _reach(url: str) -> None:
    """Raises OSError unless the host of `url` gives some answer, through a proxy if one is set."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return
    except (OSError, http.client.HTTPException) as error:
        host = urllib.parse.urlsplit(url).hostname
        raise OSError(
            f"no answer from {host} ({first_line(error)}); is there a network?"
        ) from error


def main() -> None:
    """The command `optdyn prepare`."""
    parser = Parser(
        prog="optdyn prepare", description="Prepares a data set for config.data.name=tfds."
    )
    parser.add_argument("spec", metavar="NAME[/CONFIG][:VERSION]")
    parser.add_argument("--data_dir", help="default: $OPTDYN_DATA_DIR, or that of TFDS")
    parser.add_argument("--source", default="", help="folder of idx or npz files to prepare")
    parser.add_argument("--image_size", type=int, default=0, help="as config.data.image_size")
    known = parser.read()
    try:
        spec = known.spec.removeprefix("tfds:")
        print(prepare(spec, known.data_dir, known.source, known.image_size))
    except DataError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
