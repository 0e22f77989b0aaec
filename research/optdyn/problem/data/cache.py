"""Decoded images beside the records that they are of, as .npy files that are mapped into memory.

A mapped array is read when it is used and shared by all processes of a machine, so a run starts at
once and a set that exceeds the memory can be streamed.
"""

import contextlib
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

import numpy as np

from optdyn.problem.data.arrays import DataError, Split

ABOUT = "about.json"
CHECKED = 2**30  # bytes: larger files are not read through to see whether they are whole
UNREADABLE = (OSError, ValueError, KeyError, EOFError)


class Source(NamedTuple):
    """Images of one shape, to be gone through in order, as often as is needed."""

    examples: int
    shape: tuple[int, ...]  # of an image
    rows: Callable[[], Iterator[tuple[np.ndarray, int]]]  # uint8 image and label of each


def kept(
    folder: Path, name: str, sources: Callable[[], tuple[Mapping[str, Source], int]]
) -> tuple[dict[str, Split], int]:
    """The splits and the number of classes that `sources` gives, from folder/name if it is there.

    A folder that cannot be written is no error: then they are made in memory, every time.
    """
    with contextlib.suppress(*UNREADABLE):
        return _mapped(folder / name)
    splits, classes = sources()
    try:
        _write(folder / name, splits, classes)
        return _mapped(folder / name)
    except DataError:
        raise
    except UNREADABLE:
        return {key: _in_memory(source) for key, source in splits.items()}, classes


def _mapped(stored: Path) -> tuple[dict[str, Split], int]:
    about = json.loads((stored / ABOUT).read_text())
    splits: dict[str, Split] = {}
    for file, crc in about["crc32"].items():
        array = np.asarray(np.load(stored / f"{file}.npy", mmap_mode="r"))
        if array.nbytes <= CHECKED and zlib.crc32(array.data) != crc:
            raise ValueError(f"{file} is damaged")
        split, key = file.split("_")
        splits.setdefault(split, {})[key] = array
    return splits, about["classes"]


def _write(stored: Path, splits: Mapping[str, Source], classes: int) -> None:
    """Whole or not at all, whoever else is doing the same."""
    with tempfile.TemporaryDirectory(prefix=".arrays-", dir=stored.parent) as aside:
        made = Path(aside, "made")
        made.mkdir()
        crc32: dict[str, int] = {}
        for split, source in splits.items():
            labels, crc = np.empty(source.examples, np.int32), 0
            with open(made / f"{split}_image.npy", "wb") as file:
                header = {"descr": "|u1", "fortran_order": False}
                header["shape"] = (source.examples, *source.shape)
                np.lib.format.write_array_header_1_0(file, header)
                for i, (image, label) in enumerate(source.rows()):
                    labels[i], content = label, image.tobytes()
                    file.write(content)  # not through a map, which a full disk would kill
                    crc = zlib.crc32(content, crc)
            np.save(made / f"{split}_label.npy", labels)
            crc32 |= {f"{split}_image": crc, f"{split}_label": zlib.crc32(labels.data)}
        (made / ABOUT).write_text(json.dumps({"classes": classes, "crc32": crc32}))
        rmtree(stored, ignore_errors=True)  # a damaged one
        with contextlib.suppress(OSError):  # another process was first, with the same arrays
            made.rename(stored)


def _in_memory(source: Source) -> Split:
    images = np.empty((source.examples, *source.shape), np.uint8)
    labels = np.empty(source.examples, np.int32)
    for i, (image, label) in enumerate(source.rows()):
        images[i], labels[i] = image, label
    return {"image": images, "label": labels}
