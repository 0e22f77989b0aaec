"""Groups that wait for one another, drop what is late, come and go, or share a link or cores."""

import math
from itertools import repeat

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optdyn.clock.arrivals import (
    ALWAYS_THERE,
    Absences,
    Work,
    queued_arrivals,
    renewal_arrivals,
    shared_cores,
)
from optdyn.clock.availability import Availability, Load
from optdyn.clock.service import Constant, Exponential, Gamma, LogNormal
from optdyn.clock.timeline import TimelineError
from optdyn.clock.versions import FREE_RUNNING, NO_WAITING, WAITING, Policy
from tests.clock import by_hand
from tests.clock.lines import same_arrivals, versions_read

LAWS = {
    "constant": Constant().draw,
    "exponential": Exponential().draw,
    "lognormal": LogNormal(1.5).draw,
    "gamma": Gamma(1.5).draw,
}
# Whole seconds, of which sums are exact, so that constant services tie where they should.
groups = st.tuples(
    st.sampled_from(list(LAWS)), st.lists(st.integers(1, 12), min_size=1, max_size=6)
)
sizes = st.tuples(st.integers(1, 60), st.integers(0, 2**32 - 1))  # steps and seed


@st.composite
def policies(draw, many, waiting):
    """Policies of so many groups, all that a method can ask for."""
    if not waiting:
        bound, oldest = draw(st.sampled_from([(0, np.inf), (2, np.inf), (np.inf, 1), (np.inf, 3)]))
        return Policy(bound=bound, delay_bound=oldest)
    arrivals = draw(st.integers(1, 6 if "batch" in waiting else many))
    return Policy(arrivals, waiting, allotted=draw(st.sampled_from([np.inf, 0.7, 2.0])))


@st.composite
def availability_of(draw, many):
    """The availability of so many groups that wait for nobody."""
    load = Load(draw(st.floats(0, 0.9)), 1.0, np.linspace(-math.pi, math.pi, many))
    presence, absence = draw(st.sampled_from([(0.0, 0.0), (30.0, 10.0), (15.0, 0.0)]))
    sending = draw(st.sampled_from((0.0, 0.3)))
    return Availability(draw(st.sampled_from([None, load])), presence, absence, sending)


def line_of(own, size, policy=FREE_RUNNING, availability=ALWAYS_THERE):
    (law, means), (steps, seed) = own, size
    return queued_arrivals(
        seed, LAWS[law], Work(np.array(means, float)[:, None]), steps, policy, availability
    )


def simulated(own, size, policy=FREE_RUNNING, availability=ALWAYS_THERE):
    """What the groups do by hand."""
    (law, means), (steps, seed) = own, size
    services = by_hand.services(LAWS[law], seed, np.array(means, float)[:, None])

    def takes(group, now):
        slow = (
            availability.load.amplitude * math.sin(now + availability.load.phase[group])
            if availability.load
            else 0
        )
        return next(services[group]) * (1 + slow)

    limits = [policy.allotted * mean for mean in means] if policy.allotted < np.inf else ()
    away = [
        by_hand.absences((seed, g, 1), availability.presence, availability.absence)
        for g in range(len(means))
    ]
    serving = repeat(availability.sending) if availability.sending else None
    return by_hand.arrive(len(means), steps, takes, policy, limits, away, serving)


