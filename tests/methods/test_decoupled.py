"""Decoupled DiLoCo: against float64 event by event, streaming DiLoCo, and who is in a merge."""

from functools import cache
from heapq import heapify, heappop, heappush
from itertools import count

import jax
import numpy as np
import pytest

from optdyn.methods import ModelInfo
from optdyn.methods.async_local_sgd import DROPPED, ages, decoupled, syncer_rounds
from optdyn.methods.averaging import meeting_schedule
from tests.methods import nodes, workers
from tests.methods.nodes import BATCHES, EACH, NODES, RATE, START, STEPS, P, flattened
from tests.methods.workers import ALL, MOMENTUM, events_of, line_of, ran

LEARNERS, H, ETA, MU = 3, 3, 0.7, 0.9
PARTS = (slice(0, 12), slice(12, 14))  # the numbers of two fragments
made = cache(
    lambda fragments: workers.made(
        lambda gradient, update, learners: decoupled(gradient, update, learners, fragments),
        LEARNERS,
    )
)
NETWORK = ModelInfo(None, nodes.tree(START), None)
UNLIKE = {"method.period": H, "cluster.speeds": (1.0, 0.8, 0.3)}


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


def reference(line, message, fragments, quorum, window):
    """(STEPS, LEARNERS, P) parameters of the learners and (STEPS, P) Theta, in float64."""
    parts = PARTS if fragments == 2 else (slice(0, P),)
    x, theta_m = (np.tile(np.float64(START), (LEARNERS, 1)) for _ in range(2))
    theta, v, velocity = np.float64(START), np.zeros(P), np.zeros((LEARNERS, P))
    since, history, sizes = np.zeros((LEARNERS, fragments), int), [], []
    there = np.tile(message, (LEARNERS, 1))
    each = happenings(line.worker, line.seconds, there, H, 1, quorum, window)
    for what, t, p, letters in each:
        i = line.worker[t]
        if what == "step":
            velocity[i] = MOMENTUM * velocity[i] + nodes.gradient(x[i], t, ALL)
            x[i] = x[i] - np.float64(np.float32(RATE)) * velocity[i]
            since[i] += 1
        elif what == "take":
            x[i, parts[p]] = theta_m[i, parts[p]] = letters[0]["theta"]
            since[i, p] = 0
        elif what == "send":
            letters[0].update(gap=(theta_m[i] - x[i])[parts[p]], w=since[i, p])
        elif what == "merge":
            sizes.append(len(letters))
            delta = sum(own["w"] * own["gap"] for own in letters) / sum(o["w"] for o in letters)
            v[parts[p]] = MU * v[parts[p]] + delta
            theta[parts[p]] -= ETA * (delta + MU * v[parts[p]])
            for letter in letters:
                letter["theta"] = theta[parts[p]].copy()
        history[t:] = [(x.copy(), theta.copy())]
    return *(np.array(leaf) for leaf in zip(*history, strict=True)), sizes


@pytest.mark.parametrize(
    ("fragments", "quorum", "window", "bandwidth"),
    [(1, 2, 0.0, 1e3), (2, 2, 0.5, 1e3), (2, 1, 0.0, 1e3), (1, 3, 0.0, 1e3), (1, 1, 0.0, 16.0)],
)
def test_every_update_equals_the_reference(fragments, quorum, window, bandwidth):
    asked = {"method.fragments": fragments, "method.quorum": quorum, "method.grace": window}
    asked |= {"cluster.bandwidth": bandwidth}  # at 16 a message takes as long as 3.5 local steps
    line = line_of("decoupled", update_bytes=4 * P, network=NETWORK, **UNLIKE, **asked)
    assert (line.plan.numbers["into"] == DROPPED).any() == (bandwidth == 16)
    message = [4 * n / bandwidth for n in ((12, 2) if fragments == 2 else (P,))]
    x, theta, sizes = reference(line, message, fragments, quorum or LEARNERS, window)
    states, info = ran(made(fragments), events_of(line))
    # Parameters of about one in float32: 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), theta, rtol=0, atol=1e-5)
    np.testing.assert_allclose(flattened(states.workers), x, rtol=0, atol=1e-5)
    assert len(sizes) == line.plan.numbers["merges"].sum() >= 2 and min(sizes) >= quorum
    there_and_back = (line.plan.numbers["send"].astype(int) + line.plan.numbers["receive"]) @ (
        4 * P * np.array(message) / sum(message)
    )
    np.testing.assert_allclose(info["sent_bytes"], there_and_back, rtol=1e-6)
    assert np.abs(np.diff(theta, axis=0)).max() > 1e-2


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
    line = line_of("decoupled", steps=steps, network=NETWORK, **config)
    np.testing.assert_array_equal(line.worker, np.tile(np.arange(NODES), STEPS))
    each = {k: v.reshape(steps, EACH, *v.shape[2:]) for k, v in BATCHES.items()}
    hyper = {"learning_rate": np.full(steps, RATE), "momentum": np.full(steps, MOMENTUM)}
    events = nodes.Event(jax.tree.map(np.asarray, line.plan), hyper, line.staleness)
    states, _ = ran(made(2), events, each)
    meeting = meeting_schedule(STEPS, 6, 2, delay)
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
