"""Samples of old policies: their gradients by summing over all labels, and the workers' clock."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.configs import stale_samples
from optdyn.configs.stale_samples import (
    CHOOSE,
    LABELS,
    REPORT,
    by_content,
    gains,
    init,
    policy,
    reached,
    runs,
    surrogate,
)
from optdyn.evidence.study import Study


@pytest.fixture(scope="module")
def two():
    """Two images with labels 3 and 7, parameters, and those of some updates before."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.random((2, 196)), jnp.float32)
    params = init(jax.random.key(0))
    old = jax.tree.map(lambda leaf: leaf + 0.2 * rng.normal(size=leaf.shape), params)
    return x, jnp.array([3, 7]), params, old


def expected(kind, params, by, x, y):
    """The mean of a kind's gradient over both labels, each drawn by `by`."""
    each = jax.nn.softmax(policy(by, x))
    total = jax.tree.map(jnp.zeros_like, params)
    for a in range(LABELS):
        for b in range(LABELS):
            drawn = jnp.array([a, b])
            reward = (drawn == y).astype(jnp.float32)
            g = jax.grad(partial(surrogate, kind))(params, by, x, drawn, reward)
            total = jax.tree.map(lambda t, g, p=each[0, a] * each[1, b]: t + p * g, total, g)
    return total


def gradient(params, x, y):
    """Of -J."""
    return jax.grad(lambda p: -jax.nn.softmax(policy(p, x))[jnp.arange(2), y].mean())(params)


def same(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)  # float32 sums of 100 terms below 1


@pytest.mark.parametrize("kind", stale_samples.KINDS)
def test_of_ones_own_samples_every_kind_is_the_policy_gradient(kind, two):
    x, y, params, _ = two
    same(expected(kind, params, params, x, y), gradient(params, x, y))


def test_ratios_make_old_samples_unbiased(two):
    x, y, params, old = two
    same(expected("ratio", params, old, x, y), gradient(params, x, y))


@pytest.mark.parametrize("kind", ["plain", "clipped"])
def test_others_are_biased_with_old_samples(kind, two):
    x, y, params, old = two
    found = expected(kind, params, old, x, y)["out"]
    assert float(jnp.abs(found - gradient(params, x, y)["out"]).max()) > 1e-3


def test_without_a_bound_truncated_ratios_are_ratios(two, monkeypatch):
    x, y, params, old = two
    monkeypatch.setattr(stale_samples, "MOST", 1e9)
    same(expected("truncated", params, old, x, y), gradient(params, x, y))


def test_nothing_that_is_too_old_is_applied():
    assert by_content(16, 500, 0, drop=8).staleness.max() == 7
    assert by_content(16, 500, 0).staleness.max() > 40


def test_while_others_wait_for_the_oldest_none_is_far_behind():
    """At most R updates were made when the oldest arrives, and 15 may be waiting beside it."""
    assert by_content(16, 500, 0, pace=16).staleness.max() <= 16 + 15


def test_who_is_dropped_is_slow():
    every, some = by_content(16, 4000, 0), by_content(16, 4000, 0, drop=8)
    assert every.slow.mean() == pytest.approx(0.5, abs=0.03)  # 4 standard deviations of 4,000
    assert some.slow.mean() < 0.4


def test_workers_make_a_sample_a_second_each():
    line = by_content(16, 4000, 0)
    assert line.seconds[-1] == pytest.approx(4000 / 16, rel=0.08)  # 4 standard deviations
    assert (np.diff(line.seconds) >= 0).all()


def test_labels_that_all_take_as_long_are_dropped_alike(monkeypatch):
    monkeypatch.setattr(stale_samples, "TIMES", 1.0)
    assert by_content(16, 4000, 0, drop=8).slow.mean() == pytest.approx(0.5, abs=0.04)


def test_the_target_is_found_between_looks():
    assert reached(np.array([0.2, 0.3, 0.5]), np.array([10, 20, 30])) == pytest.approx(25)
    assert reached(np.array([0.5, 0.9]), np.array([10, 20])) == 10
    assert np.isinf(reached(np.array([0.2, 0.3]), np.array([10, 20])))


def test_seeds_that_choose_do_not_report():
    assert not set(CHOOSE) & set(REPORT) and len(REPORT) == 20


def test_training_raises_the_gain():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(LABELS), 400)
    means = rng.random((LABELS, 196)).astype(np.float32)
    data = jnp.asarray(means[y]), jnp.asarray(y)
    lines = [stale_samples.arrivals(4, 400, 0)]
    seen = runs(data, "late", lines, [(0, 1.0, 0.0)])[0]
    before = np.asarray(gains(data, init(jax.random.fold_in(jax.random.key(0), 0))))
    assert (before < 0.15).all() and seen[-1].mean() > 3 * before.mean()


def test_what_was_stopped_goes_on_with_the_row_that_it_was_at(tmp_path, monkeypatch):
    done = []

    def row(data, *of):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(of)
        return {"of": list(of)}

    monkeypatch.setattr(stale_samples, "images", lambda: None)
    monkeypatch.setattr(stale_samples, "of_kind", row)
    monkeypatch.setattr(stale_samples, "of_way", lambda data, name: {"of": [name]})
    with (
        pytest.raises(KeyboardInterrupt),
        Study(tmp_path, "stale_samples", CHOOSE, REPORT) as study,
    ):
        stale_samples.measured(study)
    first = list(done)
    done.append(None)  # it is not stopped again
    with Study(tmp_path, "stale_samples", CHOOSE, REPORT) as study:
        record = stale_samples.measured(study)
    assert done[3:] and not set(first) & set(done[3:])
    kinds = [(row["of"][0], row["of"][1]) for row in record["rows"]]
    assert kinds[:2] == first and len(kinds) == len(set(kinds)) == 11  # 1 + 2 x 5
    assert [row["of"][0] for row in record["ways"]] == list(stale_samples.WAYS)
