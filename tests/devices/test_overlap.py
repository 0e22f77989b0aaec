"""Messages that hosts carry while devices compute: the ring's sums, and what is under way."""

import os
import queue
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.base import processes
from optdyn.base.handshake import Listener, connect
from optdyn.base.processes import ProcessError
from optdyn.devices import overlap, ring
from optdyn.devices.layout import DeviceError
from optdyn.experiment import ConfigError
from optdyn.train import hooks, loop, trainer
from optdyn.train.checkpoints import Checkpoints
from optdyn.train.checks import check
from tests.devices.test_layouts import CLOSE

CHECKPOINT_EVERY = 20

# Sent after 8, 16, ... updates, received after 14, 22, ...: at 20, a checkpoint, one is under way.
# One node, whose own parameters of before are mixed with those it has, so that one device has it.
LATE = {
    "method.name": "model_averaging",
    "method.period": 8,
    "method.delay": 6,
    "method.mixing": 0.5,
    "cluster.nodes": 1,
}
REAL = LATE | {"parallel.api": "overlap"}


@given(st.integers(2, 5), st.integers(1, 23), st.sampled_from(["float32", "bfloat16"]))
@settings(max_examples=40)
def test_a_ring_adds_up_and_sends_what_the_clock_says(count, numbers, dtype):
    """2 (P - 1) / P of the array each, but for parts that are not of one size."""
    rng = np.random.default_rng(numbers)
    numbers_of_all = rng.integers(-8, 9, (count, numbers))  # of small whole numbers sums are exact
    pipes = [queue.SimpleQueue() for _ in range(count)]
    sent = np.zeros(count, int)

    def member(rank):
        def hand_on(part, into):
            sent[rank] += len(part)
            pipes[(rank + 1) % count].put(part.copy())
            into[...] = pipes[rank].get(timeout=10)

        whole = np.asarray(jax.numpy.asarray(numbers_of_all[rank], dtype)).copy()
        ring.all_reduce(whole, rank, count, hand_on)
        return whole

    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(member, range(count)))
    for whole in found:
        np.testing.assert_array_equal(whole.astype(int), numbers_of_all.sum(axis=0))
    assert sent.sum() == 2 * (count - 1) * numbers
    assert np.ptp(sent) <= 2  # each leaves out one part of either half; sizes differ by one


def test_a_send_does_not_wait(config, monkeypatch):
    begun = []

    def begin(message):
        begun.append((future := Future(), message))
        return future

    monkeypatch.setattr(ring, "process_ring", lambda: begin)
    layout, first = program_of(config(REAL), 12)
    running, infos = layout.advance(*first)
    ((future, message),) = begun
    assert not future.done() and np.isfinite(infos["loss"][:12]).all()
    future.set_result(message())
    whole = layout.get(running)
    alone, eight = program_of(config(LATE), 8)
    sent = alone.get(alone.advance(*eight)[0])
    for now, before in zip(leaves(whole.state.in_flight), leaves(sent.state.params), strict=True):
        np.testing.assert_allclose(now, before, **CLOSE)
    assert np.abs(leaves(whole.state.params)[0] - leaves(sent.state.params)[0]).max() > 1e-3
    assert leaves(layout.get(running).state.in_flight)[0].any()  # asked for again


def program_of(chosen, n):
    run = trainer.prepare(chosen)
    return run.program.layout, loop.advance_arguments(run, n)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def saved(workdir, chosen):
    run = trainer.prepare(chosen)
    with Checkpoints(workdir) as checkpoints:
        return checkpoints.restore(run.program.rule.init(run.params))


def test_a_run_resumed_while_a_message_is_under_way_is_the_whole_one(config, tmp_path, monkeypatch):
    whole = trainer.train(config(REAL), tmp_path / "whole")
    clock = hooks._progress
    monkeypatch.setattr(hooks, "_progress", lambda run, step: 1 / (step < 30) and clock(run, step))
    states = []
    for name, values in (("cut", REAL), ("simulated", LATE)):
        with pytest.raises(ZeroDivisionError):
            trainer.train(config(values), tmp_path / name)
        step, state = saved(tmp_path / name, config(values))
        assert step == 20
        states.append(state)
    monkeypatch.undo()
    # What is under way is saved, and where it is in every layout.
    for real, simulated in zip(*map(leaves, states), strict=True):
        np.testing.assert_allclose(real, simulated, **CLOSE)
    state = states[0].state
    assert np.abs(leaves(state.in_flight)[0] - leaves(state.params)[0]).max() > 1e-3
    cut = trainer.train(config(REAL), tmp_path / "cut")
    assert cut["parameters_crc32"] == whole["parameters_crc32"]


