"""Asynchronous SGD and its kin: closed forms, limits, rounds, and what runs say of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn import core, methods, optimizers
from optdyn.clock.arrivals import compute_groups
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, Exponential, Geometric, LogNormal
from optdyn.clock.versions import Policy
from optdyn.experiment import Config
from optdyn.methods import Event, ModelInfo, messages
from optdyn.methods.asynchronous import asynchronous, table_rounds
from optdyn.methods.buffered import buffered
from optdyn.methods.messages import quantizer
from optdyn.problem import problem
from optdyn.problem.models import Quadratic
from optdyn.problem.models.quadratic import curvatures
from optdyn.train import trainer
from tests.methods import composed, workers
from tests.methods.nodes import START, flattened, tree
from tests.methods.workers import WORKERS, events_of, line_of, ran
from tests.values import with_values

STEPS, DIMENSION, CONDITION, BATCH = 120, 6, 10.0, 4
QUADRATIC = problem.make(Quadratic(dimension=DIMENSION, condition=CONDITION), 0)
H = curvatures(DIMENSION, CONDITION).astype(np.float64)
OPTIMA = np.random.default_rng(0).normal(0, 0.5, (STEPS, BATCH, DIMENSION)).astype(np.float32)
TIMELINES = {
    "one group": {"groups": 1},
    "round robin": {"groups": 5, "service": Constant()},
    "memoryless": {"groups": 5, "service": Exponential()},
    "unequal": {"groups": 4, "service": LogNormal(), "speeds": (1, 2, 3, 9)},
    "ring": {"groups": 3, "service": Geometric()},
}


def arrivals(name):
    values = dict(TIMELINES[name])
    groups = values.pop("groups")
    cluster = Cluster(nodes=groups, **values)
    return compute_groups(cluster, groups=groups, steps=STEPS, batch_size=BATCH, seed=1)


def test_implicit_momentum_of_memoryless_groups():
    """E[x_{t+1} - x_t] = (1 - 1/g) E[x_t - x_{t-1}] - (alpha/g) E grad f(x_t), in the mean over
    replicas (arXiv 1605.09774), on independent geometric staleness where it holds without a queue.
    """
    g, steps, replicas, alpha = 4, 40, 4000, 0.2
    cluster = Cluster(nodes=g, service=Geometric())
    made = compute_groups(cluster, groups=g, steps=steps, batch_size=1, seed=2, replicas=replicas)
    optimizer = optimizers.optimizer("sgd", ("learning_rate",))
    method = composed.asynchronous(QUADRATIC.loss, optimizer, made.slots)
    batch = {"optimum": jnp.zeros((1, DIMENSION))}

    def body(state, choice):
        event = Event(choice, {"learning_rate": jnp.float32(alpha)})
        state, _ = method.step(state, event, batch)
        return state, state.params["x"]["x"]

    def trajectory(choices):
        start = method.init({"x": {"x": jnp.ones(DIMENSION)}})
        return jax.lax.scan(body, start, choices)[1]

    x = np.asarray(jax.jit(jax.vmap(trajectory))(made.plan), np.float64)
    x = np.concatenate([np.ones((replicas, 1, DIMENSION)), x], axis=1)
    now, before = x[:, 1:-1], x[:, :-2]
    predicted = (1 - 1 / g) * (now - before) - alpha / g * H * now
    residual = x[:, 2:] - now - predicted
    error = residual.std(0) / np.sqrt(replicas)
    # 39 updates of 6 coordinates: five standard errors for the largest of 234 means.
    assert np.all(np.abs(residual.mean(0)) <= 5 * error + 1e-6)
    # A momentum off by 0.05 would be seen: the differences are many standard errors.
    assert np.any(np.abs(0.05 * (now - before).mean(0)) > 5 * error)


@pytest.mark.parametrize("fresh", [(), ("b",), ("a", "b")])
def test_snapshots_are_kept_of_stale_blocks_only(fresh):
    sgd, blocks = optimizers.optimizer("sgd", ("learning_rate",)), tree(START)
    state = jax.eval_shape(composed.asynchronous(QUADRATIC.loss, sgd, 6, fresh).init, blocks)
    sizes = {name: leaf.size for name, leaf in blocks.items()}
    stale = sum(size for name, size in sizes.items() if name not in fresh)
    assert sum(leaf.size for leaf in jax.tree.leaves(state.slots)) == 6 * stale
    assert sum(leaf.size for leaf in jax.tree.leaves(state.fresh)) == sum(sizes.values()) - stale


def test_a_fresh_block_that_does_not_exist_is_refused():
    method = composed.asynchronous(
        QUADRATIC.loss, optimizers.optimizer("sgd", ()), 6, ("b", "head")
    )
    with pytest.raises(ValueError, match=r"'head': one of a, b$"):
        method.init(tree(START))


SMALL = messages.top_k(0.25, quantizer(32, 5))


def test_what_is_clipped_off_is_not_fed_back():
    """Clipping comes after compression: the first error is that of no clipping, x_1 is not."""
    clip = (("clip_by_global_norm", {"max_norm": 0.1}),)
    clipped = optimizers.optimizer("sgd", ("learning_rate", "momentum"), {}, clip)
    free, cut = (
        ran(
            workers.made(
                lambda *pieces: asynchronous(*pieces, compression=SMALL), optimizer=optimizer
            ),
            events_of(line_of("asynchronous")),
        )[0]
        for optimizer in (workers.SGD, clipped)
    )
    np.testing.assert_array_equal(flattened(cut.errors)[0], flattened(free.errors)[0])
    assert np.abs(flattened(free.slots)[0] - flattened(cut.slots)[0]).max() > 1e-3


def test_the_clock_sends_less_to_the_server_and_all_back():
    """A quarter of each array's numbers, 8 bytes each, at a byte a second, and 56 bytes back."""
    asked = {"method.compression_share": 0.25, "cluster.service.name": "constant"}
    asked |= {"cluster.bandwidth": 1.0}
    model_info = ModelInfo(None, tree(START), None)
    took = []
    for name in ("", "top_k"):
        asked["method.compression"] = name
        line = line_of("asynchronous", 2, update_bytes=56, model_info=model_info, **asked)
        took.append(line.seconds[1::2] / np.arange(1, 17) - 1)  # a second of computing
    np.testing.assert_allclose(took, [[112] * 16, [56 + 8 * (3 + 1)] * 16], rtol=1e-12)


