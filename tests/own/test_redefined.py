"""In a process a thing is itself: defined again under the same name, it makes another program."""

import gc
import importlib
import sys
import weakref
from types import ModuleType

import pytest

from optdyn.base import lookup
from optdyn.experiment import ConfigError
from optdyn.problem import shared_data
from optdyn.train import program
from tests.train.runs import train

CELLS = """
import numpy as np, optax
from flax import linen as nn

X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
PLUS = 0.0
TRACED = 0


def data():
    return {"train": {"x": X, "y": X[:, :2]}, "test": {"x": X[:8], "y": X[:8, :2]}}


def more(errors):
    return errors + PLUS


def loss(outputs, batch):
    global TRACED
    TRACED += 1
    return more(((outputs - batch["y"]) ** 2).sum(-1))


def model(classes):
    return nn.Dense(classes)


def optimizer(learning_rate):
    return optax.sgd(learning_rate)
"""
NAMES = {
    "data.name": "cells:data",
    "loss": "cells:loss",
    "model.name": "cells:model",
    "optimizer.name": "cells:optimizer",
}
RUN = {"steps": 10, "log_every": 10, "data.train_examples": 0, "optimizer.momentum": 0.0}


@pytest.fixture
def cells(monkeypatch):
    """What a notebook has typed in so far, as a module without a file; `cells.run(text)` adds."""
    module = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", module)
    module.run = lambda text: exec(text, module.__dict__)
    module.run(CELLS)
    return module


@pytest.fixture
def loss_of(config, tmp_path):
    """`loss_of(values)`: the last training loss of a run in a new workdir."""
    folders = iter(range(100))

    def loss(values=NAMES):
        run = tmp_path / f"run{next(folders)}"
        return train(config({**RUN, **values}), run)["train_loss"]

    return loss


def test_what_a_notebook_defines_anew_is_trained_with(cells, loss_of):
    """Each of the four; what a function reads from its module is not followed, as in `jax.jit`."""
    first = loss_of()
    cells.run("def loss(o, b): return more(((o - b['y']) ** 2).sum(-1)) + 100")
    assert loss_of() == pytest.approx(100 + first)
    cells.run("PLUS = 200.0")
    assert loss_of() == pytest.approx(100 + first)
    cells.run(CELLS)
    assert loss_of() == first
    found = {first}
    for text in (
        "def optimizer(learning_rate): return optax.sgd(0 * learning_rate)",
        "def model(classes): return nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(classes)])",
        "def data(): return {'train': {'x': 2 * X, 'y': X[:, :2]}}",
    ):
        cells.run(text)
        found.add(loss_of())
    assert len(found) == 4


def test_a_metric_a_method_a_transform_a_schedule_and_a_law_likewise(cells, config, tmp_path):
    texts = {
        "metrics": (
            "def a(o, b): return o[:, 0] * 0 + 1",
            "def a(o, b): return o[:, 0] * 0 + 2",
        ),
        "optimizer.chain": ("a = lambda: optax.scale(1.)", "a = lambda: optax.scale(2.)"),
        "optimizer.schedule": (
            "def a(learning_rate, steps): return lambda t: 0.1",
            "def a(learning_rate, steps): return lambda t: 0.2",
        ),
        "cluster.service.name": (
            "def a(): return lambda rng, shape: np.ones(shape)",
            "def a(): return lambda rng, shape: rng.standard_exponential(shape)",
        ),
        "method.name": (
            "from optdyn.methods import load\na = load('asynchronous')",
            "a = load('sync')",
        ),
    }
    heeded = {"metrics": "test_a", "cluster.service.name": "simulated_seconds"}
    for key, both in texts.items():
        found = []
        for number, text in enumerate(both):
            cells.run(text)
            value = "cells:a" if key != "metrics" and key != "optimizer.chain" else ("cells:a",)
            chosen = config({**RUN, **NAMES, key: value})
            summary = train(chosen, tmp_path / f"{key}{number}")
            found.append(summary[heeded.get(key, "train_loss")])
        assert found[0] != found[1], key


def test_what_stays_as_it_is_shares_its_compilation(cells, loss_of):
    loss_of()
    traced, made = cells.TRACED, program._make.cache_info().misses
    assert traced > 0
    for rate in (0.1, 0.2):
        loss_of({**NAMES, "optimizer.learning_rate": rate})
    cells.run("unheeded = 3")
    loss_of()
    assert traced == cells.TRACED and program._make.cache_info().misses == made


def test_what_is_defined_no_more_is_not_kept_for_ever(cells, config):
    """Caches are bounded: as many new ones later the first is gone."""
    chosen = config({**RUN, **NAMES})
    first = weakref.ref(cells.loss)
    with shared_data.COMPILE_LOCK:
        for _ in range(program._problem.cache_parameters()["maxsize"] + 1):
            program.problem_of(chosen, 2)
            cells.run("def loss(o, b): return (o - b['y']).sum(-1)")
    gc.collect()
    assert first() is None


def write(path, text):
    path.write_text(text)
    return path


LOSS = "def loss(outputs, batch): return ((outputs - batch['y']) ** 2).sum(-1) + "


def test_a_file_is_read_again_when_it_was_edited(cells, loss_of, folder):
    """And only then, so that runs of the same file share one compilation."""
    values = {**NAMES, "loss": "my_file.py:loss"}
    losses = []
    for plus in (0, 8, 9):  # of one length, and maybe within one tick of the clock of files
        write(folder / "my_file.py", f"{LOSS}{plus}")
        losses += [loss_of(values), loss_of(values)]
    first = losses[0]
    assert losses == pytest.approx([first, first, 8 + first, 8 + first, 9 + first, 9 + first])
    made = program._make.cache_info().misses
    loss_of(values)
    assert program._make.cache_info().misses == made


def test_an_edit_that_is_broken_is_a_line_until_it_is_repaired(folder):
    path = write(folder / "file.py", "thing = [1]")

    def find():
        return lookup.find("key", "file.py:thing", {})

    first = find()
    write(path, "thing = = [2]")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"file.py, line 1: SyntaxError"):
            find()
    write(path, "thing = [3]")
    assert find() == [3] and first == [1]  # a run that is under way has its own
    path.unlink()
    with pytest.raises(ConfigError, match="no file"):
        find()


def test_once_a_run_is_under_way_nobody_looks_again(folder):
    write(folder / "file.py", "thing = [1]")
    with lookup.once():
        found = lookup.find("key", "file.py:thing", {})
        write(folder / "file.py", "thing = [2]")
        with lookup.once():
            assert lookup.find("key", "file.py:thing", {}) is found
        assert lookup.find("key", "file.py:thing", {}) is found
    assert lookup.find("key", "file.py:thing", {}) == [2]


def test_a_module_is_as_python_has_it(cells, loss_of, folder):
    """Its file is not read again; what is reloaded or assigned is seen."""
    values = {**NAMES, "loss": "my_module:loss"}
    path = write(folder / "my_module.py", f"{LOSS}0")
    first = loss_of(values)
    write(path, f"{LOSS}500  # so long that Python notices")
    assert loss_of(values) == first
    importlib.reload(sys.modules["my_module"])
    assert loss_of(values) == pytest.approx(500 + first)
    sys.modules["my_module"].loss = lambda o, b: ((o - b["y"]) ** 2).sum(-1) + 700
    assert loss_of(values) == pytest.approx(700 + first)
