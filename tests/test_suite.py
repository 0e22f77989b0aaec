"""The suite itself: whatever dies or hangs in it, it ends, says in which test, and fails."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEATHS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGPIPE": "signal.signal(13, signal.SIG_DFL), os.kill(os.getpid(), signal.SIGPIPE)",
    "hang": "time.sleep(1e6)",
}
FILE = """
import os, pathlib, signal, time, pytest

@pytest.mark.parametrize("i", range(6))
def test(i):
    died = pathlib.Path(__file__).with_suffix(".died")
    if i == 5 and __file__.endswith("one.py") and not died.exists():
        died.touch()
        time.sleep(1)  # all others are done by then
        {death}
"""


@pytest.mark.parametrize("how", DEATHS)
def test_a_run_in_which_a_worker_dies_ends_and_names_the_test(tmp_path, how):
    """With this project's own settings, once, in the last test of a file.

    Another worker in the place of the dead one would be given that single test, and would wait for
    a second one before it begins.
    """
    settings = (ROOT / "pyproject.toml").read_text()
    assert settings.count("\ntimeout = 600") == 1
    (tmp_path / "pyproject.toml").write_text(settings.replace("timeout = 600", "timeout = 2"))
    for name in ("one", "two", "three", "four"):
        (tmp_path / f"test_{name}.py").write_text(FILE.format(death=DEATHS[how]))
    command = [sys.executable, "-m", "pytest", "-n2", "--dist=loadfile", "-o", "testpaths=."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode not in (0, 5), done.stdout
    assert "FAILED test_one.py::test[5]" in done.stdout
