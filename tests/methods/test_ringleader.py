"""Ringleader ASGD: its server in plain Python and float64, and its seconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optdyn.methods.asynchronous import ringleader, rounds
from tests.methods import workers
from tests.methods.nodes import RATE, START, STEPS, P, flattened, gradient
from tests.methods.workers import ALL, CLOSE, MOMENTUM, WORKERS, events_of, line_of, ran

NAME = "ringleader"
orders = given(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), order_of(n))))


def order_of(n):
    """Arrivals in which everybody comes in the end."""
    every = st.lists(st.integers(0, n - 1), min_size=1, max_size=80)
    return every.map(lambda some: np.array([*some, *list(range(n)) * 4], np.int32))


def made(count=WORKERS):
    return workers.made(lambda *pieces: ringleader(*pieces, count), groups=count)


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


@orders
def test_rounds_are_those_of_the_papers_server(case):
    """The same arrivals are applied, each with as many gradients of every group in its table."""
    count, worker = case
    table, number, applied = rounds(worker, count)
    rows = server(worker, count)
    np.testing.assert_array_equal(applied, [row is not None for row in rows])
    latest = np.zeros((2, count), int)
    for t, row in enumerate(rows):
        latest[table[t], worker[t]] = number[t]
        if row is not None:
            np.testing.assert_array_equal(latest[table[t]], [len(row[i]) for i in range(count)])


def test_every_update_equals_the_server_in_float64():
    """Of unlike, memoryless groups: x after every arrival, whether it is applied or not."""
    line = line_of(NAME, **{"cluster.speeds": (1.0, 4.0, 2.0)})
    states, info = ran(made(), events_of(line))
    x, v, history = np.float64(START), np.zeros(P), []
    seen, grads, said = [x] * WORKERS, [], 0
    for t, row in enumerate(server(line.worker, WORKERS)):
        grads.append(gradient(seen[line.worker[t]], t, ALL))
        if row is not None:
            v = MOMENTUM * v + np.mean(
                [np.mean([grads[s] for s, _ in own], axis=0) for own in row.values()], axis=0
            )
            x = x - np.float64(np.float32(RATE)) * v
        seen[line.worker[t]] = x
        history.append(x)
        had = [read for own in row.values() for s, read in own if s == t] if row else []
        assert not had or line.staleness[t] == said - had[0]
        said += row is not None
    found = flattened(states.slots)[np.arange(STEPS), line.worker]
    np.testing.assert_allclose(found, history, **CLOSE)
    assert 0 < said < STEPS and line.plan.numbers["number"].max() > 2
    assert set(info) == {"loss"}


def test_it_takes_the_seconds_of_asynchronous_sgd():
    """Nobody waits: the same arrivals at the same seconds, of which some are no updates."""
    one, other = (line_of(name, update_bytes=100) for name in (NAME, "asynchronous"))
    np.testing.assert_array_equal(one.worker, other.worker)
    np.testing.assert_array_equal(one.seconds, other.seconds)
    assert one.staleness.mean() < other.staleness.mean()
