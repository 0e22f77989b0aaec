"""What is read from a file of a run is data: it runs nothing, whatever it names."""

import json
import shutil
import sys

import pytest
from absl import flags

from analysis.notebooks import network
from optdyn import methods
from optdyn.base import lookup
from optdyn.base.errors import ConfigError
from optdyn.cli import app, price, show, train
from optdyn.experiment import Experiment, read, to_json
from optdyn.momentum.lags import groups_of
from optdyn.report import implicit_momentum, penalties, report, windows
from optdyn.report.relevant_keys import heeds
from optdyn.report.tables import TableError, points
from tests.own_flags import called
from tests.test_which import ARMS, TARGET, sweep

# A stranger's file, with something for every key; it leaves a trace when it runs.
STRANGERS = """
from pathlib import Path
Path(__file__).with_name("it_ran").touch()
def thing(*_, **__):
    pass
"""
MINE = """
import functools
from subprocess import getoutput
import flax.linen as nn

class Net(nn.Module):
    classes: int
    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(x.reshape(len(x), -1))

@functools.lru_cache
def load(folder):
    from optdyn.problem import data
    return data.load("mnist5k", folder)
"""
NAMED = {
    "model.name": "theirs.py:thing",
    "loss": "theirs:thing",
    "metrics": ("accuracy", "theirs.py:thing"),
    "optimizer.name": "theirs:thing",
    "optimizer.chain": ("theirs.py:thing",),
    "method.name": "sync+theirs:thing",
    "data.name": "theirs:thing",
    "optimizer.schedule": "theirs.py:thing",
    "cluster.service.name": "theirs.py:thing",
}


@pytest.fixture
def there(folder):
    """`there()`: whether the stranger's file in the current folder was run."""
    (folder / "theirs.py").write_text(STRANGERS)
    return lambda: (folder / "it_ran").exists()


def write(folder, values):
    """A config of a run, as JSON."""
    config = Experiment()
    options = {key: value for key, value in values.items() if "options." in key}
    for key, value in options.items():
        section, _, name = key.partition(".options.")
        config[section].options[name] = value
    config = config.with_({k: v for k, v in values.items() if k not in options})
    (folder / "config.json").write_text(to_json(config))
    return folder / "config.json"


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """`command(main, values, *more)`: (exit code, stderr) with the JSON of these values."""

    def run(main, values, *more):
        given = [f"--config={write(folder, values)}", *more]
        if main is not price.main:
            given.append(f"--workdir={folder / 'run'}")
        with called(monkeypatch, "optdyn", given), pytest.raises(SystemExit) as exited:
            if main is price.main:
                price.define()
            app.run(main, *([app.NONE] if main is price.main else []))
        return exited.value.code, capsys.readouterr().err

    return run


def test_every_key_that_names_code_is_tried():
    assert set(NAMED) == set(lookup.KEYS)


@pytest.mark.parametrize("main", [train.main, price.main])
@pytest.mark.parametrize("key", NAMED)
def test_a_json_config_runs_no_code_by_itself(command, there, folder, key, main):
    code, said = command(main, {key: NAMED[key]})
    assert code == 2 and said.count("\n") == 1
    assert f"error: config.{key} = 'theirs" in said and f"{folder / 'config.json'}" in said
    assert f"--config.{key}=" in said
    assert not there() and not (folder / "run").exists()


@pytest.mark.parametrize(
    ("key", "name", "options"),
    [
        ("data", "subprocess:getoutput", {"cmd": "touch it_ran"}),
        ("data", "mine.py:getoutput", {"cmd": "touch it_ran"}),  # imported there, not written
        ("data", "optdyn.cli.local:run", {"command": ("touch", "it_ran"), "processes": 1}),
        ("data", "numpy:load", {"file": "x.npy", "allow_pickle": True}),
        ("model", "builtins:exec", {}),
        ("model", "optax:adam", {}),  # of another kind
        ("optimizer", "subprocess:Popen", {}),
        ("method", "subprocess:Popen", {}),
    ],
)
def test_what_is_no_file_of_the_users_is_refused_though_the_command_names_it(
    command, there, folder, key, name, options
):
    (folder / "mine.py").write_text(MINE)
    values = {f"{key}.name": name, **{f"{key}.options.{k}": v for k, v in options.items()}}
    code, said = command(train.main, values, f"--config.{key}.name={name}")
    assert code == 2 and said.count("\n") == 1 and f"config.{key}.name = {name!r}" in said
    assert "must be code in a file of your own" in said
    assert not there()


