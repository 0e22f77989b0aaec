"""Tokenizers against Python's own strings and bytes."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.problem import data
from optdyn.problem.data import tokenizers
from tests.data.loaded import load

TEXTS = st.text()  # of all of Unicode but surrogates, which no UTF-8 has


@given(TEXTS)
def test_bytes_are_utf8(text):
    made = tokenizers.byte()
    tokens = made.encode(text)
    assert made.vocabulary == 256 and tokens.dtype == np.uint8
    assert bytes(tokens.tolist()) == text.encode()
    assert made.decode(tokens) == text
    assert made.decode(tokens.astype(np.int32)) == text  # as a model's argmax would have it


def test_bytes_cut_within_a_character_decode_to_unknown():
    made = tokenizers.byte()
    assert made.decode(made.encode("aé")[:2]) == "a" + tokenizers.UNKNOWN


@given(TEXTS, TEXTS)
def test_characters_are_numbered_in_sorted_order(training, text):
    made = tokenizers.character(training)
    characters = sorted(set(training))
    unknown = len(characters)
    assert made.vocabulary == unknown + 1
    expected = [characters.index(c) if c in characters else unknown for c in text]
    assert made.encode(text).tolist() == expected
    known = "".join(c if c in characters else tokenizers.UNKNOWN for c in text)
    assert made.decode(made.encode(text)) == known
    assert made.decode(made.encode(training)) == training


@given(st.sampled_from(tokenizers.NAMES), TEXTS, TEXTS)
def test_length_is_that_of_the_tokens(name, training, text):
    assert tokenizers.length(name, text) == len(tokenizers.make(name, training).encode(text))


@pytest.mark.parametrize(
    ("characters", "dtype"),
    [(1, np.uint8), (255, np.uint8), (256, np.uint16), (65_535, np.uint16), (65_536, np.uint32)],
)
def test_the_smallest_integers_that_hold_the_last_id(characters, dtype):
    training = "".join(map(chr, range(0x10000, 0x10000 + characters)))
    tokens = tokenizers.character(training).encode(training + "a")
    assert tokens.dtype == dtype
    assert tokens.tolist() == list(range(characters + 1))


def test_other_names_are_unknown():
    names = ("bpe", "bpe:", "bpe:255", "bpe:-300", "bpe:3e3", "bpe:99999999")
    assert not any(map(tokenizers.is_known, names))


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(data.DataError, match=r"pip install 'optdyn\[bpe\]'"):
        load("kjv", tokenizer="bpe:300")
