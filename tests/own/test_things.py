"""One's own things: from a name to the thing, of every kind, and what is refused in a line.

What says again what is registered gives its floats. In a process a thing is itself: defined again
under the same name, it makes another program.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from optdyn.base import lookup
from optdyn.base.errors import ConfigError
from optdyn.base.fields import plain
from optdyn.experiment import Config, to_json
from optdyn.problem import shared_data
from optdyn.train import batched_runs, checks, program
from optdyn.train.trainer import prepare, train
from optdyn.train.warnings import probable_mistakes
from tests.train.runs import refusal as refused

ROOT = Path(__file__).parents[2]
KEY = "config.some.key"
refusal = partial(refused, error=ConfigError)


def find(name, key=KEY, known=()):
    return lookup.find(key, name, dict(known))


def write(path, text):
    path.write_text(text)
    return path


# Names.


def test_a_name_is_of_the_registry_or_of_a_file(folder):
    assert find("a", known={"a": 1, "b": 2}) == 1
    write(folder / "mine_here.py", "thing = 7\n")
    assert find("mine_here:thing") == 7
    deep = folder / "deep" / "er"
    deep.mkdir(parents=True)
    write(deep / "neighbour_of_it.py", "value = 8\n")
    write(deep / "it.py", "from neighbour_of_it import value\nthing = [value]\n")
    found = find("deep/er/it.py:thing")
    assert found == [8]
    assert find(f"{deep}/it.py:thing") is found  # imported once
    assert find("json:loads").__module__ == "json"


def test_what_is_installed_goes_before_the_current_folder(folder, monkeypatch):
    write(folder / "colorsys.py", "raise RuntimeError('the wrong one')\n")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert find("colorsys:rgb_to_hsv")(0, 0, 1) == (2 / 3, 1, 1)
    # The folder is looked through last: nothing before it is displaced.
    assert sys.path.index(str(folder)) == len(sys.path) - 1


def test_what_cannot_be_found_is_one_line(folder):
    assert refusal(find, "c", known={"a": 1, "b": 2}) == (
        f"config.some.key = 'c': must be one of a, b, or {lookup.USER_NAMES}"
    )
    assert "no module 'nosuch.deep'" in refusal(find, "nosuch.deep:x")
    assert f"no file {folder}/nosuch.py" in refusal(find, "nosuch.py:x")
    write(folder / "halves.py", "import math\n\n\ndef one():\n    pass\n")
    for name in ("halves:two", "halves.py:two"):
        assert f"{folder}/halves.py has no 'two', only one" in refusal(find, name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ny = nosuch\n", "line 2: NameError: name 'nosuch' is not defined"),
        ("x = 1\n\ndef f(:\n", "line 3: SyntaxError"),
        ("import nosuch_lib\n", "line 1: ModuleNotFoundError: No module named 'nosuch_lib'"),
        ("import json\n\nx = json.loads('{')\n", "line 3: JSONDecodeError"),
    ],
)
def test_an_error_in_the_file_says_where(folder, text, words):
    write(folder / "broken_one.py", text)
    for name in ("broken_one:x", "broken_one.py:x"):
        message = refusal(find, name)
        assert message.startswith(f"{KEY} = {name!r}: ")
        assert f"{folder}/broken_one.py, {words}" in message


def test_what_a_call_raises_says_where(folder):
    write(folder / "calls.py", "def make(a):\n    b = a\n    return 1 / b\n")
    make = find("calls:make")
    call = partial(lookup.call_user_code, KEY, "calls:make", make)
    assert call(2) == 0.5
    assert f"{folder}/calls.py, line 3: ZeroDivisionError" in refusal(call, 0)
    words = refusal(call, 1, c=2)
    assert f"{folder}/calls.py, line 1: TypeError" in words and "'c'" in words
    with pytest.raises(ZeroDivisionError):  # ours are not disguised
        lookup.call_user_code(KEY, "registered", make, 0)


def test_options_are_the_same_from_a_config_and_from_its_json():
    options = {"widths": (1, 2), "deep": {"a": (3,), "b": "text"}}
    config = Config().with_({"model.name": "a:model", "model.options": options})
    for made in (config, Config().with_(json.loads(to_json(config)))):
        found = plain(made.model.options)
        assert found == options and type(found) is type(found["deep"]) is dict
        found["deep"].clear()  # it is whoever was given it that may
        assert made.model.options == options


# What is edited, and what is defined again.


def test_a_file_is_as_it_is_now_and_a_broken_one_is_a_line_until_it_is_repaired(folder):
    path = write(folder / "file.py", "thing = [1]")
    first = find("file.py:thing")
    assert find("file.py:thing") is first
    write(path, "thing = [2]")  # of one length, and maybe within one tick of the clock of files
    assert find("file.py:thing") == [2]
    write(path, "thing = = [2]")
    for _ in range(2):
        assert "file.py, line 1: SyntaxError" in refusal(find, "file.py:thing")
    write(path, "thing = [3]")
    assert find("file.py:thing") == [3] and first == [1]  # a run that is under way has its own
    path.unlink()
    assert "no file" in refusal(find, "file.py:thing")


def test_once_a_run_is_under_way_nobody_looks_again(folder):
    write(folder / "file.py", "thing = [1]")
    with lookup.files_read_once():
        found = find("file.py:thing")
        write(folder / "file.py", "thing = [2]")
        with lookup.files_read_once():
            assert find("file.py:thing") is found
        assert find("file.py:thing") is found
    assert find("file.py:thing") == [2]


def test_a_module_is_as_python_has_it(folder):
    named = Config(loss="my_module:thing")
    path = write(folder / "my_module.py", "thing = [1]")
    first, code = find("my_module:thing"), lookup.fingerprint(named)
    write(path, "thing = [2]  # so long that Python notices")
    assert find("my_module:thing") is first and lookup.fingerprint(named) == code
    importlib.reload(sys.modules["my_module"])
    assert find("my_module:thing") == [2] and lookup.fingerprint(named) != code
    sys.modules["my_module"].thing = [3]
    assert find("my_module:thing") == [3]


CELLS = """
import jax.numpy as jnp, numpy as np, optax
from flax import linen as nn
from optdyn.methods import load
from optdyn import MLP, MNIST5k

