"""One's own is known by what it is: defined anew under the same name, it is another run's."""

import gc
import importlib
import sys
import weakref
from types import ModuleType

import jax
import numpy as np
import pytest

from optdyn.base import lookup, sources
from optdyn.experiment import ConfigError
from optdyn.problem import costs, problem, shared_data
from optdyn.train import program
from tests.train.runs import train
from tests.values import as_model

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
    """Each of the four, then a number that one reads, and a function that one calls."""
    first = loss_of()
    cells.run("def loss(o, b): return more(((o - b['y']) ** 2).sum(-1)) + 100")
    assert loss_of() == pytest.approx(100 + first)
    cells.run("PLUS = 200.0")
    assert loss_of() == pytest.approx(300 + first)
    cells.run("def more(errors): return errors - 100")
    assert loss_of() == pytest.approx(first, abs=1e-4)  # float32 around 100
    cells.run(CELLS)
    assert loss_of() == first
    found = {first}
    for text in (
        "def optimizer(learning_rate): return optax.sgd(0 * learning_rate)",
        "def model(classes): return nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(classes)])",
        "X = 2 * X",
    ):
        cells.run(text)
        found.add(loss_of())
    assert len(found) == 4


def test_each_of_several_alike_numbers_is_heeded(cells, loss_of):
    """1, 2 and 1 are not 1, 2 and 2, wherever they stand: as globals, arguments or a tuple."""
    cells.run("A, B, C = 1.0, 2.0, 1.0\ndef loss(o, b): return (A * o ** 2).sum(-1) + B + 10 * C")
    first = loss_of()
    cells.run("C = 2.0")
    assert loss_of() == pytest.approx(first + 10)
    cells.run("from functools import partial\ndef of(o, b, p, q): return o.sum(-1) * 0 + p - 2 * q")
    found = []
    for text in ("partial(of, p=1.0, q=3.0)", "partial(of, q=1.0, p=3.0)"):
        cells.run(f"loss = {text}")
        found.append(loss_of())
    assert found == [-5, 1]
    found = []
    for text in ("(1.0,), (2.0, 3.0)", "(1.0, 2.0), (3.0,)"):
        cells.run(f"A, B = {text}\ndef loss(o, b): return 0 * o.sum(-1) + sum(A) - sum(B)")
        found.append(loss_of())
    assert found == [-4, 0]


def test_what_an_object_holds_is_heeded(cells, loss_of):
    cells.run("from types import SimpleNamespace\nheld = SimpleNamespace(plus=1.0)")
    cells.run("def loss(o, b): return 0 * o.sum(-1) + held.plus")
    assert loss_of() == 1
    cells.run("held.plus = 2.0")
    assert loss_of() == 2


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
            "from optdyn.methods.chosen import load\na = load('asynchronous')",
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
    cells.run("PLUS = 0.0")  # the same number
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


def test_what_a_file_imports_from_beside_itself_is_part_of_it(folder):
    """However far; what two files import is executed once, and both have it."""
    (folder / "deep").mkdir()
    write(folder / "deep" / "inner.py", "value = 1\ncount = []")
    write(folder / "deep" / "outer.py", "from inner import value\nimport inner as it")
    for name in ("one", "other"):
        write(folder / "deep" / f"{name}.py", "from outer import value, it\ndef f(): return value")

    def found():
        both = [lookup.find("key", f"deep/{name}.py:f", {}) for name in ("one", "other")]
        return both, [function() for function in both]

    before, values = found()
    assert values == [1, 1] and found()[0] == before
    write(folder / "deep" / "inner.py", "value = 2\ncount = []")
    after, values = found()
    assert values == [2, 2] and found()[0] == after
    assert all(one is not other for one, other in zip(before, after, strict=True))
    assert [function() for function in before] == [1, 1]  # a run that is under way has its own
    write(folder / "deep" / "unheeded.py", "value = 3")
    assert found()[0] == after


@pytest.mark.parametrize(
    "text",
    [
        "import lab.parts\ndef f(): return lab.parts.value",
        "from lab import parts\ndef f(): return parts.value",
        "from lab.parts import value\ndef f(): return value",
        "import lab\ndef f(): return lab.value",
        "def f():\n    from lab.parts import value\n    return value",
        "import lab.more\ndef f(): return lab.more.parts.value + lab.parts.value - lab.value",
    ],
)
def test_packages_beside_a_file_are_part_of_it(folder, text):
    (folder / "lab").mkdir()
    write(folder / "lab" / "__init__.py", "from .parts import value")
    write(folder / "lab" / "more.py", "from . import parts")
    write(folder / "file.py", text)
    for number in (1, 2, 3):
        write(folder / "lab" / "parts.py", f"value = {number}")
        function = lookup.find("key", "file.py:f", {})
        assert function() == number
        assert lookup.find("key", "file.py:f", {}) is function
        digests = sources.digests(sys.modules[function.__module__])
        assert {"", "lab", "lab.parts"} <= set(digests) <= {"", "lab", "lab.parts", "lab.more"}


def test_an_edit_that_is_broken_is_a_line_until_it_is_repaired(folder):
    write(folder / "inner.py", "value = 1")
    write(folder / "file.py", "from inner import value\nthing = [value]")

    def find():
        return lookup.find("key", "file.py:thing", {})

    assert find() == [1]
    write(folder / "inner.py", "value = = 2")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"inner.py, line 1: SyntaxError"):
            find()
    write(folder / "inner.py", "other = 2")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"cannot import name 'value'"):
            find()
    write(folder / "inner.py", "value = 3")
    assert find() == [3]
    (folder / "file.py").unlink()
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


def test_the_operations_of_a_block_are_those_of_its_code(cells):
    """A block whose class is the same, and which calls a function that is another."""
    cells.run(
        "class Block(nn.Module):\n"
        "    @nn.compact\n"
        "    def __call__(self, x): return inner(nn.Dense(4)(x))\n"
        "def inner(x): return x\n"
        "def model(classes): return [('a', Block()), ('b', nn.Dense(classes))]\n"
    )

    def forward():
        made = problem.make(as_model({"name": "cells:model"}), 2)
        examples = {"x": np.ones((5, 3), np.float32), "y": np.ones((5, 2), np.float32)}
        params = made.init(jax.random.key(0), examples)
        return costs.block_costs(made, params, examples).trunk[0].forward

    first, analyzed = forward(), costs._analyzed.cache_info().misses
    assert forward() == first and costs._analyzed.cache_info().misses == analyzed
    cells.run("def inner(x): return x @ np.ones((4, 4), np.float32)")
    assert forward() == first + 5 * 4 * 4 * 2
