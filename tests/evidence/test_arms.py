"""A tuned arm stands where nothing around it is better, on enough seeds to say so."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.studies import _problems as problems
from optdyn.evidence.arms import FALLS, MOMENTUM, RATE, Arm, momenta, point, rates, rung, sgd, tuned
from tests.evidence.known import TARGET, Known

NETWORK = problems.network("mlp", 64)


def found_by(study, step=1.0, momentum=0.0):
    """Where the search for a loss of 0.25 ends that starts there."""
    return tuned(study, sgd(NETWORK, step, momentum), TARGET)


def known(updates, seeds=(7, 8), factor=lambda config: 1.0, update_seconds=lambda momentum: 1.0):
    """A study whose updates are known by the rungs of step and momentum; seed 8 takes 1 % more."""

    def taken(config):
        sgd = config.optimizer
        step = math.log2(sgd.learning_rate / (1 - sgd.momentum))
        k = rung(momenta, sgd.momentum)
        late = 1.01 if config.seed == 8 else 1.0
        return updates(step, k) * late * factor(config), update_seconds(k)

    return Known(taken, seeds)


@settings(max_examples=25, deadline=None)
@given(st.integers(-5, 2), st.integers(-3, 5), st.integers(-3, 3), st.sampled_from([-0.9, 0.9]))
def test_the_end_of_a_valley_across_the_ladders_is_found(step, momentum, start, slope):
    """Where one ladder at a time leads nowhere: a rung of either makes 2.2 of 1.8, three away."""

    def valley(i, k):
        x, y = i - step, k - momentum
        return 100 * 1.2 ** (x**2 + y**2 + 2 * slope * x * y)

    found = found_by(known(valley), 2.0**start)
    assert found.interior and found.rungs == {"long_run_step": step, MOMENTUM: momentum}


def test_a_lower_bowl_at_more_momentum_is_found_from_the_second_start():
    def two(step, momentum):
        return min(1.5 * bowl(0, 0)(step, momentum), bowl(-3, 4)(step, momentum))

    found = found_by(known(two))
    assert found.interior and found.rungs == {"long_run_step": -3, MOMENTUM: 4}


@pytest.mark.parametrize(("seeds", "rung"), [(4, 1), (16, 0)])
def test_more_seeds_part_the_best_from_the_luckiest(seeds, rung):
    def taken(step, momentum):
        return 100 * 1.2 ** (step**2) * (1 + 0.04 * abs(momentum))

    def flattered(config):
        return 0.9 if config.optimizer.momentum == momenta(1) and config.seed < 4 else 1.0

    found = found_by(known(taken, tuple(range(seeds)), flattered))
    assert found.rungs == {"long_run_step": 0, MOMENTUM: rung} and found.interior
    assert found.seeds == seeds


def test_a_flat_ladder_has_a_range_and_a_steep_one_a_value():
    def taken(step, momentum):
        return 100 * 1.2 ** (step**2) * (1 + 1e-4 * momentum**2 if abs(momentum) < 3 else 2)

    def noise(config):
        return 1 + 0.02 * math.sin(7 * config.seed + 50 * config.optimizer.momentum)

    found = found_by(known(taken, tuple(range(4)), noise))
    low, high = found.range[MOMENTUM]
    assert low < 0 < high and abs(low) <= 0.6 and high <= 0.6
    assert found.range["long_run_step"] == [1.0, 1.0]


def bowl(best_step, best_momentum):
    return lambda step, momentum: (
        100 * 1.2 ** ((step - best_step) ** 2 + (momentum - best_momentum) ** 2)
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(-6, 3), st.integers(-4, 6), st.integers(-3, 3))
def test_the_least_of_a_bowl_is_found_wherever_it_lies(step, momentum, start):
    found = found_by(known(bowl(step, momentum)), 2.0**start)
    assert found.rungs == {"long_run_step": step, MOMENTUM: momentum}
    assert found.interior
    assert all(cost > found.cost for pair in found.neighbours.values() for cost in pair)
    assert found.cost == pytest.approx(100.5)  # the median of two seeds


@settings(max_examples=15, deadline=None)
@given(st.integers(-4, 2), st.integers(-3, 4))
def test_from_what_is_best_nearby_the_least_is_found_without_short_trials(step, momentum):
    """The other batch takes twice the updates, and its best step and momentum are a little off."""
    other = found_by(known(bowl(0, 0)))
    made = []

    class Counted(Known):
        def trials(self, jobs):
            made.extend(job.most for job in jobs)
            return super().trials(jobs)

    def twice(i, k):
        return 2 * bowl(step, momentum)(i, k)

    study = Counted(*known(twice))
    found = tuned(study, sgd(NETWORK, 2.0**9, 0.9), TARGET, near=other)
    assert found.rungs == {"long_run_step": step, MOMENTUM: momentum} and found.interior
    assert made[0] == 4 * other.cost and found.cost == pytest.approx(201)


def a_third(momentum):
    """The seconds of an update: a third for every rung of momentum up, to rung 3."""
    return 3.0 ** -min(momentum, 3)


def test_what_takes_more_updates_in_fewer_seconds_is_found_by_trials_that_end_by_seconds():
    """A rung of momentum up doubles the updates, each in a third of the seconds."""

    def taken(step, momentum):
        return 100 * 1.2 ** (step**2) * 2.0**momentum

    config = NETWORK.with_(steps=12_800)  # at first trials are of 200 updates
    arm = sgd(config, 1.0, 0.0)
    by_updates = tuned(known(taken, update_seconds=a_third), arm, TARGET, "seconds")
    assert by_updates.rungs[MOMENTUM] == 0  # where 200 updates seemed too many
    found = tuned(known(taken, update_seconds=a_third), arm, TARGET, "seconds", ends="seconds")
    assert found.interior and found.rungs == {"long_run_step": 0, MOMENTUM: 3}
    assert found.cost == pytest.approx(100.5 * (2 / 3) ** 3)


def test_trials_that_end_by_seconds_are_of_a_search_by_seconds():
    arm = sgd(NETWORK.with_(steps=12_800), 1.0, 0.0)
    with pytest.raises(ValueError, match=r"must be .seconds. or .met. with"):
        tuned(known(lambda *_: 100.0), arm, TARGET, ends="seconds")


def test_steps_beyond_stability_are_left_behind():
    def unstable(step, momentum):
        return math.inf if step > -5 else bowl(-6, 2)(step, momentum)

    found = found_by(known(unstable), 4.0, 0.3)
    assert found.interior and found.rungs["long_run_step"] == -6


def test_what_diverges_at_any_rate_is_given_up():
    found = found_by(known(lambda *_: math.inf))
    assert math.isinf(found.cost) and not found.interior
    lowest = min(step for (step, _), _ in found.tried)
    assert lowest == -3 * FALLS - 1  # what is beside the last fall


def test_a_target_that_nobody_reaches_is_not_interior():
    found = found_by(known(lambda *_: 1e9))
    assert math.isinf(found.cost) and not found.interior


def test_a_kept_momentum_is_in_the_learning_rate():
    config = NETWORK.with_({"optimizer.momentum": 0.9})
    assert point(sgd(config, 0.5), [-1])[RATE] == pytest.approx(0.05)
    assert point(Arm(config, {RATE: rates}, {RATE: 0}), [-2]) == {RATE: 0.25}


def test_the_ladder_of_momenta_has_no_ends_and_two_equal_sides():
    ladder = [momenta(i) for i in range(-12, 13)]
    assert ladder == sorted(set(ladder)) and ladder[0] > -1 and ladder[-1] < 1
    assert ladder == [-value for value in reversed(ladder)]
    assert [momenta(i) for i in range(6)] == [0.0, 0.3, 0.6, 0.8, 0.9, 0.95]
    assert all(rung(momenta, momenta(i)) == i for i in range(-8, 9))
    assert [momenta(i) for i in (21, 22, 60, -60)] == [0.999999] * 3 + [-0.999999]  # never 1
