"""Decoupled DiLoCo: against float64 second by second, streaming DiLoCo, and who is in a merge."""

from functools import cache

import jax
import numpy as np
import pytest

from optdyn.config import ConfigError
from optdyn.strategies import Network
from optdyn.strategies.mix.averaging_clock import turns
from optdyn.strategies.read.decoupled import decoupled
from optdyn.timeline.syncer import ages, merges, rounds
from optdyn.training.checks import check
from tests.strategies import nodes, workers
from tests.strategies.nodes import BATCHES, EACH, NODES, RATE, START, STEPS, P, flattened
from tests.strategies.workers import ALL, MOMENTUM, events_of, line_of, ran
from tests.values import as_experiment

LEARNERS, H, ETA, MU = 3, 3, 0.7, 0.9
PARTS = (slice(0, 12), slice(12, 14))  # the numbers of two fragments
made = cache(
    lambda fragments: workers.made(
        lambda gradient, update, learners: decoupled(gradient, update, learners, fragments),
        LEARNERS,
    )
)
NETWORK = Network(None, nodes.tree(START), None)
UNLIKE = {"strategy.period": H, "cluster.speeds": (1.0, 0.8, 0.3), "cluster.bandwidth": 1e3}


def reference(line, message, fragments, quorum, window):
    """(STEPS, LEARNERS, P) parameters of the learners and (STEPS, P) Theta, in float64.

    Letters are objects with the second at which they are where they go.
    """
    parts = PARTS if fragments == 2 else (slice(0, P),)
    x, theta_m = [[np.float64(START)] * LEARNERS for _ in range(2)]
    theta, velocity = np.float64(START), [np.zeros(P)] * LEARNERS
    v, done = np.zeros(P), [0] * LEARNERS
    inbox, returns = ([{} for _ in parts] for _ in range(2))
    since, history, sizes = np.zeros((LEARNERS, len(parts)), int), [], []

    def merge_at(p):
        known = sorted(letter["at"] for letter in inbox[p].values())
        return known[quorum - 1] + window if len(known) >= quorum else np.inf

    for t, i in enumerate(line.worker):
        now = line.seconds[t]
        velocity[i] = MOMENTUM * velocity[i] + nodes.gradient(x[i], t, ALL)
        x[i] = x[i] - np.float64(np.float32(RATE)) * velocity[i]
        done[i], since[i] = done[i] + 1, since[i] + 1
        for p, part in enumerate(parts):
            x[i], theta_m[i] = x[i].copy(), theta_m[i].copy()
            if i in returns[p] and returns[p][i]["at"] <= now:
                x[i][part] = theta_m[i][part] = returns[p].pop(i)["theta"]
                since[i, p] = 0
            is_free = i not in inbox[p] or (inbox[p][i]["at"] <= now and merge_at(p) == np.inf)
            phase = p * H // len(parts)
            if (done[i] - phase) % H == 0 and is_free and i not in returns[p] and since[i, p]:
                gap, w = (theta_m[i] - x[i])[part], since[i, p]
                inbox[p][i] = {"at": now + message[p], "gap": gap, "w": w}
        for p, part in enumerate(parts):
            end = line.seconds[min(t + 1, len(line.seconds) - 1)]
            while (at := merge_at(p)) <= end:
                members = {m: own for m, own in inbox[p].items() if own["at"] <= at}
                sizes.append(len(members))
                total = sum(own["w"] for own in members.values())
                delta = sum(own["w"] * own["gap"] for own in members.values()) / total
                v, theta = v.copy(), theta.copy()
                v[part] = MU * v[part] + delta
                theta[part] -= ETA * (delta + MU * v[part])
                for m in members:
                    del inbox[p][m]
                    returns[p][m] = {"at": at + message[p], "theta": theta[part].copy()}
        history.append((list(x), theta))
    return *(np.array(leaf) for leaf in zip(*history, strict=True)), sizes


@pytest.mark.parametrize(
    ("fragments", "quorum", "window"), [(1, 2, 0.0), (2, 2, 0.5), (2, 1, 0.0), (1, 3, 0.0)]
)
def test_every_update_equals_the_reference(fragments, quorum, window):
    asked = {"strategy.fragments": fragments, "strategy.quorum": quorum, "strategy.grace": window}
    line = line_of("decoupled", update_bytes=4 * P, network=NETWORK, **UNLIKE, **asked)
    message = [4 * n / 1e3 for n in ((12, 2) if fragments == 2 else (P,))]
    x, theta, sizes = reference(line, message, fragments, quorum or LEARNERS, window)
    states, info = ran(made(fragments), events_of(line))
    # Parameters of about one in float32: 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), theta, rtol=0, atol=1e-5)
    np.testing.assert_allclose(flattened(states.workers), x, rtol=0, atol=1e-5)
    assert len(sizes) == line.choice.merges.sum() >= 2 and min(sizes) >= quorum
    there_and_back = (line.choice.send.astype(int) + line.choice.receive) @ (
        4 * P * np.array(message) / sum(message)
    )
    np.testing.assert_allclose(info["sent_bytes"], there_and_back, rtol=1e-6)
    assert np.abs(np.diff(theta, axis=0)).max() > 1e-2


def test_all_merges_between_two_steps_are_made_between_them():
    """One learner's message arrives after the other's: both hear of theirs with their next step."""
    seconds, message = np.array([1.0, 1.05, 1.6, 2.0]), np.full((2, 1), 0.1)
    of = rounds(np.array([0, 1, 1, 0]), seconds, message, period=1, quorum=1)
    assert of.send[:, 0].tolist() == [True, True, False, False]
    assert of.into[:, 0].tolist() == [1, 2, 0, 0]
    assert merges(of.merge)[:, 0].tolist() == [0, 2, 0, 0]
    assert of.receive[:, 0].tolist() == [False, False, True, True]


