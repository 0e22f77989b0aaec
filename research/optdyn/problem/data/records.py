"""Images in the records of a data set that TFDS has prepared, and their decoded arrays.

PIL decodes them, for TFDS without TensorFlow takes the indices of images with a palette for pixels.
Processes of a machine map the arrays, .npy files beside the records, into memory, so that a run
starts without importing tensorflow-datasets.
"""

import io
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optdyn.base.errors import Check
from optdyn.problem.data.arrays import DataError, Dataset, Split, dataset

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

Record = Mapping[str, Any]  # an example: an image, a label, or what else the data set has
SPEC = re.compile(r"(\w+)(?:/(\w[\w.+-]*))?(?::(\d+\.\d+\.\d+))?")
VERSION = "1.0.0"  # of data sets that this package prepares
CACHE = "optdyn_arrays_2"
ABOUT = "about.json"
MOST_CHECKED = 2**30  # bytes: larger files are not read through to see whether they are whole
DAMAGED = (OSError, ValueError, KeyError, EOFError)
TFDS = "tensorflow_datasets."
CLASS_KEYS = ("pythonClassName", "python_class_name", "type")  # of a feature, the last of old
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # PIL's names, by the number of channels


def find(spec: str, root: Path) -> Path:
    """Returns the folder root/NAME[/CONFIG]/VERSION, by default of the highest version.

    The config may be left out if there is only one. Raises `DataError`.
    """
    match = SPEC.fullmatch(spec)
    name, config, version = match.groups() if match else ("", "", "")
    base, tfds = root / name / (config or ""), f"data set 'tfds:{spec}'"

    def versions(pattern: str) -> list[Path]:
        expected = re.escape(version) if version else r"\d+\.\d+\.\d+"
        folders = [path.parent for path in base.glob(pattern)]
        return [folder for folder in folders if re.fullmatch(expected, folder.name)]

    found = versions("*/features.json") or ([] if config else versions("*/*/features.json"))
    configs = sorted({f"tfds:{name}/{folder.parent.name}" for folder in found})
    unread = f"'tfds:{spec}' does not read tfds:NAME, tfds:NAME/CONFIG or ...:1.2.3"
    missing = f"{tfds} is not prepared under {base}; to prepare it, once: optdyn prepare {spec} "
    missing += f"--data_dir={root}"
    several = f"{tfds} under {base} has several configs, name one: {', '.join(configs)}"
    DataError.refuse([(not match, unread), (not found, missing), (len(configs) > 1, several)])
    return max(found, key=lambda folder: [int(part) for part in folder.name.split(".")])


def is_prepared(folder: Path) -> bool:
    """Returns whether TFDS has finished there; False where reading is not permitted."""
    return os.path.exists(folder / "features.json")


def load(folder: Path, image_size: int = 0) -> Dataset:
    """Returns the images of the records in `folder`, which are decoded once.

    A positive `image_size` scales the square in the middle of each to so many pixels a side. The
    test split is "test", or "validation" if there is none or it has no labels, or else a part of
    "train". If the folder cannot be written, images are decoded every time. Raises `DataError`.
    """
    stored = folder / (f"{CACHE}_{image_size}" if image_size else CACHE)
    try:
        splits, classes = _map_arrays(stored)
    except DAMAGED:
        images, classes = _image_rows(folder, image_size)
        try:
            _write(stored, images, classes)
            splits, classes = _map_arrays(stored)
        except DataError:
            raise
        except DAMAGED:
            splits = {name: _in_memory(rows) for name, rows in images.items()}
    return dataset(splits, classes, f"in {folder}")


def open_builder(folder: Path) -> "DatasetBuilder":
    """Returns the TFDS builder of the records in `folder`. Raises `DataError`."""
    import tensorflow_datasets as tfds

    with reading_errors(folder):
        features = (folder / "features.json").read_text(errors="replace")
        if name := next(_foreign_classes(features), ""):
            raise DataError(
                f"{folder}: features.json names {name!r}: must be classes of TFDS's own"
            )
        builder = tfds.builder_from_directory(folder)
    file_format, splits = builder.info.file_format, builder.info.splits
    kind = file_format.value if file_format else "no known format"
    other = f"the records in {folder} are {kind} and must be array_record, in another folder: "
    other += f"optdyn prepare {builder.info.name} --data_dir=DIR"
    none = f"the data set in {folder} has no split 'train', only {', '.join(sorted(splits))}"
    DataError.refuse([(kind != "array_record", other), ("train" not in splits, none)])
    return builder


def _foreign_classes(value: Any) -> Iterator[str]:
    """Yields the classes outside TFDS that a `features.json` names, and TFDS would import."""
    if isinstance(value, str):
        with suppress(ValueError):  # there may be JSON in a text of JSON
            value = json.loads(value)
    if isinstance(value, Mapping):
        names = (value.get(key) for key in CLASS_KEYS)
        yield from (name for name in names if isinstance(name, str) and not name.startswith(TFDS))
        value = [*value.values()]
    for part in value if isinstance(value, list) else ():
        yield from _foreign_classes(part)


def held_out_split(builder: "DatasetBuilder") -> str:
    return next((name for name in ("test", "validation") if name in builder.info.splits), "")


def reading_errors(folder: Path) -> AbstractContextManager[None]:
    """Returns a context in which errors of reading records become `DataError`."""
    then = "; delete the folder and prepare the data set again"
    return DataError.at(f"cannot read the records in {folder}", OSError, RuntimeError, then=then)


class ImageRows(NamedTuple):
    examples: int
    shape: tuple[int, ...]  # of an image
    rows: Callable[[], Iterator[tuple[np.ndarray, int]]]  # yields uint8 images and labels


