"""A folder of one's own images with labels: idx files, as MNIST's, or npz; or of other arrays.

    train*image*idx*  train*label*idx*    a split "test" likewise, or "t10k"; with .gz or without
    train.npz                             with `image` and `label`; a split "test" likewise
    train.npz                             with `x`, `text` or `y`, all arrays as in `arrays.py`

Images are uint8 (N, H, W), or with channels (N, H, W, C), labels integers (N,) from 0 up. Where
there are no files of "test", a part is held out.
"""

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from optdyn.base.errors import Check
from optdyn.problem.data.arrays import DataError, Dataset, Split, checked, dataset, shape_of
from optdyn.problem.data.records import fitted

PREFIXES = {"train": ("train",), "test": ("test", "t10k")}
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
OTHERS = {"x", "text", "y"}  # which images with labels have not
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


def load(folder: Path, image_size: int = 0) -> Dataset:
    """The images in `folder`, of `image_size` pixels a side if that is positive. DataError."""
    splits = {key: split for key in PREFIXES if (split := _split(folder, key))}
    DataError.refuse(_wrong_folder(folder, splits))
    if any(OTHERS & split.keys() for split in splits.values()):
        return checked(splits, 0, f"in {folder}")
    if image_size:
        for split in splits.values():
            split["image"] = np.stack([fitted(image, image_size) for image in split["image"]])
    return dataset(splits, 0, f"in {folder}")


def _wrong_folder(folder: Path, splits: Mapping[str, Split]) -> Iterator[Check]:
    is_there = folder.is_dir()
    yield not is_there, f"no folder {folder}, which config.data.name = 'folder:{folder}' names"
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    line = f"no training images in {folder}, only {found}: it needs train.npz with 'image' and "
    line += "'label', or idx files named as MNIST's, train-images-idx3-ubyte and "
    line += "train-labels-idx1-ubyte (.gz), or array_record files with TFDS's features.json"
    yield "train" not in splits, line


def _split(folder: Path, name: str) -> Split:
    """Empty if there are no files of that split."""
    npz = folder / f"{name}.npz"
    if npz.exists():
        found = _read_npz(npz)
    else:
        found = {key: read_idx(path) for key, path in _idx_files(folder, name).items()}
    if not found or OTHERS & found.keys():
        return found
    DataError.refuse(_wrong_arrays(folder, name, **found))
    image, label = found["image"], found["label"]
    image = image[..., None] if image.ndim == 3 else image
    return {"image": image, "label": label.astype(np.int32)}


def _wrong_arrays(folder: Path, name: str, image: np.ndarray, label: np.ndarray) -> Iterator[Check]:
    line = f"the {name} images in {folder} are {shape_of(image)}; they must be uint8 "
    line += "(examples, height, width) or (examples, height, width, channels)"
    yield image.ndim not in (3, 4) or image.dtype != np.uint8, line
    line = f"the {name} labels in {folder} are {shape_of(label)}; they must be "
    yield label.ndim != 1 or label.dtype.kind not in "iu", f"{line}one integer an example"
    line = f"the {name} split of the data set in {folder} has {len(image):,} images and "
    yield len(image) != len(label), f"{line}{len(label):,} labels"


def _read_npz(path: Path) -> Split:
    with DataError.at(f"cannot read {path}", *UNREADABLE), np.load(path) as stored:
        keys = stored.files if OTHERS & set(stored.files) else ["image", "label"]
        if missing := set(keys) - set(stored.files):
            raise DataError(f"{path} has no {min(missing)!r}, only {', '.join(stored.files)}")
        return {key: stored[key] for key in keys}


def _idx_files(folder: Path, name: str) -> dict[str, Path]:
    """The images and the labels, unpacked or, if there are none such, packed; or no files."""
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
    """The array of an idx file, gzipped if its name ends in .gz. Raises DataError."""
    with DataError.at(f"cannot read {path}", *UNREADABLE):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES:
            raise ValueError("not an idx file")
        shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
        values = np.frombuffer(raw, IDX_TYPES[raw[2]], offset=4 + 4 * raw[3])
        return values.reshape(tuple(map(int, shape)))
