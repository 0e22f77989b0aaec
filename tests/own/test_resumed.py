"""A run is of the code that it was started with: its workdir knows, and says so."""

import hashlib
import json
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest

from optdyn.base import lookup
from optdyn.cli.points import plan
from optdyn.evidence.study import Job, Study
from optdyn.experiment import Experiment
from optdyn.race.race import race
from optdyn.report import tables
from optdyn.train import checks, trainer
from optdyn.train.grid import Grid
from optdyn.train.replicas import record
from tests.own.test_own import ROOT, started
from tests.race.test_race import at_random
from tests.train.runs import refusal as refused

LOSS = "def f(outputs, batch): return (outputs**2).sum(-1) + "
RUN = {"steps": 20, "log_every": 10, "checkpoint_every": 10}


@pytest.fixture(params=["my_loss.py:f", "my_loss:f"])
def own(request, config, folder):
    """`own(**values)`: a config of a loss in a file, named by its path or as a module."""
    write(folder, 0)

    def make(**values):
        return config({**RUN, "loss": request.param, **values})

    return make


@pytest.fixture
def by_path(config, folder):
    write(folder, 0)
    return lambda **values: config({**RUN, "loss": "my_loss.py:f", **values})


def write(folder, plus):
    """The file, and Python as one that has not imported it."""
    (folder / "my_loss.py").write_text(f"{LOSS}{plus}\n")
    sys.modules.pop("my_loss", None)


def refusal(function, *arguments):
    said = refused(function, *arguments)
    assert len(said) < 300
    return said


def output(folder, *arguments):
    """What Python prints in a folder, with this checkout on its path."""
    command, environment = [sys.executable, *arguments], os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.check_output(command, cwd=folder, env=environment, text=True)


def code_of(workdir):
    return json.loads((workdir / "config.json").read_text())["code"]


def test_other_code_is_refused_in_a_line_and_goes_on_when_told(own, folder, files, capsys):
    first = trainer.train(own(), folder / "run")
    before, held = files(folder / "run"), code_of(folder / "run")
    write(folder, 1000)
    said = refusal(trainer.train, own(steps=40), folder / "run")
    assert said.startswith(
        f"workdir {folder / 'run'}: its run was last started with another my_loss"
    )
    assert "give another --workdir, or --config.code=any" in said
    assert files(folder / "run") == before
    capsys.readouterr()
    again = trainer.train(own(), folder / "run")
    assert again == first  # there is nothing left to do
    assert "already finished at 20, with other code of my_loss" in capsys.readouterr().err
    assert files(folder / "run") == before
    more = trainer.train(own(steps=40, code="any"), folder / "run")
    assert "other code from here on: my_loss" in capsys.readouterr().err
    assert more["train_loss"] == pytest.approx(1000, abs=first["train_loss"])
    assert code_of(folder / "run") not in (held, "any")
    assert [start["own_code"] for start in more["starts"]] == [held, code_of(folder / "run")]
    later = trainer.train(own(steps=60), folder / "run")
    assert later["step"] == 60  # that code is the run's now
    write(folder, 0)
    assert "another my_loss" in refusal(trainer.train, own(steps=80), folder / "run")


def test_what_is_edited_and_put_back_goes_on_to_the_same_floats(own, folder, rows):
    whole = trainer.train(own(steps=40), folder / "whole")
    trainer.train(own(), folder / "run")
    write(folder, 7)
    refusal(trainer.train, own(steps=40), folder / "run")
    write(folder, 0)
    again = trainer.train(own(steps=40), folder / "run")
    assert again["parameters_crc32"] == whole["parameters_crc32"]
    assert rows(folder / "run") == rows(folder / "whole")


