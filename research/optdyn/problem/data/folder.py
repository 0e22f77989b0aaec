"""A folder of images with labels, as idx files like MNIST's or as npz, or of other arrays.

    train*image*idx*  train*label*idx*    a split "test" likewise, or "t10k"; with .gz or without
    train.npz                             with `image` and `label`; a split "test" likewise
    train.npz                             with `x`, `text` or `y`, all arrays as in `arrays.py`

Without files of "test", a part is held out.
"""

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from optdyn.base.errors import Check
from optdyn.problem.data.arrays import DataError, Dataset, Split, make_dataset, shape_of
from optdyn.problem.data.records import fit_square

PREFIXES = {"train": ("train",), "test": ("test", "t10k")}
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
OTHER_ARRAYS = {"x", "text", "y"}  # of data sets that are no images with labels
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


def load(folder: Path, image_size: int = 0) -> Dataset:
    """Returns the data set, with images scaled to `image_size` unless 0. Raises `DataError`."""
    splits = {key: split for key in PREFIXES if (split := _read_split(folder, key))}
    DataError.refuse(_folder_checks(folder, splits))
    data = make_dataset(splits, 0, f"in {folder}")
    if "image" in data.train:
        image = data.train["image"]
        line = f"'image' of the data set in {folder} is {shape_of(image)}: must be uint8"
        DataError.refuse([(image.dtype != np.uint8, line)])
        for split in (data.train, data.test) if image_size else ():
            split["image"] = np.stack([fit_square(image, image_size) for image in split["image"]])
    return data


def _folder_checks(folder: Path, splits: Mapping[str, Split]) -> Iterator[Check]:
    yield (
        not folder.is_dir(),
        f"no folder {folder}, which config.data.name = 'folder:{folder}' names",
    )
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    line = f"no training images in {folder}, only {found}: it needs train.npz with 'image' and "
    line += "'label', or idx files named as MNIST's, train-images-idx3-ubyte and "
    line += "train-labels-idx1-ubyte (.gz), or array_record files with TFDS's features.json"
    yield "train" not in splits, line


def _read_split(folder: Path, name: str) -> Split:
    npz = folder / f"{name}.npz"
    if not npz.exists():
        return {key: read_idx(path) for key, path in _idx_files(folder, name).items()}
    with DataError.at(f"cannot read {npz}", *UNREADABLE), np.load(npz) as stored:
        keys = stored.files if OTHER_ARRAYS & set(stored.files) else ["image", "label"]
        if missing := set(keys) - set(stored.files):
            raise DataError(f"{npz} has no {min(missing)!r}, only {', '.join(stored.files)}")
        return {key: stored[key] for key in keys}


def _idx_files(folder: Path, name: str) -> dict[str, Path]:
    """Returns the files of images and labels, those without .gz first; {} if there are none."""
    found = {
        key: sorted(path for start in PREFIXES[name] for path in folder.glob(f"{start}*{key}*idx*"))
        for key in ("image", "label")
    }
    for key, paths in found.items():
        if len({path.name.removesuffix(".gz") for path in paths}) > 1:
            names = ", ".join(path.name for path in paths)
            raise DataError(f"{folder} has several idx files of the {name} {key}s: {names}")
    for key, paths in found.items():
        if any(found.values()) and not paths:
            raise DataError(f"{folder} has no idx file of the {name} {key}s")
    return {key: paths[0] for key, paths in found.items() if paths}


def read_idx(path: Path) -> np.ndarray:
    """Returns the array of an idx file, gzipped if its name ends in .gz. Raises `DataError`."""
    with DataError.at(f"cannot read {path}", *UNREADABLE):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES:
            raise ValueError("not an idx file")
        shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
        values = np.frombuffer(raw, IDX_TYPES[raw[2]], offset=4 + 4 * raw[3])
        return values.reshape(tuple(map(int, shape)))
