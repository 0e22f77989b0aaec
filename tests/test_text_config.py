"""The shipped config for text learns at once, and evaluates little before it does."""

import json

import numpy as np

from configs import text
from optdyn.problem.data.kinds import KJV
from optdyn.train import trainer


def unigram_entropy(tokens: np.ndarray) -> float:
    """Nats a token of a model that knows only how often each occurs."""
    share = np.bincount(tokens.ravel()) / tokens.size
    return float(-np.sum(share[share > 0] * np.log(share[share > 0])))


def test_learns_more_than_frequencies_in_few_updates(tmp_path):
    config = text.get_config("small").with_(
        {
            "model.blocks": 1,
            "model.width": 32,
            "data.sequence_length": 32,
            "data.train_evaluated": 64,
            "data.test_evaluated": 64,
        },
        batch_size=16,
        steps=80,
        log_every=80,
        checkpoint_every=0,
    )
    assert trainer.train(config, tmp_path)["status"] == "completed"
    first, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    data = KJV(sequence_length=32).load()
    # A sample of 64 sequences is some 0.03 nats off the whole text.
    assert last["test_loss"] < unigram_entropy(data.train["text"]) - 0.1 < np.log(data.classes)
    assert first["test_loss"] > np.log(data.classes) - 0.1  # an untrained model knows nothing


def test_evaluates_less_than_it_trains_on_between_two_log_points():
    for size in text.STEPS:
        config = text.get_config(size)
        evaluated = config.data.train_evaluated + config.data.test_evaluated
        assert 0 < evaluated <= config.log_every * config.batch_size / 3
