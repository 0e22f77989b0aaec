"""Texts as integers and back: UTF-8 bytes, the characters of a training text, or pairs of bytes.

Byte-pair encoding (Sennrich et al., arXiv 1508.07909), by the wheel `tokenizers`, cuts words as
GPT-2. Lines are encoded one by one, so tokens end at newlines. Nothing is unknown, and decoding
returns the text. A folder stores the tokenizer by the hash of its text and its vocabulary, and the
tokens of texts that it has encoded: 10 MB take 6 s to train on and 10 s to encode.
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
LINES_AT_ONCE = 10_000  # encoded together; a token takes some hundred bytes meanwhile
UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # decoded from an unknown character
CODE_POINTS = 0x110000


class Tokenizer(NamedTuple):
    """`encode` returns integers (L,) below `vocabulary`, of the smallest dtype."""

    vocabulary: int
    encode: Callable[[str], np.ndarray]
    decode: Callable[[np.ndarray], str]


def is_known(name: str) -> bool:
    return name in NAMES or pair_vocabulary(name) >= LEAST_PAIRS


def pair_vocabulary(name: str) -> int:
    match = BPE.fullmatch(str(name))
    return int(match[1]) if match else 0


def make(name: str, text: str, folder: Path | None = None) -> Tokenizer:
    """Returns the tokenizer for a training text; `folder` stores byte pairs. Raises `DataError`."""
    if vocabulary := pair_vocabulary(name):
        return bpe(vocabulary, text, folder)
    return character(text) if name == "character" else byte()


def length(name: str, text: str) -> int:
    return len(text) if name == "character" else len(text.encode())


def byte() -> Tokenizer:
    """Returns the UTF-8 tokenizer, vocabulary 256; invalid bytes decode to UNKNOWN."""

    def encode(text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    def decode(tokens: np.ndarray) -> str:
        return np.asarray(tokens, np.uint8).tobytes().decode(errors="replace")

    return Tokenizer(256, encode, decode)


def character(text: str) -> Tokenizer:
    """Returns a tokenizer of the text's characters, sorted; all others share the last id."""
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
    """Returns a tokenizer of at most `vocabulary` byte pairs of the text. Raises `DataError`."""
    needs = "config.data.tokenizer = 'bpe:N' needs the package tokenizers"
    with DataError.at(needs, ImportError, then="; pip install 'optdyn[bpe]'"):
        import tokenizers as library
    store = folder / f"bpe-{vocabulary}-{_hash(text)}" if folder else None
    pairs = None
    if store:
        with contextlib.suppress(Exception):  # the library raises no other for a damaged file
            pairs = library.Tokenizer.from_file(str(store / "tokenizer.json"))
    if pairs is None:
        pairs = new = _train(library, vocabulary, text)
        if store:
            _try_to_store(store / "tokenizer.json", lambda path: write(path, new.to_str()))
    return Tokenizer(
        pairs.get_vocab_size(),
        partial(_encode, pairs, store),
        lambda tokens: pairs.decode(np.asarray(tokens).tolist()),
    )


def _train(library: ModuleType, vocabulary: int, text: str) -> "Pairs":
    pairs = library.Tokenizer(library.models.BPE())
    pairs.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pairs.train_from_iterator(text.splitlines(keepends=True), trainer)
    return pairs


def _encode(pairs: "Pairs", folder: Path | None, text: str) -> np.ndarray:
    store = folder / f"tokens-{_hash(text)}.npz" if folder else None
    if store:
        with contextlib.suppress(Exception), np.load(store) as arrays:
            return arrays["tokens"]
    dtype = np.min_scalar_type(pairs.get_vocab_size() - 1)
    lines, parts = text.splitlines(keepends=True), [np.empty(0, dtype)]
    for start in range(0, len(lines), LINES_AT_ONCE):
        encoded = pairs.encode_batch_fast(lines[start : start + LINES_AT_ONCE])
        parts.append(np.concatenate([np.array(line.ids, dtype) for line in encoded]))
    tokens = np.concatenate(parts)
    if store:
        _try_to_store(store, lambda path: write_npz(path, {"tokens": tokens}))
    return tokens


def _try_to_store(path: Path, put: Callable[[Path], None]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
