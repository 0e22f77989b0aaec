"""`config.model.lowering = 'measured'`: what is measured, and when it is not measured again."""

from functools import partial

import jax
import pytest

from optdyn.base.errors import ConfigError
from optdyn.base.files import read_json
from optdyn.experiment import Config, to_json
from optdyn.methods.asynchronous import Asynchronous
from optdyn.methods.setup import Plan
from optdyn.optimizers.kinds import SGD
from optdyn.plan import lowered
from optdyn.problem.data.kinds import MNIST5k
from optdyn.problem.models import CNN
from optdyn.problem.models.convolution import LOWERINGS
from optdyn.train.checks import check


def config_of(**model):
    chosen = {"channels": (2, 3), "hidden": (4,), "lowering": "measured", **model}
    return Config(
        batch_size=8,
        plan=Plan(rounds=3),
        data=MNIST5k(train_examples=64),
        model=CNN(**chosen),
    )


def test_one_lowering_that_serves_for_every_convolution(tmp_path):
    found = resolved(config_of(), tmp_path / "kept.json", tmp_path)
    config = config_of(lowering=found)
    names = config.model.lowering.split(",")
    assert len(names) == 2 and set(names) <= set(LOWERINGS) - {"winograd"}  # kernels of 5 x 5
    check(config)


def resolved(config, kept, workdir):
    return lowered.resolved(config, kept, workdir)


@pytest.fixture
def measured(monkeypatch):
    """Configs that were measured, of which every one is said to want other lowerings."""
    configs = []

    def fastest(config):
        configs.append(config)
        return f"choice {len(configs)}"

    monkeypatch.setattr(lowered, "fastest", fastest)
    return configs


def test_measured_once_for_a_model_a_mini_batch_and_a_machine(tmp_path, measured, monkeypatch):
    kept = tmp_path / "new" / "kept.json"
    asked = partial(resolved, kept=kept, workdir=tmp_path)

    assert asked(config_of()) == asked(config_of()) == "choice 1"
    trained = config_of().with_(steps=7, optimizer=SGD(learning_rate=0.3), method=Asynchronous())
    assert asked(trained) == "choice 1"
    assert asked(config_of(channels=(2, 4))) == "choice 2"
    larger = config_of().with_(batch_size=16)
    assert asked(larger) == "choice 3"
    parts = larger.with_({"parallel.accumulation": 2})
    assert asked(parts) == "choice 1"  # gradients of 8 again
    monkeypatch.setattr(jax, "__version__", "another")
    assert asked(config_of()) == "choice 4"
    assert len(read_json(kept)) == 4


def test_a_workdir_keeps_its_lowerings_whatever_is_measured_since(tmp_path, measured):
    config, kept = config_of(), tmp_path / "kept.json"
    (tmp_path / "config.json").write_text(to_json(config_of(lowering="fft,gemm")))
    assert resolved(config, kept, tmp_path) == "fft,gemm"
    assert resolved(config_of(hidden=(5,)), kept, tmp_path) == "choice 1"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, measured):
    (tmp_path / "file").write_text("")
    assert resolved(config_of(), tmp_path / "file" / "kept.json", tmp_path) == "choice 1"


def test_it_is_for_commands_only():
    with pytest.raises(ConfigError, match=r"'measured': must be of .*with a command"):
        check(config_of())
