"""The sources of the standard library as a text: the same everywhere, and disjoint where cut."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from optdyn.problem import data
from optdyn.problem.data import text, tokenizers
from tests.data.loaded import load

ROOT = Path(sysconfig.get_path("stdlib"))


def made(root, names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")


@pytest.fixture
def python(monkeypatch):
    """Has the standard library be in a folder."""

    def at(root):
        monkeypatch.setattr(text.sysconfig, "get_path", lambda _: str(root))

    return at


def test_modules_in_order_without_tests_and_strangers(tmp_path):
    wanted = ["ast.py", "email/__init__.py", "email/mime/text.py", "zlib.py"]
    unwanted = ["site-packages/mine.py", "own.py", "test/test_ast.py", "unittest/test/case.py"]
    unwanted += ["tkinter/__init__.py", "_sysconfigdata__linux.py", "email/notes.txt"]
    made(tmp_path, [*reversed(wanted), *unwanted])
    assert [str(path.relative_to(tmp_path)) for path in text.sources_of_python(tmp_path)] == wanted


def test_every_twentieth_file_is_held_out(tmp_path, python):
    made(tmp_path, [f"json/m{k:02}.py" for k in range(45)])
    python(tmp_path)
    train, test = text.standard_library()
    assert test == "# json/m19.py\n# json/m39.py\n"
    assert train.count("\n") == 43 and "m19" not in train and "m44" in train


@pytest.mark.parametrize("files", [0, 19])
def test_a_python_without_sources_is_one_line(tmp_path, python, files):
    made(tmp_path, [f"json/m{k}.py" for k in range(files)])
    python(tmp_path)
    with pytest.raises(data.DataError, match=f"'stdlib' needs .* has {files} files$"):
        load("stdlib")


def test_what_is_no_text_is_one_line(tmp_path, python):
    (tmp_path / "ast.py").write_bytes(b"\xff")
    python(tmp_path)
    with pytest.raises(data.DataError, match=r"^cannot read the standard library in "):
        load("stdlib")


def test_this_one_is_larger_than_the_bible_and_whole():
    loaded = load("stdlib", tokenizer="byte", sequence_length=256)
    assert loaded.classes == 256
    train, test = (split["text"] for split in loaded[:2])
    assert train.dtype == np.uint8
    every = [path.read_text("utf-8") for path in text.sources_of_python(ROOT)]
    # Less than a window of each split is dropped.
    assert 0 <= len("".join(every).encode()) - 256 * (len(train) + len(test)) <= 2 * 256
    assert train.size > 8_000_000 and 0.02 < len(test) / len(train) < 0.1
    texts = [tokenizers.byte().decode(split[:, :-1].ravel()) for split in (train, test)]
    for file in every[: -text.HELD_OUT_EVERY]:
        assert sum(file in one for one in texts) == 1 or len(file) < 2000  # short ones are alike
