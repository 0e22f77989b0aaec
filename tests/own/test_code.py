"""Code across processes: a run is of what it was started with, and files of runs execute nothing.

What a file names runs if the command line names it too. A workdir knows the code of its run.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType

import optax
import pytest
from absl import flags

from analysis.notebooks import network
from optdyn import methods
from optdyn.base import lookup
from optdyn.base.errors import ConfigError
from optdyn.base.fields import Text
from optdyn.cli import app, configs, price, show
from optdyn.cli import train as train_command
from optdyn.cli.points import plan
from optdyn.evidence import study as study_of
from optdyn.evidence.study import Job, Study
from optdyn.experiment import Config, read, to_json
from optdyn.implicit_momentum.lags import groups_of
from optdyn.race.race import race
from optdyn.report import implicit_momentum, penalties, report, tables
from optdyn.report.relevant_keys import affects_run
from optdyn.report.tables import TableError, points
from optdyn.train import checks
from optdyn.train.grid import Grid
from optdyn.train.replicas import record
from optdyn.train.trainer import train
from tests.own_flags import called
from tests.race.test_race import at_random
from tests.test_which import ARMS, TARGET, sweep
from tests.train.runs import refusal as refused

BY_ITSELF = "a file runs no code by itself"
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
from optdyn.methods import load

class Net(nn.Module):
    classes: int
    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(x.reshape(len(x), -1))

class Groups(load("asynchronous")):
    pass

@functools.lru_cache
def images(folder):
    from optdyn import MNIST5k
    return MNIST5k(dir=folder).load()
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


def nested(values):
    """The dict of a run's JSON. An experiment of one's own method would import it."""
    method = {k.removeprefix("method."): v for k, v in values.items() if k.startswith("method.")}
    others = {k: v for k, v in values.items() if not k.startswith("method.")}
    written = json.loads(to_json(Config().with_(others)))
    return written | {"method": method} if method else written


def write_json(folder, values):
    (folder / "config.json").write_text(json.dumps(values))
    return folder / "config.json"


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """`command(main, values, *more)`: (exit code, stderr) with the JSON of these values."""

    def run(main, values, *more):
        given = [f"--config={write_json(folder, nested(values))}", *more]
        if main is train_command.main:
            given.append(f"--workdir={folder / 'run'}")
        with called(monkeypatch, "optdyn", given), pytest.raises(SystemExit) as exited:
            if main is price.main:
                price.define_flags()
            if main is show.main:
                flags.DEFINE_bool("changed", False, "As the command has it.")
            app.run(main, *([app.NO_WORKDIR] if main is not train_command.main else []))
        return exited.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("main", [train_command.main, price.main, show.main])
@pytest.mark.parametrize("key", lookup.KEYS)
def test_a_json_config_runs_no_code_by_itself(command, there, folder, key, main):
    code, message = command(main, {key: NAMED[key]})
    assert code == 2 and message.count("\n") == 1
    assert f"error: config.{key} = 'theirs" in message and f"{folder / 'config.json'}" in message
    assert f"--config.{key}=" in message
    assert not there() and not (folder / "run").exists()
    with pytest.raises(ConfigError, match=BY_ITSELF):
        read(nested({key: NAMED[key]}))
    assert not there()


@pytest.mark.parametrize(
    "odd",
    [
        {"method.name": "theirs.py:thing"},
        {"base.method.name": "theirs.py:thing"},
        {"base.method": {"name": "theirs.py:thing"}},
        {"method": {"name": ["theirs.py:thing"]}},
        {"method": {"name": {"theirs.py:thing": 1}}},
        {"method": "theirs.py:thing"},
        {"method": ["theirs.py:thing"]},
        {"cluster": {"service.name": "theirs.py:thing"}},
        {"cluster": {"service": "theirs.py:thing"}},
        {"model": "theirs.py:thing"},
        {"metrics": [["theirs.py:thing"]]},
    ],
)
def test_nor_where_its_keys_are_not_as_a_run_writes_them(folder, there, odd):
    file = write_json(folder, nested({}) | odd)
    for reads in (lambda: configs.config(str(file)), lambda: read(json.loads(file.read_text()))):
        assert "theirs.py:thing" in refused(reads) or "without a dot" in refused(reads)
    assert not there()


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
    code, message = command(train_command.main, values, f"--config.{key}.name={name}")
    assert code == 2 and message.count("\n") == 1 and f"config.{key}.name = {name!r}" in message
    assert "must be code in a file of your own" in message
    assert not there()


def test_what_the_command_names_too_is_run(command, folder, mnist):
    (folder / "mine.py").write_text(MINE)
    names = {
        "model.name": "mine.py:Net",
        "data.name": "mine:images",
        "optimizer.name": "optax:adam",
    }
    names["method.name"] = "mine.py:Groups"
    values = {**names, "data.options.folder": mnist["data.dir"], "steps": 2}
    values |= {"cluster.nodes": 2, "method.groups": 2}
    flags = [f"--config.{k}={v}" for k, v in names.items()]
    code, message = command(train_command.main, values, *flags)
    assert code == 0, message
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert json.loads((folder / "run" / "config.json").read_text())["method"]["groups"] == 2


@pytest.mark.parametrize("key", lookup.KEYS)
def test_another_name_on_the_command_line_is_in_its_place(folder, there, key):
    usual = json.loads(to_json(Config()))
    file, value = write_json(folder, nested({key: NAMED[key]})), usual
    for part in key.split("."):
        value = value[part]
    text = str(value) if not isinstance(value, list) else "()"
    assert json.loads(to_json(configs.config(str(file), {key: Text(text)}))) == usual
    assert not there()


@pytest.mark.parametrize("values", [{}, {"method": {"name": "sync+theirs:thing"}}])
def test_so_is_ones_own(folder, there, monkeypatch, values):
    (folder / "mine.py").write_text(MINE)
    name, file = "mine.py:Groups", write_json(folder, values)
    monkeypatch.setattr(sys, "argv", ["optdyn", f"--config.method.name={name}"])
    made = configs.config(str(file), {"method.name": Text(name), "method.groups": Text("2")})
    assert made.method.name == name and made.method.get("groups", 0) == 2 and not there()


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
    assert lookup.is_on_command_line("config.loss", "a.py:f") == stands


@pytest.mark.parametrize(
    "keys", [["method.name"], ["cluster.service.name"], [key for key in NAMED if "met" not in key]]
)
def test_pages_on_a_strangers_runs_run_none_of_it(trained, folder, there, keys):
    run = folder / "theirs"
    shutil.copytree(trained[1], run)
    written = json.loads((run / "config.json").read_text())
    for key in keys:
        *path, last = key.split(".")
        inner = written
        for part in path:
            inner = inner[part]
        inner[last] = NAMED[key]
    write_json(run, written)
    assert report.main([f"--workdir={run}"]) == 0
    assert implicit_momentum.main([str(run)]) == 2
    assert any("theirs" in line for line in show.difference_lines(trained[1], run))
    for page, error in (
        (lambda: implicit_momentum.load(run), TableError),
        (lambda: network.read_daso(points(run)[0], run), ConfigError),
        (lambda: read(written), ConfigError),
    ):
        with pytest.raises(error, match=BY_ITSELF):
            page()
    assert not there()


def test_penalties_of_a_strangers_method_are_refused(folder, there):
    arms = ARMS | {"theirs": ({"name": NAMED["method.name"]}, 64, 110)}
    with pytest.raises(TableError, match=r"among those of --methods") as caught:
        penalties.measured([sweep(folder / "theirs", arms)], TARGET)
    assert "\n" not in str(caught.value) and not there()


def test_what_this_process_has_used_itself_is_known_to_its_pages(folder):
    name = "not_yet_run.py:Groups"
    (folder / "not_yet_run.py").write_text(MINE)
    config = {"method.name": name}
    assert methods.known_stack(name) is None
    assert affects_run(config, "cluster.speeds") and affects_run(config, "cluster.disturbances")
    assert groups_of({"method": {"name": name, "groups": 4}}) == 4  # else 4 would pass for 1
    methods.load(name)
    assert methods.known_stack(name).grouped
    assert affects_run(config, "cluster.speeds") and not affects_run(config, "cluster.disturbances")


# What a run was started with.

LOSS = "def f(outputs, batch): return (outputs**2).sum(-1) + "
RUN = {"steps": 20, "log_every": 10, "checkpoint_every": 0}
OTHER = "another my_loss.py;"


@pytest.fixture
def own(config, folder):
    """`own(**values)`: a config of a loss in a file."""
    write(folder, 0)
    return lambda **values: config({**RUN, "loss": "my_loss.py:f", **values})


def write(folder, plus):
    """The file, and Python as one that has not imported it."""
    (folder / "my_loss.py").write_text(f"{LOSS}{plus}\n")
    sys.modules.pop("my_loss", None)


def refusal(function, *arguments):
    message = refused(function, *arguments)
    assert len(message) < 300
    return message


def code_of(workdir):
    return json.loads((workdir / "config.json").read_text())["code"]


@pytest.mark.parametrize("name", ["my_loss.py:f", "my_loss:f"])
def test_other_code_is_refused_in_a_line_and_goes_on_when_told(
    own, folder, files, rows, capsys, name
):
    own = partial(own, loss=name)
    run = folder / "run"
    whole, first = train(own(steps=40), folder / "whole"), train(own(), run)
    before, code = files(run), code_of(run)
    write(folder, 1000)
    message = refusal(train, own(steps=40), run)
    assert message.startswith(f"workdir {run}: its run was last started with another my_loss")
    assert "give another --workdir, or --config.code=any" in message
    assert files(run) == before
    capsys.readouterr()
    assert train(own(), run) == first  # there is nothing left to do
    assert "already finished at 20, with other code of my_loss" in capsys.readouterr().err
    assert files(run) == before
    write(folder, 0)  # put back it goes on to the same floats
    assert train(own(steps=40), run)["parameters_crc32"] == whole["parameters_crc32"]
    assert rows(run) == rows(folder / "whole")
    write(folder, 1000)
    more = train(own(steps=60, code="any"), run)
    assert "other code from here on: my_loss" in capsys.readouterr().err
    assert more["train_loss"] == pytest.approx(1000, abs=first["train_loss"])
    assert code_of(run) not in (code, "any")
    assert [start["own_code"] for start in more["starts"]] == [code, code, code_of(run)]
    assert train(own(steps=80), run)["step"] == 80  # that code is the run's now
    write(folder, 0)
    assert "another my_loss" in refusal(train, own(steps=100), run)


def test_an_interrupted_run_and_one_that_diverged(own, folder):
    summary = train(own(), folder / "run")
    path = folder / "run" / "summary.json"
    path.write_text(json.dumps(summary | {"status": "interrupted", "signal": 15}))
    write(folder, "float('nan')")
    assert OTHER in refusal(train, own(), folder / "run")
    assert train(own(), folder / "other")["status"] == "diverged"
    code = code_of(folder / "other")
    write(folder, 0)
    assert train(own(steps=40), folder / "other")["status"] == "diverged"
    assert code_of(folder / "other") == code  # it is still that code's


def test_a_config_that_was_written_is_one_and_asks_for_its_code(own, folder):
    first = train(own(), folder / "run")
    back = read(json.loads((folder / "run" / "config.json").read_text()))
    checks.check(back)
    again = train(back, folder / "again")
    assert again["parameters_crc32"] == first["parameters_crc32"]
    texts = [(folder / name / "config.json").read_text() for name in ("run", "again")]
    assert texts[0] == texts[1]
    write(folder, 2)
    message = refusal(train, back, folder / "new")
    assert "config.code = 'my_loss.py " in message and "my_loss.py is another; must be" in message
    assert not (folder / "new").exists()
    assert train(back.with_(code="any"), folder / "new")["status"] == "completed"
    plain = own(loss="", code="my_loss.py 0123456789ab")
    assert refusal(checks.check, plain).endswith("your own files is another; must be '' or 'any'")


def test_a_hash_is_of_the_bytes_of_a_file_and_not_of_what_it_imports(config, folder):
    def code(name="my_loss.py:f"):
        return lookup.fingerprint(config({"loss": name}))

    write(folder, "0  # 1")
    first = code()
    assert code() == first and first.startswith("my_loss.py ") and len(first) == 10 + 1 + 12
    content = (folder / "my_loss.py").read_bytes()
    assert hashlib.sha256(content).hexdigest().startswith(first.split()[1])
    assert code("my_loss:f").split() == ["my_loss", first.split()[1]]
    (folder / "deep").mkdir()
    (folder / "my_loss.py").rename(folder / "deep" / "my_loss.py")
    assert code("deep/my_loss.py:f") == f"deep/{first}"
    write(folder, "0  # 2")
    assert code() != first
    write(folder, "0\nimport my_helper")
    (folder / "my_helper.py").write_text("PLUS = 1")
    first = code()
    (folder / "my_helper.py").write_text("PLUS = 2")
    sys.modules.pop("my_helper")
    assert code() == first
    for name in ("huber", "optax:l2_loss", "operator:add"):  # of no file of the user's
        assert code(name) == ""
    assert lookup.fingerprint(config({"data.name": "text", "data.path": "my_loss.py"})) == ""


THINGS = """
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
import jax, jax.numpy as jnp, numpy as np, optax
from flax import linen as nn

