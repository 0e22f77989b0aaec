"""Texts as integers and back: UTF-8 bytes, or the characters of a training text."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

NAMES = ("character", "byte")
UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # what an unknown character decodes to
CODE_POINTS = 0x110000


class Tokenizer(NamedTuple):
    """Pure functions. `encode` gives integers (L,) below `vocabulary`, of the smallest dtype."""

    vocabulary: int
    encode: Callable[[str], np.ndarray]
    decode: Callable[[np.ndarray], str]


def make(name: str, text: str) -> Tokenizer:
    """The tokenizer `name`, one of NAMES, for a training text."""
    return character(text) if name == "character" else byte()


def length(name: str, text: str) -> int:
    """How many tokens the tokenizer `name` makes of a text, whatever it was made for."""
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
