"""MindFlayer: groups by themselves in plain Python, its limit, and the mean of a service."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.arrivals import Work, event_arrivals
from optdyn.clock.service import LogNormal
from optdyn.clock.timeline import TimelineError
from optdyn.clock.versions import Policy
from tests.clock.test_slots import versions_read
from tests.clock.test_stale_synchronous import LAWS

drawn = given(
    st.sampled_from([name for name in LAWS if name != "constant"]),
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.floats(0.6, 3.0),
    st.integers(1, 60),
    st.integers(0, 2**32 - 1),
)


def made(law, means, allotted, steps, seed, **more):
    work = Work(np.array(means, float)[:, None])
    return event_arrivals(seed, LAWS[law], work, steps, Policy(allotted=allotted, **more))


def by_themselves(law, means, allotted, steps, seed):
    """Of every delivery its second, its group, and when it was last begun: groups are apart."""
    rows = []
    for group, mean in enumerate(means):
        rng, n = np.random.default_rng((seed, group)), min(steps, 2 * -(-steps // len(means)) + 16)
        now, begun, done = 0.0, 0.0, 0
        while done < steps:
            for draw in (LAWS[law](rng, (n, 1)) * mean)[:, 0].tolist():
                if draw > allotted * mean:
                    now += allotted * mean
                    begun = now
                    continue
                now += draw
                rows.append((now, group, begun))
                begun, done = now, done + 1
    return sorted(rows)[:steps]


@drawn
def test_groups_begin_again_by_themselves(law, means, allotted, steps, seed):
    """Who delivers when, and how many updates there were since it had last begun."""
    line = made(law, means, allotted, steps, seed)
    rows = by_themselves(law, means, allotted, steps, seed)
    seconds, worker, begun = (np.array(column) for column in zip(*rows, strict=True))
    np.testing.assert_array_equal(line.worker, worker)
    np.testing.assert_allclose(line.seconds, seconds, rtol=1e-12)
    read = np.searchsorted(seconds, begun, side="right")
    np.testing.assert_array_equal(line.staleness, np.arange(steps) - read)
    held = versions_read(line.plan.read, line.plan.write, line.slots)
    np.testing.assert_array_equal(held, np.arange(steps) - line.staleness)


@pytest.mark.parametrize("waiting", ["k_batch_async", "k_batch_sync", "k_sync", "k_async"])
def test_without_a_limit_nothing_is_dropped(waiting):
    """To the bit, also with a limit that nobody ever reaches."""
    plain = made("exponential", [1, 2, 3], np.inf, 60, 5, arrivals=2, waiting=waiting)
    never = made("exponential", [1, 2, 3], 1e9, 60, 5, arrivals=2, waiting=waiting)
    assert not never.plan.dropped.any() and plain.plan.dropped is None
    for name in ("worker", "staleness", "seconds"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(never, name))
    limited = made("exponential", [1, 2, 3], 0.7, 60, 5, arrivals=2, waiting=waiting)
    assert not np.array_equal(limited.seconds, plain.seconds)
    # Where all begin at the newest version, who begins again reads the same.
    assert limited.plan.dropped.any() == waiting.endswith("_async")


def test_a_service_takes_the_closed_form():
    """E min(S, a) / P(S <= a), of heavy tails: half of the time without a limit."""
    law, allotted, steps = LogNormal(3.0).draw, 0.5, 20_000
    draws = law(np.random.default_rng(1), (400_000, 1))[:, 0]
    expected = np.minimum(draws, allotted).mean() / (draws <= allotted).mean()
    line = event_arrivals(0, law, Work(np.ones((1, 1))), steps, Policy(allotted=allotted))
    # Of 20,000 services, whose deviation is about their mean: 0.7 %; three of them.
    assert line.seconds[-1] / steps == pytest.approx(expected, rel=0.021)
    assert expected < 0.5


def test_a_limit_that_nobody_keeps_is_one_line():
    with pytest.raises(TimelineError, match=r"allotted = 0\.5: groups have begun again .* longer"):
        made("constant", [1.0, 2.0], 0.5, 10, 0)
