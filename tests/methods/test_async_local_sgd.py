"""Delayed Nesterov against lists in float64, and its other servers."""

from functools import cache

import numpy as np
import pytest

from optdyn.methods.async_local_sgd import async_local_sgd, turn_to_momentum
from tests.methods import workers
from tests.methods.nodes import START, P, flattened
from tests.methods.workers import CLOSE, WORKERS, events_of, line_of, ran, reference

method = cache(lambda: workers.made(async_local_sgd))
ETA, B = 0.7, 0.9
SPEEDS = {"cluster.speeds": (1.0, 0.8, 0.4), "method.period": 4}


def aged(line, alpha, eta, adam):
    """G <- e^(-alpha tau) G, and then N = workers and c = 0, or optax's Adam of first decay b."""
    kept = {"m": np.zeros(P), "delta": np.zeros(P), "version": 0, "v": np.zeros(P)}
    theta_read, version_read = {}, {}

    def arrival(now, i, t, step):
        now.x[i] = now.read[i] = now.x[i] + step()
        if not line.plan.exchange[t]:
            return
        outer = theta_read.get(i, np.float64(START)) - now.x[i]
        outer = np.exp(-alpha * (kept["version"] - version_read.get(i, 0))) * outer
        kept["version"] += 1
        if adam:
            kept["m"] = B * kept["m"] + (1 - B) * outer
            kept["v"] = 0.999 * kept["v"] + 0.001 * outer**2
            mean = kept["m"] / (1 - B ** kept["version"])
            root = np.sqrt(kept["v"] / (1 - 0.999 ** kept["version"]))
            now.shown = now.shown - eta * mean / (root + 1e-8)
        else:
            kept["delta"], way = kept["delta"] + outer, outer / WORKERS
            if kept["version"] % WORKERS == 0:
                kept["m"] = B * kept["m"] + kept["delta"] / WORKERS
                kept["delta"], way = np.zeros(P), way + B * kept["m"]
            now.shown = now.shown - eta * way
        now.x[i] = now.read[i] = theta_read[i] = now.shown
        version_read[i] = kept["version"]

    return arrival


adam_server = cache(
    lambda: workers.made(lambda *pieces: async_local_sgd(*pieces, server="adam"), WORKERS)
)


@pytest.mark.parametrize("adam, eta", [(False, ETA), (True, 0.05)])
def test_a_server_heeds_the_age_of_what_comes(adam, eta):
    asked = {"method.age_decay": 0.5, "method.outer_learning_rate": eta}
    line = line_of("async_local_sgd", **SPEEDS, **asked)
    _, theta = reference(line, aged(line, 0.5, eta, adam))
    states, _ = ran(adam_server() if adam else method(), events_of(line))
    # Parameters of about one in float32: 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), theta, rtol=0, atol=1e-5)
    plain, _ = ran(method(), events_of(line_of("async_local_sgd", **SPEEDS)))
    assert np.abs(flattened(plain.params) - theta).max() > 1e-2


@pytest.mark.parametrize("cutoff", [1.0, 3.0, 1e9])
def test_what_is_older_than_the_cutoff_counts_nothing(cutoff):
    """By half a cosine on the way there; far from it, and at age 0, what comes counts whole."""
    line = line_of("async_local_sgd", **SPEEDS, **{"method.age_cutoff": cutoff})
    age, weight = (
        line.staleness[line.plan.exchange],
        line.plan.numbers["weight"][line.plan.exchange],
    )
    assert age.max() >= 3 and not age.min()
    np.testing.assert_array_equal(weight[age == 0], 1)
    # A float32 of a cosine near its ends, 1 - pi^2 (3 / 1e9)^2 / 4 and 1e-17 among them.
    np.testing.assert_allclose(weight[age >= cutoff], 0, atol=1e-7)
    between = (age > 0) & (age < cutoff)
    np.testing.assert_allclose(
        weight[between], np.sin(np.pi / 2 * (1 - age[between] / cutoff)) ** 2, atol=1e-6
    )


def corrected(d, m, c_ok, k):
    """HeLoCo's correction of one array, by cases."""
    if not m.any():
        return d
    size, length = np.sqrt((d**2).sum()), np.sqrt((m**2).sum())
    c, towards, f = (d * m).sum() / size / length, m / length, size / (size + length)
    if c >= c_ok:
        return d
    if c < 0:
        return d - min(-k * c * f, 1) * c * size * towards
    part = min(k * (1 - c) * f, 1)
    u = (1 - part) * d / size + part * towards
    return size * u / np.sqrt((u**2).sum())


