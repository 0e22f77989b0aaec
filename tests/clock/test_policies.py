"""Groups that wait for one another, or drop what is late: who does, what is read, and when."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optdyn.clock.arrivals import Work, queued_arrivals, renewal_arrivals
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, Exponential, Gamma, LogNormal
from optdyn.clock.timeline import TimelineError
from optdyn.clock.versions import NO_WAITING, WAITING, Policy
from optdyn.experiment import Config
from optdyn.methods.asynchronous import Asynchronous
from tests.clock.lines import begins_with, same_arrivals
from tests.clock.test_slots import versions_read

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
without_end = settings(deadline=None)  # a busy machine is not an error


@st.composite
def policies(draw, many):
    """Policies of so many groups, all that a method can ask for."""
    waiting = draw(st.sampled_from(("", *WAITING)))
    if not waiting:
        bound, oldest = draw(st.sampled_from([(0, np.inf), (2, np.inf), (np.inf, 1), (np.inf, 3)]))
        return Policy(bound=bound, delay_bound=oldest)
    arrivals = draw(st.integers(1, 6 if "batch" in waiting else many))
    return Policy(arrivals, waiting, allotted=draw(st.sampled_from([np.inf, 0.7, 2.0])))


cases = given(
    groups.flatmap(lambda own: st.tuples(st.just(own), policies(len(own[1])), sizes)).filter(
        lambda case: case[0][0] != "constant" or case[1].allotted > 1
    )
)


def made(own, policy, size):
    law, means = own
    steps, seed = size
    work = Work(np.array(means, float)[:, None])
    return queued_arrivals(seed, LAWS[law], work, steps, policy)


def streams(own, size):
    """Iterators over the services of the groups."""
    law, means = own
    steps, seed = size
    many = min(steps, 2 * -(-steps // len(means)) + 16)

    def services(group):
        rng = np.random.default_rng((seed, group))
        while True:
            yield from (LAWS[law](rng, (many, 1))[:, 0] * means[group]).tolist()

    return [services(group) for group in range(len(means))]


def simulated(own, policy, size):
    """Rows (second, [(group, updates since it had read)]) and who was dropped before each, slowly.

    All groups are looked at for every event, and each says what it is at: a second at which it is
    done, whether it has run out of time then, and the version that it had read.
    """
    (_, means), (steps, _) = own, size
    services, rows, dropped = streams(own, size), [], [set()]
    clock, gathered, waits = [0] * len(means), [], set()
    at = [None] * len(means)

    def begin(group, now):
        takes, most = next(services[group]), policy.allotted * means[group]
        at[group] = now + min(takes, most), group, takes > most, len(rows)

    for group in range(len(means)):
        begin(group, 0.0)
    while len(rows) < steps:
        now, group, is_late, version = min(work for work in at if work)
        if is_late or len(rows) - version >= policy.delay_bound:
            if version < len(rows):
                dropped[-1].add(group)
            begin(group, now)
            continue
        at[group] = None
        clock[group] += 1
        gathered.append((group, version))
        waits.add(group)
        if len(gathered) == policy.arrivals:
            rows.append((now, [(g, len(rows) - read) for g, read in gathered]))
            dropped.append(set())
            gathered = []
            if policy.waiting.endswith("_sync"):
                waits = set(range(len(means)))
        elif "batch" not in policy.waiting:
            continue
        for other in sorted(waits):
            if clock[other] <= min(clock) + policy.bound:
                waits.remove(other)
                begin(other, now)
    return rows, dropped[:-1]


@without_end
@cases
def test_it_is_the_simulation_of_the_policy(case):
    """Who delivers, when to the bit, how stale, and what was dropped."""
    line, policy, steps = made(*case), case[1], case[2][0]
    rows, dropped = simulated(*case)
    np.testing.assert_array_equal(line.seconds, [second for second, _ in rows])
    np.testing.assert_array_equal(line.worker, [had[-1][0] for _, had in rows])
    for field, n in ((line.plan.worker, 0), (line.staleness, 1)):
        found = field.reshape(steps, -1)
        np.testing.assert_array_equal(found, [[one[n] for one in had] for _, had in rows])
    assert (line.plan.dropped is not None) == policy.drops
    if policy.drops:
        assert [set(np.flatnonzero(row)) for row in line.plan.dropped] == dropped
    assert line.batch is None


@without_end
@cases
def test_slots_hold_what_the_staleness_says(case):
    line, (steps, _) = made(*case), case[2]
    assert line.slots == (1 if case[1].waiting.endswith("_sync") else len(case[0][1]))
    assert max(line.plan.read.max(), line.plan.write.max()) < line.slots
    stale = line.staleness.reshape(steps, -1)
    for read, late in zip(line.plan.read.reshape(steps, -1).T, stale.T, strict=True):
        held = versions_read(read, line.plan.write, line.slots)
        np.testing.assert_array_equal(held, np.arange(steps) - late)
    assert np.all(np.diff(line.seconds) >= 0) and stale.min() >= 0


@without_end
@cases
def test_a_longer_run_begins_with_the_shorter(case):
    own, policy, (steps, seed) = case
    begins_with(*(made(own, policy, (n, seed)) for n in (steps + 30, steps)))


@without_end
@given(groups, sizes)
def test_who_waits_for_nothing_arrives_as_any(own, size):
    """Without a bound, or with one that nobody reaches, as the number of updates is."""
    (law, means), (steps, seed) = own, size
    free = renewal_arrivals(seed, LAWS[law], Work(np.array(means, float)[:, None]), steps)
    for policy in (Policy(), Policy(1, NO_WAITING), Policy(delay_bound=steps), Policy(bound=steps)):
        line = made(own, policy, size)
        same_arrivals(line, free)
        assert line.plan.dropped is None or not line.plan.dropped.any()


# K arrivals an update.


@pytest.mark.parametrize("waiting", WAITING)
def test_expected_seconds_of_memoryless_groups(waiting):
    """Dutta et al.: n - i groups are still at work after i of a round, or n always."""
    n, k, rate, steps = 8, 3, 2.0, 4000
    work = Work(np.full((n, 1), 1 / rate))
    line = queued_arrivals(0, Exponential().draw, work, steps, Policy(k, waiting))
    between = np.diff(line.seconds, prepend=0.0)
    at_work = np.full(k, n) if "batch" in waiting else n - np.arange(k)
    expected = (1 / (rate * at_work)).sum()
    if waiting == "k_sync":
        harmonic = np.cumsum(1 / np.arange(1, n + 1))
        assert expected == pytest.approx((harmonic[n - 1] - harmonic[n - k - 1]) / rate)
    # Four standard errors of the mean of independent intervals, as memoryless ones are.
    assert abs(between.mean() - expected) < 4 * between.std() / steps**0.5


@without_end
@given(groups, sizes)
def test_who_waits_for_all_is_synchronous(own, size):
    """With K = n nobody is dropped and nobody is late, whether the others go on or not."""
    (law, means), (steps, seed) = own, size
    both = [made(own, Policy(len(means), name), size) for name in ("k_sync", "k_async")]
    assert not both[1].staleness.any()
    np.testing.assert_array_equal(both[0].seconds, both[1].seconds)
    services = [
        LAWS[law](np.random.default_rng((seed, group)), (steps, 1))[:, 0] * mean
        for group, mean in enumerate(means)
    ]
    np.testing.assert_allclose(both[0].seconds, np.cumsum(np.max(services, axis=0)), rtol=1e-12)


def test_a_straggler_is_waited_for_or_not():
    """Of groups that take 1, 1 and 10 seconds, two arrivals an update."""
    own, size = ("constant", [1.0, 1.0, 10.0]), (100, 0)
    lines = {name: made(own, Policy(2, name), size) for name in WAITING}
    ends = {name: line.seconds[-1] for name, line in lines.items()}
    assert ends["k_sync"] == ends["k_batch_sync"] == 100
    # 20 of 200 arrivals are the straggler's, and for each of these one of the fast need not be.
    assert ends["k_batch_async"] == pytest.approx(200 / 2.1, abs=1)
    assert ends["k_async"] == 100 and lines["k_async"].staleness.max() == 10  # of the tenth after


# A bound of the staleness.


def clocks(timeline, many):
    """(steps + 1, groups) updates of every group before each event."""
    done = np.arange(many) == timeline.worker[:, None]
    return np.concatenate([np.zeros((1, many), int), np.cumsum(done, axis=0)])


@without_end
@given(groups, st.integers(0, 4), sizes)
def test_nobody_is_further_ahead_than_the_bound(own, bound, size):
    """A group at clock c began while the slowest had c - s, and so delivers c + 1 at most then.

    The guarantee of the paper: a gradient of clock c has all updates of clocks below c - s.
    """
    timeline = made(own, Policy(bound=bound), size)
    every = clocks(timeline, len(own[1]))
    assert (every.max(axis=1) - every.min(axis=1)).max() <= bound + 1
    for t, (worker, staleness) in enumerate(zip(timeline.worker, timeline.staleness, strict=True)):
        assert every[t - staleness].min() >= every[t][worker] - bound


def test_bound_0_is_a_barrier_after_every_round():
    """Every round has one update of each group and ends with the slowest."""
    timeline = made(("constant", [1.0, 2.0, 5.0]), Policy(bound=0), (12, 0))
    np.testing.assert_array_equal(timeline.worker, np.tile([0, 1, 2], 4))
    np.testing.assert_array_equal(timeline.staleness, np.tile([0, 1, 2], 4))
    np.testing.assert_array_equal(timeline.seconds[2::3], 5.0 * np.arange(1, 5))


@pytest.mark.parametrize("bound", [0, 3])
def test_a_straggler_holds_up_all_in_the_long_run(bound):
    """Its rate is everyone's: n rounds take n of its services, whatever the bound."""
    timeline = made(("constant", [1.0, 1.0, 10.0]), Policy(bound=bound), (3000, 0))
    assert np.bincount(timeline.worker).min() >= 1000 - bound - 1
    assert timeline.seconds[-1] == pytest.approx(10_000, rel=0.01)  # but for the first rounds


