"""Runs of configs that tests write key by key, and what is refused in a line."""

import pytest

from optdyn.base.errors import InputError
from optdyn.train import trainer
from tests.values import as_experiment


def train(config, workdir):
    return trainer.train(as_experiment(config), workdir)


def prepare(config):
    return trainer.prepare(as_experiment(config))


def refusal(call, *given, error=InputError, **named):
    """The one line of it."""
    with pytest.raises(error) as caught:
        call(*given, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)
