"""Groups whose pace follows the hour, that come and go, and that share the server's link."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.clock.arrivals import Absences, Work, compute_groups, queued_arrivals, renewal_arrivals
from optdyn.clock.availability import Availability, Load
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, Exponential, Gamma, LogNormal
from optdyn.clock.timeline import TimelineError
from tests.clock.lines import begins_with
from tests.clock.test_slots import check


def volunteers(seed, law, work, steps, availability):
    """The timeline and the absences, (n, 3)."""
    absences = Absences(seed, len(work.compute), availability) if availability.presence else None
    line = queued_arrivals(seed, law, work, steps, availability=availability, absences=absences)
    return line, np.array(absences.past if absences else []).reshape(-1, 3)


LAWS = [Constant().draw, Exponential().draw, LogNormal(0.5).draw, Gamma(2.0).draw]


@st.composite
def crowds(draw, sending=(0.0, 0.3)):
    """A seed, a law, means and habits."""
    groups, k = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    load = Load(draw(st.floats(0, 0.9)), 1.0, rng.uniform(-np.pi, np.pi, groups))
    presence, absence = draw(st.sampled_from([(0.0, 0.0), (3.0, 1.0), (1.0, 4.0), (2.0, 0.0)]))
    availability = Availability(
        draw(st.sampled_from([None, load])), presence, absence, draw(st.sampled_from(sending))
    )
    means = rng.uniform(0.1, 1.0, (groups, k))
    return draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from(LAWS)), means, availability


@given(crowds(), st.integers(1, 300))
@settings(deadline=None)
def test_without_habits_they_are_groups_as_any(crowd, steps):
    seed, law, means, _ = crowd
    ours, away = volunteers(seed, law, Work(means), steps, Availability())
    usual = renewal_arrivals(seed, law, Work(means), steps)
    for name in ("worker", "staleness", "seconds"):  # slots are others, of the same versions
        np.testing.assert_array_equal(getattr(ours, name), getattr(usual, name))
    assert away.shape == (0, 3)
    check(ours, len(means), steps)


@given(crowds(), st.integers(1, 300))
@settings(deadline=None)
def test_slots_hold_what_was_read_and_seconds_are_in_order(crowd, steps):
    seed, law, means, availability = crowd
    line, _ = volunteers(seed, law, Work(means), steps, availability)
    check(line, len(means), steps)
    if availability.sending:  # one message after the other; sums of float64 round
        assert np.diff(line.seconds, prepend=0.0).min() >= availability.sending * (1 - 1e-9)


@given(crowds(), st.integers(1, 100), st.integers(0, 200))
@settings(deadline=None)
def test_a_longer_run_begins_with_the_shorter(crowd, steps, more):
    seed, law, means, availability = crowd
    short, long = (
        volunteers(seed, law, Work(means), n, availability)[0] for n in (steps, steps + more)
    )
    begins_with(long, short)


@given(crowds(sending=(0.0,)), st.integers(1, 300))
@settings(deadline=None)
def test_who_is_away_delivers_nothing_and_reads_anew(crowd, steps):
    seed, law, means, availability = crowd
    line, away = volunteers(seed, law, Work(means), steps, availability)
    for group in range(len(means)):
        mine = np.flatnonzero(line.worker == group)
        absences = away[away[:, 0] == group, 1:]
        assert (absences[:, 0] <= absences[:, 1]).all()
        assert (absences[1:, 0] >= absences[:-1, 1]).all()
        for t, last in zip(mine, [-1, *mine], strict=False):
            now, version = line.seconds[t], t - line.staleness[t]
            assert not ((absences[:, 0] <= now) & (now < absences[:, 1])).any()
            # It has read what was newest after its own last update, or when it was back since.
            since = line.seconds[last] if last >= 0 else 0.0
            back = absences[(absences[:, 1] >= since) & (absences[:, 1] <= now), 1]
            read_at = back.max() if back.size else since
            made = np.searchsorted(line.seconds[:t], read_at, side="right")
            assert version == (made if back.size else last + 1)


def test_services_are_longer_by_the_hour_at_which_they_begin():
    load = Load(0.7, 2 * np.pi / 10, np.array([0.5]))
    line, _ = volunteers(0, Constant().draw, Work(np.array([[1.0]])), 50, Availability(load))
    begins = np.append(0.0, line.seconds[:-1])
    expected = 1 + 0.7 * np.sin(2 * np.pi / 10 * begins + 0.5)
    np.testing.assert_allclose(np.diff(line.seconds, prepend=0.0), expected, rtol=1e-9)


@pytest.mark.parametrize(("presence", "absence"), [(0.0, 0.0), (4.0, 1.0), (0.5, 1.5)])
def test_memoryless_workers_deliver_at_their_rate_while_they_are_there(presence, absence):
    """n workers of mean m, there for a part p of the time: n p / m arrivals a second.

    What is lost is lost without loss of pace, as an exponential service has no memory.
    """
    n, m, steps = 200, 0.5, 100_000
    availability = Availability(None, presence, absence)
    line, away = volunteers(1, Exponential().draw, Work(np.full((n, 1), m)), steps, availability)
    end, begin = line.seconds[-1], line.seconds[steps // 5]  # by when the start is forgotten
    part = presence / (presence + absence) if presence else 1.0
    # 80,000 arrivals are known to 0.35 %; of 200 workers' some 20,000 renewals 0.5 % or less.
    rate = 0.8 * steps / (end - begin)
    assert rate == pytest.approx(n * part / m, rel=0.02)
    if presence:
        inside = np.clip(away[:, 1:], begin, end)
        gone = np.diff(inside, axis=1).sum() / (n * (end - begin))
        assert gone == pytest.approx(1 - part, abs=0.02)
        # A worker's service, memoryless too, is lost with probability m / (m + P).
        begun = (away[:, 1] > 0).sum() + steps
        assert len(away) / begun == pytest.approx(m / (m + presence), rel=0.03)


def test_a_servers_link_bounds_the_rate_however_many_workers_there_are():
    rates = []
    for n in (2, 8, 32, 128):
        means, availability = np.ones((n, 1)), Availability(sending=0.05)
        line, _ = volunteers(2, Exponential().draw, Work(means), 4000, availability)
        rates.append(4000 / line.seconds[-1])
    assert rates[0] == pytest.approx(2, rel=0.12)  # 4,000 arrivals: 1.6 %; and some wait
    assert rates[2:] == pytest.approx([20, 20], rel=0.01)


def test_who_never_gets_anything_done_is_told_so():
    availability = Availability(presence=0.02, absence=1.0)
    with pytest.raises(TimelineError, match=r"presence = 0\.02"):
        volunteers(0, Constant().draw, Work(np.ones((3, 1))), 10, availability)


def test_the_config_decides():
    values = {"nodes": 20, "service": Exponential(), "seconds_per_example": 1.0, "latency": 0.1}
    usual = compute_groups(Cluster(**values), groups=10, steps=300, batch_size=2, update_bytes=100)
    flat = Cluster(**values, presence=1e12)
    same = compute_groups(flat, groups=10, steps=300, batch_size=2, update_bytes=100)
    np.testing.assert_array_equal(same.seconds, usual.seconds)
    np.testing.assert_array_equal(same.staleness, usual.staleness)
    for key, value in {"presence": 2.0, "diurnal": 0.5, "server_bandwidth": 1e3}.items():
        with_it = Cluster(**values, **{key: value}, day=5.0, absence=1.0)
        made = compute_groups(with_it, groups=10, steps=300, batch_size=2, update_bytes=100)
        check(made, 10, 300)
        assert made.seconds[-1] != usual.seconds[-1]
    far = Cluster(**values, regions=5)
    later = compute_groups(far, groups=20, steps=300, batch_size=2, update_bytes=100)
    near = compute_groups(Cluster(**values), groups=20, steps=300, batch_size=2, update_bytes=100)
    assert later.seconds[-1] > near.seconds[-1]
