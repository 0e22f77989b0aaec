"""A run is of the code that it was started with: its workdir knows, and says so."""

import json
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest

from optdyn.cli.points import plan
from optdyn.evidence.study import Job, Study
from optdyn.problem import own_code
from optdyn.race.race import race
from optdyn.report import tables
from optdyn.train import checks, trainer
from optdyn.train.grid import grid
from optdyn.train.replicas import record
from tests.own.test_own import ROOT, started
from tests.race.test_race import at_random
from tests.train.runs import refusal as refused

LOSS = "from my_helper import PLUS\ndef f(outputs, batch): return (outputs**2).sum(-1) + PLUS\n"
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
    """Both files, and Python as one that has imported none of them."""
    (folder / "my_helper.py").write_text(f"PLUS = {plus}")
    (folder / "my_loss.py").write_text(LOSS)
    for name in ("my_helper", "my_loss"):
        sys.modules.pop(name, None)


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
    assert said.startswith(f"workdir {folder / 'run'}: the code of my_loss")
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
    assert "the code of my_loss" in refusal(trainer.train, own(steps=80), folder / "run")


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
    (folder / "my_helper.py").write_text("PLUS = float('nan')")
    assert "the code of my_loss.py" in refusal(trainer.train, by_path(), folder / "run")
    assert trainer.train(by_path(), folder / "other")["status"] == "diverged"
    held = code_of(folder / "other")
    (folder / "my_helper.py").write_text("PLUS = 0")
    assert trainer.train(by_path(steps=40), folder / "other")["status"] == "diverged"
    assert code_of(folder / "other") == held  # it is still that code's


def test_a_config_that_was_written_is_one_and_asks_for_its_code(by_path, folder):
    first = trainer.train(by_path(), folder / "run")
    back = ConfigDict(json.loads((folder / "run" / "config.json").read_text()))
    checks.check(back)
    again = trainer.train(back, folder / "again")
    assert again["parameters_crc32"] == first["parameters_crc32"]
    files = [(folder / name / "config.json").read_text() for name in ("run", "again")]
    assert files[0] == files[1]
    (folder / "my_helper.py").write_text("PLUS = 2")
    said = refusal(trainer.train, back, folder / "new")
    assert "config.code = 'my_loss.py " in said and "the code of my_loss.py is another" in said
    assert not (folder / "new").exists()
    back = back.with_(
        {
            "code": "any",
        }
    )
    assert trainer.train(back, folder / "new")["status"] == "completed"
    plain = by_path(loss="", code="my_loss.py 0123456789ab")
    assert refusal(checks.check, plain).endswith("your own files is another; must be '' or 'any'")


def test_what_a_checksum_is_of(config, folder):
    """All files, wherever they lie; neither the time nor what is not imported."""

    def code(name="my_loss.py:f"):
        return own_code.fingerprint(config({"loss": name}))

    write(folder, 0)
    first = code()
    assert code() == first and first.startswith("my_loss.py ") and len(first) == 10 + 1 + 12
    (folder / "unheeded.py").write_text("PLUS = 3")
    assert code() == first
    (folder / "deep").mkdir()
    for name in ("my_helper.py", "my_loss.py"):
        (folder / name).rename(folder / "deep" / name)
    sys.modules.pop("my_helper")
    assert code("deep/my_loss.py:f") == f"deep/{first}"
    text = "def f(outputs, batch):\n    from late_helper import g\n    return g(outputs)\n"
    (folder / "late.py").write_text(text)
    (folder / "late_helper.py").write_text("def g(o): return o.sum(-1)")
    late = code("late.py:f")
    assert "late_helper" not in sys.modules
    (folder / "late_helper.py").write_text("def g(o): return o.sum(-1) + 1")
    assert code("late.py:f") != late
    named = config({"loss": "huber", "data.name": "text:my_loss.py"})
    assert own_code.fingerprint(named) == ""


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("\n\n\ndef f(o, b):\n    # a comment\n    return g(o) * NUMBER + ARRAY.sum()", True),
        ("def f(o, b): return g(o) * NUMBER - ARRAY.sum()", False),
        ("def g(o): return o.sum(0)", False),
        ("def g(o): return (o.sum( -1) + len( LIST))", True),
        ("NUMBER = 2", False),
        ("NUMBER, unheeded = 1, 3", True),
        ("ARRAY = np.ones(3)", True),
        ("ARRAY = np.full(3, 2.0)", False),
        ("LIST = [1, 3]", False),
        ("LIST = [1, 2]", True),
    ],
)
def test_what_has_no_file_is_known_by_its_code(config, monkeypatch, text, same):
    cells = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", cells)
    exec("import numpy as np\nNUMBER, ARRAY, LIST = 1, np.ones(3), [1, 2]", cells.__dict__)
    exec("def g(o): return o.sum(-1) + len(LIST)", cells.__dict__)
    exec("def f(o, b): return g(o) * NUMBER + ARRAY.sum()", cells.__dict__)
    chosen = config({"loss": "cells:f"})
    before = own_code.fingerprint(chosen)
    assert before.startswith("cells:f ")
    exec(text, cells.__dict__)
    assert (own_code.fingerprint(chosen) == before) == same


