"""Standard streams of a command that are closed, full, or read by nobody."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
COMMAND = """
import os, sys
from optdyn.base import streams
streams.settle()
from optdyn.base.progress import Progress
kept = open(sys.argv[1], "w")
line = Progress("run", 3)
for step in range(4):
    line.show(step)
print("a warning", file=sys.stderr)
try:
    os.write(2, b"as libraries do")
except OSError:
    pass
streams.tell("completed", "next")
kept.write("kept")
sys.exit(7)
"""


@pytest.mark.parametrize(
    "redirected",
    ["", "2>/dev/full", "2>&-", "<&- >&- 2>&-", ">&-", ">/dev/full", ">/dev/full 2>&1"],
)
def test_a_command_ends_as_it_would_and_its_files_are_its_own(tmp_path, redirected):
    kept = tmp_path / "kept"
    script = f'exec "$0" "$@" {redirected}'
    command = ["bash", "-c", script, sys.executable, "-c", COMMAND, str(kept)]
    done = subprocess.run(command, cwd=ROOT, env=BUFFERED, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert kept.read_text() == "kept"
    if not redirected:
        assert done.stdout == "completed\nnext\n"
        assert done.stderr.endswith("\na warning\nas libraries do")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_nobody_reads_what_a_command_says(tmp_path, closed):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "kept")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writer}
    done = subprocess.run(command, cwd=ROOT, env=BUFFERED, text=True, **pipes)
    os.close(writer)
    assert done.returncode == 7
    assert "Exception" not in f"{done.stdout}{done.stderr}"
