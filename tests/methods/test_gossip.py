"""Gossip against lists in float64, its limits, its graphs, and a run of it by the config."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock import availability
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, LogNormal
from optdyn.clock.timeline import TimelineError
from optdyn.experiment import Config
from optdyn.methods.gossip import (
    GRAPHS,
    RANDOM_GRAPHS,
    Gossip,
    Neighbours,
    gossip,
    graph_peers,
    push_weights,
    senders_of,
    spectral_gap,
)
from optdyn.train import loop, trainer
from tests.methods import nodes
from tests.methods.nodes import EACH, RATE, START, STEPS, P, flattened, gradient, matrices

NODES = nodes.NODES
# Parameters of about one in float32, 1e-7 an operation, some ten of them in each of 32 updates.
CLOSE = {"rtol": 0, "atol": 2e-5}
SCHEDULE = RATE * np.linspace(1.0, 0.2, STEPS)


def drawn(name, count=NODES, steps=STEPS, seed=3):
    return graph_peers(name, count, steps, np.random.default_rng(seed))


def neighbours(to):
    """What the clock says of a graph, (T, nodes, k)."""
    whole = to[np.arange(STEPS) % len(to)]
    return Neighbours(whole, push_weights(to, STEPS).astype(np.float32))


@cache  # one program a number of messages
def made(order):
    return gossip(nodes.inner(), order)


def ran(to, order, rates=RATE, momentum=0.6):
    states, sent = nodes.ran(made(order), nodes.events(neighbours(to), rates, momentum))
    return np.float64(flattened(states.params)), np.asarray(sent)


def push_sum(to, order, rates=RATE, momentum=0.6, stand=None):
    """(STEPS, NODES, P) z and (STEPS, P) sums of x: the paper's own x, w and z.

    Who stands where another does makes no update, and has what that one has after it.
    """
    stand = np.tile(np.arange(NODES), (STEPS, 1)) if stand is None else stand
    p = [np.zeros((NODES, NODES)) for _ in to]
    for t, j in np.ndindex(*to.shape[:2]):
        for i in to[t, j]:
            p[t][i, j] += 1 / to.shape[2]
    x, w = np.tile(np.float64(START), (NODES, 1)), np.ones(NODES)
    velocity, rates = np.zeros((NODES, P)), np.broadcast_to(np.float64(np.float32(rates)), STEPS)
    history, sums = [], []
    for t in range(STEPS):
        z, mix = x / w[:, None], p[t % len(p)]
        grads = [gradient(z[i], t, slice(i * EACH, (i + 1) * EACH)) for i in range(NODES)]
        away = stand[t] != np.arange(NODES)
        velocity = np.where(away[:, None], velocity, momentum * velocity + grads)
        moved = np.where(away[:, None], 0.0, -rates[t] * velocity)
        heard = mix @ x if order == "combine" else mix @ (x + moved)
        x, w = heard + (moved if order == "combine" else 0.0), mix @ w
        x[away] = w[away, None] * (x / w[:, None])[stand[t, away]]
        history.append(x / w[:, None])
        sums.append(x.sum(0))
    return np.array(history), np.array(sums)


@pytest.mark.parametrize("order", ["combine", "adapt"])
@pytest.mark.parametrize("name", ["ring", "one_peer", "random", "push"])
def test_it_equals_the_papers_x_w_and_z(name, order):
    """Push-sum; with rows of sum 1 that is D-PSGD, as w stays 1."""
    to = drawn(name)
    found, sent = ran(to, order, SCHEDULE)
    expected, sums = push_sum(to, order, SCHEDULE)
    np.testing.assert_allclose(found, expected, **CLOSE)
    w = push_weights(to, STEPS + 1)
    assert (name == "push") == (np.abs(w - 1).max() > 0.1)
    # The weighted sum of the nodes is that of x, to which P adds nothing and takes nothing off.
    np.testing.assert_allclose((w[1:, :, None] * found).sum(1), sums, rtol=0, atol=1e-4)
    messages = (to != np.arange(NODES)[:, None]).sum(axis=2).mean(axis=1)
    expected = 4 * P * messages[np.arange(STEPS) % len(to)]  # float32, 4 bytes a parameter
    np.testing.assert_allclose(sent, expected, rtol=1e-6)
    if name != "ring":  # of three nodes everybody is a neighbour; else they part, by far more
        assert np.ptp(found, axis=1).max() > 0.05


@pytest.mark.parametrize("order", ["combine", "adapt"])
@pytest.mark.parametrize("name", ["ring", "one_peer", "random"])
def test_of_many_nodes_each_knows_only_who_sends_to_it(name, order):
    """The same sums as with a whole row of weights, in another order."""
    to = drawn(name)
    whole, sent = ran(to, order)
    every = neighbours(to)._replace(senders=senders_of(to)[np.arange(STEPS) % len(to)])
    states, ours = nodes.ran(made(order), nodes.events(every, RATE, 0.6))
    np.testing.assert_allclose(flattened(states.params), whole, **CLOSE)
    np.testing.assert_array_equal(ours, sent)


@pytest.mark.parametrize("order", ["combine", "adapt"])
@pytest.mark.parametrize("name", ["ring", "one_peer", "random", "push"])
def test_who_is_away_sends_and_is_sent_nothing(name, order):
    """Half of the nodes in each update, and what they hold is that of the next who is there."""
    rng = np.random.default_rng(8)
    there = rng.random((STEPS, NODES)) < 0.5
    there[np.arange(STEPS), rng.integers(NODES, size=STEPS)] = True
    assert not there.all(axis=1).all() and (there.sum(axis=1) == 1).any()
    whole, stand = drawn(name)[np.arange(STEPS) % len(drawn(name))], availability.stand_ins(there)
    to = np.array([availability.reroute(*of) for of in zip(whole, there, strict=True)])
    for t, i in np.ndindex(STEPS, NODES):
        ahead = [(i + k) % NODES for k in range(NODES) if there[t, (i + k) % NODES]]
        assert stand[t, i] == ahead[0]
    every = neighbours(to)._replace(stand=stand)
    states, sent = nodes.ran(made(order), nodes.events(every, SCHEDULE, 0.6))
    expected, _ = push_sum(to, order, SCHEDULE, stand=stand)
    np.testing.assert_allclose(flattened(states.params), expected, **CLOSE)
    assert sent[there.sum(axis=1) == 1].sum() == 0
    if name != "push":
        every = every._replace(senders=senders_of(to))
        states, _ = nodes.ran(made(order), nodes.events(every, SCHEDULE, 0.6))
        np.testing.assert_allclose(flattened(states.params), expected, **CLOSE)


@given(st.sampled_from(GRAPHS), st.integers(1, 17), st.data())
def test_what_nobody_is_there_for_is_passed_on(name, count, data):
    """To the next in the same turn who is there; so all are sent as much as before."""
    here = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    for peers in drawn(name, count, 3):
        to = availability.reroute(peers, here)
        for i, k in np.ndindex(*peers.shape):
            j, seen = int(peers[i, k]), set()
            while not here[j] and j not in seen:
                seen.add(j)
                j = int(peers[j, k])
            assert to[i, k] == (j if here[i] and here[j] else i)
        if name != "push":
            p = matrices(to[None])[0]
            np.testing.assert_allclose(p.sum(axis=1), 1, rtol=0, atol=1e-12)


def test_nodes_must_stay_for_an_update():
    config = config_of(presence=1e-5, absence=1.0, service=Constant())
    with pytest.raises(TimelineError, match=r"presence: no node is there for the 0\.008 seconds"):
        config.timeline(steps_per_epoch=10, update_bytes=1)


def test_a_run_whose_nodes_come_and_go():
    """Who never leaves changes nothing; and on no ring does anybody have more weight."""
    values = {"service": LogNormal(), "bandwidth": 1e6, "steps": 200}
    line = {
        presence: config_of(**values, presence=presence, absence=0.1).timeline(
            steps_per_epoch=10,
            update_bytes=6000,
        )
        for presence in (0.0, 1e9, 0.5)
    }
    np.testing.assert_array_equal(line[1e9].seconds, line[0.0].seconds)
    np.testing.assert_array_equal(line[1e9].plan.to, line[0.0].plan.to)
    away = line[0.5].plan.stand != np.arange(8)
    assert 0.05 < away.mean() < 0.4  # a sixth by itself; and they wait for an update to begin
    np.testing.assert_array_equal(line[0.5].plan.weight, 1)  # whoever is away
    assert np.all(np.diff(line[0.5].seconds) >= 0)


@given(st.sampled_from(["ring", "exponential", "one_peer", "random"]), st.integers(1, 40))
def test_who_is_sent_to_knows_from_whom(name, count):
    to = drawn(name, count, 4)
    for turn, others in zip(to, senders_of(to), strict=True):
        expected = [
            [j for j in range(count) for i in turn[j] if i == node] for node in range(count)
        ]
        assert [sorted(row) for row in others.tolist()] == expected


@pytest.mark.parametrize("count", [1, 2, 7, 12])
@pytest.mark.parametrize("name", ["ring", "exponential", "one_peer", "complete"])
def test_the_gap_is_that_of_the_matrices(name, count):
    product = np.eye(count)
    for p in matrices(drawn(name, count)):
        product = p @ product
    expected = 1 - np.linalg.norm(product - product.mean(axis=1, keepdims=True), 2)
    assert spectral_gap(name, count) == pytest.approx(expected, abs=1e-12)


def test_all_with_all_after_the_update_is_synchronous():
    whole, _ = ran(drawn("complete"), "adapt")
    one = nodes.events(neighbours(drawn("complete", 1)), RATE, 0.6)
    alone, _ = nodes.ran(made("adapt"), one, nodes=1)  # with the whole batch
    expected = np.repeat(flattened(alone.params), NODES, axis=1)
    np.testing.assert_allclose(whole, expected, **CLOSE)
    early, _ = ran(drawn("complete"), "combine")
    assert np.abs(early - expected).max() > 1e-3  # what is sent is an update behind


@pytest.mark.parametrize("name", ["ring", "exponential", "one_peer", "complete"])
def test_without_gradients_nodes_agree_as_fast_as_the_gap_says(name):
    """They part in the first update, after which the learning rate is 0."""
    count, rates = 6, np.where(np.arange(STEPS) == 0, 1.0, 0.0)
    to = drawn(name, count)
    events = nodes.events(neighbours(to), rates)
    states, _ = nodes.ran(made("combine"), events, nodes=count)
    x = np.float64(flattened(states.params))
    np.testing.assert_allclose(x.mean(1), np.repeat(x[:1].mean(1), STEPS, 0), rtol=0, atol=5e-6)
    apart = np.linalg.norm(x - x.mean(1, keepdims=True), axis=(1, 2))
    rho, period = 1 - spectral_gap(name, count), len(to)
    assert apart[0] > 1
    # Rounding leaves nodes 1e-7 apart, of parameters of about one.
    bound = apart[0] * rho ** np.arange(len(apart[::period])) + 1e-5
    assert (apart[::period] <= bound).all()
    if name == "ring":  # of whose eigenvalues only the two largest below 1 matter later on
        assert apart[12] / apart[6] == pytest.approx(rho**6, rel=1e-3)
    if name == "complete":
        assert apart[1] < 1e-5


@pytest.mark.parametrize("count", [5, 8])
@pytest.mark.parametrize("name", RANDOM_GRAPHS)
def test_the_gap_of_a_graph_that_is_drawn(name, count):
    """In mean square: the direction that lasts longest under the mean of P'P."""
    p = matrices(drawn(name, count, 8000))
    centred = np.eye(count) - 1 / count
    square = centred @ np.einsum("tij,tik->jk", p, p, optimize=True) @ centred / len(p)
    # Entries of the mean are off by 1/2 / sqrt(8000) = 0.6 %, and the largest of some is above.
    expected = (1 - spectral_gap(name, count)) ** 2
    assert np.linalg.eigvalsh(square)[-1] == pytest.approx(expected, abs=0.02)


