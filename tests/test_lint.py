"""Style and types: what `make lint` runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_lint(command):
    tool, *arguments = command.split()
    run = [sys.executable, "-m", tool, *arguments]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