def directed(line, c_ok, k, cases):
    """Nesterov's of an average momentum, of messages that are turned array by array."""
    kept = {"m": np.zeros(P)}
    theta_read, arrays = {}, (slice(0, 12), slice(12, P))

    def arrival(now, i, t, step):
        now.x[i] = now.read[i] = now.x[i] + step()
        if not line.plan.exchange[t]:
            return
        outer = theta_read.get(i, np.float64(START)) - now.x[i]
        cases.extend(np.sign(outer[a] @ kept["m"][a]) for a in arrays)
        outer = np.concatenate([corrected(outer[a], kept["m"][a], c_ok, k) for a in arrays])
        kept["m"] = B * kept["m"] + (1 - B) * outer
        now.shown = now.shown - ETA * (outer + B * kept["m"])
        now.x[i] = now.read[i] = theta_read[i] = now.shown

    return arrival


heloco_server = cache(
    lambda: workers.made(lambda *pieces: async_local_sgd(*pieces, server="heloco"), WORKERS)
)


@pytest.mark.parametrize(("c_ok", "k"), [(0.9, 0.7), (1.0, 5.0), (-1.0, 0.7)])
def test_heloco_turns_messages_toward_the_momentum(c_ok, k):
    """As it says by cases; strong corrections are cut at 1, and of c_ok = -1 there are none."""
    asked = {"method.server": "heloco", "method.aligned": c_ok, "method.correction": k}
    line, cases = line_of("async_local_sgd", **SPEEDS, **asked), []
    _, theta = reference(line, directed(line, c_ok, k, cases))
    states, _ = ran(heloco_server(), events_of(line))
    np.testing.assert_allclose(flattened(states.params), theta, **CLOSE)
    assert {-1.0, 0.0, 1.0} <= set(cases)
    plain = line_of("async_local_sgd", **SPEEDS, **(asked | {"method.correction": 0.0}))
    others, _ = ran(heloco_server(), events_of(plain))
    same = np.abs(flattened(others.params) - theta).max() < 1e-4
    assert same == (c_ok == -1)


def test_what_is_turned_keeps_its_length_and_loses_what_is_against_the_momentum():
    rng = np.random.default_rng(3)
    m, every = np.float32(rng.normal(size=(2, 200, 6)))
    for d, own in zip(every, m, strict=True):
        after = np.asarray(turn_to_momentum({"a": d}, {"a": own}, 1.0, 0.8)["a"])
        with_it, before = after @ own, d @ own
        assert with_it > before or np.isclose(with_it, before, atol=1e-6)
        if before >= 0:
            np.testing.assert_allclose(np.sum(after**2), np.sum(d**2), rtol=1e-5)


def delayed(line, delay, c):
    """A rule that counts for itself, and keeps `stale`, versions between what was read and now."""
    kept = {"m": np.zeros(P), "delta": np.zeros(P), "version": 0, "stale": []}
    theta_read, version_read = {}, {}

    def arrival(now, i, t, step):
        kept["stale"].append(kept["version"] - version_read.get(i, 0))
        now.x[i] = now.read[i] = now.x[i] + step()
        if not line.plan.exchange[t]:
            return
        outer = theta_read.get(i, np.float64(START)) - now.x[i]
        kept["delta"] = kept["delta"] + outer
        kept["version"] += 1
        part = c
        if kept["version"] % delay == 0:
            kept["m"] = B * kept["m"] + kept["delta"] / delay
            kept["delta"], part = np.zeros(P), 1 - c * delay + c
        now.shown = now.shown - ETA * (part * B * kept["m"] + outer / delay)
        now.x[i] = now.read[i] = theta_read[i] = now.shown
        version_read[i] = kept["version"]

    return arrival, kept


@pytest.mark.parametrize(("delay", "part"), [(0, 0.0), (2, 0.5)])
def test_every_update_equals_the_reference(delay, part):
    asked = {"method.momentum_delay": delay, "method.momentum_part": part}
    line = line_of("async_local_sgd", **SPEEDS, **asked)
    rule, kept = delayed(line, delay or WORKERS, part / (delay or WORKERS))
    x, theta = reference(line, rule)
    states, info = ran(method(), events_of(line))
    np.testing.assert_allclose(flattened(states.params), theta, **CLOSE)
    np.testing.assert_allclose(flattened(states.workers), x, **CLOSE)
    np.testing.assert_array_equal(line.staleness, kept["stale"])
    assert line.staleness.max() >= 2  # others do come in between
    assert info["sent_bytes"].sum() == kept["version"] * 2 * 4 * P


def test_slower_workers_take_fewer_steps():
    """As many as they have time for while the fastest takes H; at least one."""
    asked = {"cluster.service.name": "constant", "cluster.speeds": (4.0, 2.0, 0.2)}
    asked |= {"method.period": 8}
    for by_speed, expected in ((True, (8, 4, 1)), (False, (8, 8, 8))):
        asked["method.steps_by_speed"] = by_speed
        line = line_of("async_local_sgd", steps=160, **asked)
        for i, period in enumerate(expected):
            each = line.plan.exchange[line.worker == i]
            np.testing.assert_array_equal(each, np.arange(1, len(each) + 1) % period == 0)
