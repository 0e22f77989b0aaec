"""How a ring begins: each process has its neighbours, whoever else calls."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest

from optdyn.base.handshake import Listener, connect
from optdyn.base.processes import ProcessError
from optdyn.devices import ring

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