BUFFERED = {"method.name": "buffered", "cluster.nodes": 4, "method.groups": 4, "batch_size": 6}


@pytest.mark.parametrize(
    ("waiting", "arrivals", "groups"), [("k_sync", 3, 4), ("k_batch_sync", 3, 2), ("k_async", 2, 2)]
)
def test_who_waits_for_all_is_synchronous(config, waiting, arrivals, groups):
    """And where some are dropped it is synchronous SGD of those that are not."""
    asked = {"method.waiting": waiting, "method.arrivals": arrivals, "method.groups": groups}
    line = config(BUFFERED | asked | {"steps": 60}).timeline(steps_per_epoch=10, update_bytes=0)
    sgd = optimizers.optimizer("sgd", ("learning_rate",))
    gradient, update = core.full_gradient(QUADRATIC.loss), core.single_optimizer(sgd)
    optima = np.random.default_rng(0).normal(0, 0.5, (60, 6, DIMENSION)).astype(np.float32)
    events = Event(line.plan, {"learning_rate": jnp.full(60, 0.05)}, line.staleness)
    rules = buffered(gradient, update, line.slots, arrivals), composed.sync(QUADRATIC.loss, sgd)

    @jax.jit
    def trained(events, batches):
        def body(states, inputs):
            pairs = zip(rules, states, strict=True)
            states = [rule.step(state, *inputs)[0] for rule, state in pairs]
            return states, [state.params["x"]["x"] for state in states]

        start = [rule.init({"x": {"x": jnp.ones(DIMENSION)}}) for rule in rules]
        return jax.lax.scan(body, start, (events, batches))[1]

    # The batch's gradient as a mean of means: float32 in another order.
    np.testing.assert_allclose(*trained(events, {"optimum": optima}), atol=1e-5)


