"""A prepared TFDS data set of images as arrays in memory, decoded once, cached beside its records.

Images are decoded by PIL and not by TFDS, which without TensorFlow takes the indices of an image
with a palette for its pixels, and does not convert between numbers of channels.
"""

import contextlib
import io
import uuid
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from research.data.order import stratified

SEED = 0  # of held-out and reduced training sets: the same objective whatever the run's seed
CACHE = "optdyn_arrays_1.npz"
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # PIL's names, by the number of channels
UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)

Split = dict[str, np.ndarray]


class DataError(ValueError):
    """One line: what is wrong with the data, where it was looked for, and the way out."""


class Data(NamedTuple):
    """Two splits of N examples each, and how many classes a model chooses from.

    Images: {"image": uint8 (N, H, W, C), "label": int32 (N,)}, labels < classes. Text: {"text":
    (N, T + 1)}, tokens < classes, the vocabulary, in the smallest unsigned integers that hold them.
    """

    train: Split
    test: Split
    classes: int


def arrays(folder: Path) -> Data:
    """The images whose records lie in `folder`. Raises DataError."""
    cache = folder / CACHE
    with contextlib.suppress(*UNREADABLE), np.load(cache) as stored:
        train, test = (
            {key: stored[f"{split}_{key}"] for key in ("image", "label")}
            for split in ("train", "test")
        )
        return Data(train, test, int(stored["classes"]))
    data = _decode(opened(folder), folder)
    with contextlib.suppress(OSError):  # a folder that cannot be written is decoded every time
        _write(cache, data)
    return data


def opened(folder: Path) -> Any:
    """The TFDS builder of the records in `folder`, which TFDS can read. Raises DataError."""
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(folder)
    except (OSError, RuntimeError) as error:
        raise unreadable(folder, error) from error
    file_format = builder.info.file_format
    if file_format is None or file_format.value != "array_record":
        kind = "no known format" if file_format is None else file_format.value
        raise DataError(
            f"the records in {folder} are {kind} and must be array_record, in another folder: "
            f"python -m research.data.prepare {builder.info.name} --data_dir=DIR"
        )
    if "train" not in builder.info.splits:
        raise DataError(
            f"the data set in {folder} has no split 'train', only "
            + ", ".join(sorted(builder.info.splits))
        )
    return builder


def held_out(builder: Any) -> str:
    """The split to test on; '' if there is none."""
    return next((name for name in ("test", "validation") if name in builder.info.splits), "")


def unreadable(folder: Path, error: BaseException) -> DataError:
    """What to raise from an error met while reading records."""
    return DataError(
        f"cannot read the records in {folder}: {one_line(error)}; delete the folder and "
        "prepare the data set again"
    )


def take(split: Split, chosen: np.ndarray) -> Split:
    """The chosen examples, in that order."""
    return {key: values[chosen] for key, values in split.items()}


def one_line(error: BaseException) -> str:
    """The first line of an exception's message, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _write(cache: Path, data: Data) -> None:
    aside = cache.with_name(f".{uuid.uuid4().hex}.npz")
    named = {
        f"{name}_{key}": values
        for name, split in (("train", data.train), ("test", data.test))
        for key, values in split.items()
    }
    try:
        np.savez(aside, allow_pickle=False, classes=np.int64(data.classes), **named)
        aside.replace(cache)
    finally:
        aside.unlink(missing_ok=True)


def _decode(builder: Any, folder: Path) -> Data:
    _check(builder, folder)
    named = held_out(builder)
    try:
        train = _read(builder, "train", folder)
        if named:
            test = _read(builder, named, folder)
        else:
            order = stratified(train["label"], SEED)
            fifth = len(order) // 5
            train, test = take(train, order[fifth:]), take(train, order[:fifth])
    except (OSError, RuntimeError) as error:
        raise unreadable(folder, error) from error
    for name, split in (("train", train), (named or "held-out", test)):
        if not len(split["label"]):
            raise DataError(f"the {name} split of the data set in {folder} has no examples")
    labels = np.concatenate([train["label"], test["label"]])
    classes = getattr(builder.info.features["label"], "num_classes", None) or labels.max() + 1
    if not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(
            f"the labels of the data set in {folder} run from {labels.min()} to {labels.max()}, "
            f"and should from 0 to {classes - 1}"
        )
    if train["image"].shape[1:] != test["image"].shape[1:]:
        raise DataError(
            f"images in {folder} differ in shape: {train['image'].shape[1:]} in train, "
            f"{test['image'].shape[1:]} in {named}; all must have one"
        )
    return Data(train, test, int(classes))


def _check(builder: Any, folder: Path) -> None:
    """Raises DataError if the records do not hold what is needed, by what TFDS says of them."""
    features = builder.info.features
    for key in ("image", "label"):
        if key not in features:
            raise DataError(
                f"the data set in {folder} has no {key!r}, only {', '.join(sorted(features))}"
            )
    for key, rank, kinds in (("image", 3, ("uint8",)), ("label", 0, ("int", "uint"))):
        shape, dtype = features[key].shape, np.dtype(features[key].np_dtype).name
        if len(shape) != rank or not dtype.startswith(kinds):
            raise DataError(
                f"{key!r} of the data set in {folder} is {dtype} {shape}; it must be "
                + ("uint8 (height, width, channels)" if rank else "one integer")
            )


def _read(builder: Any, name: str, folder: Path) -> Split:
    import tensorflow_datasets as tfds
    from PIL import Image

    feature = builder.info.features["image"]
    encoded = isinstance(feature, tfds.features.Image)
    decoders = {"image": tfds.decode.SkipDecoding()} if encoded else None
    source = builder.as_data_source(name, decoders=decoders)

    def pixels(image: Any) -> np.ndarray:
        if not encoded:
            return image
        with Image.open(io.BytesIO(image)) as opened:
            array = np.asarray(opened.convert(MODES.get(feature.shape[-1])))
        return array if array.ndim == 3 else array[..., None]

    first = pixels(source[0]["image"]).shape if len(source) else (0, 0, 0)
    images = np.empty((len(source), *first), np.uint8)
    labels = np.empty(len(source), np.int32)
    for i, example in enumerate(source):
        image = pixels(example["image"])
        if image.shape != first:
            raise DataError(
                f"images in {folder} differ in shape: {first} and {image.shape} in {name}; "
                "all must have one"
            )
        images[i], labels[i] = image, example["label"]
    return {"image": images, "label": labels}
