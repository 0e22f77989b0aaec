"""Claim 21: arms that differ in waiting alone, and the rule as written."""

import numpy as np
import pytest

from optdyn.configs.papers import waiting, waiting_more
from optdyn.configs.papers.waiting import FASTEST, LAWS, WORKERS, arms, config_of, mean, verdict
from optdyn.evidence.arms import at, point
from optdyn.evidence.trial import timeline_of
from optdyn.training import trainer
from optdyn.training.checks import check


@pytest.mark.parametrize("law", LAWS)
def test_every_arm_can_run_and_takes_gradients_of_as_many_examples(law):
    for name in arms():
        config = config_of(law, name)
        check(config)
        parts = config.strategy.keys["arrivals"] if waiting.waits(name) else 1
        assert config.batch_size == waiting.EXAMPLES * parts


@pytest.mark.parametrize("m", FASTEST)
def test_an_update_of_the_m_fastest_of_constant_speeds_takes_what_the_mth_takes(m):
    """Speeds are 1 / sqrt(i), so that is sqrt(m) seconds, each time anew."""
    config = config_of("unlike speeds", f"{m} fastest").with_(steps=20)
    seconds = trainer.prepare(config, timeline_of=timeline_of).timeline.seconds
    # Speeds are rounded to four digits.
    np.testing.assert_allclose(np.diff(seconds), m**0.5, rtol=1e-3)


def test_asynchronous_workers_of_constant_speeds_add_up():
    config = config_of("unlike speeds", "asynchronous").with_(steps=2000)
    seconds = trainer.prepare(config, timeline_of=timeline_of).timeline.seconds
    rate = sum(1 / (i + 1) ** 0.5 for i in range(WORKERS))
    # At most one gradient of each worker is under way at the end, 8 of 2,000.
    assert 2000 / seconds[-1] == pytest.approx(rate, rel=0.005)


def result(ratio):
    """Under every law the best that waits takes `ratio` of the best that does not."""
    own = np.linspace(90.0, 110.0, 20)
    cost = {"4 fastest": 100 * ratio, "asynchronous": 100.0}
    rows = [
        {
            "arm": name,
            "cost": cost.get(name, 900.0),
            "seconds": (own * cost.get(name, 900.0) / 100).tolist(),
            "interior": True,
        }
        for name in arms()
    ]
    return {"laws": dict.fromkeys(LAWS, rows), "best": dict.fromkeys(LAWS, waiting.best(rows))}


@pytest.mark.parametrize(
    ("ratio", "word"), [(0.9, "confirmed"), (1.09, "confirmed"), (1.2, "refuted")]
)
def test_the_rule(ratio, word):
    assert mean(result(ratio)) == pytest.approx([ratio] * 3)  # the same seeds in both
    assert verdict(result(ratio)).word == word


def test_outages_are_rare_long_and_leave_the_mean_as_it_is():
    found = waiting_more.outages()(np.random.default_rng(0), 200_000)
    usual, down = np.unique(found)
    assert down / usual == 51 and usual * (1 + 0.02 * 50) == 1
    assert abs((found == down).mean() - 0.02) < 0.0013  # four standard errors


@pytest.mark.parametrize("law", waiting_more.LAWS)
def test_every_arm_can_run_under_the_other_laws(law):
    for name in waiting.arms():
        arm = waiting_more.arm_of(law, name)
        check(at(arm.config, point(arm, list(arm.start.values())), 0))
