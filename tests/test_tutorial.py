"""The tutorial's files and commands do what it says, in a folder outside of the checkout."""

import json
import math
import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from optdyn.cli import points
from optdyn.train import trainer
from tests.blocks import ROOT, blocks

PAGE = ROOT / "docs" / "tutorial.md"
FILES = {block.file: block.text for block in blocks(PAGE) if block.file}
SHELL = [block.text for block in blocks(PAGE) if not block.language]
COMMANDS = [line for text in SHELL for line in re.split(r"\n| && ", text) if line]
SMALLER = {  # in its files and commands
    "steps=300": "steps=120",
    "GROUPS = [1, 2, 4, 8]": "GROUPS = [1, 4]",
    "MOMENTA = [-0.3, 0.0, 0.3, 0.6, 0.9]": "MOMENTA = [0.0, 0.9]",
    "range(-5, 0)": "range(-3, -1)",
    "SEEDS = 5": "SEEDS = 2",
    "--target=0.3": "--target=2.2",
}


def smaller(text):
    for long, short in SMALLER.items():
        text = text.replace(long, short)
    return text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The reader's folder, current, with the files in it; their modules are gone afterwards."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(smaller(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def test_all_that_is_made_smaller_is_there():
    assert all(PAGE.read_text().count(long) == 1 for long in SMALLER)
    assert list(FILES) == [f"my_{n}.py" for n in ("data", "model", "law", "run", "hook", "grid")]


def test_the_run_learns_and_the_grid_is_its_axes(folder):
    import my_data
    import my_grid
    import my_law
    import my_run

    my_data.prepare()
    summary = trainer.train(my_run.get_config(), folder / "first")
    assert summary["status"] == "completed"
    assert summary["test_loss"] < math.log(10) / 2  # a model that knows nothing has log 10
    # 8 workers in 4 groups: the mean of g - 1 = 3 is reached but for the first g arrivals.
    assert 2.5 < summary["staleness_mean"] <= 3.2

    drawn = my_law.make()(np.random.default_rng(0), (100_000,))
    # The standard deviation of one is 0.86, so of the mean 0.0027: four of those.
    assert abs(drawn.mean() - 1) < 0.011
    assert len(np.unique(drawn)) == 2

    entries = points.plan(my_grid.get_config(), folder / "groups")
    assert len(entries) == 2 * 2 * 2 * 2


@pytest.mark.slow
def test_its_commands(folder):
    optdyn = [sys.executable, "-c", "from optdyn.cli.main import main; main()"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = {}
    for line in COMMANDS:
        first, *rest = shlex.split(smaller(line))
        start = {"optdyn": optdyn, "python": [sys.executable]}.get(first)
        if start is None:
            assert first in ("pip", "mkdir", "cd"), line
            continue
        done = subprocess.run([*start, *rest], env=environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        said[line] = done.stdout
    head, *lines = said["python my_hook.py"].splitlines()
    losses, norms = np.array([line.split()[2:] for line in lines], float).T
    assert head.split() == ["step", "train_loss", "norm"]
    assert losses[-1] < 0.5 <= losses[:-1].min() and norms[-1] > norms[0]
    work = folder / "workdirs"
    assert (work / "first" / "report.html").stat().st_size > 10_000
    assert json.loads((work / "wide" / "config.json").read_text())["model"]["options"] == {
        "width": 64
    }
    assert len((work / "groups" / "results.csv").read_text().splitlines()) == 1 + 16
    assert (work / "groups" / "statistical_efficiency.json").exists()
    assert any("in all:" in out for line, out in said.items() if "--dry_run" in line)