PLUS = 0.0
TRACED = 0


def more(errors):
    return errors + PLUS


def loss(outputs, batch):
    global TRACED
    TRACED += 1
    logits = outputs.astype(jnp.float32)
    return more(optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]))
"""
RUN = {"steps": 20, "log_every": 10, "checkpoint_every": 0}
# The figure that says whether a thing is heeded, where it is not the checksum of parameters.
FIGURES = {
    "metrics": "test_a",
    "optimizer.schedule": "learning_rate",
    "cluster.service.name": "simulated_seconds",
}
# What is registered once more, and another.
AGAIN = {
    "model.name": (
        "def a(classes, hidden): return MLP(hidden=hidden).blocks_for(classes)",
        "def a(classes, hidden): return MLP(hidden=(*hidden, 4)).blocks_for(classes)",
    ),
    "loss": ("a = loss", "def a(o, b): return loss(2 * o, b)"),
    "metrics": (
        "def a(outputs, batch): return outputs.argmax(-1) == batch['label']",
        "def a(outputs, batch): return outputs.argmin(-1) == batch['label']",
    ),
    "data.name": (
        "def a(folder): return MNIST5k(dir=folder).load()",
        "def a(folder): return MNIST5k(dir=folder).load()._replace(classes=11)",
    ),
    "optimizer.name": (
        "def a(learning_rate, momentum): return optax.sgd(learning_rate, momentum)",
        "def a(learning_rate, momentum): return optax.sgd(learning_rate, momentum, True)",
    ),
    "optimizer.chain": ("a = lambda: optax.scale(1.)", "a = lambda: optax.scale(2.)"),
    "optimizer.schedule": (
        "def a(rate, steps): return optax.cosine_decay_schedule(rate, steps)",
        "def a(rate, steps): return optax.cosine_decay_schedule(rate / 2, steps)",
    ),
    "method.name": (
        "class a(load('asynchronous')): pass",
        "class a(load('asynchronous')):\n"
        "  def clock(self, setting, methods):\n"
        "    other = setting.setup.with_({'seed': 7})\n"
        "    return super().clock(setting._replace(setup=other), methods)",
    ),
    "cluster.service.name": (
        "def a(): return lambda rng, shape: rng.standard_exponential(shape)",
        "def a(): return lambda rng, shape: np.ones(shape)",
    ),
}


@pytest.fixture
def cells(monkeypatch):
    """What a notebook has typed in so far, as a module without a file; `cells.run(text)` adds."""
    module = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", module)
    module.run = lambda text: exec(text, module.__dict__)
    module.run(CELLS)
    return module


@pytest.fixture(scope="module")
def registered(mnist):
    """The values of a run in which nothing is one's own."""
    optimizer = {"name": "sgd", "momentum": 0.3, "schedule": "cosine", "warmup_steps": 5}
    return {
        **RUN,
        **mnist,
        **{f"optimizer.{key}": value for key, value in optimizer.items()},
        **{"method.name": "asynchronous", "method.groups": 4},
    }