HELD = """
import argparse, jax, types, numpy as np, pandas as pd
from functools import cached_property
class Own:
    K = 1
    WIDTHS = [4, 4]
    def __init__(self, a): self.a, self.inner = a, self
    def one(self): return 1
    def two(self): return 2
    @cached_property
    def late(self): return 3
SPACE, ARGS, CONFIG = types.SimpleNamespace(a=1), argparse.Namespace(a=1), ConfigDict({"a": 1})
OWN, LIST, FRAME, NUMBER = Own(1), [Own(1)], pd.DataFrame({"a": [1.0]}), np.float32(1)
KEY, LOOP = jax.random.key(1), [1]
LOOP.append(LOOP)
def f(o, b): return o, SPACE, ARGS, CONFIG, OWN, LIST, FRAME, NUMBER, KEY, LOOP, Own, np
"""


@pytest.mark.parametrize(
    "text",
    [
        *("SPACE.a = 2", "ARGS.a = 2", "CONFIG.a = 2", "OWN.a = 2", "LIST[0].a = 2"),
        *("FRAME.loc[0, 'a'] = 2.0", "NUMBER = np.float32(2)", "KEY = jax.random.key(2)"),
        *("LOOP[0] = 2", "Own.K = 2", "Own.WIDTHS[1] = 5", "import jax.numpy as np"),
        "Own.one, Own.two = Own.two, Own.one",
        HELD.replace("return 3", "return 4"),
    ],
)
def test_what_things_hold_is_part_of_the_code_that_reads_them(config, monkeypatch, text):
    """Where it has no file: made again alike it is the same, and with another number another."""
    cells = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", cells)
    chosen = config({"loss": "cells:f"})
    found = []
    for cell in (HELD, HELD, text):
        exec(cell, cells.__dict__)
        found.append(own_code.fingerprint(chosen))
    assert found[0] == found[1] != found[2]


def test_a_script_is_known_by_what_is_named_and_not_by_all_its_text(folder):
    """Or it could not be given more steps. And in every process alike."""
    text = (
        "from optdyn.problem import own_code\nfrom optdyn.experiment import default, parse\n"
        "def loss(o, b): return o.sum(-1) * (1 if 'x' in {'x', 'y', 'z'} else 2)\n"
        "config = Experiment()\nconfig.loss = '__main__:loss'\nconfig.steps = 100\n"
        "print(own_code.fingerprint(config))\n"
    )
    found = []
    for steps, changed in ((100, "1 if"), (200, "1 if"), (200, "3 if")):
        script = text.replace("100", str(steps)).replace("1 if", changed)
        (folder / "script.py").write_text(script)
        found.append(output(folder, "script.py"))
    assert found[0] == found[1] != found[2]
    assert found[0].startswith("__main__:loss ")


def test_a_function_that_was_put_into_a_module_of_a_file(config, folder, monkeypatch):
    write(folder, 0)
    chosen = config({"loss": "my_loss:f"})
    before = own_code.fingerprint(chosen)
    cells = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", cells)
    exec("def f(outputs, batch): return outputs.sum(-1)", cells.__dict__)
    sys.modules["my_loss"].f = cells.f
    after = own_code.fingerprint(chosen)
    assert list(own_code.entries(before)) == ["my_loss"]
    assert list(own_code.entries(after)) == ["my_loss", "my_loss:f"]


