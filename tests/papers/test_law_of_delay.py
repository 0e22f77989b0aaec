"""Claim 22: arms that run, the fit of a law, and the rule as written."""

import numpy as np
import pytest

from optdyn.configs.papers import law_of_delay
from optdyn.configs.papers.law_of_delay import (
    BATCHES,
    DELAYS,
    FED,
    OPTIMIZERS,
    arm_of,
    config_of,
    error,
    factors,
    fitted,
    verdict,
)
from optdyn.evidence.arms import point
from optdyn.evidence.trial import timeline_of
from optdyn.training import trainer
from optdyn.training.checks import check

BEFORE = np.array([[40.0, 20], [80, 30], [100, 50], [300, 100], [60, 25]])  # T_0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("delay", "fed"), [(0, False), (FED, True), (DELAYS[-1], False)])
def test_every_arm_can_run_where_its_search_starts(optimizer, delay, fed):
    arm = arm_of(optimizer, BATCHES[0], delay, fed)
    config = arm.config.with_(point(arm, tuple(arm.start[key] for key in arm.ladders)))
    check(config)
    assert set(arm.ladders) == set(arm.start)


@pytest.mark.parametrize("delay", DELAYS)
def test_every_gradient_is_as_old_as_the_delay(delay):
    run = trainer.prepare(config_of("SGD", 16, delay).with_(steps=100), timeline_of=timeline_of)
    assert (run.timeline.staleness[delay:] == delay).all()


def medians(c, p):
    """T_d of a law that is the same for all."""
    d = np.array(DELAYS)
    return BEFORE[..., None] * (1 + c * d / BEFORE[..., None]) ** p


def test_the_fit_finds_a_law_that_is_there():
    made = medians(5.0, 0.8)
    x = np.array(DELAYS[1:]) / made[..., :1]
    law = fitted(x, made[..., 1:] / made[..., :1])
    np.testing.assert_allclose(law(np.array([0.3])), 0.8 * np.log1p(5 * 0.3), rtol=1e-4)
    np.testing.assert_allclose(factors(made), 1.0, rtol=1e-4)
    assert np.median(factors(made, scaled=False)) > 1.05  # delays alone do not say it


def result(odd):
    """One law, but the first optimizer has `odd` times the penalty; other seeds say the same."""
    made = medians(5.0, 0.8)
    made[:, :, 1:] *= np.array(odd)[:, None, None]
    spread = np.linspace(0.98, 1.02, 20)
    rows = [
        {"optimizer": o, "batch_size": b, "delay": d, "fed": False, "interior": True}
        | {"updates": (made[i, j, k] * spread).tolist()}
        for i, o in enumerate(OPTIMIZERS)
        for j, b in enumerate(BATCHES)
        for k, d in enumerate(DELAYS)
    ]
    rows += [
        {"optimizer": o, "batch_size": b, "delay": FED, "fed": True, "interior": True}
        | {"updates": (made[i, j, 0] * spread).tolist()}
        for i, o in enumerate(OPTIMIZERS)
        for j, b in enumerate(BATCHES)
    ]
    return {"rows": rows}


@pytest.mark.parametrize(
    ("odd", "word"), [((1,) * 5, "confirmed"), ((0.3, 3, 0.3, 3, 1), "refuted")]
)
def test_the_rule(odd, word, monkeypatch):
    monkeypatch.setattr(law_of_delay, "DRAWS", 8)
    assert verdict(result(odd)).word == word


def test_an_arm_that_misses_leaves_it_open(monkeypatch):
    monkeypatch.setattr(law_of_delay, "DRAWS", 8)
    made = result((1,) * 5)
    made["rows"][4]["updates"] = [float("inf")] * 20
    assert np.isinf(error(made)[0])
    assert verdict(made).word == "open"
