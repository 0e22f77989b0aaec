"""Texts as integers and back: UTF-8 bytes, the characters of a training text, or pairs of bytes.

Byte-pair encoding (Sennrich et al., arXiv 1508.07909), by the wheel `tokenizers`, starts from the
256 bytes, cut into words as GPT-2 does, and joins the pair of tokens that is the most frequent in
the training text, until the vocabulary is full. Lines are encoded one by one, so no token goes on
after a newline. Nothing is unknown, and decoding gives the text back.

A folder keeps what was trained, by the hash of its text and its vocabulary, and the tokens of every
text that it has encoded: 10 MB of text take 6 s to train on and 10 s to encode.
"""

import contextlib
import hashlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optdyn.base.files import write, write_npz
from optdyn.problem.data.arrays import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Pairs

NAMES = ("character", "byte")
EXPECTED = "'character', 'byte' or 'bpe:N', of a vocabulary of N from 256 up"
BPE = re.compile(r"bpe:(\d{1,7})")
LEAST_PAIRS = 256  # the bytes
LINES_AT_ONCE = 10_000  # that are encoded at a time: each token takes some hundred bytes meanwhile
UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # what an unknown character decodes to
CODE_POINTS = 0x110000


class Tokenizer(NamedTuple):
    """`encode` gives integers (L,) below `vocabulary`, of the smallest dtype.

    Pure functions, but for what a folder keeps of byte pairs.
    """

    vocabulary: int
    encode: Callable[[str], np.ndarray]
    decode: Callable[[np.ndarray], str]


def is_known(name: str) -> bool:
    """Whether it is one of NAMES, or `bpe:N` with N from 256 up."""
    return name in NAMES or pair_vocabulary(name) >= LEAST_PAIRS


def pair_vocabulary(name: str) -> int:
    """The N of `bpe:N`, 0 for other names."""
    match = BPE.fullmatch(str(name))
    return int(match[1]) if match else 0


def make(name: str, text: str, folder: Path | None = None) -> Tokenizer:
    """The tokenizer `name` for a training text; `folder` keeps byte pairs. Raises DataError."""
    if vocabulary := pair_vocabulary(name):
        return bpe(vocabulary, text, folder)
    return character(text) if name == "character" else byte()


def length(name: str, text: str) -> int:
    """How many tokens one of NAMES makes of a text, whatever it was made for."""
    return len(text) if name == "character" else len(text.encode())


def byte() -> Tokenizer:
    """UTF-8, vocabulary 256; bytes that are no UTF-8 decode to UNKNOWN."""

    def encode(text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    def decode(tokens: np.ndarray) -> str:
        return np.asarray(tokens, np.uint8).tobytes().decode(errors="replace")

    return Tokenizer(256, encode, decode)


def character(text: str) -> Tokenizer:
    """The text's characters, sorted, have the ids 0, 1, ...; all others share the last id."""
    known = np.array([ord(c) for c in sorted(set(text))], np.uint32)
    ids = np.full(CODE_POINTS, len(known), np.min_scalar_type(len(known)))
    ids[known] = np.arange(len(known))
    points = np.append(known, ord(UNKNOWN)).astype("<u4")

    def encode(text: str) -> np.ndarray:
        return ids[np.frombuffer(text.encode("utf-32-le"), "<u4")]

    def decode(tokens: np.ndarray) -> str:
        return points[tokens].tobytes().decode("utf-32-le")

    return Tokenizer(len(points), encode, decode)


def bpe(vocabulary: int, text: str, folder: Path | None = None) -> Tokenizer:
    """Byte pairs of a training text, at most `vocabulary` tokens: fewer if all words are tokens.

    Raises DataError where the wheel is not installed.
    """
    needs = "config.data.tokenizer = 'bpe:N' needs the package tokenizers"
    with DataError.at(needs, ImportError, then="; pip install 'optdyn[bpe]'"):
        import tokenizers as library
    kept = folder / f"bpe-{vocabulary}-{_hash(text)}" if folder else None
    made = None
    if kept:
        with contextlib.suppress(Exception):  # the library raises no other for a damaged file
            made = library.Tokenizer.from_file(str(kept / "tokenizer.json"))
    if made is None:
        made = trained = _train(library, vocabulary, text)
        if kept:
            _try_to_store(kept / "tokenizer.json", lambda path: write(path, trained.to_str()))
    return Tokenizer(
        made.get_vocab_size(),
        partial(_encode, made, kept),
        lambda tokens: made.decode(np.asarray(tokens).tolist()),
    )


def _train(library: ModuleType, vocabulary: int, text: str) -> "Pairs":
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(text.splitlines(keepends=True), trainer)
    return made


def _encode(made: "Pairs", folder: Path | None, text: str) -> np.ndarray:
    """(L,) integers of the smallest dtype, from the folder if they are there."""
    kept = folder / f"tokens-{_hash(text)}.npz" if folder else None
    if kept:
        with contextlib.suppress(Exception), np.load(kept) as arrays:
            return arrays["tokens"]
    dtype = np.min_scalar_type(made.get_vocab_size() - 1)
    lines, parts = text.splitlines(keepends=True), [np.empty(0, dtype)]
    for start in range(0, len(lines), LINES_AT_ONCE):
        found = made.encode_batch_fast(lines[start : start + LINES_AT_ONCE])
        parts.append(np.concatenate([np.array(line.ids, dtype) for line in found]))
    tokens = np.concatenate(parts)
    if kept:
        _try_to_store(kept, lambda path: write_npz(path, {"tokens": tokens}))
    return tokens


def _try_to_store(path: Path, put: Callable[[Path], None]) -> None:
    """A folder that cannot be written is no error: then the work is done every time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
