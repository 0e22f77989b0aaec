"""What the tests of one's own code share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def started(folder, *arguments):
    """`launch.train` with one's own config, as a command from that folder."""
    return subprocess.run(
        [sys.executable, "-m", "launch.train", "--config=my_all.py", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


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
