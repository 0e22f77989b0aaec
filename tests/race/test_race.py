"""A race, its groups computing in turn in this process; its trace has the same parameters."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pandas as pd
import pytest

from optdyn import core
from optdyn.base.errors import ConfigError
from optdyn.base.files import WorkdirError
from optdyn.base.handshake import Listener, connect
from optdyn.base.workdir_lock import locked
from optdyn.cli import race as launched
from optdyn.clock.timeline import TimelineError, from_arrivals
from optdyn.clock.versions import WAITING
from optdyn.methods.async_local_sgd import AsyncLocalSGD
from optdyn.methods.asynchronous import Asynchronous
from optdyn.methods.buffered import Buffered
from optdyn.methods.local import Local
from optdyn.race import shards
from optdyn.race.race import THREADS, one_core, race, replay_workers, sequential_workers
from optdyn.race.worker import make_compute
from optdyn.train.checkpoints import parameters
from optdyn.train.run import batches_by_number
from optdyn.train.trainer import prepare, train

CHECKPOINT_EVERY = 20


def several(waiting):
    groups = {"method.groups": 4, "method.arrivals": 2}
    return {"method.name": "buffered", "method.waiting": waiting, **groups}


TIMES = ["seconds", "served"]  # of a trace, which no two races share
# Of 5, 5, 2 and 1 local steps: exchanges are in the middle of log points and of checkpoints.
LOCAL = {"method.name": "async_local_sgd", "method.groups": 4, "method.period": 5}
LOCAL |= {"method.momentum_delay": 2, "method.momentum_part": 0.5}
LOCAL |= {"cluster.speeds": (1.0, 1.0, 0.5, 0.25)}
FRESH = {"method.fresh": ("classifier", "hidden1"), "model.hidden": (8, 8)}
FRESH |= {"method.groups": 3, "cluster.nodes": 3}
CLIPPED = {"optimizer.chain": ("optax:clip_by_global_norm",)}
CLIPPED |= {"optimizer.chain_options": {"max_norm": 1.0}}
ELASTIC = {"method.name": "elastic", "method.groups": 4, "method.period": 3}
CASES = {
    "plain": {},
    "one group": {"method.groups": 1},
    "adam": {"optimizer.name": "adam", "data.replacement": True},
    "compensated": {"optimizer.chain": ("delay_compensation",), "optimizer.learning_rate": 0.05},
    "bounded": {"method.staleness_bound": 1},
    "too old are dropped": {"method.name": "ringmaster", "method.groups": 4}
    | {"method.delay_bound": 2},
    "metered": {"probes.momentum": True},
    "buffered, metered": {
        **several("k_batch_async"),
        **{"probes.momentum": True, "optimizer.chain": ("delay_compensation", "staleness_rate")},
    },
    **{waiting: several(waiting) for waiting in WAITING},
    "one arrival, others dropped": {**several("k_sync"), "method.arrivals": 1},
    "local steps": LOCAL,
    "local steps, adam": {**LOCAL, "optimizer.name": "adam"},
    "elastic": ELASTIC,
    "elastic, every step": {**ELASTIC, "method.period": 1},
    "norms and dropout": {
        **{"model.name": "tests.own.nets:make", "data.name": "tests.own.nets:data"},
        **{"batch_size": 12, "optimizer.learning_rate": 0.02},
    },
}
MERGED = {  # halves of gradients arrive in any order; the simulator takes them whole, fresh in part
    "one group": {"method.groups": 1},
    "adam, cosine": {"optimizer.name": "adam", "optimizer.learning_rate": 0.01}
    | {"optimizer.schedule": "cosine"},
    "by staleness, bounded": {"optimizer.chain": ("delay_compensation", "staleness_rate")}
    | {"method.staleness_bound": 1},
    "metered": {"probes.momentum": True},
    "augmented cnn": {"model.name": "cnn", "model.channels": (2, 2), "model.hidden": (5,)}
    | {"method.fresh": ("hidden0", "classifier"), "data.augment": "crop"},
}
BY_BLOCKS = {
    "asynchronous": Asynchronous(groups=3),
    "buffered": Buffered(groups=3, arrivals=2, waiting="k_async"),
    "local steps": AsyncLocalSGD(groups=3, period=5, momentum_delay=2, momentum_part=0.5),
}
NETWORKS = {f"merged, {name}": FRESH | values for name, values in MERGED.items()}
NETWORKS |= {
    f"local, {name}": {"model.hidden": (8, 8), "cluster.nodes": 3, "method": method + Local()}
    for name, method in BY_BLOCKS.items()
}


def by(choose):
    """Of those at work the one that it chooses arrives next."""
    return lambda run: contextlib.nullcontext(sequential_workers(make_compute(run), choose))


def at_random(seed):
    rng = np.random.default_rng(seed)
    return by(lambda working: int(rng.choice(working)))


def vector(workdir):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters(workdir)[1])])


def raced(config, values, workdir, connect):
    values = {"checkpoint_every": 0, **values, "cluster.service.name": "race"}
    summary = race(config(values), workdir, connect)
    return summary, pd.read_csv(workdir / "trace.csv")


def traced(workdir):
    path = str(workdir / "trace.csv")
    return {"cluster.service.name": "trace", "cluster.service.path": path}


def replayed(config, values, workdir):
    """The summary of the simulator's run of the same order; its parameters are the race's."""
    chosen = config({"checkpoint_every": 0, **values, **traced(workdir / "race")})
    summary = train(chosen, workdir / "replay")
    one, other = vector(workdir / "race"), vector(workdir / "replay")
    # One program of both halves rounds otherwise than two: 1e-7 of a number an update.
    assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()
    return summary


@pytest.mark.parametrize("case", [*CASES, *NETWORKS])
def test_the_simulator_replays_it(config, mnist, tmp_path, rows, case):
    values = CASES[case] if case in CASES else mnist | NETWORKS[case]
    summary, trace = raced(config, values, tmp_path / "race", at_random(3))
    assert summary["status"] == "completed" and len(trace) == 60
    again = replayed(config, values, tmp_path)
    assert again["staleness_histogram"] == summary["staleness_histogram"]
    for mine, theirs in zip(rows(tmp_path / "race"), rows(tmp_path / "replay"), strict=True):
        assert mine["step"] == theirs["step"] and mine["staleness_mean"] == theirs["staleness_mean"]
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)  # of 1e-5, above
    if "merged" in case:
        assert trace["control.batch"].is_unique
    if case == "merged, metered":  # and it is not what it would be if those blocks were stale
        one = vector(tmp_path / "race")
        stale = {**values, **traced(tmp_path / "race"), "method.fresh": ()}
        train(config(stale), tmp_path / "stale")
        assert np.abs(one - vector(tmp_path / "stale")).max() > 1e-3 * np.abs(one).max()


def test_a_merged_server_goes_on_where_it_was_saved(config, mnist, tmp_path):
    values = {**mnist, **FRESH}
    whole, trace = raced(config, values, tmp_path / "whole", at_random(23))
    begun = config({**values, "steps": 20, "cluster.service.name": "race"})
    race(begun, tmp_path / "parts", at_random(23))
    rest = replay_workers(messages(trace)[20:])
    parts, again = raced(config, values, tmp_path / "parts", rest)
    assert parts["parameters_crc32"] == whole["parameters_crc32"]
    pd.testing.assert_frame_equal(again.drop(columns=TIMES), trace.drop(columns=TIMES))


def test_the_other_half_waits_for_those_before_it(config, mnist, tmp_path):
    """Groups 0, 1, 2 send activations in turn, and the gradients of their own blocks backwards."""
    turns = iter([0, 1, 2, 2, 1, 0] * 5)
    values = {**mnist, **FRESH, "steps": 12, "log_every": 4, "checkpoint_every": 4}
    _, trace = raced(config, values, tmp_path, by(lambda _: next(turns)))
    assert trace["worker"].tolist() == [0, 1, 2] * 4
    # All read what they made: so at their next turn two others have come.
    assert trace["version"].tolist() == [0, 0, 0, *range(1, 10)]


def test_a_worker_that_died_answers_all_the_same(config, mnist, tmp_path):
    """What it is given the second time is enough for a worker that has never had the first."""

    def forgetful(run):
        rng = np.random.default_rng(21)
        workers = sequential_workers(
            lambda *given: make_compute(run)(*given), lambda working: int(rng.choice(working))
        )
        return contextlib.nullcontext(workers)

    values = {**mnist, **FRESH, "steps": 20}
    one, _ = raced(config, values, tmp_path / "one", at_random(21))
    other, _ = raced(config, values, tmp_path / "other", forgetful)
    assert one["parameters_crc32"] == other["parameters_crc32"]


def in_parts(servers, seed, dying=0.0):
    """As `at_random`, with parts of the server in threads that are called as others would be.

    A group that is `dying` does so, as often, when it has sent what it computed to the first part.
    """

    @contextlib.contextmanager
    def connect_parts(run):
        known, key = shards.forms_of(run, servers), b"a secret of this race"
        with contextlib.ExitStack() as stack:
            doors = [stack.enter_context(contextlib.closing(Listener(key))) for _ in range(servers)]
            pool = stack.enter_context(ThreadPoolExecutor(servers))
            for number, door in enumerate(doors):
                pool.submit(shards.serve_part, shards.Part(run, number, servers), door, known)

            def calls(who):
                return [stack.enter_context(connect(door.address, key, who)) for door in doors]

            rng = np.random.default_rng(seed)
            fate = np.random.default_rng(seed)
            lines = {group: calls(group) for group in range(run.config.methods.groups)}
            last = []

            def choose(working):
                last[:] = [int(rng.choice(working))]
                return last[0]

            def compute(given, numbers):
                (group,) = last
                if fate.random() < dying:
                    lost = shards.compute_with_parts(lines[group], known, run, dies(lines[group]))
                    with pytest.raises(OSError, match="closed"):
                        lost(given, numbers)
                    lines[group] = calls(group)
                return shards.compute_with_parts(lines[group], known, run, make_compute(run))(
                    given, numbers
                )

            def dies(calls_of_group):
                def compute(x, numbers):
                    calls_of_group[-1].close()
                    return jax.tree.map(np.zeros_like, make_compute(run)(x, numbers))

                return compute

            inner = sequential_workers(compute, choose)
            server = shards.server_parts(calls(shards.COMMAND), known, run.program.init(run.params))
            yield shards.via_parts(server, inner)

    return connect_parts


@pytest.mark.parametrize(
    ("case", "servers"),
    [
        (CASES["compensated"], 2),
        ({"method": Asynchronous(groups=4) + Local()}, 3),
        ({"optimizer.name": "adam"}, 3),
    ],
)
def test_a_server_in_parts_makes_the_same_updates(config, mnist, tmp_path, case, servers):
    values = {**mnist, "model.hidden": (8, 8), "cluster.nodes": 4, **case}
    values |= {"cluster.service.name": "race", "optimizer.learning_rate": 0.02}
    whole = race(config(values), tmp_path / "whole", at_random(25))
    dying = in_parts(servers, 25, dying=0.3)
    race(config({**values, "steps": 20}), tmp_path / "parts", dying, servers)
    one, other = (pd.read_csv(tmp_path / name / "trace.csv") for name in ("whole", "parts"))
    pd.testing.assert_frame_equal(*(t[:20].drop(columns=TIMES) for t in (one, other)))
    # It goes on whole, from what the parts have put together.
    again = race(config(values), tmp_path / "parts", replay_workers(one["worker"][20:]))
    one, other = vector(tmp_path / "whole"), vector(tmp_path / "parts")
    assert again["staleness_histogram"] == whole["staleness_histogram"]
    assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()  # two roundings, as above


def test_the_largest_part_is_small():
    params = {name: np.zeros(size) for name, size in zip("abcde", (5, 9, 4, 3, 1), strict=True)}
    assert shards.assign_blocks(params, 2) == [["b", "d"], ["a", "c", "e"]]


def test_every_batch_is_of_one_update_and_of_whom_the_order_says(config, tmp_path):
    """Reader number k has batch k: the first four, and then whoever has just arrived."""
    _, trace = raced(config, {}, tmp_path, at_random(7))
    batch, worker = trace["control.batch"].tolist(), trace["worker"].tolist()
    readers = [0, 1, 2, 3, *worker]
    assert all(readers[k] == group for k, group in zip(batch, worker, strict=True))
    assert len(set(batch)) == 60 and max(batch) < 64
    assert batch != list(range(60))  # or it would be the number of the update
    made = from_arrivals(trace["worker"].to_numpy(), trace["seconds"].to_numpy(), 4)
    np.testing.assert_array_equal(trace["version"], np.arange(60) - made.staleness)


def test_a_bound_holds(config, tmp_path):
    _, trace = raced(config, {"method.staleness_bound": 0}, tmp_path, at_random(9))
    # Everybody waits for everybody: rounds of four, all at the version of the last one.
    np.testing.assert_array_equal(trace["version"], np.arange(60) // 4 * 4)
    assert np.all(np.sort(trace["worker"].to_numpy().reshape(-1, 4)) == np.arange(4))


AGAIN = ("plain", "too old are dropped", *WAITING, "local steps", "elastic")


@pytest.mark.parametrize("case", [*AGAIN, "local steps, adam"])
def test_it_goes_on_where_it_was_saved(config, tmp_path, case):
    values = CASES[case]
    whole, trace = raced(config, values, tmp_path / "whole", at_random(11))
    begun = config({**values, "steps": 20, "cluster.service.name": "race"})
    race(begun, tmp_path / "parts", replay_workers(messages(trace)))
    # A server that died without a checkpoint.
    trace[-1:].to_csv(tmp_path / "parts/trace.csv", mode="a", header=False, index=False)
    rest = replay_workers(messages(trace[20:]))
    parts, again = raced(config, values, tmp_path / "parts", rest)
    assert parts["parameters_crc32"] == whole["parameters_crc32"]
    pd.testing.assert_frame_equal(again.drop(columns=TIMES), trace.drop(columns=TIMES))
    assert again["seconds"].is_monotonic_increasing


@pytest.mark.parametrize("case", AGAIN)
def test_it_waits_where_nobody_arrives(config, tmp_path, case):
    """Longer than the server is patient: what it has until then may be no update at all."""
    whole, trace = raced(config, CASES[case], tmp_path / "whole", at_random(11))
    order = iter(messages(trace))
    turns = itertools.cycle([True, False, False])
    connect = by(lambda _: next(order, None) if next(turns) else None)
    paused, again = raced(config, CASES[case], tmp_path / "paused", connect)
    assert paused["parameters_crc32"] == whole["parameters_crc32"]
    pd.testing.assert_frame_equal(again.drop(columns=TIMES), trace.drop(columns=TIMES))


def messages(trace):
    """Who sent one, in order, as the columns of the trace say."""
    if "control.exchange" in trace:
        return trace["worker"][trace["control.exchange"] == 1].tolist()
    late = trace.filter(like="control.dropped.")
    if late.size:  # they come before whom they have been overtaken by
        pairs = zip(late.to_numpy(), trace["worker"], strict=True)
        return [group for row, w in pairs for group in (*np.flatnonzero(row).tolist(), w)]
    columns = [name for name in trace if name.startswith("control.worker")]
    return trace[columns or ["worker"]].to_numpy().ravel().tolist()


def test_a_batch_is_put_together_of_its_parts():
    """As the simulator cuts it: example i of a batch is of part i mod K."""
    rng = np.random.default_rng(0)
    order = rng.permutation(8 * 12 * 2).reshape(8, 12, 2)  # examples and seeds of eight batches

    def batches(start, stop):
        return order[start:stop]

    for k in (1, 2, 3, 12):
        numbers = np.arange(8 * k).reshape(8, k)
        np.testing.assert_array_equal(batches_by_number(batches, numbers), order)
        some = rng.choice(8 * k, (2, k))
        parts = core.split_parts({"x": batches_by_number(batches, some).swapaxes(0, 1)}, k)
        cut = parts["x"]  # (k, ., 2 batches)
        for (t, j), number in np.ndenumerate(some):
            whose = core.split_parts({"x": order[number // k]}, k)["x"][number % k]
            np.testing.assert_array_equal(cut[j][:, t], whose)


@pytest.mark.parametrize("waiting", WAITING)
def test_who_waits_and_who_is_dropped(config, tmp_path, waiting):
    """Two arrivals an update of four groups, their batches parts of two: each once."""
    _, trace = raced(config, several(waiting), tmp_path, at_random(15))
    workers, parts = (
        trace.filter(like=f"control.{name}.").to_numpy() for name in ("worker", "batch")
    )
    assert workers.shape == parts.shape == (60, 2) and len(np.unique(parts)) == 120
    # Whose gradient is dropped takes another of the same part, so none is left out for good.
    assert parts.max() < 120 + 4
    np.testing.assert_array_equal(trace["worker"], workers[:, -1])
    twice = workers[:, 0] == workers[:, 1]
    assert twice.any() == ("batch" in waiting)
    newest = trace["version"] == np.arange(60)
    assert newest.all() == waiting.endswith("_sync")


def test_local_steps_are_of_their_readers_batches(config, tmp_path):
    """The k-th to read has the next H of them; a worker reads at once when it exchanges."""
    _, trace = raced(config, LOCAL, tmp_path, at_random(17))
    periods, version = (5, 5, 2, 1), 0
    read = [(first, 0) for first in (0, 5, 10, 12)]  # batch and version
    done, unread = [0] * 4, 13
    names = ["worker", "control.batch", "version", "control.exchange"]
    for i, batch, had, exchange in trace[names].itertuples(index=False):
        assert (batch - done[i], had) == read[i]
        done[i] += 1
        assert exchange == (done[i] == periods[i])
        if exchange:
            version += 1
            read[i], done[i], unread = (unread, version), 0, unread + periods[i]
    assert version > 15 and trace["control.batch"].is_unique


def test_no_worker_starts_where_another_race_is(config, tmp_path):
    def connect(run):
        raise AssertionError("started")

    with locked(tmp_path), pytest.raises(WorkdirError, match="is in use by process"):
        race(config({"cluster.service.name": "race"}), tmp_path, connect)


def test_it_does_not_go_on_without_its_trace(config, tmp_path):
    race(config({"steps": 20, "cluster.service.name": "race"}), tmp_path, at_random(1))
    (tmp_path / "trace.csv").unlink()
    with pytest.raises(
        WorkdirError, match=r"not what was saved at update 20: .*trace\.csv \(0 of "
    ):
        raced(config, {}, tmp_path, at_random(1))


def earlier(trace):
    """A version that cannot be."""
    trace.loc[30, "version"] -= 1
    return trace


def assigned(place, worker):
    return lambda trace: trace.assign(**{f"control.worker.{place}": worker})


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        *(
            (case, earlier, r"arrival 30, of worker ., has version")
            for case in ("plain", "k_async", "local steps", "elastic")
        ),
        ("k_async", lambda t: t.drop(columns="control.worker.1"), r"control\.worker\.0 to \.1"),
        (
            "k_async",
            lambda t: t.assign(**{"control.worker.1": 7}),
            r"worker 7, but groups are 0\.\.3",
        ),
        ("k_async", assigned(0, 1), "arrival .: worker . waits"),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(config, tmp_path, case, change, message):
    _, trace = raced(config, CASES[case], tmp_path, at_random(13))
    change(trace).to_csv(tmp_path / "wrong.csv", index=False)
    source = {"cluster.service.name": "trace", "cluster.service.path": str(tmp_path / "wrong.csv")}
    with pytest.raises(TimelineError, match=message):
        prepare(config({**CASES[case], **source}))


@pytest.mark.parametrize(
    ("values", "servers", "message"),
    [
        ({}, 0, "must be from 1 to 3"),
        ({}, 4, "must be from 1 to 3, the blocks of the model"),
        ({"method.fresh": ("classifier",)}, 2, "unless an update is one gradient"),
        ({"probes.momentum": True}, 2, "unless an update is one gradient"),
        (several("k_async"), 2, "unless an update is one gradient"),
        (LOCAL | {"cluster.speeds": ()}, 2, "unless an update is one gradient"),
        (CLIPPED, 2, "by its gradient alone"),
        (FRESH | CLIPPED, 1, "by its gradient alone"),
    ],
)
def test_what_no_server_in_parts_can_do(config, mnist, tmp_path, values, servers, message):
    values = {**mnist, "model.hidden": (8, 8), **values, "cluster.service.name": "race"}
    flag = "" if "method.fresh" in values and servers == 1 else f"--servers={servers}: .*"
    with pytest.raises(ConfigError, match=f"{flag}{message}"):
        race(config(values), tmp_path / "none", in_parts(servers, 0), servers)
    assert not (tmp_path / "none").exists()


def test_a_dry_run_says_what_workers_do_and_starts_none(tmp_path):
    """Of 4 numbers in two messages each: a gradient and a loss, or those that a worker is given."""
    given = ("--config.model.name=quadratic", "--config.model.dimension=4", "--config.steps=50")
    line = [sys.executable, "-m", "launch.race", "--config=configs/quickstart.py", "--dry_run"]
    line += [f"--workdir={tmp_path / 'none'}", "--config.method.groups=4", *given]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    lines = dict(re.split(" {2,}", row, maxsplit=1) for row in done.stdout.splitlines())
    assert lines["parameters"] == lines["it is given"] == "16 bytes"
    assert lines["it sends"] == "20 bytes" and lines["a message"].endswith("all cores, 1 updates")
    # What XLA itself may say of a program that was kept, in jax 0.10.0, is not of ours.
    errors = re.sub(r"^E\d{4} .*cpu_aot_loader.*\n", "", done.stderr, flags=re.M)
    assert not (tmp_path / "none").exists() and not errors


SERVER = """
import os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def note(number, frame):
    (folder / str(int(number))).touch()
    if number != signal.SIGUSR1:
        {ends}
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, note)
(folder / "begun {{}}".format(os.getpid())).touch()
for _ in range(600):
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "ends, number",
    [
        ("sys.exit(128 + number)", signal.SIGHUP),
        ("sys.exit(128 + number)", signal.SIGINT),
        ("signal.signal(number, signal.SIG_DFL), os.kill(os.getpid(), number)", signal.SIGHUP),
        ("os.kill(os.getpid(), signal.SIGKILL)", signal.SIGTERM),  # nor is it started again
    ],
)
def test_the_server_gets_all_signals(tmp_path, monkeypatch, ends, number):
    started = []

    class Started(subprocess.Popen):
        def __init__(self, command, preexec_fn, **given):  # which is not for a process of JAX
            started.append(command)
            program = SERVER.format(ends=ends)
            super().__init__([sys.executable, "-c", program, str(tmp_path)], **given)

    monkeypatch.setattr(subprocess, "Popen", Started)

    def signalled():
        for name, then in ("begun *", signal.SIGUSR1), (str(int(signal.SIGUSR1)), number):
            while not list(tmp_path.glob(name)):
                time.sleep(0.01)
            os.kill(os.getpid(), then)

    thread = threading.Thread(target=signalled, daemon=True)
    thread.start()
    assert launched.supervise([], str(tmp_path)) == 128 + number
    thread.join()
    assert len(started) == 1


def test_nothing_else_takes_a_race(config):
    with pytest.raises(ConfigError, match=r"launch\.race"):
        prepare(config({"cluster.service.name": "race"}))


def cores_of_threads():
    return [os.sched_getaffinity(int(thread.name)) for thread in THREADS.iterdir()]


WITH_THREADS = pytest.mark.skipif(not THREADS.exists(), reason="no threads that can be told cores")


@WITH_THREADS
def test_all_threads_are_on_one_core_and_then_where_they_were():
    begun, end = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (begun.set(), end.wait()))
    before = os.sched_getaffinity(0)
    with one_core():
        other.start()
        begun.wait()
        assert all(cores == {min(before)} for cores in cores_of_threads())
    try:
        assert all(cores == before for cores in cores_of_threads())
    finally:
        end.set()
        other.join()


@WITH_THREADS
def test_an_error_inside_frees_them():
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyError), one_core():
        raise KeyError
    assert os.sched_getaffinity(0) == before