def test_what_the_command_names_too_is_run(command, folder, mnist):
    (folder / "mine.py").write_text(MINE)
    own = {"model.name": "mine.py:Net", "data.name": "mine:load", "optimizer.name": "optax:adam"}
    values = {**own, "data.options.folder": mnist["data.dir"], "steps": 2, "log_every": 1}
    code, said = command(train.main, values, *(f"--config.{k}={v}" for k, v in own.items()))
    assert code == 0, said
    assert json.loads((folder / "run" / "summary.json").read_text())["status"] == "completed"


def test_another_name_on_the_command_line_is_in_its_place(command, there, mnist):
    values = {"data.name": "theirs:thing", "data.dir": mnist["data.dir"], "steps": 2}
    code, said = command(train.main, values, "--config.data.name=mnist5k")
    assert code == 0 and not there(), said


@pytest.mark.parametrize(
    ("argument", "stands"),
    [
        ("--config.loss=a.py:f", True),
        ("--config.loss=('b:f','a.py:f')", True),
        ("--config.loss=sync+a.py:f", True),
        ("--config.loss\na.py:f", True),
        ("--methods=sync,a.py:f", True),
        ("--config.loss=aa.py:f", False),
        ("--config.loss=there/a.py:f", False),
        ("--config.loss=a.py:ff", False),
        ("--config.metrics=a.py:f", False),
        ("--config=a.py:f", False),
        ("--workdir=config.loss=a.py:f", False),
        ("a.py:f", False),
    ],
)
def test_only_the_whole_name_of_that_key_counts(monkeypatch, argument, stands):
    monkeypatch.setattr(sys, "argv", ["optdyn", *argument.split("\n"), "--config.seed=1"])
    assert lookup.is_given("config.loss", "a.py:f") == stands


def test_a_strangers_config_can_be_looked_at(folder, there, capsys, monkeypatch):
    file = write(folder, NAMED)
    with called(monkeypatch, "optdyn", [f"--config={file}", "--changed"]):
        flags.DEFINE_bool("changed", False, "As the command has it.")
        with pytest.raises(SystemExit) as exited:
            app.run(show.main, workdir=app.NONE, parsed=False)
    assert not exited.value.code
    assert json.loads(capsys.readouterr().out)["data.name"] == "theirs:thing"
    assert not there()


@pytest.mark.parametrize(
    "values",
    [
        {"method.name": NAMED["method.name"]},
        {"cluster.service.name": NAMED["cluster.service.name"]},
        {key: name for key, name in NAMED.items() if key != "method.name"}
        | {"method.name": "daso"},
    ],
)
def test_pages_on_a_strangers_runs_run_none_of_it(trained, folder, there, values):
    run = folder / "theirs"
    shutil.copytree(trained[1], run)
    held = json.loads((run / "config.json").read_text())
    for key, name in values.items():
        *path, last = key.split(".")
        inner = held
        for part in path:
            inner = inner[part]
        inner[last] = name
    (run / "config.json").write_text(json.dumps(held))
    assert report.main([f"--workdir={run}"]) == 0
    assert implicit_momentum.main([f"--workdir={run}"]) == 2
    with pytest.raises(TableError, match="a file runs no code by itself"):
        windows.load(run)
    with pytest.raises(ConfigError, match="a file runs no code by itself"):
        network.recorded(points(run)[0], run)
    with pytest.raises(ConfigError, match="a file runs no code by itself"):
        read(held)
    assert not there()


def test_penalties_of_a_strangers_method_are_refused(folder, there):
    arms = ARMS | {"theirs": ({"name": NAMED["method.name"]}, 64, 110)}
    with pytest.raises(TableError, match=r"among those of --methods") as caught:
        penalties.measured([sweep(folder / "theirs", arms)], TARGET)
    assert "\n" not in str(caught.value) and not there()


def test_what_this_process_has_used_itself_is_known_to_its_pages(folder):
    name = "method_of_mine.py:Mine"
    text = "from optdyn.methods.chosen import load\nclass Mine(load('asynchronous')): pass\n"
    (folder / "method_of_mine.py").write_text(text)
    config = {"method.name": name, "method.groups": 4}
    assert methods.seen(name) is None
    assert heeds(config, "method.groups") and heeds(config, "method.period")
    assert groups_of({"method": {"name": name, "groups": 4}}) == 4  # else 4 would pass for 1
    methods.load(name)
    assert methods.arrives(name)
    assert heeds(config, "method.groups") and not heeds(config, "method.period")
