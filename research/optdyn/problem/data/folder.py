"""A folder of one's own images with labels: idx files, as MNIST's, or npz; or of other arrays.

    train*image*idx*  train*label*idx*    a split "test" likewise, or "t10k"; with .gz or without
    train.npz                             with `image` and `label`; a split "test" likewise
    train.npz                             with `x`, `text` or `y`, all arrays as in `own.py`

Images are uint8 (N, H, W), or with channels (N, H, W, C), labels integers (N,) from 0 up. Where
there are no files of "test", a part is held out.
"""

import gzip
import zipfile
import zlib
from pathlib import Path

import numpy as np

from optdyn.problem.data import own
from optdyn.problem.data.arrays import DataError, Dataset, Split, first_line, images
from optdyn.problem.data.records import fitted

PREFIXES = {"train": ("train",), "test": ("test", "t10k")}
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
OTHERS = {"x", "text", "y"}  # which images with labels have not
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


def load(folder: Path, image_size: int = 0) -> Dataset:
    """The images in `folder`, of `image_size` pixels a side if that is positive. DataError."""
    if not folder.is_dir():
        raise DataError(f"no folder {folder}, which config.data.name = 'folder:{folder}' names")
    splits = {key: split for key in PREFIXES if (split := _split(folder, key))}
    if "train" not in splits:
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:5])
        raise DataError(
            f"no training images in {folder}, only {found or 'nothing'}: it needs train.npz with "
            "'image' and 'label', or idx files named as MNIST's, train-images-idx3-ubyte and "
            "train-labels-idx1-ubyte (.gz), or array_record files with TFDS's features.json"
        )
    if any(OTHERS & split.keys() for split in splits.values()):
        return own.checked(splits, 0, f"in {folder}")
    if image_size:
        for split in splits.values():
            split["image"] = np.stack([fitted(image, image_size) for image in split["image"]])
    return images(splits, 0, f"in {folder}")


def read_idx(path: Path) -> np.ndarray:
    """The array of an idx file, gzipped if its name ends in .gz. Raises DataError."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES:
            raise ValueError("not an idx file")
        shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
        values = np.frombuffer(raw, IDX_TYPES[raw[2]], offset=4 + 4 * raw[3])
        return values.reshape(tuple(map(int, shape)))
    except UNREADABLE as error:
        raise DataError(f"cannot read {path}: {first_line(error)}") from error


def _split(folder: Path, name: str) -> Split:
    """Empty if there are no files of that split."""
    npz = folder / f"{name}.npz"
    if npz.exists():
        found = _read_npz(npz)
        if OTHERS & found.keys():
            return found
    else:
        files = {key: _idx_file(folder, name, key) for key in ("image", "label")}
        if not any(files.values()):
            return {}
        for key, path in files.items():
            if path is None:
                raise DataError(f"{folder} has no idx file of the {name} {key}s")
        found = {key: read_idx(path) for key, path in files.items() if path}
    image, label = found["image"], found["label"]
    if image.ndim == 3:
        image = image[..., None]
    if image.ndim != 4 or image.dtype != np.uint8:
        raise DataError(
            f"the {name} images in {folder} are {found['image'].dtype} {found['image'].shape}; "
            "they must be uint8 (examples, height, width) or (examples, height, width, channels)"
        )
    if label.ndim != 1 or label.dtype.kind not in "iu":
        raise DataError(
            f"the {name} labels in {folder} are {label.dtype} {label.shape}; "
            "they must be one integer an example"
        )
    return {"image": image, "label": label.astype(np.int32)}


def _idx_file(folder: Path, name: str, key: str) -> Path | None:
    """Unpacked or, if there is none, packed. Raises DataError if there are several."""
    patterns = [f"{prefix}*{key}*idx*" for prefix in PREFIXES[name]]
    found = sorted(path for pattern in patterns for path in folder.glob(pattern))
    if len({path.name.removesuffix(".gz") for path in found}) > 1:
        raise DataError(
            f"{folder} has several idx files of the {name} {key}s: "
            + ", ".join(path.name for path in found)
        )
    return found[0] if found else None


def _read_npz(path: Path) -> Split:
    try:
        with np.load(path) as stored:
            if OTHERS & set(stored.files):
                return {key: stored[key] for key in stored.files}
            missing = {"image", "label"} - set(stored.files)
            if missing:
                raise DataError(
                    f"{path} has no {sorted(missing)[0]!r}, only {', '.join(stored.files)}"
                )
            return {key: stored[key] for key in ("image", "label")}
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"cannot read {path}: {first_line(error)}") from error
