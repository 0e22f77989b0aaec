"""Images in the records of a data set that TFDS has prepared.

They are decoded by PIL and not by TFDS, which without TensorFlow takes the indices of an image
with a palette for its pixels, and does not convert between numbers of channels.
"""

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optdyn.base.errors import Wrong
from optdyn.problem.data import cache
from optdyn.problem.data.arrays import DataError, Dataset, dataset

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

Record = Mapping[str, Any]  # an example: an image, a label, or what else the data set has
CACHE = "optdyn_arrays_2"
TFDS = "tensorflow_datasets."
CLASS = ("pythonClassName", "python_class_name", "type")  # keys of a feature's class, one of old
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # PIL's names, by the number of channels


def load(folder: Path, image_size: int = 0) -> Dataset:
    """The images whose records lie in `folder`, decoded once.

    image_size: if positive, each is cut to the square in its middle and scaled to so many pixels a
    side; else all must have one shape. Raises DataError.
    """
    name = f"{CACHE}_{image_size}" if image_size else CACHE
    splits, classes = cache.kept(folder, name, partial(_sources, folder, image_size))
    return dataset(splits, classes, f"in {folder}")


def is_prepared(folder: Path) -> bool:
    """Whether TFDS has finished there; not where it is forbidden to look."""
    return os.path.exists(folder / "features.json")


def opened(folder: Path) -> "DatasetBuilder":
    """The TFDS builder of the records in `folder`, which TFDS can read. Raises DataError."""
    import tensorflow_datasets as tfds

    with unreadable(folder):
        features = (folder / "features.json").read_text(errors="replace")
        if name := next(_foreign(features), ""):
            raise DataError(
                f"{folder}: features.json names {name!r}: must be classes of TFDS's own"
            )
        builder = tfds.builder_from_directory(folder)
    file_format, splits = builder.info.file_format, builder.info.splits
    kind = file_format.value if file_format else "no known format"
    said = f"the records in {folder} are {kind} and must be array_record, in another folder: optdyn"
    other = f"{said} prepare {builder.info.name} --data_dir=DIR"
    none = f"the data set in {folder} has no split 'train', only {', '.join(sorted(splits))}"
    DataError.refuse([(kind != "array_record", other), ("train" not in splits, none)])
    return builder


def _foreign(value: Any) -> Iterator[str]:
    """The classes that a `features.json` names and TFDS would import, which are not its own."""
    if isinstance(value, str):
        with suppress(ValueError):  # there may be JSON in a text of JSON
            value = json.loads(value)
    if isinstance(value, Mapping):
        named = (value.get(key) for key in CLASS)
        yield from (name for name in named if isinstance(name, str) and not name.startswith(TFDS))
        value = [*value.values()]
    for each in value if isinstance(value, list) else ():
        yield from _foreign(each)


def held_out(builder: "DatasetBuilder") -> str:
    """The split to test on; '' if there is none."""
    return next((name for name in ("test", "validation") if name in builder.info.splits), "")


def unreadable(folder: Path) -> AbstractContextManager[None]:
    """Inside, an error met while reading records becomes a DataError."""
    then = "; delete the folder and prepare the data set again"
    return DataError.at(f"cannot read the records in {folder}", OSError, RuntimeError, then=then)


def _sources(folder: Path, image_size: int) -> tuple[dict[str, cache.Source], int]:
    builder = opened(folder)
    DataError.refuse(_wrong(builder, f"the data set in {folder}"))
    named = {"train": "train"} | ({"test": test} if (test := held_out(builder)) else {})
    with unreadable(folder):
        if test == "test" and "validation" in builder.info.splits:
            first = next(iter(_undecoded(builder, test)), {"label": -1})
            if first["label"] < 0:  # ImageNet's have no labels
                named["test"] = "validation"
        splits = {key: _source(builder, name, folder, image_size) for key, name in named.items()}
    return splits, getattr(builder.info.features["label"], "num_classes", None) or 0


def _wrong(builder: "DatasetBuilder", whole: str) -> Iterator[Wrong]:
    """Whether the records do not hold what is needed, by what TFDS says of them."""
    features = builder.info.features
    for key in ("image", "label"):
        yield key not in features, f"{whole} has no {key!r}, only {', '.join(sorted(features))}"
    for key, rank, kinds in (("image", 3, ("uint8",)), ("label", 0, ("int", "uint"))):
        shape, dtype = features[key].shape, np.dtype(features[key].np_dtype).name
        wanted = "uint8 (height, width, channels)" if rank else "one integer"
        said = f"{key!r} of {whole} is {dtype} {shape}; it must be {wanted}"
        yield len(shape) != rank or not dtype.startswith(kinds), said


def _undecoded(builder: "DatasetBuilder", name: str) -> "Sequence[Record]":
    """The records of a split, with images as they are encoded."""
    import tensorflow_datasets as tfds

    encoded = isinstance(builder.info.features["image"], tfds.features.Image)
    decoders = {"image": tfds.decode.SkipDecoding()} if encoded else None
    return builder.as_data_source(name, decoders=decoders)


def _source(builder: "DatasetBuilder", name: str, folder: Path, image_size: int) -> cache.Source:
    examples = _undecoded(builder, name)
    pixels = partial(_pixels, builder.info.features["image"].shape[-1], image_size)
    shape = pixels(examples[0]["image"]).shape if len(examples) else (0, 0, 0)

    def rows() -> Iterator[tuple[np.ndarray, int]]:
        with unreadable(folder):
            for example in examples:
                image = pixels(example["image"])
                if image.shape != shape:
                    raise DataError(
                        f"images in {folder} differ in shape: {shape} and {image.shape} in {name}; "
                        "all must have one, or be given one by config.data.image_size"
                    )
                yield image, int(example["label"])

    return cache.Source(len(examples), shape, rows)


def _pixels(channels: int | None, image_size: int, image: bytes | np.ndarray) -> np.ndarray:
    """An image of the records, encoded or an array, as uint8 (H, W, C)."""
    from PIL import Image

    if not isinstance(image, np.ndarray):
        with Image.open(io.BytesIO(image)) as opened:
            image = np.asarray(opened.convert(MODES.get(channels or 0)))
    return fitted(image if image.ndim == 3 else image[..., None], image_size)


def fitted(image: np.ndarray, size: int) -> np.ndarray:
    """The square in the middle of a uint8 (H, W, C), scaled to (size, size, C); all of it for 0."""
    from PIL import Image, ImageOps

    if not size:
        return image
    whole = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    return np.asarray(ImageOps.fit(whole, (size, size))).reshape(size, size, -1)
