"""Asynchronous local SGD and decoupled DiLoCo: laws, limits, and who is in which merge."""

from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count

import jax
import numpy as np
import pytest

from optdyn.methods import ModelInfo
from optdyn.methods.async_local_sgd import DROPPED, ages, decoupled, syncer_rounds, turn_to_momentum
from optdyn.methods.averaging import meeting_schedule
from tests.methods import nodes, workers
from tests.methods.nodes import BATCHES, EACH, NODES, RATE, STEPS, flattened
from tests.methods.workers import MOMENTUM, line_of, ran


def test_what_is_turned_keeps_its_length_and_loses_what_is_against_the_momentum():
    rng = np.random.default_rng(3)
    m, every = np.float32(rng.normal(size=(2, 200, 6)))
    for d, own in zip(every, m, strict=True):
        after = np.asarray(turn_to_momentum({"a": d}, {"a": own}, 1.0, 0.8)["a"])
        with_it, before = after @ own, d @ own
        assert with_it > before or np.isclose(with_it, before, atol=1e-6)
        if before >= 0:
            np.testing.assert_allclose(np.sum(after**2), np.sum(d**2), rtol=1e-5)


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


NETWORK = ModelInfo(None, nodes.tree(nodes.START), None)


def happenings(worker, seconds, message, period, delay=1, quorum=1, grace=0.0):
    """(what, t, p, letters) of a run, event by event; each is known to whom it has reached only.

    At one time letters arrive first, then merges are made, then steps end.
    """
    serial, (learners, fragments) = count(), message.shape
    queue = [(second, 2, next(serial), "step", t) for t, second in enumerate(seconds)]
    heapify(queue)
    own, under_way, waits, due = [0] * learners, {}, {}, set()
    answered, taken, theta = {}, {}, {}

    def later(second, kind, what, thing):
        heappush(queue, (second, kind, next(serial), what, thing))

    while queue and queue[0][0] <= seconds[-1]:
        now, _, _, what, thing = heappop(queue)
        if what == "step":
            t, m = thing, worker[thing]
            own[m] += 1
            yield "step", t, None, []
            for p in range(fragments):
                if letter := theta.get((m, p)):
                    if own[m] >= letter["own"] + max(delay, 1):
                        taken[m, p] = taken.get((m, p), 0) + 1
                        del theta[m, p]
                        under_way.pop((m, p), None)
                        yield "take", t, p, [letter]
                elif own[m] % period == p * period // fragments and (m, p) not in under_way:
                    letter = {"m": m, "p": p, "t": t, "own": own[m], "of": taken.get((m, p), 0)}
                    under_way[m, p] = letter
                    later(now + message[m, p], 0, "arrives", letter)
                    yield "send", t, p, [letter]
        elif what == "arrives":
            m, p = thing["m"], thing["p"]
            if under_way.get((m, p)) is thing:
                del under_way[m, p]
            if thing["of"] < answered.get((m, p), 0):
                yield "drop", t, p, [thing]
                continue
            waits.setdefault(p, {})[m] = thing
            if len(waits[p]) >= quorum and p not in due:
                due.add(p)
                later(now + grace, 1, "merge", p)
        elif what == "merge":
            members = list(waits.pop(thing).values())
            due.remove(thing)
            yield "merge", t, thing, members
            for letter in members:
                m = letter["m"]
                answered[m, thing] = answered.get((m, thing), 0) + 1
                later(now + message[m, thing], 0, "back", letter)
        else:
            theta[thing["m"], thing["p"]] = thing
    for *_, what, letter in queue:
        if what == "arrives" and letter["of"] < answered.get((letter["m"], letter["p"]), 0):
            yield "drop", t, letter["p"], [letter]


def random_case(seed, fragments=None):
    """Arguments of `rounds`, on a grid of seconds or off it: ties are no chance then."""
    rng = np.random.default_rng(seed)
    learners, fragments = rng.integers(1, 7), fragments or rng.integers(1, 4)
    worker = rng.choice(learners, 300, p=rng.dirichlet(np.full(learners, 3.0)))
    seconds, message = (
        np.cumsum(rng.exponential(size=300)),
        rng.uniform(0, 9, (learners, fragments)),
    )
    delay, quorum, grace = rng.integers(0, 9), rng.integers(1, learners + 1), rng.uniform(0, 9)
    if seed % 2:
        seconds, message, grace = np.round(seconds), np.round(message), np.round(grace)
    return worker, seconds, message, rng.integers(3, 7), delay, quorum, grace


