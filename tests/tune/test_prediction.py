"""The predicted penalty: its limits, and what is measured for it where it is known."""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.momentum.probes import moments
from optdyn.train import trainer
from optdyn.tune.prediction import KAPPA, SMALL, MeasuredLoss, measure, penalty, stability

positive = st.floats(1e-2, 1e2)
measurements = st.builds(MeasuredLoss, positive, positive, positive)


@given(measurements, positive, positive)
def test_limits(found, batch, limit):
    whole = 1 + KAPPA * found.sharpness * found.step / limit
    assert 1 <= penalty(found, batch, limit) <= whole  # noise hides staleness, never the reverse
    np.testing.assert_allclose(penalty(found, 1e12, limit), whole, rtol=1e-6)
    np.testing.assert_allclose(penalty(found, 1e-15, limit), 1, atol=1e-6)
    assert penalty(found, batch, np.inf) == 1
    # At the noise scale half of the penalty is left.
    half = penalty(found, found.noise_scale, limit) - 1
    np.testing.assert_allclose(half, (whole - 1) / 2, rtol=1e-6)


@pytest.mark.parametrize("service", ["constant", "exponential", "lognormal", "gamma"])
def test_more_groups_allow_smaller_steps(config, service):
    cluster = config({"cluster.nodes": 16, "cluster.service.name": service})
    limits = [stability(cluster, groups) for groups in (1, 2, 4, 16)]
    assert limits[0] == np.inf
    assert all(many < few for few, many in pairwise(limits))


def test_what_is_measured_of_a_quadratic(config):
    """With steps that lead nowhere: the moments at x_0, the largest curvature 1, and the step."""
    values = {"model.noise": 2.0, "optimizer.learning_rate": 1e-6, "optimizer.momentum": 0.5}
    found = measure(config(values), updates=9)
    run = trainer.prepare(config(values))
    examples = {name: jnp.asarray(leaf) for name, leaf in run.data.train.items()}
    exact = moments(run.program.problem, SMALL, run.params, examples)
    np.testing.assert_allclose(found.noise_scale, exact.trace / exact.square, rtol=1e-3)
    np.testing.assert_allclose(found.sharpness, 1, rtol=1e-3)
    batch = run.config.batch_size
    np.testing.assert_allclose(found.step, 2e-6 * (1 + found.noise_scale / batch), rtol=1e-6)
