"""Sums over the processes of a job, carried by the hosts while their devices compute.

In a ring of P processes each hands one P-th of its array to the next, adds what it was handed, and
after P - 1 turns has one part whole, which goes round likewise: 2 (P - 1) / P of the array are sent
by each, and all have the same bits.

Why sockets of our own: XLA's all-reduce on the CPU blocks the program beside it, from a second
thread too (two processes over a link of 50 Mb/s: 0.91 to 1.18 times the sum of both). MPI would
have to start the processes, and makes progress only while it is called. Ray is 259 MB.
"""

import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache
from multiprocessing.connection import Connection, wait

import jax
import numpy as np
from jax.experimental import multihost_utils

from optdyn.base.handshake import Listener, connect
from optdyn.base.processes import ProcessError, local_address

LONGEST = 255  # bytes of an address, as text
START = 60.0  # seconds in which the neighbours must have come


Begin = Callable[[Callable[[], np.ndarray]], "Future[np.ndarray]"]


@cache
def process_ring() -> Begin:
    """The ring of all processes; all must call this together the first time.

    `begin(message)` is the sum over the processes of what `message()` is in each, written over it.
    All must begin the same ones in the same order, in which they are carried.
    """
    carrier, count = ThreadPoolExecutor(1, "exchange"), jax.process_count()
    if count == 1:
        return carrier.submit
    right, left = _neighbours(jax.process_index(), count)
    sender = ThreadPoolExecutor(1, "sender")  # all send at once, and would wait for one another

    def hand_on(part: np.ndarray, into: np.ndarray) -> None:
        sending = sender.submit(right.send_bytes, _bytes(part))
        left.recv_bytes_into(_bytes(into))
        sending.result()

    def total(message: Callable[[], np.ndarray]) -> np.ndarray:
        whole = message()
        all_reduce(whole, jax.process_index(), count, hand_on)
        return whole

    return lambda message: carrier.submit(total, message)


def all_reduce(
    whole: np.ndarray, rank: int, count: int, hand_on: Callable[[np.ndarray, np.ndarray], None]
) -> None:
    """Adds the arrays (numbers,) of a ring up, in place.

    `hand_on(part, into)` sends to the next process and receives from the one before.
    """
    parts = np.array_split(whole, count)  # views
    arrived = np.empty_like(parts[0])  # the longest
    for turn in range(count - 1):
        mine, theirs = parts[(rank - turn) % count], parts[(rank - turn - 1) % count]
        hand_on(mine, arrived[: len(theirs)])
        theirs += arrived[: len(theirs)]
    for turn in range(count - 1):
        hand_on(parts[(rank - turn + 1) % count], parts[(rank - turn) % count])


def _bytes(part: np.ndarray) -> memoryview:
    return part.view(np.uint8).data  # not all types that arrays have here are known to a buffer


def _neighbours(rank: int, count: int) -> tuple[Connection, Connection]:
    """Connections to the next process and from the one before, which know this job's key.

    Raises `ProcessError` if they are not there in time.
    """
    fresh = np.frombuffer(secrets.token_bytes(32), np.uint8)
    key = np.asarray(multihost_utils.broadcast_one_to_all(fresh)).tobytes()
    with (
        closing(Listener(key, local_address(os.environ))) as door,
        ThreadPoolExecutor(1) as calling,
    ):
        text = "{}:{}".format(*door.address).encode().ljust(LONGEST)
        every = multihost_utils.process_allgather(np.frombuffer(text, np.uint8))
        host, _, port = every[(rank + 1) % count].tobytes().decode().strip().rpartition(":")
        right = calling.submit(connect, (host, int(port)), key, rank, START)  # as all call at once
        left = neighbour(door, (rank - 1) % count)
        try:
            return right.result(), left
        except OSError as error:
            raise ProcessError(f"the next process is not at {host}:{port} ({error})") from error


def neighbour(door: Listener, number: int, seconds: float = START) -> Connection:
    """The caller with that number. Raises `ProcessError` if it does not come in so many seconds."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        wait(door.sockets(), min(left, 1.0))
        for caller, line in door.accept():
            if caller == number:
                return line
            line.close()
    raise ProcessError(f"process {number} has not called its neighbour in {seconds:g} s")