def test_the_config_asks_for_it():
    """With bound 0 a gradient misses at most one update of each other group."""
    cluster, stalest = Cluster(nodes=4, speeds=(1.0, 1.0, 1.0, 0.1)), {}
    for bound in (-1, 0):
        method = Asynchronous(groups=4, staleness_bound=bound)
        config = Config(method=method, cluster=cluster)
        stalest[bound] = config.timeline(steps_per_epoch=10, update_bytes=0).staleness.max()
    assert stalest[0] <= 3 < stalest[-1]


# What is too old: Ringmaster ASGD.


def algorithm(services, bound, steps):
    """The paper's method: rows (worker, delay, seconds) and how many gradients were ignored."""
    k, ignored, rows = 0, 0, []
    taken_at = [0] * len(services)  # the k of the point that each worker computes at
    ends = [next(own) for own in services]
    while k < steps:
        i = min(range(len(ends)), key=lambda i: (ends[i], i))
        if k - taken_at[i] < bound:
            rows.append((i, k - taken_at[i], ends[i]))
            k += 1
        else:
            ignored += 1
        taken_at[i] = k
        ends[i] += next(services[i])
    return rows, ignored


@given(groups, st.integers(1, 6), sizes)
def test_it_is_the_algorithm_of_the_paper(own, bound, size):
    """Workers in the same order, the same staleness, and the same seconds to the bit."""
    line = made(own, Policy(delay_bound=bound), size)
    rows, ignored = algorithm(streams(own, size), bound, size[0])
    worker, delay, seconds = zip(*rows, strict=True)
    np.testing.assert_array_equal(line.worker, worker)
    np.testing.assert_array_equal(line.staleness, delay)
    np.testing.assert_array_equal(line.seconds, seconds)
    assert line.plan.dropped.sum() == ignored
    assert line.staleness.max() < bound