@pytest.fixture(scope="module")
def usual(config, registered, tmp_path_factory):
    """The summary of that run."""
    return train(config(registered), tmp_path_factory.mktemp("usual"))


@pytest.mark.parametrize("key", lookup.KEYS)
def test_ones_own_gives_the_floats_of_what_is_registered_and_defined_again_is_another(
    config, registered, usual, cells, tmp_path, mnist, key
):
    again, another = AGAIN[key]
    values = {k: v for k, v in registered.items() if key != "model.name" or k[:6] != "model."}
    values[key] = ("cells:a",) if key in ("metrics", "optimizer.chain") else "cells:a"
    more = {"model.name": ("hidden", (8,)), "data.name": ("folder", mnist["data.dir"])}
    if key in more:
        values[f"{key.removesuffix('.name')}.options"] = dict([more[key]])
    found, texts = [], (again, another, again) if key == "loss" else (again, another)
    for number, text in enumerate(texts):
        cells.run(text)
        found.append(train(config(values), tmp_path / f"run{number}"))
    first = found[0]
    for figure in ("parameters_crc32", "simulated_seconds", "staleness_histogram", "learning_rate"):
        assert first[figure] == usual[figure]
    for figure in ("train_loss", "test_loss"):  # compiled apart, the sums may be in another order
        assert first[figure] == pytest.approx(usual[figure], rel=1e-6)
    if key == "metrics":
        assert first["test_a"] == usual["test_accuracy"] and "test_accuracy" not in first
    figures = [summary[FIGURES.get(key, "parameters_crc32")] for summary in found]
    assert figures[0] != figures[1] and figures[2:] in ([], figures[:1])


def test_what_a_function_reads_is_not_followed_and_what_stays_shares_its_compilation(
    cells, config, registered, tmp_path
):
    folders = iter(range(100))

    def loss_of(**values):
        chosen = config({**registered, "loss": "cells:loss", **values})
        return train(chosen, tmp_path / f"run{next(folders)}")["train_loss"]

    first = loss_of()
    traced, made = cells.TRACED, program._make.cache_info().misses
    cells.run("PLUS = 200.0")
    assert loss_of() == first
    for rate in (0.1, 0.2):
        loss_of(**{"optimizer.learning_rate": rate})
    assert traced == cells.TRACED > 0 and program._make.cache_info().misses == made
    cells.run("def loss(o, b): return more(0 * o.sum(-1))")
    assert loss_of() == 200
    path = tmp_path / "my_file.py"
    for plus in (8, 9):
        write(path, f"def loss(outputs, batch): return 0 * outputs.sum(-1) + {plus}")
        assert loss_of(loss=f"{path}:loss") == plus
        made = program._make.cache_info().misses
        assert loss_of(loss=f"{path}:loss") == plus
        assert program._make.cache_info().misses == made


def test_what_is_defined_no_more_is_not_kept_for_ever(cells, config):
    chosen = config({"loss": "cells:loss"})
    first = weakref.ref(cells.loss)
    with shared_data.COMPILE_LOCK:
        for _ in range(program._problem.cache_parameters()["maxsize"] + 1):
            program.problem_of(chosen, 2)
            cells.run("def loss(o, b): return o.sum(-1)")
    gc.collect()
    assert first() is None


def test_runs_of_ones_own_that_differ_in_numbers_are_one_compilation(config, folder):
    text = "def law(shape=2.0): return lambda rng, size: rng.gamma(shape, 1 / shape, size)\n"
    text += "def rate(learning_rate, steps, by): return lambda t: learning_rate / by\n"
    write(folder / "my_file.py", text)
    made = config()
    law = made.with_({"cluster.service.name": "my_file:law", "optimizer.schedule": "my_file:rate"})
    law = law.with_({"optimizer.schedule_options.by": 3})
    steep = law.with_({"cluster.service.options.shape": 5.0})
    assert len({*map(batched_runs.compilation, (made, law, steep))}) == 1
    other = steep.with_(loss="my_file:law")
    assert batched_runs.compilation(other) != batched_runs.compilation(made)


