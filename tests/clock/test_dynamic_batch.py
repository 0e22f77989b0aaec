"""Shares that follow speeds: the arithmetic of shares, and epochs worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.base import seeds
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, Geometric, LogNormal, Measured
from optdyn.clock.timeline import TimelineError
from optdyn.methods.dynamic_batch import (
    CHANGE,
    DynamicBatch,
    StepCost,
    clocked,
    costs,
    divide_batch,
    ideal_seconds,
    measured,
    smooth,
    waste,
)
from tests.values import as_law

SPEEDS = (1.0, 1.0, 2.0, 4.0)
BATCH = 256  # 8 divides it, so that the shares of SPEEDS come out even: 32, 32, 64, 128


@pytest.fixture
def run():
    """`run(epochs, per_epoch, adapt=..., smoothing=..., ...)`: timeline and costs of 4 workers."""

    def make_both(epochs, per_epoch, *, adapt=True, smoothing=0.5, seed=0, bytes_=0, **values):
        values = {"nodes": 4, "speeds": SPEEDS, "service": Constant(), **values}
        chosen = Cluster(**values)
        method = DynamicBatch(adapt=adapt, smoothing=smoothing)
        made, _ = clocked(
            chosen,
            method,
            steps=epochs * per_epoch,
            steps_per_epoch=per_epoch,
            batch_size=BATCH,
            update_bytes=bytes_,
            seed=seed,
        )
        return made, costs(chosen, epochs, per_epoch, seed)

    return make_both


def epoch_seconds(made, per_epoch):
    """(epochs,) mean seconds of a step."""
    return np.diff(made.seconds[per_epoch - 1 :: per_epoch], prepend=0.0) / per_epoch


# Whole rates add up without rounding, so what is said of equal numbers holds to the bit.
many_rates = st.lists(st.integers(1, 10**6), min_size=1, max_size=12)
minima = st.integers(0, 3)
extras = st.integers(0, 1000)  # examples beyond the minimum of all


@given(many_rates, minima, extras)
def test_shares_are_whole_add_up_and_starve_nobody(rates, minimum, extra):
    size = minimum * len(rates) + extra
    given_ = divide_batch(np.array(rates), size, minimum)
    assert given_.dtype == np.int32
    assert given_.sum() == size and given_.min() >= minimum


@given(many_rates, minima, extras)
def test_shares_are_proportional_but_for_the_rounding_and_the_minimum(rates, minimum, extra):
    """Whoever is above the minimum has, to within one, the same multiple of its rate."""
    rates, size = np.array(rates), minimum * len(rates) + extra
    given_ = divide_batch(rates, size, minimum)
    above = given_ > minimum + 1
    # b_i within one of m r_i for some m: the intervals of possible m overlap.
    low, high = (given_ - 1)[above] / rates[above], (given_ + 1)[above] / rates[above]
    # Rounding of a quotient in float64.
    assert not above.any() or low.max() < high.min() * (1 + 1e-12)
    # Nobody is at the minimum whose rate would buy more: m r_i is at most one above it.
    if above.any():
        assert np.all((low.max() * rates)[~above] <= minimum + 2)


@given(many_rates, minima, extras, st.integers(0, 11), st.integers(1, 10**6))
def test_the_share_of_a_worker_grows_with_its_rate(rates, minimum, extra, index, more):
    rates, index = np.array(rates), index % len(rates)
    size = minimum * len(rates) + extra
    faster = rates + more * (np.arange(len(rates)) == index)
    assert divide_batch(faster, size, minimum)[index] >= divide_batch(rates, size, minimum)[index]
    given_ = divide_batch(rates, size, minimum)[np.argsort(rates, kind="stable")]
    different = np.diff(np.sort(rates)) > 0
    assert np.all(np.diff(given_)[different] >= 0)  # and among workers


@given(st.data(), many_rates, minima, extras)
def test_the_order_of_workers_does_not_matter(data, rates, minimum, extra):
    """But among equals, of whom the first may get one more."""
    size = minimum * len(rates) + extra
    other = data.draw(st.permutations(rates))
    one = zip(rates, divide_batch(np.array(rates), size, minimum), strict=True)
    two = zip(other, divide_batch(np.array(other), size, minimum), strict=True)
    assert sorted(one) == sorted(two)


@given(many_rates, minima, extras, st.integers(-30, 30))
def test_the_unit_of_rates_does_not_matter(rates, minimum, extra, power):
    rates, size = np.array(rates, float), minimum * len(rates) + extra
    scaled = divide_batch(rates * 2.0**power, size, minimum)  # exact in float64
    np.testing.assert_array_equal(scaled, divide_batch(rates, size, minimum))


@given(st.integers(1, 12), st.floats(1e-6, 1e6), st.integers(0, 1000))
def test_equal_rates_give_equal_shares_to_within_one(workers, rate, extra):
    given_ = divide_batch(np.full(workers, rate), workers + extra)
    assert np.ptp(given_) <= 1


@pytest.mark.parametrize(
    ("rates", "size", "minimum", "wanted"),
    [
        (SPEEDS, 64, 1, (8, 8, 16, 32)),
        ((5, 3, 2), 11, 0, (6, 3, 2)),  # 5.5, 3.3, 2.2: one left, to the largest remainder
        ((5, 3, 2), 12, 0, (6, 4, 2)),  # 6.0, 3.6, 2.4
        ((1, 3), 2, 0, (0, 2)),  # 0.5, 1.5: to the faster of equal remainders
        ((1, 100, 100), 21, 1, (1, 10, 10)),  # 0.1 raised to 1, the rest divided anew
        ((1, 9, 90), 12, 2, (2, 2, 8)),  # 0.12, then 10 x 9 / 99 = 0.9 raised too
        ((7, 1), 4, 2, (2, 2)),
    ],
)
def test_shares_by_hand(rates, size, minimum, wanted):
    np.testing.assert_array_equal(divide_batch(np.array(rates), size, minimum), wanted)


def test_shares_that_cannot_be():
    with pytest.raises(TimelineError, match="batch of 3 examples: must be at least 4, 1 a worker"):
        divide_batch(np.ones(4), 3)
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(TimelineError, match="must be positive and finite"):
            divide_batch(np.array([1.0, bad]), 10)


def test_one_epoch_finds_the_ideal_when_nothing_is_noise(run):
    made, cost = run(3, 5)
    taken = made.plan.shares
    np.testing.assert_array_equal(taken[:5], np.full((5, 4), BATCH // 4))
    np.testing.assert_array_equal(taken[5:], np.tile([32, 32, 64, 128], (10, 1)))
    # 256 examples over a total speed of 8 at a millisecond; float64 rounding.
    np.testing.assert_allclose(ideal_seconds(cost, BATCH), 0.032, rtol=1e-14)
    np.testing.assert_allclose(epoch_seconds(made, 5), [0.064, 0.032, 0.032], rtol=1e-12)


SLOWDOWN = {"disturbances": ((3, 5, 10, 4.0), (1, 8, 12, 1.3))}  # epochs 5..10 and 8..12


def settled(epochs):
    """Epochs that have had two to measure since the last change: of speeds, or from the start."""
    return [e for e in range(epochs) if all(not 0 <= e - c < 2 for c in (0, 5, 8, 11, 13))]


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_two_epochs_after_a_change_the_epoch_is_ideal_to_five_percent(run, smoothing):
    made, cost = run(16, 4, smoothing=smoothing, **SLOWDOWN)
    ratio = epoch_seconds(made, 4) / ideal_seconds(cost, BATCH)
    assert ratio.min() > 1 - 1e-12  # nothing is faster than ideal, but for float64 rounding
    assert ratio[settled(16)].max() < 1.05
    # While a worker is four times slower and nobody knows, all wait: 128 ms, ideal 51.2.
    assert ratio[5] == pytest.approx(2.5, rel=1e-12)
    equal, _ = run(16, 4, adapt=False, **SLOWDOWN)
    assert (epoch_seconds(equal, 4) / ideal_seconds(cost, BATCH)).min() > 1.2


@pytest.mark.parametrize("seed", range(5))
def test_five_percent_under_noise_too(run, seed):
    """Steps vary by 10 % a worker; an epoch of 50 gives rates to 1.4 %."""
    noise = {"service": LogNormal(0.1)}
    made, cost = run(16, 50, seed=seed, **noise, **SLOWDOWN)
    taken = made.plan.shares[::50]
    # The time that these shares take without the noise, which no division can avoid.
    ratio = (taken * cost.example).max(axis=1) / ideal_seconds(cost, BATCH)
    assert ratio[settled(16)].max() < 1.05
    # And against ideal shares that meet the same noise: a step ends with the unluckiest worker.
    draws = LogNormal(0.1).draw(seeds.generator(seed, "arrivals"), (800, 4))
    compute = made.plan.shares * cost.example.repeat(50, axis=0) * draws
    np.testing.assert_allclose(np.diff(made.seconds, prepend=0.0), compute.max(axis=1), rtol=1e-9)
    ideal = ideal_seconds(cost, BATCH) * draws.max(axis=1).reshape(16, 50).mean(axis=1)
    assert (epoch_seconds(made, 50) / ideal)[settled(16)].max() < 1.05


def test_noise_moves_smoothed_shares_less(run):
    """By the standard deviation of a moving average, sqrt((1 - w) / (1 + w)), 0.58 for w = 1/2."""
    noise = {"service": LogNormal(0.1)}
    spread = {}
    for smoothing in (0.0, 0.5):
        made, _ = run(400, 20, smoothing=smoothing, seed=1, **noise)
        taken = made.plan.shares[20 * 10 :: 20]
        spread[smoothing] = (taken / taken.mean(axis=0)).std()
    # 390 epochs and 4 workers give the ratio to some 4 %, and whole shares add 1/sqrt(12) of one.
    assert spread[0.5] / spread[0.0] == pytest.approx(0.58, rel=0.15)
    assert spread[0.0] == pytest.approx(0.1 / np.sqrt(20), rel=0.15)  # less what the sum takes away


def test_smoothing_by_hand():
    rates = np.array([100.0, 100.0, 100.0, 100.0])
    measured = np.array([100.0, 104.0, 96.0, 50.0])
    got = smooth(rates, measured, 0.25)
    # Geometric: 100^0.25 m^0.75; the last is a change of speed. Rounding of powers in float64.
    wanted = 100 * np.array([1.0, 1.04**0.75, 0.96**0.75, 0.5])
    np.testing.assert_allclose(got, wanted, rtol=1e-14)
    np.testing.assert_array_equal(smooth(rates, measured, 0.0), measured)
    # The largest step that is averaged is right to a quarter of itself after two epochs.
    speed = np.array([100 * np.exp(0.999 * CHANGE)])
    twice = smooth(smooth(rates[:1], speed, 0.5), speed, 0.5)
    assert np.log(speed / twice) == pytest.approx(CHANGE / 4, rel=0.01)


def test_waste_by_hand():
    """Speeds 1 and 3, a batch of 8 and no network: 4 s and 4/3 s with equal shares, then 2 and 2.

    An epoch is one update, so of 4 + 2 + 2 = 8 s the slow worker works 8 and the fast one 16/3.
    """
    values = Cluster(nodes=2, speeds=(1.0, 3.0), service=Constant(), seconds_per_example=1.0)
    sizes = {"steps": 3, "steps_per_epoch": 1, "batch_size": 8}
    made, busy = clocked(values, DynamicBatch(), **sizes)
    np.testing.assert_allclose(busy, [[4, 4 / 3], [2, 2], [2, 2]], rtol=1e-14)
    assert waste(made, busy) == pytest.approx(1 - (8 + 16 / 3) / (2 * 8))
    # Half of all time is spent on an exchange as long as the computing.
    values = values.with_(speeds=(), latency=2.0)
    assert waste(*clocked(values, DynamicBatch(), **sizes)) == pytest.approx(0.5)


@pytest.mark.parametrize("law", ["constant", "exponential", "lognormal", "gamma"])
def test_every_step_divides_the_batch_and_takes_time(run, law):
    made, _ = run(12, 5, service=as_law(law, 0.8), disturbance_probability=0.3)
    taken = made.plan.shares
    assert taken.dtype == np.int32 and taken.shape == (60, 4)
    assert np.all(taken.sum(axis=1) == BATCH) and taken.min() >= 1
    assert np.all(np.diff(made.seconds, prepend=0.0) > 0)
    # Shares change between epochs only.
    by_epoch = taken.reshape(12, 5, 4)
    np.testing.assert_array_equal(by_epoch, np.broadcast_to(by_epoch[:, :1], by_epoch.shape))


def test_random_disturbances_are_the_papers():
    """Some 5 to 10 seconds an epoch, for 4 to 20 epochs, to a worker that has none."""
    p, epochs, per_epoch = 0.1, 20_000, 8
    values = Cluster(nodes=4, disturbance_probability=p)
    delay = costs(values, epochs, per_epoch, seed=0).delay * per_epoch
    for worker in range(4):
        # A delay is a number of its own, so a run of equal ones is one disturbance.
        starts = np.flatnonzero(np.diff(delay[:, worker], prepend=-1.0))
        lasting = np.diff(starts, append=epochs)[:-1]
        seconds = delay[starts, worker][:-1]
        struck = seconds > 0
        assert struck.sum() > 500
        assert np.any(struck[1:] & struck[:-1])  # one may follow another at once
        assert seconds[struck].min() >= 5 and seconds[struck].max() <= 10
        assert set(lasting[struck]) == set(range(4, 21))
        # Evenly drawn; about a thousand of deviation 1.4 s and 4.9 epochs: four deviations.
        assert seconds[struck].mean() == pytest.approx(7.5, abs=0.2)
        assert lasting[struck].mean() == pytest.approx(12, abs=0.7)
        # A free epoch ends in one with probability p: geometric waiting, and none between two
        # disturbances with probability p, so a cycle is (1 - p) / p + 12 epochs.
        assert epochs / struck.sum() == pytest.approx((1 - p) / p + 12, rel=0.1)


def test_a_delay_is_balanced_and_forgotten(run):
    """Delays do not shrink with the share: the fixed point of the paper's rule is ideal still."""
    values = {"disturbance_probability": 0.05, "disturbance_seconds": (0.05, 0.1)}
    made, cost = run(80, 5, seed=2, **values)
    ratio = epoch_seconds(made, 5) / ideal_seconds(cost, BATCH)
    equal, _ = run(80, 5, seed=2, adapt=False, **values)
    assert cost.delay.any() and ratio.min() > 1 - 1e-12
    # Since two epochs nothing has changed.
    change = np.any(np.diff(cost.delay, axis=0, prepend=-1.0), axis=1)
    calm = ~(change | np.roll(change, 1) | np.roll(change, 2))
    assert calm.sum() > 10 and ratio[calm].max() < 1.05
    assert made.seconds[-1] < 0.7 * equal.seconds[-1]


