import shutil
import subprocess
import sys

import pytest

LOAD = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("network")
socket.socket.connect = socket.getaddrinfo = refuse
from tests.data.loaded import load
name, data_dir, unwanted = sys.argv[1:]
load(name, data_dir)
assert not set(unwanted.split()) & set(sys.modules), unwanted
"""


@pytest.fixture(scope="session")
def start():
    """Starts a process that loads a data set without a network and without `unwanted` packages."""

    def start(name, data_dir, unwanted="tensorflow"):
        return subprocess.Popen(
            [sys.executable, "-c", LOAD, name, str(data_dir), unwanted],
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def succeeds():
    def succeeds(process):
        _, errors = process.communicate()
        assert process.returncode == 0, errors

    return succeeds


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory, start, succeeds):
    """A data folder in which two processes have prepared mnist5k at once."""
    root = tmp_path_factory.mktemp("data")
    for process in [start("mnist5k", root), start("mnist5k", root)]:
        succeeds(process)
    assert [path.name for path in root.iterdir()] == ["mnist5k"]  # nothing is left aside
    return root


@pytest.fixture
def copied(data_dir, tmp_path):
    """The same, to be damaged."""
    return shutil.copytree(data_dir, tmp_path / "copied")