def test_the_examples_run_outside_of_the_checkout_under_other_names(tmp_path, rows):
    for path in (ROOT / "configs" / "custom").glob("*.py"):
        write(tmp_path / f"my_{path.name}", path.read_text().replace("{HERE}/", "my_"))

    def train(workdir):
        given = ["--config=my_all.py", "--config.steps=20", f"--workdir={workdir}"]
        given += ["--config.log_every=10", "--config.checkpoint_every=10"]
        command = [sys.executable, "-m", "launch.train", *given]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    done = train("run")
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "completed"
    log = rows(tmp_path / "run")
    assert {"test_worst", "test_absolute_error"} <= set(log[-1])
    assert log[-1]["train_loss"] < log[0]["train_loss"]
    # The largest of an example's two errors is their mean at least, and twice it at most.
    for row in log:
        mean = row["test_absolute_error"]
        assert mean <= row["test_worst"] <= 2 * mean
    rate = 0.1 / np.sqrt(1 + 9 / 50)  # update 19, the tenth after the warm-up
    assert log[-1]["learning_rate"] == pytest.approx(rate, rel=1e-6)
    # What is wrong with a file is one line, and nothing is written.
    write(tmp_path / "my_model.py", "import flax\n\ndef make(classes, widths):\n    oh\n")
    failed = train("other")
    assert failed.returncode == 2 and not (tmp_path / "other").exists()
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    assert failed.stderr.splitlines()[-1] == line
    assert f"{tmp_path}/my_model.py, line 4: NameError: name 'oh' is not defined" in line


# Things that cannot be used.

LINES = {
    "model.name": {
        "def f(classes): return 3": "must return a flax.linen module or a sequence",
        "def f(classes): return []": "must return a flax.linen module or a sequence",
        "def f(classes): return [('a', nn.Dense(2)), ('a', nn.Dense(2))]": "all names different",
        "def f(classes, more): return nn.Dense(2)": "missing 1 required positional argument",
        "def f(classes): return nn.Embed(3, 2)": "config.model: cannot be used on examples of x",
        "def f(classes): return nn.Dense(2, param_dtype='bfloat16')": "must be float32",
        "def f(classes): return nn.Dense(3)": "config.loss: cannot be used on examples of x (3,)",
    },
    "loss": {
        "def f(outputs, batch): return outputs.sum()": "must return one number an example, (B,), n",
        "def f(outputs, batch): return outputs": "one number an example, (B,), not (B, 2)",
        "def f(outputs, batch): return batch['label']": "my_file.py, line 4: KeyError: 'label'",
        "f = 3": "must be a function (outputs, batch)",
    },
    "metrics": {"def f(outputs, batch): return outputs.mean(0)": "metrics, 'f': must return"},
    "optimizer.name": {
        "def f(rate): return optax.sgd(rate)": "a function with an argument 'learning_rate'",
        "def f(learning_rate): return 3": "my_file:f cannot be used",
        "def f(learning_rate): return optax.lbfgs(learning_rate)": "my_file:f cannot be used",
        "def f(learning_rate):\n"
        "  grow = lambda g, s, p=None: (g, jnp.append(s, 0.))\n"
        "  return optax.GradientTransformation(lambda p: jnp.zeros(1), grow)": "of its state)",
    },
    "optimizer.schedule": {
        "def f(learning_rate, steps): return 3": "TypeError: 'int' object is not callable",
        "def f(learning_rate): return lambda t: t": "TypeError",
        "def f(learning_rate, steps): return lambda t: jnp.log(t - 5.)": "the rate of update 0 is",
        "def f(learning_rate, steps): return lambda t: 0 if t else 1": "TracerBool",
    },
    "cluster.service.name": {
        "def f(): return lambda rng, shape: rng.normal(size=shape)": "finite numbers above 0",
        "def f(): return lambda rng, shape: 1.0": "must be as many numbers",
        "def f(): return lambda rng, shape: rng.nosuch(shape)": "AttributeError",
        "def f(mean): return lambda rng, shape: 1": "missing 1 required positional argument",
    },
    "method.name": {"def f(): pass": "must be a Method of optdyn.methods"},
    "data.name": {
        "def f(): return 3": "is a int: must be optdyn.problem.data.Dataset, or a dict",
        "def f(): return {'train': {'x': np.ones((4, 2))}, 'tests': 3}": "has 'tests': only",
        "def f(): return 1 / 0": "my_file.py, line 4: ZeroDivisionError",
    },
}


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [(key, text, words) for key, lines in LINES.items() for text, words in lines.items()],
)
def test_what_cannot_be_used_is_one_line(config, folder, key, text, words):
    imports = "import jax.numpy as jnp, numpy as np\nimport optax\nfrom flax import linen as nn\n"
    write(folder / "my_file.py", imports + text)
    name = ("my_file:f",) if key == "metrics" else "my_file:f"
    message = refused(lambda: prepare(regression(config, **{key: name})))
    assert words in message
    assert "config." in message and "7919" not in message