def test_ideal_seconds_by_hand():
    example = np.array([[1.0, 0.5], [1.0, 0.5], [1.0, 0.5]])
    delay = np.array([[0.0, 0.0], [3.0, 0.0], [20.0, 0.0]])
    # 30 examples at 1 + 2 a second: 10 s. With 3 s lost to one: (30 + 3) / 3. With 20 s the other
    # does all 30 in 15 s and waits.
    np.testing.assert_allclose(
        ideal_seconds(StepCost(example, delay), 30), [10, 11, 20], rtol=1e-15
    )


BAD = [
    ((4, 0, 1, 2.0),),
    ((0, 3, 2, 2.0),),
    ((0, -1, 2, 2.0),),
    ((0, 0, 1, 0.0),),
    ((0, 1),),
    ("a",),
]


@pytest.mark.parametrize("bad", BAD)
def test_disturbances_that_cannot_be(run, bad):
    with pytest.raises(TimelineError, match=r"cluster.disturbances = .*are 0\.\.3") as caught:
        run(2, 2, disturbances=bad)
    assert "\n" not in str(caught.value)


def test_a_law_without_a_meaning_is_refused(run):
    with pytest.raises(TimelineError, match="'geometric': must be one of constant, expo"):
        run(2, 2, service=Geometric())


