"""Traces that somebody has changed: whatever a plain reference refuses is refused, in a line.

The reference is written from the methods' rules, in loops, and shares no code with what reads
traces. It is given the text of the cells.
"""

import csv
import itertools
import math
import random

import pytest

from optdyn.base.errors import InputError
from optdyn.clock.versions import replay_order
from tests.clock.recorded import config_of, line_of, record, replayed
from tests.methods import test_battery as battery

GROUPS, STEPS = 4, 24
CELLS = ("-1", "99", "0", "1", "2", "3", "nan", "inf", "x", "", "0.5", "1e-3", "2e9", "1e30")


class Wrong(Exception):
    """What the reference refuses."""


def need(holds):
    if not holds:
        raise Wrong


def numbers(table, column):
    """Of a column, all finite."""
    need(column in table)
    try:
        found = [float(cell) for cell in table[column]]
    except ValueError:
        raise Wrong from None
    need(all(map(math.isfinite, found)))
    return found


def whole(table, column, least, most):
    found = numbers(table, column)
    need(all(x == int(x) and least <= x <= most for x in found))
    return [int(x) for x in found]


def equal(table, column, expected):
    """Where the column is there; numbers of the config are written as float32."""
    if column in table:
        need(len(expected) == len(table[column]))
        pairs = zip(numbers(table, column), expected, strict=True)
        need(all(math.isclose(a, b, rel_tol=1e-6) for a, b in pairs))


def common(table, groups, *allowed):
    seconds = numbers(table, "seconds")
    need(len(seconds) == STEPS and seconds[0] >= 0)
    need(all(a <= b for a, b in itertools.pairwise(seconds)))
    for column in table:
        if column.startswith("control."):
            need(column in allowed)
            numbers(table, column)
    return whole(table, "worker", 0, groups - 1)


def asynchronous(table):
    worker = common(table, GROUPS, "control.batch")
    need(set(worker) == set(range(GROUPS)))
    version, batch, free = [0] * GROUPS, list(range(GROUPS)), GROUPS
    versions, numbers_of = [], []
    for t, w in enumerate(worker):
        versions.append(version[w])
        numbers_of.append(batch[w])
        version[w], batch[w], free = t + 1, free, free + 1
    equal(table, "version", versions)
    equal(table, "control.batch", numbers_of)


def bounded(table, bound=1):
    worker = common(table, GROUPS, "control.batch")
    at_work = {w: (0, w) for w in range(GROUPS)}  # version and batch
    clock, waiting, free = [0] * GROUPS, [], GROUPS
    versions, numbers_of = [], []
    for t, w in enumerate(worker):
        need(w in at_work)
        version, batch = at_work.pop(w)
        versions.append(version)
        numbers_of.append(batch)
        clock[w] += 1
        waiting.append(w)
        for other in [w for w in waiting if clock[w] <= min(clock) + bound]:
            waiting.remove(other)
            at_work[other], free = (t + 1, free), free + 1
    equal(table, "version", versions)
    equal(table, "control.batch", numbers_of)


def ringmaster(table, bound=2):
    names = [f"control.dropped.{group}" for group in range(GROUPS)]
    worker = common(table, GROUPS, "control.batch", *names)
    dropped = [whole(table, name, 0, 1) for name in names]
    at_work, free = {w: (0, w) for w in range(GROUPS)}, GROUPS  # version and batch
    versions, numbers_of = [], []
    for t, w in enumerate(worker):
        for late in (group for group in range(GROUPS) if dropped[group][t]):
            version, batch = at_work[late]
            need(t - version >= bound)
            at_work[late] = t, batch
        version, batch = at_work[w]
        need(t - version < bound)
        versions.append(version)
        numbers_of.append(batch)
        at_work[w], free = (t + 1, free), free + 1
    equal(table, "version", versions)
    equal(table, "control.batch", numbers_of)