def test_an_interrupted_run_and_one_that_diverged(by_path, folder, files):
    """The first has something left to do, and the second has not."""
    summary = trainer.train(by_path(), folder / "run")
    path = folder / "run" / "summary.json"
    path.write_text(json.dumps(summary | {"status": "interrupted", "signal": 15}))
    write(folder, "float('nan')")
    assert "another my_loss.py;" in refusal(trainer.train, by_path(), folder / "run")
    assert trainer.train(by_path(), folder / "other")["status"] == "diverged"
    held = code_of(folder / "other")
    write(folder, 0)
    assert trainer.train(by_path(steps=40), folder / "other")["status"] == "diverged"
    assert code_of(folder / "other") == held  # it is still that code's


def test_a_config_that_was_written_is_one_and_asks_for_its_code(by_path, folder):
    first = trainer.train(by_path(), folder / "run")
    back = Experiment.read(json.loads((folder / "run" / "config.json").read_text()))
    checks.check(back)
    again = trainer.train(back, folder / "again")
    assert again["parameters_crc32"] == first["parameters_crc32"]
    files = [(folder / name / "config.json").read_text() for name in ("run", "again")]
    assert files[0] == files[1]
    write(folder, 2)
    said = refusal(trainer.train, back, folder / "new")
    assert "config.code = 'my_loss.py " in said and "my_loss.py is another; must be" in said
    assert not (folder / "new").exists()
    back = back.with_(code="any")
    assert trainer.train(back, folder / "new")["status"] == "completed"
    plain = by_path(loss="", code="my_loss.py 0123456789ab")
    assert refusal(checks.check, plain).endswith("your own files is another; must be '' or 'any'")


def test_a_hash_is_of_the_bytes_of_a_file_and_not_of_what_it_imports(config, folder):
    """Wherever it lies."""

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
    named = config({"data.name": "text", "data.path": "my_loss.py"})
    assert lookup.fingerprint(named) == ""


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
    ],
)
def test_what_has_no_file_is_known_by_what_is_in_it(monkeypatch, text, other):
    """Made again alike it has the same hash."""
    found = []
    for expression in (text, text, other):
        cells = ModuleType("cells")
        monkeypatch.setitem(sys.modules, "cells", cells)
        exec(THINGS, cells.__dict__)
        found.append(lookup.digest(eval(expression, cells.__dict__)))
    assert found[0] == found[1] != found[2]


def test_a_changed_method_of_a_class_shows_and_what_a_function_reads_does_not(monkeypatch):
    def hashes(text):
        cells = ModuleType("cells")
        monkeypatch.setitem(sys.modules, "cells", cells)
        exec(text, cells.__dict__)
        return [*map(lookup.digest, (cells.Held(1.0), cells.Net(4), cells.reads))]

    held, net, reads = hashes(THINGS)
    other_held, *same = hashes(THINGS.replace("2 * self", "3 * self"))
    assert other_held != held and same == [net, reads]
    same, other_net, _ = hashes(THINGS.replace("Dense(self", "Dense(2 * self"))
    assert other_net != net and same == held
    assert hashes(THINGS.replace("READ = 1", "READ = 2")) == [held, net, reads]


def test_a_script_is_known_by_what_is_named_and_not_by_all_its_text(folder):
    """Or it could not be given more steps. And in every process alike."""
    text = (
        "from optdyn.base import lookup\nfrom optdyn.experiment import Experiment\n"
        "def loss(o, b): return o.sum(-1) * (1 if 'x' in {'x', 'y', 'z'} else 2)\n"
        "config = Experiment(loss='__main__:loss', steps=100)\n"
        "print(lookup.fingerprint(config))\n"
    )
    found = []
    for steps, changed in ((100, "1 if"), (200, "1 if"), (200, "3 if")):
        script = text.replace("100", str(steps)).replace("1 if", changed)
        (folder / "script.py").write_text(script)
        found.append(output(folder, "script.py"))
    assert found[0] == found[1] != found[2]
    assert found[0].startswith("__main__:loss ")