def regression(config, **values):
    """A small MLP on the example of one's own data."""
    data = {"data.name": "configs.custom.data:load"}
    return config({"model.name": "mlp", "model.hidden": (4,), **data}).with_(values)


def test_options_of_what_is_registered_are_refused(config):
    for section in ("model", "data", "cluster.service", "method"):
        words = refusal(config, {f"{section}.options.nosuch": 1})
        assert f"config.{section} has no key 'options'" in words
    words = refusal(lambda: prepare(config({"optimizer.schedule_options.nosuch": 1})))
    assert "'constant' takes nothing, and is given nosuch" in words


@pytest.mark.parametrize("names", [("my_file:loss",), ("huber", "my_file:huber")])
def test_two_metrics_of_one_name_are_refused(config, folder, names):
    write(folder / "my_file.py", "def loss(outputs, batch): pass\ndef huber(o, b): pass\n")
    words = refusal(checks.check, regression(config, metrics=names))
    assert "each needs a name of its own" in words


@pytest.mark.parametrize(
    ("law", "warned"),
    [("rng.gamma(4., 1 / 4, shape)", 0), ("rng.gamma(4., 1 / 2, shape)", 1), ("np.ones(shape)", 0)],
)
def test_a_law_whose_mean_is_not_1_is_warned_of(config, folder, caplog, law, warned):
    write(
        folder / "my_file.py", f"import numpy as np\ndef law(): return lambda rng, shape: {law}\n"
    )
    checks.check(config({"cluster.service.name": "my_file:law"}))
    assert sum("should be 1" in record.message for record in caplog.records) == warned


MIXES = """
from dataclasses import dataclass

from jax import lax

from optdyn.clock.meetings import meetings_timeline
from optdyn.core import Rule
from optdyn.methods import Mixes
from optdyn.methods.averaging import meeting_schedule
from optdyn.methods.messages import event_of_node
from optdyn.methods.nodes import barrier_clock, local_times


@dataclass(frozen=True)
class Mean(Mixes):
    def mix(self, inner, collectives):
        def step(state, event, batch):
            after, info = inner.step(state, event_of_node(event), batch)
            return after.moved_to(lax.pmean(after.params, "node")), info

        return Rule(inner.init, step)

    def clock(self, setting, methods):
        return barrier_clock(setting, methods, 0.0)


@dataclass(frozen=True)
class Alone(Mean):
    def mix(self, inner, collectives):
        return inner._replace(step=lambda x, event, *of: inner.step(x, event_of_node(event), *of))


@dataclass(frozen=True)
class Never(Mean):
    def clock(self, setting, methods):
        meeting = meeting_schedule(setting.setup.steps, 4, 1, 0)
        local = local_times(setting, methods, setting.setup.steps)
        never = meeting._replace(send=meeting.send & False, receive=meeting.receive & False)
        return meetings_timeline(never, local, local.done.max(axis=1).cumsum())
"""


@pytest.mark.parametrize("more", ["", "+asynchronous"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Mean", ""),
        ("Alone", "its mix asks for nothing over the axis 'node'"),
        ("Never", "its clock has no update after which they receive anything"),
    ],
)
def test_a_mix_that_never_mixes_is_warned_of_and_every_law_of_times_is_known_to_it(
    config, folder, name, words, more
):
    write(folder / "my_mix.py", MIXES)
    values = {"cluster.devices_per_node": 2, "batch_size": 8}
    values |= {"method.asynchronous.groups": 2} if more else {}
    made = config({"method.name": f"my_mix:{name}{more}", **values})
    checks.check(made)  # with config.cluster.service = 'exponential', though it names no laws
    found = probable_mistakes(made)
    assert len(found) == bool(words) and all(words in line for line in found)


def test_blocks_without_parameters_are_trained_and_saved(config, tmp_path, monkeypatch, final):
    monkeypatch.syspath_prepend(tmp_path)
    text = "from flax import linen as nn\nclass Flat(nn.Module):\n"
    text += "    def __call__(self, x): return x.reshape(len(x), -1)\n"
    text += "def make(classes): return [('flat', Flat()), ('out', nn.Dense(classes))]\n"
    write(tmp_path / "flat_blocks.py", text)
    values = {"model.name": "flat_blocks:make", "data.name": "configs.custom.data:load"}
    values |= {"steps": 20, "metrics": ("absolute_error",)}
    whole = train(config(values), tmp_path / "whole")
    assert whole["parameters"] == 3 * 2 + 2
    run = prepare(config(values))
    assert run.params["flat"] == {}
    step, state = final(run, tmp_path / "whole")
    assert step == 20 and state.params["flat"] == {} and len(state.params["out"]) == 2
