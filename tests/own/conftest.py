"""What the tests of one's own code share."""

import sys

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder of the user's own, and Python's path and modules as they were.

    Python compiles its files anew each time: what it keeps goes by whole seconds and sizes, and
    tests edit faster than that.
    """
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