def test_gaps_by_hand():
    """Of a circle 1 - (1 + 2 cos(2 pi / n)) / 3; in log2 n updates with one peer all agree."""
    for count in (4, 8, 16):
        assert spectral_gap("ring", count) == pytest.approx(
            2 / 3 * (1 - np.cos(2 * np.pi / count)), abs=1e-12
        )
        assert spectral_gap("one_peer", count) == pytest.approx(1, abs=1e-12)
        assert spectral_gap("complete", count) == pytest.approx(1, abs=1e-12)
        # arXiv 2110.13363: 2 / (1 + log2 n), n a power of two
        expected = 2 / (1 + np.log2(count))
        assert spectral_gap("exponential", count) == pytest.approx(expected, abs=1e-12)
    assert spectral_gap("one_peer", 6) < 1


@given(st.sampled_from(GRAPHS), st.integers(1, 17), st.integers(1, 9), st.integers(0, 99))
def test_every_graph_keeps_the_sum(name, count, steps, seed):
    to = drawn(name, count, steps, seed)
    p = matrices(to)
    np.testing.assert_array_equal(to[..., 0], np.broadcast_to(np.arange(count), to.shape[:2]))
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=0, atol=1e-12)
    if name != "push":
        np.testing.assert_allclose(p.sum(axis=2), 1, rtol=0, atol=1e-12)
    if name == "random":
        np.testing.assert_array_equal(p, p.swapaxes(1, 2))
    longer = drawn(name, count, steps + 5, seed)
    np.testing.assert_array_equal(longer[: len(to)], to)  # as a run that goes on needs it
    w = push_weights(to, steps)
    np.testing.assert_allclose(w.sum(axis=1), count, rtol=1e-12)
    assert (w > 0).all()


