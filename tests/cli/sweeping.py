"""What the tests of sweeps share: a grid's file, and the command in this process and in another."""

import json
import subprocess
import sys
from pathlib import Path

from optdyn.cli import app, sweep
from optdyn.train import trainer
from optdyn.train.grid import named, resolve
from tests.own_flags import called

ROOT = Path(__file__).parent.parent.parent
# Noisy quadratics, as many as there are seeds times groups, and for each seed one that diverges.
GRID = """
import optdyn as od
from optdyn.train.grid import Grid, product

def get_config(text="2,60"):
    count, steps = map(int, text.split(","))
    base = od.config("quickstart").with_(
        model=od.Quadratic(noise=0.5),
        steps=steps,
        batch_size=4,
        log_every=10,
        checkpoint_every=20,
    )
    good = product({"method.groups": [4, 2], "optimizer.momentum": [0.3], "seed": range(count)})
    bad = product({"method.groups": [2], "optimizer.learning_rate": [1e6], "seed": range(count)})
    return Grid(base, [*good, *bad], "Is it noisy?")
"""


def grid_file(folder, text=GRID):
    path = folder / "grid.py"
    path.write_text(text)
    return path


def command(arguments, capsys, monkeypatch, main=sweep.main):
    """(exit code, stdout, stderr) of the command, in this process."""
    code = 0
    with called(monkeypatch, "launch.sweep", arguments):
        try:
            sweep.define_flags()
            app.run(main)
        except SystemExit as exited:
            code = exited.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def start(*arguments, module="launch.sweep"):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def config_of(path, *text):
    names: dict = {}
    exec(path.read_text(), names)
    return names["get_config"](*text)


def alone(config, folder):
    """Every point of the grid by `trainer.train`; {name: summary}."""
    return {
        name: trainer.train(resolve(config, name, point), folder / name)
        for name, point in named(config)
    }


def summaries(workdir):
    """{name: summary} of the points that have one."""
    files = sorted((workdir / "points").glob("*/summary.json"))
    return {file.parent.name: json.loads(file.read_text()) for file in files}


def assert_same(rows, workdir, whole, stopped=()):
    """Every point of the sweep holds what it holds alone, to the bit.

    `stopped`: {name: step} of those that a signal stopped, where they left a checkpoint more.
    """
    stopped = dict(stopped)
    _, folder, expected = whole
    found = summaries(workdir)
    assert found.keys() == expected.keys()
    for name, summary in found.items():
        point = workdir / "points" / name
        of_starts = {"wall_seconds": 0, "starts": []}
        assert {**summary, **of_starts} == {**expected[name], **of_starts}
        assert rows(point) == rows(folder / name)
        kept, alone = (
            {int(p.name) for p in (f / "checkpoints").iterdir()} for f in (point, folder / name)
        )
        left = {stopped[name]} if name in stopped else set()
        assert kept == set(sorted(alone | left)[-2:])  # the last two are kept
        configs = ((f / "config.json").read_bytes() for f in (point, folder / name))
        assert len(set(configs)) == 1
