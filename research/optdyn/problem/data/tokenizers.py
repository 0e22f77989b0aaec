"""Texts as integers and back: UTF-8 bytes, the characters of a training text, or pairs of bytes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from optdyn.problem.data import bpe

NAMES = ("character", "byte")
WANTED = "'character', 'byte' or 'bpe:N', of a vocabulary of N from 256 up"
PAIRS = re.compile(r"bpe:(\d{1,7})")
UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # what an unknown character decodes to
CODE_POINTS = 0x110000


class Tokenizer(NamedTuple):
    """Pure functions. `encode` gives integers (L,) below `vocabulary`, of the smallest dtype."""

    vocabulary: int
    encode: Callable[[str], np.ndarray]
    decode: Callable[[np.ndarray], str]


def is_known(name: str) -> bool:
    """Whether it is one of NAMES, or `bpe:N` with N from 256 up."""
    return name in NAMES or pairs(name) >= bpe.LEAST


def pairs(name: str) -> int:
    """The N of `bpe:N`, 0 for other names."""
    match = PAIRS.fullmatch(str(name))
    return int(match[1]) if match else 0


def make(name: str, text: str, folder: Path | None = None) -> Tokenizer:
    """The tokenizer `name` for a training text; `folder` keeps byte pairs. Raises DataError."""
    if vocabulary := pairs(name):
        return Tokenizer(*bpe.bpe(vocabulary, text, folder))
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