def k_async(table, k=2):
    names = [f"control.{name}.{n}" for name in ("worker", "read", "batch") for n in range(k)]
    last = common(table, GROUPS, *names)
    arrived = [whole(table, f"control.worker.{n}", 0, GROUPS - 1) for n in range(k)]
    equal(table, "worker", arrived[-1])
    at_work = {w: (0, 0, w) for w in range(GROUPS)}  # version, slot, batch
    free, seen = GROUPS, []
    for t in range(STEPS):
        had = []
        for n in range(k):
            w = arrived[n][t]
            need(w in at_work)
            had.append(at_work.pop(w))
        slot = next(s for s in range(GROUPS) if s not in {own[1] for own in at_work.values()})
        for n in range(k):
            at_work[arrived[n][t]], free = (t + 1, slot, free), free + 1
        seen.append(had)
    equal(table, "version", [had[-1][0] for had in seen])
    for n in range(k):
        if any(column.startswith("control.read") for column in table):
            need(f"control.read.{n}" in table)
        if any(column.startswith("control.batch") for column in table):
            need(f"control.batch.{n}" in table)
        equal(table, f"control.read.{n}", [had[n][1] for had in seen])
        equal(table, f"control.batch.{n}", [had[n][2] for had in seen])
    return last


def exchanging(worker, period, table):
    """Every `period`-th local step of a worker exchanges; batches are taken up to the next."""
    done, first, free = [0] * GROUPS, [period * w for w in range(GROUPS)], period * GROUPS
    exchange, batch = [], []
    for w in worker:
        batch.append(first[w] + done[w])
        done[w] += 1
        exchange.append(int(done[w] == period))
        if exchange[-1]:
            done[w], first[w], free = 0, free, free + period
    equal(table, "control.exchange", exchange)
    equal(table, "control.batch", batch)
    return exchange


def elastic(table):
    names = "control.batch", "control.exchange", "control.elasticity"
    worker = common(table, GROUPS, *names)
    exchange = exchanging(worker, 3, table)
    equal(table, "control.elasticity", [0.9 / GROUPS] * STEPS)
    equal(table, "version", [sum(exchange[:t]) for t in range(STEPS)])


def async_local_sgd(table):
    names = ("batch", "exchange", "turn", "momentum_part", "rate", "decay", "delay")
    worker = common(table, GROUPS, *(f"control.{name}" for name in names))
    exchange = exchanging(worker, 2, table)
    count = [sum(exchange[: t + 1]) for t in range(STEPS)]
    turn = [e * (n % GROUPS == 0) for e, n in zip(exchange, count, strict=True)]
    equal(table, "control.turn", turn)
    equal(table, "control.momentum_part", turn)
    for name, value in (("rate", 0.7), ("decay", 0.9), ("delay", GROUPS)):
        equal(table, f"control.{name}", [value] * STEPS)
    read, versions = [0] * GROUPS, []
    for t, w in enumerate(worker):
        versions.append(read[w])
        if exchange[t]:
            read[w] = count[t]
    equal(table, "version", versions)


def dynamic_batch(table):
    names = [f"control.shares.{n}" for n in range(4)]
    equal(table, "version", common(table, 1, *names))
    each = [whole(table, name, 1, battery.BATCH) for name in names]
    need(all(sum(row) == battery.BATCH for row in zip(*each, strict=True)))


def daso(table):
    """One message at a time, which is received once, before or as the next one is sent."""
    common(table, 1, "control.send", "control.receive", "control.waited")
    send, receive = (whole(table, f"control.{name}", 0, 1) for name in ("send", "receive"))
    waited, flying = whole(table, "control.waited", 0, STEPS), None
    for t in range(STEPS):
        late = receive[t] and waited[t] > 0
        need(receive[t] or waited[t] == 0)
        if late:
            need(flying == t - waited[t])
            flying = None
        if send[t]:
            need(flying is None)
            flying = t
        if receive[t] and not late:
            need(flying == t)
            flying = None


def diloco(table, period=3):
    names = ["control.outer_learning_rate", "control.outer_momentum"]
    names += ["control.send.0", "control.receive.0", "control.waited.0"]
    common(table, 1, *names)
    meets = [int((t + 1) % period == 0 or t + 1 == STEPS) for t in range(STEPS)]
    equal(table, "control.send.0", meets)
    equal(table, "control.receive.0", meets)
    equal(table, "control.waited.0", [0] * STEPS)
    equal(table, "control.outer_learning_rate", [0.7] * STEPS)
    equal(table, "control.outer_momentum", [0.9] * STEPS)