def test_rounds_are_those_of_the_events():
    """300 random cases, to the bit, in which messages are merged, replaced and dropped."""
    dropped = replaced = merged = 0
    for seed in range(300):
        case = random_case(seed)
        of, number = syncer_rounds(*case), [0] * len(case[2][0])
        receive, send, into, merge = (np.zeros(leaf.shape, int) for leaf in of)
        for what, t, p, letters in happenings(*case):
            if what in ("take", "send"):
                (receive if what == "take" else send)[t, p] = True
            elif what == "merge":
                number[p] += 1
                merge[t, p] = number[p]
            for letter in letters if what in ("merge", "drop") else ():
                into[letter["t"], p] = number[p] if what == "merge" else DROPPED
        for found, wanted in zip(of, (receive, send, into, merge), strict=True):
            np.testing.assert_array_equal(found, wanted)
        merged += (into > 0).sum()
        dropped += (into == DROPPED).sum()
        replaced += (send & (into == 0)).sum()
    assert min(merged, dropped, replaced) > 1000


def test_a_merge_knows_nothing_of_what_is_under_way():
    """Steps that end after it, or whose messages arrive after it, are as if they were not."""
    shorter = 0
    for seed in range(100):
        worker, seconds, message, *rest = random_case(2 * seed, fragments=1)
        now = seconds[200]
        arrived = seconds + message[worker, 0] <= now
        shorter += 200 - arrived.sum()
        # A learner more, who sends nothing: so that the run lasts until then.
        message = np.append(message, [[0.0]], axis=0)
        other = np.append(worker[arrived], len(message) - 1), np.append(seconds[arrived], now)
        many = syncer_rounds(worker, seconds, message, *rest).merge[:200].max()
        assert many == syncer_rounds(*other, message, *rest).merge.max()
        assert members(worker, seconds, message, *rest)[:many] == members(*other, message, *rest)
    assert shorter > 300


def members(worker, seconds, *rest):
    """[(learner, seconds of the sending)] of each merge."""
    into = syncer_rounds(worker, seconds, *rest).into[:, 0]
    every = [np.flatnonzero(into == number) for number in range(1, into.max(initial=0) + 1)]
    return [[(worker[t], seconds[t]) for t in sent] for sent in every]


@pytest.mark.parametrize("delay", [1, 2])
def test_of_equal_learners_it_is_streaming_diloco(delay):
    """K = all, no window, prompt messages; rounds of a step of each, of its part of the batch."""
    asked = {"method.fragments": 2, "method.delay": delay, "method.period": 6}
    steps = NODES * STEPS
    config = {"cluster.service.name": "constant"} | asked
    line = line_of("decoupled", steps=steps, model_info=NETWORK, **config)
    np.testing.assert_array_equal(line.worker, np.tile(np.arange(NODES), STEPS))
    each = {k: v.reshape(steps, EACH, *v.shape[2:]) for k, v in BATCHES.items()}
    hyper = {"learning_rate": np.full(steps, RATE), "momentum": np.full(steps, MOMENTUM)}
    events = nodes.Event(jax.tree.map(np.asarray, line.plan), hyper, line.staleness)
    learners = workers.made(partial(decoupled, fragments=2), NODES)
    states, info = ran(learners, events, each)
    meeting = meeting_schedule(STEPS, 6, 2, delay)
    outer = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
    outer = {key: np.full(STEPS, value, np.float32) for key, value in outer.items()}
    streaming = nodes.diloco(nodes.inner(), {"period": 6, "fragments": 2, "delay": delay})
    other, _ = nodes.ran(streaming, nodes.events(meeting._replace(outer=outer), RATE, MOMENTUM))
    ends = slice(NODES - 1, None, NODES)
    found = flattened(states.workers)[ends]
    # All but the last update, after which nodes meet for the log; learners never do.
    np.testing.assert_allclose(found[:-1], flattened(other.params)[:-1], rtol=0, atol=1e-6)
    assert np.abs(np.diff(found, axis=0)).max() > 1e-2
    there_and_back = line.plan.numbers["send"].astype(int) + line.plan.numbers["receive"]
    np.testing.assert_allclose(info["sent_bytes"], there_and_back @ [4 * 12, 4 * 2], rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_ages_are_counted_step_by_step(seed):
    """Own steps since a learner took a merge over, and merges that it has not seen."""
    rng = np.random.default_rng(seed)
    learners, fragments = rng.integers(1, 6), rng.integers(1, 4)
    worker, seconds = rng.integers(0, learners, 300), np.cumsum(rng.exponential(size=300))
    message = rng.uniform(0, 5, (learners, fragments))
    of = syncer_rounds(worker, seconds, message, 4, quorum=rng.integers(1, learners + 1))
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
            if of.send[t, p] and of.into[t, p] != DROPPED:
                sent_into[m] = of.into[t, p]
            made = max(made, of.merge[t, p])
        assert made > 3