def test_one_arrival_is_asynchronous(config):
    """The same arrivals, each as stale; the rule of one arrival is in the battery."""
    asked = {"method.arrivals": 1, "steps": 60}
    one, other = (
        with_values(config(), BUFFERED | asked | {"method.name": name}).timeline(
            steps_per_epoch=9, update_bytes=0
        )
        for name in ("buffered", "asynchronous")
    )
    np.testing.assert_array_equal(one.seconds, other.seconds)
    np.testing.assert_array_equal(np.ravel(one.staleness), other.staleness)


def test_a_buffered_run_resumes_and_the_meter_reads_it(config, tmp_path):
    """With late gradients compensated, by the means of what was read and of how late it is."""
    values = BUFFERED | {"method.arrivals": 2, "method.waiting": "k_async", "steps": 120}
    values |= {"optimizer.chain": ("delay_compensation", "staleness_rate"), "batch_size": 4}
    values |= {"probes.momentum": True, "probes.window": 60, "probes.every": 60}
    whole = trainer.train(config(values), tmp_path / "whole")
    trainer.train(config(values | {"steps": 60}), tmp_path / "parts")
    parts = trainer.train(config(values), tmp_path / "parts")
    assert parts["parameters_crc32"] == whole["parameters_crc32"]
    assert "implicit_momentum" in (tmp_path / "parts" / "metrics.jsonl").read_text()


RINGMASTER = {
    "method.name": "ringmaster",
    "method.groups": 4,
    "cluster.service.name": "exponential",
}


@pytest.mark.parametrize("outer", ["", "daso+"])
def test_without_a_bound_its_timeline_is_that_of_asynchronous_sgd(config, outer):
    """To the bit, with a network, also inside nodes."""
    values = {
        "cluster.service.name": "exponential",
        "cluster.devices_per_node": 4,
        "batch_size": 16,
    }
    values |= {"cluster.latency": 1e-3, "cluster.local_latency": 1e-3}
    one, other = (
        trainer.prepare(
            with_values(config(values), {"method.name": outer + name, "method.groups": 4})
        ).timeline
        for name in ("ringmaster", "asynchronous")
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_summary_says_how_many_were_dropped(config, tmp_path):
    """Only where there is a bound, and of those before the last update."""
    chosen = config(RINGMASTER | {"method.delay_bound": 2})
    summary = trainer.train(chosen, tmp_path / "a")
    line = trainer.prepare(chosen).timeline
    assert summary["dropped_arrivals"] == line.plan.dropped.sum() > 0
    assert len(summary["staleness_histogram"]) <= 2 and sum(summary["staleness_histogram"]) == 60
    assert "dropped_arrivals" not in trainer.train(config(RINGMASTER), tmp_path / "b")


def test_a_dropped_arrival_takes_its_time_and_its_exchange(config):
    """Groups of 1 and 10 seconds an update, R = 2: all that the slow one has is dropped.

    Whatever it had computed, it begins again when it arrives, after as long as any other.
    """
    values = {**RINGMASTER, "cluster.service.name": "constant", "cluster.latency": 0.25}
    values |= {"method.groups": 2, "cluster.nodes": 2, "cluster.speeds": (1.0, 0.1)}
    values |= {"method.delay_bound": 2, "batch_size": 1, "cluster.seconds_per_example": 1.0}
    line = config(values).timeline(steps_per_epoch=10, update_bytes=0)
    free = config({**values, "method.delay_bound": 0})
    every = free.timeline(steps_per_epoch=10, update_bytes=0)
    slow = every.seconds[every.worker == 1]
    assert np.all(line.worker == 0)
    before = np.flatnonzero(line.plan.dropped[:, 1])
    np.testing.assert_array_equal(line.plan.dropped[:, 0], False)
    # Before update t: after that of t - 1, and not after it.
    for t, seconds in zip(before, slow, strict=False):
        assert line.seconds[t - 1] <= seconds <= line.seconds[t]
    assert len(before) > 3


@st.composite
def orders(draw):
    """Groups, and arrivals in which each of them comes in the end."""
    count = draw(st.integers(1, 5))
    some = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=80))
    return count, np.array([*some, *list(range(count)) * 4], np.int32)


