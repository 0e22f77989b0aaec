"""Lag polynomials."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from optdyn.momentum.lags import equivalent_momentum, geometric_distance, groups_of, memoryless
from optdyn.report.implicit_momentum import theory
from tests.report.simulation import config


@given(
    st.lists(st.floats(-0.4, 0.4), min_size=0, max_size=2),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
)
def test_equivalent_momentum_has_the_mean_lag_of_the_response(phi, eta):
    response = lfilter(eta, [1, *(-p for p in phi)], np.eye(1, 400)[0])
    mean = np.arange(400) @ response / response.sum()
    # Roots are at most 0.87 in size: 0.87^400 is below 1e-23, so rounding alone.
    found = equivalent_momentum(np.array(phi), np.array(eta))
    assert found == pytest.approx(mean / (1 + mean), abs=1e-9)
    distance = geometric_distance(np.array(phi), np.array(eta))
    if len(phi) == len(eta) == 1:
        assert found == pytest.approx(phi[0]) and distance < 1e-12


@pytest.mark.parametrize(
    ("given_config", "expected"),
    [
        (config(8), ((0.875,), (0.3 / 8,))),
        (config(4, mu=0.5), ((1.25, -0.375), (0.075,))),
        (config(4, service="geometric", nodes=16), ((0.75,), (0.075,))),
        (config(8, name="sync", mu=0.9), ((0.9,), (0.3,))),
        (config(1, service="lognormal"), ((0.0,), (0.3,))),
        (config(3, service="constant", mu=0.2), ((0.2,), (0.0, 0.0, 0.3))),
        (config(4, nodes=16), None),  # the slowest of 4 is not memoryless
        (config(4, speeds=[1, 1, 1, 2]), None),
        (config(4, pieces={"fc": 0.1}), None),
        (config(4) | {"method": {**config(4)["method"], "staleness_bound": 2}}, None),
        (config(4, name="ringmaster"), ((0.75,), (0.075,))),
        (config(4) | {"method": {"name": "ringmaster", "groups": 4, "delay_bound": 2}}, None),
        (config(4, service="lognormal"), None),
        (config(4, server_bandwidth=1e6), None),  # the server's queue makes arrivals regular
        (config(4, regions=2), None),
        (config(4, presence=5.0, absence=5.0), None),
        (config(3, service="constant", regions=3), None),
        (config(4) | {"method": {**config(4)["method"], "fresh": ["fc"]}}, None),
        (config(4) | {"method": {**config(4)["method"], "compression": "sign"}}, None),
        (config(4) | {"optimizer": {**config(4)["optimizer"], "chain": ["clip"]}}, None),
        (config(4, name="daso"), None),
        (config(4) | {"optimizer": {"name": "adam", "learning_rate": 1}}, None),
    ],
)
def test_theory(given_config, expected):
    found = theory(given_config)
    assert (found is None) == (expected is None)
    if expected:
        for terms, truth in zip(found, expected, strict=True):
            np.testing.assert_allclose(terms, truth, rtol=1e-12)  # rounding


def test_groups_of_joined_methods_are_in_their_section():
    method = {"name": "diloco+asynchronous", "diloco": {"period": 8}, "asynchronous": {"groups": 4}}
    assert groups_of({"method": method}) == 4
    assert groups_of({"method": {"name": "sync", "fresh": []}}) == 1


@pytest.mark.parametrize(
    ("given_config", "expected"),
    [
        (config(4), True),
        (config(4) | {"optimizer": {"name": "adam", "learning_rate": 1}}, True),
        (config(4, service="constant"), False),
        (config(4, nodes=16), False),
        (config(4, latency=0.1), False),
        (config(4, name="asynchronous+local"), False),
        (config(4, name="sync", service="lognormal"), True),  # one group, whose turn it always is
    ],
)
def test_memoryless_service_whatever_the_optimizer(given_config, expected):
    assert memoryless(given_config) == expected