@pytest.mark.parametrize("waiting", ["", *WAITING, "availability"])
@given(st.data())
@settings(max_examples=30)
def test_it_is_the_simulation(waiting, data):
    """Who delivers, when to the bit, how stale, what was dropped, and what the slots hold."""
    own, (steps, seed), policy, availability = (
        data.draw(groups),
        data.draw(sizes),
        FREE_RUNNING,
        ALWAYS_THERE,
    )
    if waiting == "availability":
        availability = data.draw(availability_of(len(own[1])))
    else:
        policy = data.draw(policies(len(own[1]), waiting))
    assume(own[0] != "constant" or policy.allotted > 1)
    line, (rows, dropped) = (
        line_of(own, (steps, seed), policy, availability),
        simulated(own, (steps, seed), policy, availability),
    )
    np.testing.assert_array_equal(line.seconds, [second for second, _ in rows])
    np.testing.assert_array_equal(line.worker, [had[-1][0] for _, had in rows])
    for field, n in ((line.plan.worker, 0), (line.staleness, 1)):
        found = field.reshape(steps, -1)
        np.testing.assert_array_equal(found, [[one[n] for one in had] for _, had in rows])
    assert (line.plan.dropped is not None) == policy.drops
    if policy.drops:
        assert [set(np.flatnonzero(row)) for row in line.plan.dropped] == dropped
    assert line.batch is None
    assert line.slots == (1 if policy.waiting.endswith("_sync") else len(own[1]))
    for read, late in zip(
        line.plan.read.reshape(steps, -1).T, line.staleness.reshape(steps, -1).T, strict=True
    ):
        held = versions_read(read, line.plan.write, line.slots)
        np.testing.assert_array_equal(held, np.arange(steps) - late)


@given(groups, sizes)
def test_who_waits_for_nothing_arrives_as_any(own, size):
    """Without a bound, or with one that nobody reaches, as the number of updates is."""
    (law, means), (steps, seed) = own, size
    free = renewal_arrivals(seed, LAWS[law], Work(np.array(means, float)[:, None]), steps)
    for policy in (
        FREE_RUNNING,
        Policy(1, NO_WAITING),
        Policy(delay_bound=steps),
        Policy(bound=steps),
    ):
        line = line_of(own, size, policy)
        same_arrivals(line, free)
        assert line.plan.dropped is None or not line.plan.dropped.any()


@pytest.mark.parametrize("waiting", WAITING)
def test_expected_seconds_of_memoryless_groups(waiting):
    """Dutta et al.: n - i groups are still at work after i of a round, or n always."""
    n, k, rate, steps = 8, 3, 2.0, 4000
    work = Work(np.full((n, 1), 1 / rate))
    line = queued_arrivals(0, Exponential().draw, work, steps, Policy(k, waiting))
    between = np.diff(line.seconds, prepend=0.0)
    at_work = np.full(k, n) if "batch" in waiting else n - np.arange(k)
    expected = (1 / (rate * at_work)).sum()
    # Four standard errors of the mean of independent intervals, as memoryless ones are.
    assert abs(between.mean() - expected) < 4 * between.std() / steps**0.5


@given(groups, st.integers(0, 4), sizes)
def test_nobody_is_further_ahead_than_the_bound(own, bound, size):
    """A group at clock c began while the slowest had c - s, and so delivers c + 1 at most then.

    The guarantee of the paper: a gradient of clock c has all updates of clocks below c - s.
    """
    line = line_of(own, size, Policy(bound=bound))
    done = np.arange(len(own[1])) == line.worker[:, None]
    every = np.cumsum(np.concatenate([0 * done[:1], done]), axis=0)  # updates before each event
    assert (every.max(axis=1) - every.min(axis=1)).max() <= bound + 1
    for t, (worker, staleness) in enumerate(zip(line.worker, line.staleness, strict=True)):
        assert every[t - staleness].min() >= every[t][worker] - bound


def test_a_service_takes_the_closed_form():
    """E min(S, a) / P(S <= a), of heavy tails: half of the time without a limit."""
    law, allotted, steps = LogNormal(3.0).draw, 0.5, 20_000
    draws = law(np.random.default_rng(1), (400_000, 1))[:, 0]
    expected = np.minimum(draws, allotted).mean() / (draws <= allotted).mean()
    line = queued_arrivals(0, law, Work(np.ones((1, 1))), steps, Policy(allotted=allotted))
    # Of 20,000 services, whose deviation is about their mean: 0.7 %; three of them.
    assert line.seconds[-1] / steps == pytest.approx(expected, rel=0.021)
    assert expected < 0.5