# Real workers, whose seconds are measured.


def real(worker_seconds, epochs=6, per_epoch=5, **values):
    """What real workers that took those seconds are given next."""
    method = DynamicBatch(adapt=True, smoothing=0.5)
    return measured(
        Cluster(nodes=4, service=Measured(), **values),
        method,
        steps=epochs * per_epoch,
        steps_per_epoch=per_epoch,
        batch_size=BATCH,
        worker_seconds=worker_seconds,
    )


def test_measured_seconds_are_followed_as_simulated_ones_are(run):
    """Told what the simulated workers took, the real ones' timeline gives the same shares."""
    disturbances = ((3, 2, 3, 8),)
    simulated, cost = run(6, 5, disturbances=disturbances)
    taken = simulated.plan.shares[::5] * cost.example  # seconds, (epochs, workers)
    for past in range(7):
        made = real(taken[:past].tolist(), disturbances=disturbances)
        steps = min(past + 1, 6) * 5
        assert len(made.seconds) == steps
        np.testing.assert_array_equal(made.plan.shares, simulated.plan.shares[:steps])
        # The seconds are a prediction, and longer timelines repeat it.
        np.testing.assert_allclose(made.seconds, real(taken.tolist()).seconds[:steps])
    np.testing.assert_array_equal(made.plan.work[::5, 3], [1, 1, 8, 8, 1, 1])
    assert (made.plan.work[:, :3] == 1).all()


def test_seconds_of_real_workers_are_predicted_from_the_epoch_before():
    taken = [[0.5, 0.5, 0.25, 0.125]] * 2
    seconds = np.diff(real(taken, 3, 4).seconds, prepend=0.0)
    # 64 examples each at the 1e-3 s of the config; then shares 32, 32, 64, 128, each in 0.25 s;
    # those took other seconds, which make of them what the third epoch's are expected to take.
    np.testing.assert_allclose(seconds[:8], [0.064] * 4 + [0.25] * 4)
    rates = np.array([32, 32, 64, 128]) / taken[1]
    third = real(taken, 3, 4).plan.shares[-1]
    np.testing.assert_allclose(seconds[8:], (third / rates).max())


def test_work_that_is_not_whole_cannot_be_done():
    with pytest.raises(TimelineError, match="whole numbers"):
        real([], disturbances=((0, 0, 1, 2.5),))