# What takes too long: MindFlayer.


@given(groups, st.floats(0.6, 3.0), sizes)
def test_groups_begin_again_by_themselves(own, allotted, size):
    """Who delivers when, and how many updates there were since it had last begun."""
    (law, means), (steps, _), rows = own, size, []
    assume(law != "constant" or allotted > 1)
    line = made(own, Policy(allotted=allotted), size)
    for group, (mean, services) in enumerate(zip(means, streams(own, size), strict=True)):
        now, begun, done = 0.0, 0.0, 0
        while done < steps:
            takes = next(services)
            now += min(takes, allotted * mean)
            if takes <= allotted * mean:
                rows.append((now, group, begun))
                done += 1
            begun = now
    seconds, worker, begun = (np.array(c) for c in zip(*sorted(rows)[:steps], strict=True))
    np.testing.assert_array_equal(line.worker, worker)
    np.testing.assert_allclose(line.seconds, seconds, rtol=1e-12)
    if law != "constant":
        read = np.searchsorted(seconds, begun, side="right")
        np.testing.assert_array_equal(line.staleness, np.arange(steps) - read)


@pytest.mark.parametrize("waiting", WAITING)
def test_without_a_limit_nothing_is_dropped(waiting):
    """To the bit, also with a limit that nobody ever reaches."""
    own, size = ("exponential", [1, 2, 3]), (60, 5)
    plain, never, limited = (
        made(own, Policy(2, waiting, allotted=limit), size) for limit in (np.inf, 1e9, 0.7)
    )
    assert not never.plan.dropped.any() and plain.plan.dropped is None
    for name in ("worker", "staleness", "seconds"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(never, name))
    assert not np.array_equal(limited.seconds, plain.seconds)
    # Where all begin at the newest version, who begins again reads the same.
    assert limited.plan.dropped.any() == waiting.endswith("_async")


def test_a_service_takes_the_closed_form():
    """E min(S, a) / P(S <= a), of heavy tails: half of the time without a limit."""
    law, allotted, steps = LogNormal(3.0).draw, 0.5, 20_000
    draws = law(np.random.default_rng(1), (400_000, 1))[:, 0]
    expected = np.minimum(draws, allotted).mean() / (draws <= allotted).mean()
    line = queued_arrivals(0, law, Work(np.ones((1, 1))), steps, Policy(allotted=allotted))
    # Of 20,000 services, whose deviation is about their mean: 0.7 %; three of them.
    assert line.seconds[-1] / steps == pytest.approx(expected, rel=0.021)
    assert expected < 0.5


def test_a_limit_that_nobody_keeps_is_one_line():
    with pytest.raises(TimelineError, match=r"allotted = 0\.5: groups have begun again .* longer"):
        made(("constant", [1.0, 2.0]), Policy(allotted=0.5), (10, 0))