def test_the_devices_of_a_node_take_turns():
    rows = [np.array(["a0", "a1", "a2"]), np.array(["b0", "b1", "b2"])]
    assert [list(overlap.senders(rows, turn)) for turn in (0, 1, 5)] == [
        ["a0", "b0"],
        ["a1", "b1"],
        ["a2", "b2"],
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method.name": "sync"}, "'sync' has no nodes that train by themselves"),
        ({"method.name": "gossip"}, "'gossip' exchanges otherwise than by sums"),
        (
            {"method.name": "diloco", "method.compression": "sign"},
            r"'diloco' compresses its messages \(config.method.compression = 'sign'\)",
        ),
        (
            {"method.name": "slowmo", "method.inner_state": "averaged"},
            r"'slowmo' averages its optimizers' states too \(config.method.inner_state",
        ),
    ],
)
def test_what_cannot_leave_the_loop_is_refused_in_one_line(config, values, message):
    with pytest.raises(ConfigError, match=message) as refused:
        check(config({**values, "parallel.api": "overlap"}))
    assert "\n" not in str(refused.value)
    check(config({**values, "parallel.api": "jit"}))


@pytest.mark.parametrize("of", [[[0, 0], [0, 1]], [[1, 1], [1, 1]], [[0, 0], [1, 1], [1, 1]]])
def test_a_process_has_whole_nodes_as_many_as_all_others(of, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    device = np.vectorize(lambda process: SimpleNamespace(process_index=process), otypes=[object])
    with pytest.raises(DeviceError, match="x 2 devices over 2 processes; each must have as many"):
        overlap.local_nodes(SimpleNamespace(devices=device(of)))


def test_the_address_that_others_know():
    assert processes.local_address({"OPTDYN_COORDINATOR": "127.0.0.1:4321"}) == "127.0.0.1"
    assert processes.local_address({}) == os.uname().nodename


# How a ring begins: each process has its neighbours, whoever else calls.


KEY, WAIT = b"k" * 32, 20.0


def test_strangers_in_the_starting_second_hold_nobody_up(monkeypatch):
    """Three processes, as threads. At each a silent stranger is there before its neighbour."""
    count, silent, addresses = 3, ExitStack(), {}
    all_there = threading.Barrier(count)
    rank = threading.local()

    def allgather(text):
        host, _, port = text.tobytes().decode().strip().rpartition(":")
        silent.enter_context(socket.create_connection((host, int(port))))
        addresses[rank.of] = text
        all_there.wait(WAIT)
        return np.stack([addresses[i] for i in range(count)])

    monkeypatch.setenv("OPTDYN_COORDINATOR", "127.0.0.1:1")
    monkeypatch.setattr(ring.multihost_utils, "process_allgather", allgather)
    monkeypatch.setattr(
        ring.multihost_utils, "broadcast_one_to_all", lambda _: np.frombuffer(KEY, np.uint8)
    )

    def begin(number):
        rank.of = number
        return ring._neighbours(number, count)

    with silent, ThreadPoolExecutor(count) as pool:
        lines = list(pool.map(begin, range(count)))
    for number, (right, _) in enumerate(lines):
        right.send_bytes(bytes([number]))
    for number, (_, left) in enumerate(lines):
        assert left.recv_bytes() == bytes([(number - 1) % count])


def test_another_process_is_not_taken_for_the_neighbour():
    with closing(Listener(KEY, "127.0.0.1")) as door, ThreadPoolExecutor(2) as pool:
        other = pool.submit(connect, door.address, KEY, 1, WAIT)
        found = pool.submit(ring.neighbour, door, 2, WAIT)
        assert other.result() and not found.done()
        caller = connect(door.address, KEY, 2, WAIT)
        caller.send_bytes(b"two")
        assert found.result().recv_bytes() == b"two"


def test_a_neighbour_that_does_not_come_is_one_line():
    with (
        closing(Listener(KEY, "127.0.0.1")) as door,
        socket.create_connection(door.address),
        pytest.raises(ProcessError, match=r"process 2 has not called its neighbour in 0\.2 s"),
    ):
        ring.neighbour(door, 2, 0.2)
