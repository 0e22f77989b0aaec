"""The suite itself: whatever dies or hangs in it, it ends, says in which test, and fails."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.often import OFTEN
from tests.proc import usual_signals

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


def run(command, folder):
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"capture_output": True, "text": True}
    return subprocess.run(command, cwd=folder, env=own, timeout=60, **pipes)


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
    (tmp_path / "conftest.py").write_text(
        "from tests.proc import no_other_worker as pytest_configure"
    )
    command = [sys.executable, "-m", "pytest", "-n2", "--dist=loadfile", "-o", "testpaths=."]
    done = run(command, tmp_path)
    assert done.returncode not in (0, 5), done.stdout
    assert "FAILED test_one.py::test[5]" in done.stdout


@pytest.mark.parametrize("name", OFTEN)
def test_what_is_left_out_of_most_runs_is_there(name):
    file, _, function = name.partition("::")
    assert f"def {function}(" in (ROOT / "tests" / file).read_text()


def test_it_runs_without_xdist(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "tests" / "proc.py", tmp_path / "conftest.py")
    (tmp_path / "test_one.py").write_text("def test(): pass")
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-o", "testpaths=."]
    done = run(command, tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_in_the_background_of_a_script_tests_meet_signals_as_in_a_terminal():
    """Where SIGINT is ignored, and under nohup SIGHUP; and so do the processes that they start."""
    dying = "import os, signal, time; os.kill(os.getpid(), signal.SIG{}); time.sleep(60)"
    numbers = (signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        with usual_signals():
            for number in numbers:
                command = [sys.executable, "-c", dying.format(number.name.removeprefix("SIG"))]
                assert run(command, ROOT).returncode == -number
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert {signal.getsignal(number) for number in numbers} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
