"""The sources of the packages as a text: each once, in an order, and kept as they were."""

import json

import pytest

from optdyn.problem import data
from optdyn.problem.data import prepare, text
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
    said = prepare.prepare("packages", str(two))
    before = text.packages(two)
    installed(tmp_path / "site", "c", "1.0", {"c.py": b"# new\n"})
    assert prepare.prepare("packages", str(two)) == said and text.packages(two) == before
    loaded = load("packages", two, tokenizer="byte", sequence_length=4)
    assert bytes(loaded.train["text"][0]) == b"no ne" and loaded.classes == 256


def test_not_prepared_is_a_line_that_says_how(two):
    with pytest.raises(data.DataError, match=r"'packages' is not prepared .*prepare packages "):
        load("packages", two)


def test_too_few_are_one_line(two, monkeypatch):
    monkeypatch.setattr(prepare.metadata, "distributions", lambda: [])
    with pytest.raises(data.DataError, match="have 0 texts"):
        prepare.packages(two)
