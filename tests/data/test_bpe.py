"""Byte pairs: nothing is lost, merges are those of the definition, and what is kept is used."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.problem.data import tokenizers
from optdyn.problem.data.tokenizers import bpe
from tests.data.loaded import load

pytest.importorskip("tokenizers")
TRAINING = "low low low low low lower lower newest newest newest newest newest newest widest\n" * 3


def pieces(made, text):
    return [made.decode(np.array([token])) for token in made.encode(text)]


@pytest.fixture(scope="module")
def small():
    return bpe(300, TRAINING)


@settings(max_examples=60)
@given(st.text())
def test_decoding_gives_any_text_back(small, text):
    tokens = small.encode(text)
    assert tokens.dtype == np.uint16 and (tokens < small.vocabulary).all()
    assert small.decode(tokens) == text


def test_joins_the_most_frequent_pair_again_and_again():
    """Sennrich et al.'s algorithm 1 on bytes of words with their leading space, in plain Python."""
    words = Counter(
        word for line in TRAINING.splitlines() for word in line.replace(" ", "| ").split("|")
    )
    split = {word: [*word] for word in words}
    for vocabulary in range(257, 268):
        pairs = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        most = max(pairs.values())
        joined = set(pieces(bpe(vocabulary, TRAINING), TRAINING))
        joined -= {part for parts in split.values() for part in parts}
        (new,) = {a + b for (a, b), n in pairs.items() if n == most} & joined
        split = {word: _join(parts, new) for word, parts in split.items()}


def _join(parts, new):
    made = []
    for part in parts:
        if made and made[-1] + part == new:
            made[-1] = new
        else:
            made.append(part)
    return made


def test_no_token_crosses_a_newline_and_fewer_tokens_are_needed(small):
    found = pieces(small, TRAINING)
    assert not any("\n" in piece.rstrip("\n") for piece in found)
    assert len(found) < len(TRAINING) / 2
    assert small.vocabulary <= 300


def test_what_was_trained_and_encoded_is_kept(tmp_path, monkeypatch):
    first = bpe(280, TRAINING, tmp_path)
    tokens = first.encode(TRAINING)
    (folder,) = tmp_path.iterdir()
    assert {path.suffix for path in folder.iterdir()} == {".json", ".npz"}
    monkeypatch.setattr(tokenizers, "_train", lambda *_: pytest.fail("it was trained again"))
    again = bpe(280, TRAINING, tmp_path)
    np.testing.assert_array_equal(again.encode(TRAINING), tokens)
    assert again.decode(tokens) == TRAINING
    monkeypatch.undo()
    for path in folder.iterdir():  # damaged: made again
        path.write_bytes(b"{")
    np.testing.assert_array_equal(bpe(280, TRAINING, tmp_path).encode(TRAINING), tokens)
    other = bpe(280, TRAINING + "x", tmp_path)
    assert other.vocabulary and len([*tmp_path.iterdir()]) == 2  # of another text, another folder


def test_a_text_of_ones_own_in_byte_pairs(tmp_path):
    (tmp_path / "own.txt").write_text(TRAINING * 20)
    name = f"text:{tmp_path / 'own.txt'}"
    loaded = load(name, tmp_path / "data", tokenizer="bpe:270", sequence_length=4)
    assert 256 < loaded.classes <= 270
    assert loaded.train["text"].max() < loaded.classes
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["tokenizers"]