def test_recordings_and_grids_are_refused_likewise(by_path, config, folder, files):
    recording = {"replicas.count": 2, "steps": 5}
    made = record(by_path(**recording), folder / "recorded")
    points = Grid(config({**RUN, "loss": "my_loss.py:f"}), [{"seed": 1}, {"seed": 2}])
    trainer.train(by_path(seed=2, steps=10), folder / "grid" / "points" / "seed=2")
    before = files(folder / "grid")
    write(folder, 2)
    assert record(by_path(**recording), folder / "recorded") == made
    (folder / "recorded" / "summary.json").unlink()
    assert "another my_loss.py;" in refusal(record, by_path(**recording), folder / "recorded")
    told = by_path(**recording, code="any")
    assert record(told, folder / "recorded")["train_loss"] > made["train_loss"] + 1
    assert record(by_path(**recording), folder / "recorded")["status"] == "completed"
    assert "another my_loss.py;" in refusal(plan, points, folder / "grid")
    assert files(folder / "grid") == before
    points = points.with_({"base.code": "any"})
    assert [entry.status for entry in plan(points, folder / "grid")] == ["", "to go on"]


def test_a_race_is_refused_likewise(by_path, folder):
    values = {"cluster.service.name": "race"}
    race(by_path(**values), folder / "race", at_random(0))
    write(folder, 1000)
    longer = {**values, "steps": 40}
    connect = at_random(0)
    assert "another my_loss.py;" in refusal(race, by_path(**longer), folder / "race", connect)
    told = by_path(**longer, code="any")
    assert race(told, folder / "race", connect)["train_loss"] > 900


def test_a_trial_of_other_code_is_run_again(by_path, folder):
    jobs = [Job(by_path(steps=5, **{"optimizer.momentum": 0.0}))]
    with Study(folder / "study", "small", (5,), (0,), processes=1) as study:
        (first,) = study.trials(jobs)
        assert study.trials(jobs) == [first]
        write(folder, 2)
        (second,) = study.trials(jobs)
    assert second.losses[0] == pytest.approx(first.losses[0] + 2)
    assert len((folder / "study" / "trials.jsonl").read_text().splitlines()) == 2


def test_tables_have_a_column_of_the_files_whose_code_differs(by_path, config, folder):
    trainer.train(by_path(), folder / "points" / "one")
    trainer.train(config(RUN), folder / "points" / "registered")
    assert not [name for name in tables.load(folder)[0] if name.startswith("code")]
    write(folder, 2)
    trainer.train(by_path(), folder / "points" / "other")
    found = tables.load(folder)[0].set_index("point")["code.my_loss.py"]
    assert found["one"] != found["other"] and found.isna()["registered"]


def test_the_command(tmp_path):
    """An edited file is a line and exit code 2, and with `--config.code=any` the run goes on."""
    text = "import optdyn as od\ndef get_config():\n"
    text += "    return od.Experiment(model=od.Quadratic(), loss='my_loss.py:f')\n"
    (tmp_path / "my_all.py").write_text(text)
    write(tmp_path, 0)
    every = ["--workdir=run", "--config.log_every=10", "--config.checkpoint_every=10"]
    done = started(tmp_path, *every, "--config.steps=10")
    assert done.returncode == 0, done.stderr[-3000:]
    write(tmp_path, 1000)
    refused = started(tmp_path, *every, "--config.steps=20")
    assert refused.returncode == 2 and refused.stdout == ""
    assert refused.stderr.splitlines()[-1] == (
        "error: workdir run: its run was last started with another my_loss.py; give another "
        "--workdir, or --config.code=any to go on with other code"
    )
    told = started(tmp_path, *every, "--config.steps=20", "--config.code=any")
    assert told.returncode == 0 and "other code from here on: my_loss.py" in told.stderr
    done = started(tmp_path, "--workdir=new", *every[1:], "--config.steps=10")
    command = "-c", "from optdyn.cli.main import main; main()", "config", "run", "new"
    assert output(tmp_path, *command) == "steps: 20 -> 10\n"
    write(tmp_path, 2000)
    done = started(tmp_path, "--workdir=new", *every[1:], "--config.steps=20", "--config.code=any")
    assert done.returncode == 0
    (line,) = output(tmp_path, *command).splitlines()
    assert re.fullmatch(r'code.my_loss.py: "[0-9a-f]{12}" -> "[0-9a-f]{12}"', line)