def server(worker, count):
    """The paper's server: rows (applied or not) of {group: [(arrival, updates it had read), ...]}.

    Phase 1 collects until each group has an entry; phase 2 makes `count` updates, the first by who
    came last, and keeps the rest for the next round.
    """
    arrivals, rows, updates, read = iter(enumerate(worker)), [], 0, [0] * count
    later = {i: [] for i in range(count)}
    try:
        while True:
            table, later = later, {i: [] for i in range(count)}
            while True:
                t, i = next(arrivals)
                table[i].append((t, read[i]))
                if all(table.values()):
                    break
                rows.append(None)
                read[i] = updates
            rows.append({j: list(own) for j, own in table.items()})
            updates += 1
            read[i] = updates
            waiting = set(range(count)) - {i}
            while waiting:
                t, i = next(arrivals)
                if i in waiting:
                    table[i].append((t, read[i]))
                    rows.append({j: list(own) for j, own in table.items()})
                    waiting.remove(i)
                    updates += 1
                else:
                    later[i].append((t, read[i]))
                    rows.append(None)
                read[i] = updates
    except StopIteration:
        return rows


@given(orders())
def test_rounds_are_those_of_the_papers_server(case):
    """The same arrivals are applied, each with as many gradients of every group in its table."""
    count, worker = case
    table, number, applied = table_rounds(worker, count)
    rows = server(worker, count)
    np.testing.assert_array_equal(applied, [row is not None for row in rows])
    latest = np.zeros((2, count), int)
    for t, row in enumerate(rows):
        latest[table[t], worker[t]] = number[t]
        if row is not None:
            np.testing.assert_array_equal(latest[table[t]], [len(row[i]) for i in range(count)])


def test_ringleader_takes_the_seconds_of_asynchronous_sgd():
    """Nobody waits: the same arrivals at the same seconds, of which some are no updates."""
    one, other = (line_of(name, update_bytes=100) for name in ("ringleader", "asynchronous"))
    np.testing.assert_array_equal(one.worker, other.worker)
    np.testing.assert_array_equal(one.seconds, other.seconds)
    assert one.staleness.mean() < other.staleness.mean()


POLICIES = {  # what makes the clock of a method: `test_policies.py` has what each does
    "asynchronous": ({"staleness_bound": 1}, Policy(bound=1)),
    "ringmaster": ({"delay_bound": 2}, Policy(delay_bound=2)),
    "buffered": ({"arrivals": 2, "waiting": "k_sync"}, Policy(2, "k_sync")),
    "mindflayer": ({"arrivals": 2, "allotted": 0.5}, Policy(2, "k_batch_async", allotted=0.5)),
}


@pytest.mark.parametrize("name", POLICIES)
def test_groups_arrive_by_the_policy_of_their_method(name):
    keys, policy = POLICIES[name]
    assert methods.load(name)(groups=WORKERS, **keys).policy == policy
    asked = {f"method.{key}": value for key, value in keys.items()}
    line = line_of(name, steps=STEPS, **asked)
    size = {"steps": STEPS, "batch_size": 12 // policy.arrivals}
    size["seed"] = Config().seed
    cluster = Cluster(nodes=WORKERS, seconds_per_example=1 / 12)
    expected = compute_groups(cluster, groups=WORKERS, policy=policy, **size)
    np.testing.assert_array_equal(line.seconds, expected.seconds)
    free = compute_groups(
        cluster, groups=WORKERS, policy=Policy(policy.arrivals, "k_batch_async"), **size
    )
    assert (line.seconds != free.seconds).any()