@pytest.mark.parametrize("delay", [1, 2])
def test_of_equal_learners_it_is_streaming_diloco(delay):
    """K = all, no window, prompt messages; rounds of a step of each, of its part of the batch."""
    asked = {"strategy.fragments": 2, "strategy.delay": delay, "strategy.period": 6}
    steps = NODES * STEPS
    config = {"cluster.service": "constant"} | asked
    line = line_of("decoupled", steps=steps, network=NETWORK, **config)
    np.testing.assert_array_equal(line.worker, np.tile(np.arange(NODES), STEPS))
    each = {k: v.reshape(steps, EACH, *v.shape[2:]) for k, v in BATCHES.items()}
    hyper = {"learning_rate": np.full(steps, RATE), "momentum": np.full(steps, MOMENTUM)}
    events = nodes.Event(jax.tree.map(np.asarray, line.choice), hyper, line.staleness)
    states, _ = ran(made(2), events, each)
    meeting = turns(STEPS, 6, 2, delay)
    outer = {"outer_learning_rate": ETA, "outer_momentum": MU}
    outer = {key: np.full(STEPS, value, np.float32) for key, value in outer.items()}
    streaming = nodes.diloco(nodes.inner(), {"period": 6, "fragments": 2, "delay": delay})
    other, _ = nodes.ran(streaming, nodes.events(meeting._replace(outer=outer), RATE, MOMENTUM))
    ends = slice(NODES - 1, None, NODES)
    found = flattened(states.workers)[ends]
    # All but the last update, after which nodes meet for the log; learners never do.
    np.testing.assert_allclose(found[:-1], flattened(other.params)[:-1], rtol=0, atol=1e-6)
    assert np.abs(np.diff(found, axis=0)).max() > 1e-2


@pytest.mark.parametrize("seed", range(4))
def test_who_is_in_a_merge(seed):
    """K at least; every message in one merge at most, after it was sent; receipts follow merges."""
    rng = np.random.default_rng(seed)
    learners, fragments = rng.integers(2, 6), rng.integers(1, 4)
    quorum = rng.integers(1, learners + 1)
    worker = rng.integers(0, learners, 400)
    seconds = np.cumsum(rng.exponential(size=400))
    message = rng.uniform(0, 5, (learners, fragments))
    of = rounds(worker, seconds, message, 6, rng.integers(0, 3), quorum, rng.uniform(0, 9))
    for p in range(fragments):
        made = np.maximum.accumulate(of.merge[:, p])
        assert merges(of.merge)[:, p].sum() == made.max() > 3
        for q in range(1, made.max() + 1):
            (sent,) = np.nonzero(of.into[:, p] == q)
            assert len(sent) >= quorum and len(set(worker[sent])) == len(sent)
            assert of.send[sent, p].all() and sent.max() <= np.argmax(made >= q)
        # No message is empty: with weight 0 it would count for the quorum, and tell nothing.
        assert ages(worker, of)[0][of.send[:, p], p].min() >= 1
        for m in range(learners):
            own = worker == m
            merged = (of.into[own, p] > 0).cumsum()
            assert np.all(of.receive[own, p].cumsum() <= merged)


@pytest.mark.parametrize("seed", range(4))
def test_ages_are_counted_step_by_step(seed):
    """Own steps since a learner took a merge over, and merges that it has not seen."""
    rng = np.random.default_rng(seed)
    learners, fragments = rng.integers(1, 6), rng.integers(1, 4)
    worker, seconds = rng.integers(0, learners, 300), np.cumsum(rng.exponential(size=300))
    message = rng.uniform(0, 5, (learners, fragments))
    of = rounds(worker, seconds, message, 4, quorum=rng.integers(1, learners + 1))
    steps, late = ages(worker, of)
    for p in range(fragments):
        since, sent_into, seen = (dict.fromkeys(range(learners), 0) for _ in range(3))
        made = 0
        for t, m in enumerate(worker):
            assert late[t, p] == made - seen[m]
            since[m] = 0 if of.receive[t, p] else since[m] + 1
            assert steps[t, p] == since[m]
            if of.receive[t, p]:
                seen[m] = sent_into[m]
            if of.send[t, p]:
                sent_into[m] = of.into[t, p]
            made = max(made, of.merge[t, p])
        assert made > 3


def test_a_quorum_waits_for_no_straggler():
    """One learner of four never comes back: merges go on, as with three; of all they stop."""
    worker, seconds = np.tile([0, 1, 2], 100), np.repeat(np.arange(100.0), 3)
    worker = np.insert(worker, 0, 3)
    seconds = np.insert(seconds, 0, 0.0)
    most = {
        quorum: rounds(worker, seconds, np.zeros((4, 1)), 5, quorum=quorum).merge.max()
        for quorum in (3, 4)
    }
    assert most == {3: 20, 4: 0}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"strategy.quorum": 3}, "quorum = 3: must be at most config.strategy.groups = 2, or 0"),
        ({"strategy.fragments": 9}, "fragments = 9: must be from 1 to config.strategy.period = 8"),
        ({"strategy.delay": -1}, "delay = -1: must be at least 0"),
        ({"strategy.grace": -1.0}, "grace = -1.0: must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(config, values, said):
    asked = {"strategy.name": "decoupled", "strategy.groups": 2, "cluster.nodes": 2}
    with pytest.raises(ConfigError, match=said):
        check(as_experiment(config({**asked, **values})))
