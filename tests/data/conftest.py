import os
import shutil
import subprocess
import sys

import pytest

from research import data


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A data folder in which mnist5k is prepared."""
    root = tmp_path_factory.mktemp("data")
    data.load("mnist5k", str(root))
    return root


@pytest.fixture
def copied(data_dir, tmp_path):
    """The same, to be damaged."""
    return shutil.copytree(data_dir, tmp_path / "copied")


@pytest.fixture
def python():
    """Starts python on a piece of code, with the environment of the tests."""

    def start(code, *arguments, **environment):
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    return start