def _image_rows(folder: Path, image_size: int) -> tuple[dict[str, ImageRows], int]:
    builder = open_builder(folder)
    DataError.refuse(_record_checks(builder, f"the data set in {folder}"))
    names = {"train": "train"} | ({"test": test} if (test := held_out_split(builder)) else {})
    with reading_errors(folder):
        if test == "test" and "validation" in builder.info.splits:
            first = next(iter(_undecoded(builder, test)), {"label": -1})
            if first["label"] < 0:  # ImageNet's have no labels
                names["test"] = "validation"
        splits = {
            key: _rows_of_split(builder, name, folder, image_size) for key, name in names.items()
        }
    return splits, getattr(builder.info.features["label"], "num_classes", None) or 0


def _record_checks(builder: "DatasetBuilder", whole: str) -> Iterator[Check]:
    features = builder.info.features
    for key in ("image", "label"):
        yield key not in features, f"{whole} has no {key!r}, only {', '.join(sorted(features))}"
    for key, rank, kinds in (("image", 3, ("uint8",)), ("label", 0, ("int", "uint"))):
        shape, dtype = features[key].shape, np.dtype(features[key].np_dtype).name
        expected = "uint8 (height, width, channels)" if rank else "one integer"
        line = f"{key!r} of {whole} is {dtype} {shape}; it must be {expected}"
        yield len(shape) != rank or not dtype.startswith(kinds), line


def _undecoded(builder: "DatasetBuilder", name: str) -> "Sequence[Record]":
    import tensorflow_datasets as tfds

    encoded = isinstance(builder.info.features["image"], tfds.features.Image)
    decoders = {"image": tfds.decode.SkipDecoding()} if encoded else None
    return builder.as_data_source(name, decoders=decoders)


def _rows_of_split(
    builder: "DatasetBuilder", name: str, folder: Path, image_size: int
) -> ImageRows:
    examples = _undecoded(builder, name)
    pixels = partial(_pixels, builder.info.features["image"].shape[-1], image_size)
    shape = pixels(examples[0]["image"]).shape if len(examples) else (0, 0, 0)

    def rows() -> Iterator[tuple[np.ndarray, int]]:
        with reading_errors(folder):
            for example in examples:
                image = pixels(example["image"])
                if image.shape != shape:
                    raise DataError(
                        f"images in {folder} differ in shape: {shape} and {image.shape} in {name}; "
                        "all must have one, or be given one by config.data.image_size"
                    )
                yield image, int(example["label"])

    return ImageRows(len(examples), shape, rows)


def _pixels(channels: int | None, image_size: int, image: bytes | np.ndarray) -> np.ndarray:
    """Returns a record's image, encoded or an array, as uint8 (H, W, C)."""
    from PIL import Image

    if not isinstance(image, np.ndarray):
        with Image.open(io.BytesIO(image)) as open_builder:
            image = np.asarray(open_builder.convert(MODES.get(channels or 0)))
    return fit_square(image if image.ndim == 3 else image[..., None], image_size)


def fit_square(image: np.ndarray, size: int) -> np.ndarray:
    """Returns the middle square of a uint8 (H, W, C) scaled to (size, size, C); all for size 0."""
    from PIL import Image, ImageOps

    if not size:
        return image
    whole = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    return np.asarray(ImageOps.fit(whole, (size, size))).reshape(size, size, -1)


def _map_arrays(stored: Path) -> tuple[dict[str, Split], int]:
    about = json.loads((stored / ABOUT).read_text())
    splits: dict[str, Split] = {}
    for file, crc in about["crc32"].items():
        array = np.asarray(np.load(stored / f"{file}.npy", mmap_mode="r"))
        if array.nbytes <= MOST_CHECKED and zlib.crc32(array.data) != crc:
            raise ValueError(f"{file} is damaged")
        split, key = file.split("_")
        splits.setdefault(split, {})[key] = array
    return splits, about["classes"]


def _write(stored: Path, splits: Mapping[str, ImageRows], classes: int) -> None:
    """Writes the arrays in one step, also if other processes do the same."""
    with tempfile.TemporaryDirectory(prefix=".arrays-", dir=stored.parent) as temporary:
        written = Path(temporary, "written")
        written.mkdir()
        crc32: dict[str, int] = {}
        for split, images in splits.items():
            labels, crc = np.empty(images.examples, np.int32), 0
            with open(written / f"{split}_image.npy", "wb") as file:
                header = {"descr": "|u1", "fortran_order": False}
                header["shape"] = (images.examples, *images.shape)
                np.lib.format.write_array_header_1_0(file, header)
                for i, (image, label) in enumerate(images.rows()):
                    labels[i], content = label, image.tobytes()
                    file.write(content)  # not through a map, which a full disk would kill
                    crc = zlib.crc32(content, crc)
            np.save(written / f"{split}_label.npy", labels)
            crc32 |= {f"{split}_image": crc, f"{split}_label": zlib.crc32(labels.data)}
        (written / ABOUT).write_text(json.dumps({"classes": classes, "crc32": crc32}))
        rmtree(stored, ignore_errors=True)  # a damaged one
        with suppress(OSError):  # another process was first, with the same arrays
            written.rename(stored)


def _in_memory(images: ImageRows) -> Split:
    pixels = np.empty((images.examples, *images.shape), np.uint8)
    labels = np.empty(images.examples, np.int32)
    for i, (image, label) in enumerate(images.rows()):
        pixels[i], labels[i] = image, label
    return {"image": pixels, "label": labels}