@dataclass
class Held:
    rate: float
    loop: object = None
    def twice(self): return 2 * self.rate

class Net(nn.Module):
    width: int
    @nn.compact
    def __call__(self, x): return nn.Dense(self.width)(x)

def loop(rate):
    held = Held(rate)
    held.loop = [held, lambda x: x + rate]
    return held

def closed(rate): return lambda o, b: (o * rate if "x" in {"x", "y", "z"} else o).sum(-1)
READ = 1.0
def reads(o, b): return o.sum(-1) * READ
"""
DOUBLED = THINGS.replace("2 * self", "3 * self")
WIDER = THINGS.replace("Dense(self", "Dense(2 * self")


def digest(monkeypatch, text, expression):
    """The hash of what an expression makes in a notebook that has typed in the text."""
    cells = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", cells)
    exec(text, cells.__dict__)
    return lookup.digest(eval(expression, cells.__dict__))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("closed(1.0)", "closed(2.0)"),
        ("lambda o, b: o.sum(-1)", "lambda o, b: o.sum(0)"),
        ("lambda o, b: o.sum(-1)", "lambda o, b: o.max(-1)"),
        ("lambda o, rate=1: o", "lambda o, rate=2: o"),
        ("lambda o, *, rate=1: o", "lambda o, *, rate=2: o"),
        ("partial(closed, rate=1)", "partial(closed, rate=2)"),
        ("jax.jit(closed(1.0))", "jax.jit(closed(2.0))"),
        ("cache(closed(1.0))", "cache(closed(2.0))"),
        ("optax.adam(0.1)", "optax.adam(0.2)"),
        ("optax.chain(optax.clip(1.0), optax.sgd(0.1))", "optax.chain(optax.sgd(0.1))"),
        ("np.ones(3)", "np.ones(3, np.float32)"),
        ("np.ones(3)", "np.ones((3, 1))"),
        ("jnp.ones(3)", "2 * jnp.ones(3)"),
        ("np.array(['a', None])", "np.array(['b', None])"),
        ("jax.random.key(1)", "jax.random.key(2)"),
        ("[1, (2.0, {3})]", "[1, (2.0, {4})]"),
        ("{'b': 1, 'a': 2}", "{'b': 2, 'a': 1}"),
        ("1", "1.0"),
        ("np.dtype('f4')", "np.dtype('f8')"),
        ("loop(1.0)", "loop(2.0)"),
        ("Held(1.0).twice", "Held(2.0).twice"),
        ("SimpleNamespace(a=[1])", "SimpleNamespace(a=[2])"),
        ("Net(4)", "Net(5)"),
        ("Net(4)", "nn.Dense(4)"),
        ("jnp.tanh", "jnp.sin"),
        ("partial(lambda m, o: m.sum(o), np)", "partial(lambda m, o: m.sum(o), jnp)"),
    ],
)
def test_what_has_no_file_is_known_by_what_is_in_it(monkeypatch, text, other):
    first, again, another = (
        digest(monkeypatch, THINGS, expression) for expression in (text, text, other)
    )
    assert first == again != another


@pytest.mark.parametrize(
    ("text", "shows"),
    [(DOUBLED, "Held(1.0)"), (WIDER, "Net(4)"), (THINGS.replace("READ = 1", "READ = 2"), "")],
)
def test_a_changed_method_of_a_class_shows_and_what_a_function_reads_does_not(
    monkeypatch, text, shows
):
    for made in ("Held(1.0)", "Net(4)", "reads"):
        is_same = digest(monkeypatch, text, made) == digest(monkeypatch, THINGS, made)
        assert is_same == (made != shows)


def test_a_script_is_known_by_what_is_named_and_not_by_all_its_text(folder):
    text = (
        "import optax\nfrom optdyn.base import lookup\nfrom optdyn.experiment import Config\n"
        "def loss(o, b): return o.sum(-1) * ('x' in {'u', 'v', 'w', 'x', 'y', 'z'})\n"
        "made = Config(loss='__main__:loss', steps=100, optimizer=optax.lion(0.01))\n"
        "print(made.optimizer.name, lookup.fingerprint(made), sep='\\n', end='')\n"
    )
    found = []
    for steps in ("100", "200"):
        (folder / "script.py").write_text(text.replace("100", steps))
        name, code = subprocess.check_output([sys.executable, "script.py"], text=True).split("\n")
        assert name == "optdyn.base.in_memory:an_optax_transformation_1"
        found.append(lookup.hashes_of(code))
    assert [*found[0]] == ["__main__:loss", "config.optimizer"] and found[0] == found[1]
    here = lookup.hashes_of(lookup.fingerprint(Config(optimizer=optax.lion(0.01))))
    assert here["config.optimizer"] == found[0]["config.optimizer"]


def test_recordings_and_grids_are_refused_likewise(own, folder, files):
    recording = {"replicas.count": 2, "steps": 5, "data.replacement": True}
    made = record(own(**recording), folder / "recorded")
    grid = Grid(own(), [{"seed": 1}, {"seed": 2}])
    train(own(seed=2, steps=10), folder / "grid" / "points" / "seed=2")
    before = files(folder / "grid")
    write(folder, 2)
    assert record(own(**recording), folder / "recorded") == made
    (folder / "recorded" / "summary.json").unlink()
    assert OTHER in refusal(record, own(**recording), folder / "recorded")
    result = record(own(**recording, code="any"), folder / "recorded")
    assert result["train_loss"] > made["train_loss"] + 1
    assert record(own(**recording), folder / "recorded")["status"] == "completed"
    assert OTHER in refusal(plan, grid, folder / "grid")
    assert files(folder / "grid") == before
    result = plan(grid.with_({"base.code": "any"}), folder / "grid")
    assert [entry.status for entry in result] == ["", "to go on"]


def test_a_race_is_refused_likewise(own, folder):
    values, connect = {"cluster.service.name": "race"}, at_random(0)
    race(own(**values), folder / "race", connect)
    write(folder, 1000)
    values["steps"] = 40
    assert OTHER in refusal(race, own(**values), folder / "race", at_random(0))
    result = race(own(**values, code="any"), folder / "race", at_random(0))
    assert result["train_loss"] > 900


def test_a_trial_of_other_code_is_run_again(own, folder, monkeypatch):
    monkeypatch.setattr(study_of, "pool_on_cores", ThreadPoolExecutor)
    jobs = [Job(own(steps=5, **{"optimizer.momentum": 0.0}))]
    with Study(folder / "study", "small", (5,), (0,), processes=1) as study:
        (first,) = study.trials(jobs)
        assert study.trials(jobs) == [first]
        write(folder, 2)
        (second,) = study.trials(jobs)
    assert second.losses[0] == pytest.approx(first.losses[0] + 2)
    assert len((folder / "study" / "trials.jsonl").read_text().splitlines()) == 2


def test_tables_and_configs_name_the_files_whose_code_differs(own, config, folder):
    one, other = folder / "points" / "one", folder / "points" / "other"
    train(own(), one)
    train(config(RUN), folder / "points" / "registered")
    assert not [name for name in tables.load(folder)[0] if name.startswith("code")]
    write(folder, 2)
    train(own(), other)
    found = tables.load(folder)[0].set_index("point")["code.my_loss.py"]
    assert found["one"] != found["other"] and found.isna()["registered"]
    (line,) = show.difference_lines(one, other)
    assert re.fullmatch(r'code.my_loss.py: "[0-9a-f]{12}" -> "[0-9a-f]{12}"', line)
