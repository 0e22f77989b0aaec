"""Clusters all over the earth: its geometry, its links, its hours, and who is there when."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import optdyn
from optdyn import methods
from optdyn.clock import availability, network
from optdyn.clock.availability import Presence
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import LIGHT, RADIUS, great_circle
from optdyn.clock.service import Constant
from optdyn.clock.timeline import TimelineError
from optdyn.experiment import Config, ConfigError
from optdyn.train import memory_checks
from optdyn.train.checks import check
from tests.methods import test_battery as battery

EARTH = {"regions": 7, "latency": 0.01, "bandwidth": 1e6, "bandwidth_variation": 1.0}


@given(st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_distances_are_those_of_a_sphere(number):
    earth = network.regions(number)
    longitude, latitude = earth.longitude, earth.latitude
    assert (np.diff(longitude) >= 0).all() and np.abs(latitude).max() <= np.pi / 3
    # Another formula, of navigators.
    across = np.sin((latitude[:, None] - latitude) / 2) ** 2
    along = np.sin((longitude[:, None] - longitude) / 2) ** 2
    half = across + np.cos(latitude[:, None]) * np.cos(latitude) * along
    angles = great_circle(longitude, latitude)
    np.testing.assert_allclose(angles, 2 * np.arcsin(np.sqrt(half)), rtol=0, atol=1e-7)
    np.testing.assert_array_equal(angles, angles.T)
    # No way over a third place is shorter.
    assert (angles[:, None] <= angles[:, :, None] + angles.T[None] + 1e-12).all()
    np.testing.assert_array_equal(earth.latency, angles * RADIUS / LIGHT)


def test_to_the_other_side_of_the_earth_light_takes_a_tenth_of_a_second():
    angle = great_circle(np.array([0.0, np.pi]), np.zeros(2))[0, 1]
    assert angle * RADIUS / LIGHT == pytest.approx(0.1, rel=2e-3)  # 20,015 km at 199,862 km/s


def test_links_vary_as_asked_for():
    width = np.log(network.regions(900, 1.0).width)
    # Of 900 draws mean and deviation are known to 3.3 and 2.4 % of the deviation: 4 of these.
    assert abs(width.mean()) < 0.11 and width.std() == pytest.approx(np.log(2) ** 0.5, rel=0.1)
    assert (network.regions(40).width == 1).all()


@given(st.integers(1, 50), st.integers(1, 50))
def test_nodes_are_spread_evenly(nodes, number):
    of = network.region_of_nodes(Cluster(nodes=nodes, regions=number))
    assert (np.diff(of) >= 0).all() and of.max() < number
    assert np.ptp(np.bincount(of, minlength=number)) <= 1


def test_links_are_those_of_the_matrices_that_they_stand_for():
    made = Cluster(nodes=12, **EARTH)
    one, other = np.arange(12)[:, None], np.arange(12)[None]
    every = network.link_seconds(made, 3e6)(one, other)
    rest = network.link_seconds(made, 0.0)(one, other)
    given = Cluster(
        nodes=12,
        latencies=tuple(map(tuple, rest)),
        bandwidths=tuple(map(tuple, 3e6 / (every - rest))),
    )
    np.testing.assert_allclose(network.link_seconds(given, 3e6)(one, other), every, rtol=1e-12)
    np.testing.assert_array_equal(every, every.T)
    assert (
        rest[network.region_of_nodes(made)[:, None] == network.region_of_nodes(made)] == 0.01
    ).all()


def test_hours_add_up_to_a_day():
    made = Cluster(nodes=7, diurnal=0.6, day=24.0, **EARTH)
    factors = np.array(
        [availability.cluster_load(made)(np.full(7, hour)) for hour in np.arange(24.0)]
    )
    np.testing.assert_allclose(factors.mean(axis=0), 1, rtol=1e-12)
    assert factors.min() == pytest.approx(0.4, abs=0.02)  # at one of 24 hours, nearly the least
    later = factors.argmax(axis=0)  # the sun goes west: who is further east has noon sooner
    assert len(set(later.tolist())) > 3
    assert availability.cluster_load(Cluster(nodes=7, **EARTH)) is None


def test_of_a_long_time_everybody_is_there_for_the_part_that_the_means_say():
    nodes, presence, absence = 400, 3.0, 2.0
    there = Presence(np.random.default_rng(0), nodes, presence, absence)
    assert there.at(0.0).all()
    seconds = np.linspace(10, 1000, 400)
    found = np.array([there.at(now) for now in seconds])
    # 400 nodes times 800 renewals of deviation about 1: 0.2 % of the time, of which this is 4.
    assert found.mean() == pytest.approx(0.6, abs=0.005)
    # Who is there at one second is there at another that is near, by the rates of both.
    near = Presence(np.random.default_rng(1), 20_000, presence, absence)
    before, after = near.at(50.0), near.at(51.0)
    decay = np.exp(-(1 / presence + 1 / absence))
    assert after[before].mean() == pytest.approx(0.6 + 0.4 * decay, abs=0.02)


def test_who_comes_and_goes_all_the_time_is_refused():
    there = Presence(np.random.default_rng(0), 3, 1e-9, 1e-9)
    with pytest.raises(TimelineError, match="presence = 1e-09"):
        there.at(1.0)


@pytest.mark.parametrize("period", [1, 4])
def test_a_node_must_be_there_for_all_its_part_of_a_meeting(period):
    """A lone one begins again and again: (e^(T / P) - 1) (P + A) seconds for T, memoryless."""
    parts, seconds, presence, absence = 8000, 1.5 * period, 4.0, 1.0
    method = optdyn.ModelAveraging(period=period)
    one = Cluster(service=Constant(), seconds_per_example=1.5, presence=presence, absence=absence)
    line = optdyn.timeline(method, one, parts * period, batch_size=1)
    expected = (np.exp(seconds / presence) - 1) * (presence + absence)
    # A part's deviation is less than twice its mean: 2 % of that of 8,000.
    assert line.seconds[-1] / parts == pytest.approx(expected, rel=0.06)
    with pytest.raises(TimelineError, match=r"presence = .* must be longer"):
        optdyn.timeline(method, one.with_(presence=seconds / 20), parts, batch_size=1)


def test_a_refusal_names_methods_that_are_not_refused():
    cluster = Cluster(nodes=2, presence=9.0, absence=9.0)
    config = Config(cluster=cluster)
    with pytest.raises(ConfigError) as refused:
        check(config)
    named = re.findall(
        r"'(\w+)'", str(refused.value).partition("config.method.name")[2].partition(";")[0]
    )
    assert {"gossip", "diloco"} <= {*named}
    for name in named:
        check(config.with_({"method.name": name}))


def test_ten_thousand_workers_are_not_refused_for_memory():
    config = Config(
        model=optdyn.Quadratic(),
        steps=1_000_000,
        method=optdyn.Asynchronous(groups=10_000),
        cluster=Cluster(nodes=10_000),
    )
    memory_checks.check_config(config)


def test_methods_know_of_regions():
    assert methods.load("diloco").cluster == methods.load("model_averaging").cluster
    assert battery.config_of("model_averaging").cluster.regions == 0
