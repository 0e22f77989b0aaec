"""Plain connections between the nodes of a shaped network, over which nothing is trained."""

import socket
import time
from threading import Thread
from typing import NamedTuple

from analysis.benchmarks.shaped import LONGEST, address

PORT = 5900


class RingNeighbours(NamedTuple):
    """Plain connections of a ring: to the next node, and from the one before."""

    right: socket.socket
    left: socket.socket

    def ring(self, size: int) -> float:
        """Seconds of a message of so many bytes from every node to the next, all at once."""
        message, into = bytes(size), bytearray(min(size, 2**20))
        begun = time.perf_counter()
        sending = Thread(target=self.right.sendall, args=(message,))
        sending.start()
        while size:
            size -= self.left.recv_into(into, min(size, len(into)))
        sending.join()
        return time.perf_counter() - begun

    def turns(self, count: int) -> float:
        """Seconds of a message of one byte, over so many one after the other."""
        begun = time.perf_counter()
        for _ in range(count):
            self.right.sendall(b".")
            self.left.recv(1)
        return (time.perf_counter() - begun) / count


def neighbours(node: int, nodes: int) -> RingNeighbours:
    """To be called on all nodes at once. Raises `OSError` if one does not come."""
    with socket.create_server((address(node), PORT)) as server:
        server.settimeout(LONGEST)
        deadline = time.monotonic() + LONGEST
        while True:
            try:
                right = socket.create_connection((address((node + 1) % nodes), PORT), LONGEST)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        left, _ = server.accept()
    for end in (right, left):
        end.settimeout(2 * LONGEST)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return RingNeighbours(right, left)