FOUR = {"cluster.nodes": 4, "cluster.devices_per_node": 1, "method.groups": GROUPS}
RACED = {
    "asynchronous": ("asynchronous", {}, asynchronous),
    "bounded": ("asynchronous", {"method.staleness_bound": 1}, bounded),
    "ringmaster": ("ringmaster", {"method.delay_bound": 2}, ringmaster),
    "k_async": ("buffered", {"method.waiting": "k_async", "method.arrivals": 2}, k_async),
    "elastic": ("elastic", {"method.period": 3}, elastic),
    "async_local_sgd": ("async_local_sgd", {"method.period": 2}, async_local_sgd),
}
REAL = {
    "dynamic_batch": ("dynamic_batch", {"cluster.speeds": (1.0, 2.0, 3.0, 4.0)}, dynamic_batch),
    "daso": ("daso", {"method.warmup_epochs": 1, "method.max_batches": 4}, daso),
    "diloco": ("diloco", {"method.period": 3}, diloco),
}


def traced(case, path):
    """The config of a case that replays `path`, with the trace of a race or of a real run there."""
    name, values, reference = (RACED | REAL)[case]
    config = config_of(name, **{"steps": STEPS, **FOUR, **values})
    line = line_of(config)
    if case in RACED:  # as if groups had raced, and had come in the order that is drawn
        worker, config = line.plan.worker, config.with_({"cluster.service.name": "race"})
        blank = line_of(config)
        order = config.methods.read.order(config, config.methods, blank)
        replay_order(order, worker, line.seconds, getattr(line.plan, "dropped", None))
        line = blank
    record(line, path, raced=case in RACED)
    return replayed(config, path), reference


def mutate(rows, rng):
    """Changes the rows, the first of which is the header."""
    header, body = rows[0], rows[1:]
    column, row = rng.randrange(len(header)), rng.randrange(len(body))
    kind = rng.random()
    if kind < 0.55:
        body[row][column] = rng.choice(CELLS)
    elif kind < 0.75:
        try:
            body[row][column] = str(int(float(body[row][column])) + rng.choice((-2, -1, 1, 2)))
        except ValueError:
            body[row][column] = "7"
    elif kind < 0.80:
        for each in rows:
            del each[column]
    elif kind < 0.84:
        header.append(rng.choice(("control.foo", "note", "control.read", "control.worker.9")))
        for each in body:
            each.append("1")
    elif kind < 0.90:
        other = rng.randrange(len(body))
        body[row][column], body[other][column] = body[other][column], body[row][column]
    elif kind < 0.95:
        other = rng.randrange(len(body))
        body[row], body[other] = body[other], body[row]
    elif kind < 0.97:
        del body[row]
    else:
        header[column] += rng.choice((".0", "x", " "))
    return [header, *body]


def table_of(rows):
    header = rows[0]
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(header)}


@pytest.mark.parametrize("case", [*RACED, *REAL])
def test_whatever_a_reference_refuses_is_refused(tmp_path, case):
    """250 changes of each of the traces; and what the reference takes is taken."""
    path = tmp_path / "trace.csv"
    config, reference = traced(case, path)
    original = list(csv.reader(path.open()))
    reference(table_of(original))
    line_of(config)
    rng, kept, wrong = random.Random(case), 0, []
    for _ in range(250):
        rows = mutate([list(row) for row in original], rng)
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        try:
            reference(table_of(rows))
            good = True
        except Wrong:
            good = False
        try:
            line_of(config)
            taken = ""
        except InputError as error:
            taken = str(error)
            assert taken.startswith("trace ") and "\n" not in taken and len(taken) < 400
        if good == bool(taken):
            differs = [(a, b) for a, b in zip(original, rows, strict=False) if a != b][:1]
            wrong.append(f"{differs}: {'refused' if taken else 'taken'} {taken}")
        kept += good
    assert not wrong, "\n".join(wrong)
    assert 0 < kept < 125  # most changes contradict something
