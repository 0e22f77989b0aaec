"""Groups that queue for a server, and how a config comes to be such a cluster."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.arrivals import IterationSeconds, compute_groups, omnivore_arrivals
from optdyn.clock.cluster import Cluster, Pieces
from optdyn.clock.service import Constant, Exponential
from optdyn.experiment import Config
from optdyn.train import trainer
from tests.clock.lines import numbers, replica
from tests.clock.test_slots import check
from tests.tune.hardware import seconds_per_iteration
from tests.values import as_law

SEVEN_TO_ONE = IterationSeconds(t_conv_compute_1=7.0, t_conv_network_1=0.0, t_fc=1.0)
PIECES = {"conv_compute": 12.0, "conv_network": 0.5, "fc": 1.0, "fc_network": 2.0}
CHOSEN = {f"cluster.pieces.{name}": value for name, value in PIECES.items()}
FRESH = ("hidden0", "hidden1", "classifier")  # the dense part of the network below
NETWORK = {"model.name": "cnn", "model.hidden": (5, 5), "model.channels": (2,)}


def run(pieces, groups, k=1, law=None, steps=100_000, seed=0):
    return omnivore_arrivals(pieces, groups, k, steps, law or Exponential().draw, seeded(seed))[0]


def seeded(seed):
    return np.random.default_rng(seed)


def of(values, replicas=0):
    """The timeline of a run with these differences from the default."""
    config = Config().with_(NETWORK | CHOSEN | values)
    return config.timeline(steps_per_epoch=10, update_bytes=10**9, replicas=replicas)


@pytest.mark.parametrize("groups", [3, 8, 20])
def test_constant_service(groups):
    """Round robin; the server deals with one batch at a time, a group with one of its own."""
    timeline = run(SEVEN_TO_ONE, groups, law=Constant().draw, steps=50 * groups)
    t = np.arange(50 * groups)
    np.testing.assert_array_equal(timeline.worker, t % groups)
    np.testing.assert_array_equal(timeline.staleness, np.minimum(t, groups - 1))
    # Sums of whole seconds: exact in float64.
    assert np.diff(timeline.seconds).min() >= 1.0
    assert (timeline.seconds[groups:] - timeline.seconds[:-groups]).min() >= 8.0
    assert timeline.seconds[0] == 8.0


def test_random_service():
    """Without a server the groups are memoryless and the staleness geometric of mean g - 1."""
    free = run(IterationSeconds(1.0, 0.0, 0.0), 8)
    # P(0) = 1 / g: 100,000 draws give it to 0.8 %, here four deviations.
    assert (free.staleness == 0).mean() == pytest.approx(1 / 8, rel=0.035)
    # A saturated FIFO server puts the groups in line: hardly any overtakes the seven others.
    lined_up = run(IterationSeconds(0.01, 0.0, 1.0), 8)
    assert (lined_up.staleness == 7).mean() > 0.95
    for timeline in (free, lined_up):
        # The gaps of every group add up to the length of the run, but for its ends.
        assert timeline.staleness.mean() == pytest.approx(7, rel=1e-3)
        assert np.all(np.diff(timeline.seconds) >= 0)


LAWS = {"constant": 0.0, "exponential": 1.0, "lognormal": 0.4, "gamma": 0.4}


@given(
    st.sampled_from(sorted(LAWS)),
    st.integers(1, 6),
    st.integers(1, 3),
    st.tuples(st.floats(1e-3, 1e3), *[numbers(1e3)] * 3),
    st.booleans(),
    st.integers(0, 3),
)
def test_slots_hold_what_the_staleness_says(law, groups, k, seconds, merged, replicas):
    """As of every other timeline, also of replicas, and of a server that takes no time."""
    pieces, steps = Pieces(**dict(zip(PIECES, seconds, strict=True))), 40
    service = as_law(law, LAWS[law])
    cluster = Cluster(nodes=groups, devices_per_node=k, service=service, pieces=pieces)
    sizes = {"groups": groups, "steps": steps, "batch_size": 8}
    many = compute_groups(cluster, **sizes, merged=merged, replicas=replicas)
    for i in range(replicas):
        check(replica(many, i), groups, steps)
    if not replicas:
        check(many, groups, steps)


@pytest.mark.parametrize("values", [{}, {"batch_size": 7}])
@pytest.mark.parametrize(
    ("fresh", "an_update"),
    # Eight workers: max(12 / 8, 0.5 x 8) = 4 of convolutions, then 1 dense. Unmerged, 2 more for
    # the exchange of the dense model.
    [(FRESH, 5.0), ((), 7.0)],
)
def test_synchronous_runs_take_the_sum_of_the_pieces(fresh, an_update, values):
    """The seconds are those of a whole batch, however large."""
    base = {"cluster.nodes": 4, "cluster.devices_per_node": 2, "method.fresh": fresh}
    timeline = of(base | {"steps": 20, "cluster.service.name": "constant"} | values)
    # Sums of halves: exact in float64.
    np.testing.assert_array_equal(timeline.seconds, an_update * np.arange(1, 21))
    assert not timeline.staleness.any()


@pytest.mark.parametrize("fresh", [FRESH, ()])
@pytest.mark.parametrize("groups", [1, 2, 4, 8, 16])
def test_asynchronous_runs_follow_the_closed_form(groups, fresh):
    """After the first round, HE(g) seconds an update of constant service; merged if fresh."""
    values = {"method.name": "asynchronous", "method.groups": groups, "method.fresh": fresh}
    timeline = of(values | {"cluster.nodes": 16, "cluster.service.name": "constant", "steps": 320})
    expected = seconds_per_iteration(
        IterationSeconds(12.0, 0.5, 1.0, bool(fresh), 2.0), groups, 16 // groups
    )
    # Two marks whole rounds apart. Rounding of 320 float64 additions.
    found = (timeline.seconds[-1] - timeline.seconds[-1 - 160]) / 160
    assert found == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(timeline.staleness, np.minimum(np.arange(320), groups - 1))


@pytest.mark.parametrize("law", sorted(LAWS))
def test_draws_are_of_the_law_of_the_cluster(law):
    """One worker and a server that takes no time: its services are all there is."""
    one = {"cluster.pieces.fc": 0.0, "cluster.pieces.fc_network": 0.0, "steps": 20_000}
    timeline = of(one | {"cluster.service": as_law(law, LAWS["lognormal"])})
    services = np.diff(timeline.seconds, prepend=0.0) / 12.0
    # 20,000 draws give the mean to 0.7 % and, the kurtosis being 9 at most, the deviation to 1 %:
    # four deviations. Differences of sums near 2.4e5 are right to 3e-11.
    assert services.mean() == pytest.approx(1, rel=0.03)
    assert services.std() == pytest.approx(LAWS[law], rel=0.04, abs=1e-9)


def test_without_pieces_there_is_no_server():
    """The dense pieces alone are refused elsewhere; here nothing but `conv_compute` decides."""
    nothing = dict.fromkeys(CHOSEN, 0.0)
    timeline = of(nothing | {"cluster.service.name": "constant", "batch_size": 10, "steps": 3})
    # 10 examples of a millisecond each; rounding of three additions.
    np.testing.assert_allclose(timeline.seconds, [0.01, 0.02, 0.03], rtol=1e-14)


def test_a_run_has_the_seconds_of_its_pieces(config, mnist, tmp_path):
    """End to end: merged groups of a real run, as its log has them."""
    chosen = CHOSEN | {"method.fresh": ("classifier",), "cluster.service": Constant()}
    summary = trainer.train(config(mnist | chosen), tmp_path)
    # Four groups of one worker, max(12, 0.5) + 1 until the first delivers at 13, the others a
    # second apart behind it: the last of 60 updates is the fourth of round 15, 13 x 15 + 3.
    assert summary["simulated_seconds"] == 13 * 15 + 3
    assert summary["staleness_histogram"] == [1, 1, 1, 57]
