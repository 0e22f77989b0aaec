"""Nodes that meet over a graph: graphs and their gaps, limits, laws, who waits, and runs."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn import methods
from optdyn.clock import availability
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, LogNormal
from optdyn.clock.timeline import TimelineError
from optdyn.experiment import Config
from optdyn.methods import messages
from optdyn.methods.averaging import meeting_schedule
from optdyn.methods.gossip import (
    GRAPHS,
    RANDOM_GRAPHS,
    Gossip,
    Neighbours,
    choco,
    gasloc,
    gossip,
    graph_peers,
    over_updates,
    push_weights,
    senders_of,
    spectral_gap,
)
from optdyn.train import loop, trainer
from tests.methods import nodes
from tests.methods import test_battery as battery
from tests.methods.nodes import NODES, RATE, STEPS, P, flattened, matrices
from tests.methods.test_averaging import CLOSE, MAKERS, meetings
from tests.methods.test_averaging import made as averaging_made

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


@pytest.mark.parametrize("order", ["combine", "adapt"])
@pytest.mark.parametrize("name", ["ring", "one_peer", "random"])
def test_of_many_nodes_each_knows_only_who_sends_to_it(name, order):
    """The same sums as with a whole row of weights, in another order; also where some are away."""
    to = drawn(name)
    whole, sent = ran(to, order)
    there = neighbours(to)._replace(senders=senders_of(to)[np.arange(STEPS) % len(to)])
    states, ours = nodes.ran(made(order), nodes.events(there, RATE, 0.6))
    np.testing.assert_allclose(flattened(states.params), whole, **CLOSE)
    messages = (to != np.arange(NODES)[:, None]).sum(axis=2).mean(axis=1)
    expected = 4 * P * messages[np.arange(STEPS) % len(to)]  # float32, 4 bytes a parameter
    np.testing.assert_allclose(sent, expected, rtol=1e-6)
    np.testing.assert_array_equal(ours, sent)


def test_who_is_away_sends_and_is_sent_nothing():
    """Half of the nodes in each update; a mean of messages or a whole row of weights alike."""
    rng = np.random.default_rng(8)
    there = rng.random((STEPS, NODES)) < 0.5
    there[np.arange(STEPS), rng.integers(NODES, size=STEPS)] = True
    whole, stand = drawn("random"), availability.stand_ins(there)
    to = np.array([availability.reroute(*row) for row in zip(whole, there, strict=True)])
    for t, i in np.ndindex(STEPS, NODES):
        ahead = [(i + k) % NODES for k in range(NODES) if there[t, (i + k) % NODES]]
        assert stand[t, i] == ahead[0]
    plan = neighbours(to)._replace(stand=stand)
    found = [
        nodes.ran(made("combine"), nodes.events(one, SCHEDULE, 0.6))
        for one in (plan, plan._replace(senders=senders_of(to)))
    ]
    (one, sent), (other, _) = found
    np.testing.assert_allclose(flattened(other.params), flattened(one.params), **CLOSE)
    assert not sent[there.sum(axis=1) == 1].any() and sent.any()


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
    with pytest.raises(TimelineError, match=r"presence: must be longer, .* for the 0\.008 seconds"):
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
    state, _ = run.program.advance(*loop.advance_arguments(run, 60))
    x = np.asarray(getattr(state, "node_params", state.params)["x"]["x"])
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


COUNT, PERIOD = 4, 4  # nodes, and updates from one meeting to the next


def met_over(name, graph, nodes_of=COUNT, **numbers):
    to = graph_peers(graph, nodes_of, STEPS, np.random.default_rng(3))
    line = meetings(name, **numbers)._replace(to=over_updates(to, STEPS))
    return nodes.ran(averaging_made(name), nodes.events(line, RATE, 0.6), nodes=nodes_of), line


@pytest.mark.parametrize("name", MAKERS)
def test_all_with_all_is_the_method_that_meets(name):
    (over, sent), _ = met_over(name, "complete")
    whole, once = nodes.ran(
        averaging_made(name), nodes.events(meetings(name), RATE, 0.6), nodes=COUNT
    )
    # Sums of four numbers in another order, an ulp of about one a meeting.
    np.testing.assert_allclose(flattened(over.params), flattened(whole.params), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(sent, (COUNT - 1) * once)  # to each of the others


@pytest.mark.parametrize("graph", ["ring", "one_peer", "random"])
def test_the_mean_over_the_nodes_is_kept(graph):
    """At a meeting nobody has a gradient to lose: the mean is what it was a moment before."""
    (states, _), line = met_over("model_averaging", graph)
    never = line._replace(send=np.zeros_like(line.send), receive=np.zeros_like(line.receive))
    alone, _ = nodes.ran(
        averaging_made("model_averaging"), nodes.events(never, RATE, 0.6), nodes=COUNT
    )
    first = int(np.flatnonzero(line.send[:, 0])[0])
    met, apart = (flattened(each.params)[first] for each in (states, alone))
    np.testing.assert_allclose(met.mean(0), apart.mean(0), rtol=0, atol=1e-6)
    assert np.ptp(met, axis=0).sum() < 0.9 * np.ptp(apart, axis=0).sum()


def timeline(values, name="model_averaging+gossip"):
    own = {"cluster.nodes": 4, "cluster.devices_per_node": 1, "method.period": 2} | values
    config = battery.config_of(name, own)
    params = battery.make_run(name, own).params
    model_info = methods.ModelInfo(battery.program.problem_of(config, battery.CLASSES), params, {})
    known = {"steps_per_epoch": 4, "update_bytes": 8, "model_info": model_info}
    return config.timeline(**known)


def test_a_node_waits_for_its_neighbour_and_for_nobody_else():
    """Against a simulation node by node: updates of 6, 3, 2 and 1.5 seconds, messages of 2."""
    speeds = {"cluster.speeds": (1.0, 2.0, 3.0, 4.0), "cluster.seconds_per_example": 1.0}
    line = timeline(speeds | {"method.graph": "random", "cluster.bandwidth": 4.0})
    now, free, ends = [0.0] * 4, [0.0] * 4, []
    for t in range(battery.STEPS):
        now = [each + 6.0 / speed for each, speed in zip(now, (1, 2, 3, 4), strict=True)]
        if line.plan.send[t].all():
            free = [max(a, b) + 2.0 for a, b in zip(now, free, strict=True)]
            now = [max(now[i], free[j]) for i, j in line.plan.to[t]]
        ends.append(max(now))
    expected = [min(ends[t:]) for t in range(len(ends))]  # a straggler nobody waits for
    np.testing.assert_allclose(line.seconds, expected, rtol=1e-9)


def test_peers_take_turns_whatever_the_period_is():
    """With a period of 2 and a turn of 2 updates they would always be the same."""
    to = timeline({"method.graph": "one_peer"}).plan.to
    send = meeting_schedule(battery.STEPS, 2, 1, 0).send[:, 0]
    shifts = (to[send, 0, 1] - to[send, 0, 0]) % 4
    np.testing.assert_array_equal(shifts, np.resize([1, 2], len(shifts)))


def test_a_graph_is_data_of_one_program():
    one, other = (
        battery.config_of("diloco+gossip", {"method.graph": graph})
        for graph in ("ring", "complete")
    )
    assert battery.program.make(one, 5, 1) is battery.program.make(other, 5, 1)
    assert jnp.ndim(timeline({}).plan.to) == 3


GASLOC = {"outer_learning_rate": 0.7, "outer_momentum": 0.8}
GASLOC_GRAPHS = ("ring", "exponential", "one_peer", "random", "complete")


@cache  # one program for all numbers
def gasloc_made():
    return gasloc(nodes.inner())


def gasloc_ran(graph, batches=nodes.BATCHES):
    """(STEPS, COUNT, ...) states."""
    outer = {key: np.full(STEPS, value, np.float32) for key, value in GASLOC.items()}
    to = over_updates(graph_peers(graph, COUNT, STEPS, np.random.default_rng(3)), STEPS)
    line = meeting_schedule(STEPS, PERIOD, 1, 0)._replace(to=to, outer=outer)
    return nodes.ran(gasloc_made(), nodes.events(line, RATE, 0.6), COUNT, batches)[0]


@pytest.mark.parametrize("graph", GASLOC_GRAPHS)
def test_the_mean_of_the_nodes_is_dilocos_where_gradients_are_of_one_quadratic(graph):
    """All nodes see the same inputs, and so one curvature, each with targets of its own."""
    inputs = np.array(nodes.BATCHES["inputs"])
    each = inputs.shape[1] // COUNT
    batches = nodes.BATCHES | {"inputs": np.tile(inputs[:, :each], (1, COUNT, 1))}
    events = nodes.events(meetings("diloco", PERIOD, **GASLOC), RATE, 0.6)
    diloco, _ = nodes.ran(averaging_made("diloco"), events, nodes=COUNT, batches=batches)
    states = gasloc_ran(graph, batches=batches)
    mean, wanted = (flattened(each.params).mean(axis=1) for each in (states, diloco))
    # Parameters of about one in float32: some ulp of 6e-8, of the mean of four nodes.
    np.testing.assert_allclose(mean, wanted, rtol=0, atol=1e-6)
    assert np.ptp(flattened(states.params)[-1], axis=0).max() > 1e-2
    # Where curvatures differ it is not.
    other = gasloc_ran(graph)
    diloco, _ = nodes.ran(averaging_made("diloco"), events, nodes=COUNT)
    found = [flattened(each.params).mean(axis=1) for each in (other, diloco)]
    assert np.abs(found[0] - found[1]).max() > 1e-3


@pytest.mark.parametrize("graph", ["random", "one_peer"])
def test_who_meets_whom_and_when_is_as_of_all_that_meet_over_a_graph(graph):
    values = {"method.graph": graph, "cluster.speeds": (1.0, 2.0, 3.0, 4.0)}
    values |= {"cluster.bandwidth": 4.0}
    one, other = timeline(values, "gasloc"), timeline(values)
    np.testing.assert_array_equal(one.seconds, other.seconds)
    jax.tree.map(np.testing.assert_array_equal, one.plan._replace(outer=()), other.plan)


def test_consensus_of_compressed_messages_keeps_the_mean_over_the_nodes():
    """W's columns add up to 1, whatever the messages leave out: c moves no mean."""
    rule = choco(nodes.inner(), messages.top_k(0.25, messages.quantizer(32, 5)))
    to, one = graph_peers("ring", COUNT, STEPS, None), np.ones((STEPS, COUNT), np.float32)
    found = []
    for rate in (0.1, 0.4):
        plan = Neighbours(over_updates(to, STEPS), one, rate=np.full(STEPS, rate, np.float32))
        states, _ = nodes.ran(rule, nodes.events(plan, RATE, 0.6), COUNT)
        found.append(flattened(states.params)[0])
    near, far = found
    np.testing.assert_allclose(near.mean(axis=0), far.mean(axis=0), rtol=0, atol=1e-6)
    assert np.abs(near - far).max() > 1e-4