def config_of(method=Gossip(), steps=20, **cluster):  # noqa: B008
    cluster = Cluster(nodes=8, **cluster)
    return Config(method=method, cluster=cluster, batch_size=64, steps=steps)


@pytest.mark.parametrize("order", ["combine", "adapt"])
def test_the_clock_of_a_run(order):
    """Of constant service: 8 examples on each of 8 nodes, and two messages, one after the other."""
    config = config_of(Gossip(gossip_order=order), service=Constant(), bandwidth=1e6)
    known = {"steps_per_epoch": 10}
    line = config.timeline(**known, update_bytes=6000)
    update = 0.012 if order == "combine" else 8e-3 + 0.012
    np.testing.assert_allclose(line.seconds, update * np.arange(1, 21), rtol=1e-9)
    assert line.plan.to.shape == (20, 8, 3)
    # Where messages are short, computing takes all the time.
    config = config.with_({"cluster.bandwidth": 1e9})
    quick = config.timeline(**known, update_bytes=6000).seconds[-1]
    assert quick == pytest.approx(20 * 8e-3 + (order == "adapt") * 20 * 12e-6)


def test_the_summary_says_the_gap():
    config = config_of(Gossip(graph="one_peer"))
    assert config.methods.mix.report(config, None) == {
        "spectral_gap": pytest.approx(1, abs=1e-12),
        "graph_period": 3,
    }