def test_recordings_and_grids_are_refused_likewise(by_path, config, folder, files):
    recording = {"replicas.count": 2, "steps": 5}
    made = record(by_path(**recording), folder / "recorded")
    points = grid(config({**RUN, "loss": "my_loss.py:f"}), [{"seed": 1}, {"seed": 2}])
    trainer.train(by_path(seed=2, steps=10), folder / "grid" / "points" / "seed=2")
    before = files(folder / "grid")
    (folder / "my_helper.py").write_text("PLUS = 2")
    assert record(by_path(**recording), folder / "recorded") == made
    (folder / "recorded" / "summary.json").unlink()
    assert "the code of my_loss.py" in refusal(record, by_path(**recording), folder / "recorded")
    told = by_path(**recording, code="any")
    assert record(told, folder / "recorded")["train_loss"] > made["train_loss"] + 1
    assert record(by_path(**recording), folder / "recorded")["status"] == "completed"
    assert "the code of my_loss.py" in refusal(plan, points, folder / "grid")
    assert files(folder / "grid") == before
    points.base.code = "any"
    assert [entry.status for entry in plan(points, folder / "grid")] == ["", "to go on"]


def test_a_race_is_refused_likewise(by_path, folder):
    values = {"cluster.service.name": "race"}
    race(by_path(**values), folder / "race", at_random(0))
    (folder / "my_helper.py").write_text("PLUS = 1000")
    longer = {**values, "steps": 40}
    connect = at_random(0)
    assert "the code of my_loss.py" in refusal(race, by_path(**longer), folder / "race", connect)
    told = by_path(**longer, code="any")
    assert race(told, folder / "race", connect)["train_loss"] > 900


def test_a_trial_of_other_code_is_run_again(by_path, folder):
    jobs = [Job(by_path(steps=5, **{"optimizer.momentum": 0.0}))]
    with Study(folder / "study", "small", (5,), (0,), processes=1) as study:
        (first,) = study.trials(jobs)
        assert study.trials(jobs) == [first]
        (folder / "my_helper.py").write_text("PLUS = 2")
        (second,) = study.trials(jobs)
    assert second.losses[0] == pytest.approx(first.losses[0] + 2)
    assert len((folder / "study" / "trials.jsonl").read_text().splitlines()) == 2


def test_tables_have_a_column_of_the_files_whose_code_differs(by_path, config, folder):
    trainer.train(by_path(), folder / "points" / "one")
    trainer.train(config(RUN), folder / "points" / "registered")
    assert not [name for name in tables.load(folder)[0] if name.startswith("code")]
    (folder / "my_helper.py").write_text("PLUS = 2")
    trainer.train(by_path(), folder / "points" / "other")
    found = tables.load(folder)[0].set_index("point")["code.my_loss.py"]
    assert found["one"] != found["other"] and found.isna()["registered"]


def test_the_command(tmp_path):
    """An edited file is a line and exit code 2, and with `--config.code=any` the run goes on."""
    text = "from optdyn.experiment import default\ndef get_config():\n    config = Experiment()\n"
    text += "    config.model.name, config.loss = 'quadratic', 'my_loss.py:f'\n    return config\n"
    (tmp_path / "my_all.py").write_text(text)
    (tmp_path / "my_helper.py").write_text("PLUS = 0")
    (tmp_path / "my_loss.py").write_text(LOSS)
    every = ["--workdir=run", "--config.log_every=10", "--config.checkpoint_every=10"]
    done = started(tmp_path, *every, "--config.steps=10")
    assert done.returncode == 0, done.stderr[-3000:]
    (tmp_path / "my_helper.py").write_text("PLUS = 1000")
    refused = started(tmp_path, *every, "--config.steps=20")
    assert refused.returncode == 2 and refused.stdout == ""
    assert refused.stderr.splitlines()[-1] == (
        "error: workdir run: the code of my_loss.py, or of what is imported there, is not what "
        "its run was last started with; give another --workdir, or --config.code=any to go on "
        "with other code"
    )
    told = started(tmp_path, *every, "--config.steps=20", "--config.code=any")
    assert told.returncode == 0 and "other code from here on: my_loss.py" in told.stderr
    done = started(tmp_path, "--workdir=new", *every[1:], "--config.steps=10")
    command = "-c", "from optdyn.cli.main import main; main()", "config", "run", "new"
    assert output(tmp_path, *command) == "steps: 20 -> 10\n"
    (tmp_path / "my_helper.py").write_text("PLUS = 2000")
    done = started(tmp_path, "--workdir=new", *every[1:], "--config.steps=20", "--config.code=any")
    assert done.returncode == 0
    (line,) = output(tmp_path, *command).splitlines()
    assert re.fullmatch(r'code.my_loss.py: "[0-9a-f]{12}" -> "[0-9a-f]{12}"', line)
