"""All-reduce over the processes of a job by their hosts, while their devices compute.

In a ring of P processes each sends one P-th of its array to the next and adds what it receives.
After P - 1 rounds it has the sum of one part, which then goes around likewise. It has sockets, as
XLA's all-reduce on the CPU blocks the program beside it, from a second thread too.
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
START = 60.0  # seconds in which the neighbours must have called

Begin = Callable[[Callable[[], np.ndarray]], "Future[np.ndarray]"]


@cache
def process_ring() -> Begin:
    """Returns `begin` of the ring of all processes, which must first call this together.

    `begin(message)` returns the future sum of the processes' `message()`, which is overwritten. All
    must begin the same messages in the same order.
    """
    carrier, count = ThreadPoolExecutor(1, "exchange"), jax.process_count()
    if count == 1:
        return carrier.submit
    right, left = _neighbours(jax.process_index(), count)
    sender = ThreadPoolExecutor(1, "sender")  # all send at once, and would wait for one another

    def swap(part: np.ndarray, into: np.ndarray) -> None:
        sending = sender.submit(right.send_bytes, _bytes(part))
        left.recv_bytes_into(_bytes(into))
        sending.result()

    def total(message: Callable[[], np.ndarray]) -> np.ndarray:
        array = message()
        all_reduce(array, jax.process_index(), count, swap)
        return array

    return lambda message: carrier.submit(total, message)


def all_reduce(
    array: np.ndarray, rank: int, count: int, swap: Callable[[np.ndarray, np.ndarray], None]
) -> None:
    """Adds up the arrays (numbers,) of a ring of `count` processes, in place.

    `swap(part, into)` sends to the next process and receives from the one before.
    """
    parts = np.array_split(array, count)  # views
    received = np.empty_like(parts[0])  # the longest
    for turn in range(count - 1):
        sent, target = parts[(rank - turn) % count], parts[(rank - turn - 1) % count]
        swap(sent, received[: len(target)])
        target += received[: len(target)]
    for turn in range(count - 1):
        swap(parts[(rank - turn + 1) % count], parts[(rank - turn) % count])


def _bytes(part: np.ndarray) -> memoryview:
    return part.view(np.uint8).data  # buffers do not know all types of JAX


def _neighbours(rank: int, count: int) -> tuple[Connection, Connection]:
    """Returns connections to the next process and from the one before. Raises `ProcessError`."""
    fresh = np.frombuffer(secrets.token_bytes(32), np.uint8)
    key = np.asarray(multihost_utils.broadcast_one_to_all(fresh)).tobytes()
    with (
        closing(Listener(key, local_address(os.environ))) as door,
        ThreadPoolExecutor(1) as calling,
    ):
        text = "{}:{}".format(*door.address).encode().ljust(LONGEST)
        addresses = multihost_utils.process_allgather(np.frombuffer(text, np.uint8))
        host, _, port = addresses[(rank + 1) % count].tobytes().decode().strip().rpartition(":")
        right = calling.submit(connect, (host, int(port)), key, rank, START)  # as all call at once
        left = neighbour(door, (rank - 1) % count)
        try:
            return right.result(), left
        except OSError as error:
            raise ProcessError(f"the next process is not at {host}:{port} ({error})") from error


def neighbour(door: Listener, number: int, seconds: float = START) -> Connection:
    """Returns the caller with that number. Raises `ProcessError` if it does not call in time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        wait(door.sockets(), min(left, 1.0))
        for caller, line in door.accept():
            if caller == number:
                return line
            line.close()
    raise ProcessError(f"process {number} has not called its neighbour in {seconds:g} s")