BOWL = {
    "model.name": "quadratic",
    "model.dimension": 6,
    "model.noise": 0.5,
    "data.train_examples": 128,
    "optimizer.learning_rate": 0.3,
    "cluster.nodes": 4,
    "batch_size": 8,
    "steps": 60,
}


def mean_of(name, **values):
    """(6,) parameters after 60 updates, the mean over the nodes."""
    config = Config().with_(BOWL | {"method.name": name, **values})
    run = trainer.prepare(config)
    state, _ = run.program.advance(*loop.first(run, 60))
    x = np.asarray(getattr(state, "every", state.params)["x"]["x"])
    return x.mean(axis=0) if x.ndim == 2 else x


@pytest.mark.parametrize("values", [{}, {"data.dirichlet": 1.0}], ids=["whole", "shards"])
def test_only_unlike_curvatures_show_that_nodes_part(values):
    """With one curvature the gradient is linear in x, and the nodes' mean is synchronous SGD."""
    ways = {"gossip": {}, "model_averaging": {"method.period": 7}}
    for spread in (0.0, 1.0):
        more = values | {"model.spread": spread}
        expected = mean_of("sync", **more)
        for name, own in ways.items():
            apart = np.abs(mean_of(name, **own, **more) - expected).max()
            # Float32, some operations in each of 60 updates; and what was seen, 0.009 to 0.031.
            assert apart < 2e-6 if spread == 0 else apart > 5e-3
