"""A method is one file: nothing else knows it by name, and a file of one's own joins."""

import re
from pathlib import Path

import pytest

from optdyn import methods
from optdyn.experiment import ConfigError
from optdyn.methods.method import Method
from optdyn.train.trainer import train

ROOT = Path(methods.__file__).parents[2]
REGISTRY = "research/optdyn/methods/method.py"  # the list of names
NAMES = "|".join(methods.built_in())
# A name in quotes where something is compared with it, looked up by it or chosen for it.
BRANCH = re.compile(rf"(==|!=|\bin\b|\bcase\b|\.isin\(|\{{).*[\"']({NAMES})[\"']")
# A way to submit, and what others call the methods.
OTHERS = ("research/optdyn/cli/submit.py", "research/optdyn/methods/names.py")


def test_no_line_outside_a_methods_file_branches_on_its_name():
    found = []
    for file in (ROOT / "research").rglob("*.py"):
        place = str(file.relative_to(ROOT))
        if place == REGISTRY:
            continue
        own = file.stem if "methods" in file.parts else ""
        for number, line in enumerate(file.read_text().split("\n"), start=1):
            hit = BRANCH.search(line)
            if hit and hit[2] != own:
                found.append(f"{place}:{number}: {line.strip()}")
    assert [line for line in found if not line.startswith(OTHERS)] == []


def test_the_pattern_finds_a_branch():
    for line in ('if name == "daso":', "x in ('sync', 'local')", '{"local": 1}[name]'):
        assert BRANCH.search(line)
    assert not BRANCH.search('NOTE = "as daso does"')


OWN = '''
"""Signs in place of gradients: x <- x - alpha scale sign(grad f(x))."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from optdyn.methods import Gradients
from optdyn.clock.arrivals import compute_groups


@dataclass(frozen=True)
class Signed(Gradients):
    scale: float = 0.01

    laws = ("constant",)

    def gradient(self, problem):
        of = jax.value_and_grad(problem.loss)

        def signed(params, event, batch):
            loss, grads = of(params, batch)
            return loss, jax.tree.map(lambda leaf: self.scale * jnp.sign(leaf), grads)

        return signed

    def clock(self, setting, methods):
        setup = setting.setup
        size = {"steps": setup.steps, "batch_size": setup.batch_size}
        return compute_groups(setup.cluster, groups=1, **size)
'''


def test_a_file_of_ones_own_is_a_method_and_combines(config, tmp_path, monkeypatch):
    (tmp_path / "my_methods.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    values = {"method.name": "my_methods:Signed", "cluster.service.name": "constant"}
    one, other = (config({**values, "cluster.nodes": 1}) for _ in range(2))
    other = other.with_({"method.scale": 0.1})
    losses = [train(c, tmp_path / str(i))["train_loss"] for i, c in enumerate((one, other))]
    assert losses[0] != losses[1]
    values |= {"method.name": "asynchronous+my_methods:Signed", "method.asynchronous.groups": 4}
    pair = config(values)
    assert train(pair, tmp_path / "pair")["staleness_mean"] > 1
    assert issubclass(methods.load("my_methods:Signed"), Method)
    with pytest.raises(ConfigError, match="both say how a gradient is taken"):
        methods.MethodStack.named("my_methods:Signed+local")
