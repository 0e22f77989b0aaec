"""Pieces of the user's own, from files outside of the checkout, and what they are held against.

What a file of one's own says again must give the floats of what is registered.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from optdyn.base import lookup
from optdyn.experiment import ConfigError
from optdyn.train import checks
from optdyn.train.warnings import probable_mistakes
from tests.train.runs import prepare, refusal, train

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "configs" / "own"
# Everything registered once more, as one's own.
AGAIN = """
import jax, jax.numpy as jnp, optax
from flax import linen as nn
from optdyn.problem import data
from optdyn.problem.models.mlp import mlp
from optdyn.methods import load
from optdyn.clock import service


def model(classes, hidden):
    return list(mlp(hidden, classes, "float32"))


def loss(outputs, batch):
    logits = outputs.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])


def right(outputs, batch):
    return outputs.argmax(-1) == batch["label"]


def images(folder):
    return data.load("mnist5k", folder)


def optimizer(learning_rate, momentum):
    return optax.sgd(learning_rate, momentum)


def schedule(learning_rate, steps):
    return optax.cosine_decay_schedule(learning_rate, steps)


def law():
    return lambda rng, shape: rng.standard_exponential(shape)


SYNC = load("asynchronous")
"""


def test_ones_own_gives_the_floats_of_what_is_registered(config, mnist, folder):
    """All of them at once: were any not heeded or another, the parameters would differ."""
    (folder / "again.py").write_text(AGAIN)
    values = {**mnist, "optimizer.schedule": "cosine", "optimizer.warmup_steps": 5}
    usual = config(values)
    own = config(values)
    own = own.with_(
        {
            "model.name": "again:model",
            "loss": "again:loss",
            "metrics": ("again:right",),
            "model.options.hidden": (8,),
            "data.name": "again:images",
            "data.options.folder": mnist["data.dir"],
            "optimizer.name": "again:optimizer",
            "optimizer.schedule": "again:schedule",
            "method.name": "again:SYNC",
            "method.groups": 4,
            "cluster.service.name": "again:law",
        }
    )
    one, other = train(usual, folder / "usual"), train(own, folder / "own")
    for key in ("parameters_crc32", "simulated_seconds", "staleness_histogram", "learning_rate"):
        assert one[key] == other[key]
    for key in ("train_loss", "test_loss"):  # compiled apart, the sums may be in another order
        assert one[key] == pytest.approx(other[key], rel=1e-6)
    assert one["test_accuracy"] == other["test_right"] and "test_accuracy" not in other


def started(folder, *arguments):
    """`launch.train` with one's own config, as a command from that folder."""
    return subprocess.run(
        [sys.executable, "-m", "launch.train", "--config=my_all.py", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_the_examples_run_outside_of_the_checkout_under_other_names(tmp_path, rows):
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text().replace("{HERE}/", "my_")
        (tmp_path / f"my_{path.name}").write_text(text)
    small = ["--config.steps=20", "--config.log_every=10", "--config.checkpoint_every=10"]
    done = started(tmp_path, *small, "--workdir=run")
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
    (tmp_path / "my_model.py").write_text("import flax\n\ndef make(classes, widths):\n    oh\n")
    failed = started(tmp_path, *small, "--workdir=other")
    assert failed.returncode == 2 and not (tmp_path / "other").exists()
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    assert failed.stderr.splitlines()[-1] == line
    assert f"{tmp_path}/my_model.py, line 4: NameError: name 'oh' is not defined" in line


LINES = {
    "model.name": {
        "def f(classes): return 3": "must return a flax.linen module or a sequence",
        "def f(classes): return []": "must return a flax.linen module or a sequence",
        "def f(classes): return [('a', nn.Dense(2)), ('a', nn.Dense(2))]": "all names different",
        "def f(classes, more): return nn.Dense(2)": "missing 1 required positional argument",
        "def f(classes): return nn.Embed(3, 2)": "config.model: cannot be used on examples of x",
        "def f(classes): return nn.BatchNorm(use_running_average=False)": "has variables 'batch_",
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
        "def f(): return lambda rng, shape: 1.0": "must draw as many numbers",
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
    ("key", "text", "said"),
    [(key, text, said) for key, lines in LINES.items() for text, said in lines.items()],
)
def test_what_cannot_be_used_is_one_line(config, folder, key, text, said):
    imports = "import jax.numpy as jnp, numpy as np\nimport optax\nfrom flax import linen as nn\n"
    (folder / "my_file.py").write_text(imports + text)
    name = "my_file:f"
    made = regression(config)
    made = made.with_({key: (name,) if key == "metrics" else name})
    if key == "optimizer.name":
        made = made.with_(
            {
                "optimizer.momentum": 0.0,
            }
        )
    message = refusal(prepare, made)
    assert said in message
    assert "config." in message and "7919" not in message


def regression(config, **values):
    """A small MLP on the example of one's own data."""
    made = config({"model.name": "mlp", "model.hidden": (4,), "data.train_examples": 0})
    made = made.with_({"data.name": "configs.own.data:load", **values})
    return made


def test_options_of_what_is_registered_are_refused(config):
    for key in ("model", "data"):
        made = config()
        made = made.with_(
            {
                "model.name": "mlp",
            }
        )
        made[key].options.nosuch = 1
        assert f"config.{key}.options: of " in refusal(prepare, made)
    made = config()
    made = made.with_(
        {
            "cluster.service_options.nosuch": 1,
        }
    )
    assert "config.cluster.service.options: of laws of your own" in refusal(prepare, made)
    made = config()
    made = made.with_(
        {
            "optimizer.schedule_options.nosuch": 1,
        }
    )
    assert "'constant' takes nothing, and is given nosuch" in refusal(prepare, made)


def test_two_metrics_of_one_name_are_refused(config, folder):
    (folder / "my_file.py").write_text("def loss(outputs, batch): pass\ndef huber(o, b): pass\n")
    made = regression(config)
    for names in (("my_file:loss",), ("huber", "my_file:huber")):
        made = made.with_(
            {
                "metrics": names,
            }
        )
        with pytest.raises(ConfigError, match="each needs a name of its own"):
            checks.check(made)


def test_a_law_whose_mean_is_not_1_is_warned_of(config, folder, caplog):
    text = "def right(): return lambda rng, shape: rng.gamma(4., 1 / 4, shape)\n"
    text += "def double(): return lambda rng, shape: rng.gamma(4., 1 / 2, shape)\n"
    text += "import numpy as np\ndef one(): return lambda rng, shape: np.ones(shape)\n"
    (folder / "my_file.py").write_text(text)
    made = config()
    for name, warned in (("right", 0), ("one", 0), ("double", 1)):
        caplog.clear()
        made = made.with_(
            {
                "cluster.service.name": f"my_file:{name}",
            }
        )
        checks.check(made)
        assert sum("should be 1" in record.message for record in caplog.records) == warned


def test_a_run_of_ones_own_is_one_compilation_with_others_that_differ_in_numbers(config, folder):
    from optdyn.train import batched_runs

    text = "def law(shape=2.0): return lambda rng, size: rng.gamma(shape, 1 / shape, size)\n"
    text += "def rate(learning_rate, steps, by): return lambda t: learning_rate / by\n"
    (folder / "my_file.py").write_text(text)
    made = config()
    same = {batched_runs.compilation(made)}
    made = made.with_(
        {
            "cluster.service.name": "my_file:law",
            "optimizer.schedule": "my_file:rate",
            "optimizer.schedule_options.by": 3,
        }
    )
    same.add(batched_runs.compilation(made))
    made = made.with_({"cluster.service.options.shape": 5.0})
    same.add(batched_runs.compilation(made))
    assert len(same) == 1
    made = made.with_(
        {
            "loss": "my_file:law",
        }
    )
    assert len(same | {batched_runs.compilation(made)}) == 2


def test_a_method_from_a_path_is_imported_once(folder):
    (folder / "my_file.py").write_text(AGAIN)
    method = lookup.find("key", "my_file.py:SYNC", {})
    assert lookup.find("key", f"{folder}/my_file.py:SYNC", {}) is method


MIXES = """
from dataclasses import dataclass

from jax import lax

from optdyn.core import Rule
from optdyn.methods import Mixes
from optdyn.methods.mix.averaging_clock import every_update, turns
from optdyn.methods.mix.messages import own_event
from optdyn.methods.mix.nodes import inside
from optdyn.clock.nodes import of_meetings


@dataclass(frozen=True)
class Mean(Mixes):
    def mix(self, inner, senders):
        def step(state, event, batch):
            after, info = inner.step(state, own_event(event), batch)
            return after.moved_to(lax.pmean(after.params, "node")), info

        return Rule(inner.init, step)

    def clock(self, setting, methods):
        return every_update(setting, methods, 0.0)


@dataclass(frozen=True)
class Alone(Mean):
    def mix(self, inner, senders):
        return inner._replace(step=lambda x, event, batch: inner.step(x, own_event(event), batch))


@dataclass(frozen=True)
class Never(Mean):
    def clock(self, setting, methods):
        meeting = turns(setting.setup.steps, 4, 1, 0)
        within = inside(setting, methods)(setting.setup.steps)
        never = meeting._replace(send=meeting.send & False, receive=meeting.receive & False)
        return of_meetings(never, within, within.done.max(axis=1).cumsum())
"""


def test_a_mix_that_never_mixes_is_warned_of_and_every_law_of_times_is_known_to_it(config, folder):
    (folder / "my_mix.py").write_text(MIXES)
    for name, said in (
        ("Mean", ""),
        ("Mean+asynchronous", ""),
        ("Alone", "its mix asks for nothing over the axis 'node'"),
        ("Alone+asynchronous", "its mix asks for nothing over the axis 'node'"),
        ("Never", "its clock has no update after which they receive anything"),
    ):
        values = {"method.name": f"my_mix:{name}", "cluster.devices_per_node": 2, "batch_size": 8}
        made = config(values | {"method.groups": 2})
        checks.check(made)  # with config.cluster.service = 'exponential', though it names no laws
        found = probable_mistakes(made)
        assert len(found) == bool(said) and all(said in line for line in found)