@pytest.mark.parametrize(("presence", "absence"), [(4.0, 1.0), (0.5, 1.5)])
def test_memoryless_workers_deliver_at_their_rate_while_they_are_there(presence, absence):
    """n workers of mean m, there for a part p of the time: n p / m arrivals a second.

    What is lost is lost without loss of pace, as an exponential service has no memory.
    """
    n, m, steps = 200, 0.5, 30_000
    absences = Absences(1, n, Availability(None, presence, absence))
    work = Work(np.full((n, 1), m))
    line = queued_arrivals(1, Exponential().draw, work, steps, absences=absences)
    end, begin = line.seconds[-1], line.seconds[steps // 5]  # by when the start is forgotten
    part, away = presence / (presence + absence), np.array(absences.past)
    # 24,000 arrivals are known to 0.65 %; of 200 workers' some 6,000 renewals 1 % or less.
    assert 0.8 * steps / (end - begin) == pytest.approx(n * part / m, rel=0.03)
    gone = np.diff(np.clip(away[:, 1:], begin, end), axis=1).sum() / (n * (end - begin))
    assert gone == pytest.approx(1 - part, abs=0.03)
    # A worker's service, memoryless too, is lost with probability m / (m + P).
    begun = (away[:, 1] > 0).sum() + steps
    assert len(away) / begun == pytest.approx(m / (m + presence), rel=0.05)


@pytest.mark.parametrize(
    ("policy", "availability", "message"),
    [
        (
            Policy(allotted=0.5),
            ALWAYS_THERE,
            r"allotted = 0\.5: must be longer, as groups have begun again",
        ),
        (FREE_RUNNING, Availability(presence=0.02, absence=1.0), r"presence = 0\.02"),
    ],
)
def test_who_never_gets_anything_done_is_told_so(policy, availability, message):
    with pytest.raises(TimelineError, match=message):
        line_of(("constant", [1.0, 2.0]), (10, 0), policy, availability)


# A machine whose cores workers and their server share.


def test_without_a_server_and_with_cores_enough_it_is_the_clock_of_arrivals():
    work = Work(np.array([[1.0], [2.0], [3.0], [0.7]]))
    for law in (Constant().draw, LogNormal(0.5).draw):
        found = shared_cores(3, law, work, 0.0, 4, 400)
        same_arrivals(found, renewal_arrivals(3, law, work, 400))


@given(
    st.sampled_from([Exponential().draw, LogNormal(0.4).draw, Gamma(2.0).draw]),
    st.integers(1, 6),
    st.sampled_from([1.0, 2.0, 2.5, math.inf]),
    st.floats(0.05, 2.0),
    sizes,
)
def test_shared_cores_are_the_simulation(law, workers, cores, serving, size):
    """Each that is at work gets its share until somebody is done."""
    steps, seed = size
    means = np.random.default_rng(seed).uniform(0.5, 2.0, (workers, 1))
    served = np.random.default_rng(0).gamma(2.0, serving / 2, steps)
    line = shared_cores(seed, law, Work(means), served, cores, steps)
    takes = by_hand.services(law, seed, means)
    seconds, order = by_hand.share_cores(takes, iter([*served, *[1.0] * workers]), cores, steps)
    np.testing.assert_array_equal(line.worker, order)
    np.testing.assert_allclose(line.seconds, seconds, rtol=1e-9)


@pytest.mark.parametrize(
    ("workers", "serving", "cores"), [(2, 1.0, 1.0), (5, 0.1, 2.5), (5, 1.0, math.inf)]
)
def test_of_memoryless_times_it_has_the_stationary_rate(workers, serving, cores):
    """n workers compute: a birth and death process, whose stationary law is a product of ratios."""
    n = np.arange(workers + 1)
    speed = np.minimum(1.0, cores / np.maximum(n + (n < workers), 1))
    down, up = n * speed, (n < workers) * speed / serving  # a worker is done; the server is
    law = np.cumprod(np.append(1.0, up[:-1] / down[1:]))
    known = float(law @ up / law.sum())
    served, steps = np.random.default_rng(1).exponential(serving, 20_000), 20_000
    line = shared_cores(7, Exponential().draw, Work(np.ones((workers, 1))), served, cores, steps)
    rate = (steps - 401) / (line.seconds[-1] - line.seconds[400])
    # 20,000 updates of a variation of at most 1 have a standard error of 0.7 %: three of them.
    assert rate == pytest.approx(known, rel=0.021)
