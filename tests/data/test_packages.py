"""The sources of the packages and of the standard library as texts: disjoint where they are cut."""

import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from optdyn.problem import data
from optdyn.problem.data import prepare, text, tokenizers
from tests.data.loaded import load


def installed(folder, name, version, files):
    """A distribution in a folder, as installers leave one; {path: content in bytes}."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "RECORD").write_text("".join(f"{path},,\n" for path in (*files, "gone/away.py")))
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Packages B and a, which are all that is installed."""
    site = tmp_path / "site"
    files = {f"b/m{k:02}.py": b"# b%02d\n" % k for k in reversed(range(40))}
    files |= {"b/bad.py": b"\xff", "b/data.csv": b"1,2", "b/z.py": b"# b00\n", "b/empty.py": b""}
    installed(site, "B", "1.0", files)
    installed(site, "a", "2.0", {"a/one.md": b"no newline", "a/two.py": b"line\r\n"})
    installed(site, "optdyn", "0.1", {"research/own.py": b"# ours\n"})
    found = prepare.metadata.distributions
    monkeypatch.setattr(prepare.metadata, "distributions", lambda: found(path=[str(site)]))
    return tmp_path / "data"


def test_every_text_once_in_order_and_the_last_of_twenty_held_out(two):
    prepare.packages(two)
    train, test = text.packages(two)
    assert train.startswith("no newline\nline\r\n# b00\n# b01\n")
    assert test == "# b17\n# b37\n"  # the 20th and the 40th: two of `a` are before
    assert train.count("# b") == 38 and "# ours" not in train and "1,2" not in train
    versions = json.loads((two / "packages" / "packages.json").read_text())
    assert versions == {"a": "2.0", "b": "1.0"}


def test_stays_what_it_is_when_packages_change(two, tmp_path, capsys):
    message = prepare.prepare("packages", str(two))
    before = text.packages(two)
    installed(tmp_path / "site", "c", "1.0", {"c.py": b"# new\n"})
    assert prepare.prepare("packages", str(two)) == message and text.packages(two) == before
    loaded = load("packages", two, tokenizer="byte", sequence_length=4)
    assert bytes(loaded.train["text"][0]) == b"no ne" and loaded.classes == 256


def test_not_prepared_is_a_line_that_says_how(two):
    with pytest.raises(data.DataError, match=r"'packages' is not prepared .*prepare packages "):
        load("packages", two)


def test_too_few_are_one_line(two, monkeypatch):
    monkeypatch.setattr(prepare.metadata, "distributions", lambda: [])
    with pytest.raises(data.DataError, match="have 0 texts"):
        prepare.packages(two)


# The standard library.


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
    files = [path.read_text("utf-8") for path in text.sources_of_python(ROOT)]
    # Less than a window of each split is dropped.
    assert 0 <= len("".join(files).encode()) - 256 * (len(train) + len(test)) <= 2 * 256
    assert train.size > 8_000_000 and 0.02 < len(test) / len(train) < 0.1
    texts = [tokenizers.byte().decode(split[:, :-1].ravel()) for split in (train, test)]
    for file in files[: -text.HELD_OUT_EVERY]:
        assert sum(file in one for one in texts) == 1 or len(file) < 2000  # short ones are alike
