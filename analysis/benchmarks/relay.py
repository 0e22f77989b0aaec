"""Links that take time: what a node sends arrives at another after a number of seconds.

    python -m analysis.benchmarks.relay 0.002 PID PID ...

It serves kernels without `sch_netem`. The device `node0`, `node1`, ... in the network namespace of
each PID is a tunnel whose other end is here. Large messages come whole, and the receiver's kernel
cuts them into segments. Nothing is dropped. Whoever starts this ends it, and the devices with it.
"""

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence

# linux/if_tun.h: IP packets behind a header that says how a large one is cut.
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x1, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 1, 2
HEADER, LARGEST = 10, 2**16  # bytes of that header, and of a packet
VERSION, ADDRESS = HEADER, HEADER + 19  # where a packet has its version, and the end of its address
IPV4 = 4
TURN = 16  # packets of a node before the next one is looked at
PREFERRED = 2  # before processes that have their core before all others (`shaped.preferred`)
WAITING = 10_000  # packets that wait for this process before any are dropped


def tunnel(name: str) -> int:
    """Returns the other end of a new device of that name. Raises `OSError` without the right to."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(end, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    subprocess.run(f"ip link set {name} txqueuelen {WAITING}".split(), check=True)
    return end


def packets(end: int) -> Iterator[bytes]:
    for _ in range(TURN):
        try:
            packet = os.read(end, HEADER + LARGEST)
        except BlockingIOError:
            return
        if packet[VERSION] >> 4 == IPV4:
            yield packet


def relay(ends: Sequence[int], seconds: float) -> None:
    """Relays packets and does not end. The node of an address is its last number less 1."""
    under_way: deque[tuple[float, bytes]] = deque()
    while True:
        left = max(under_way[0][0] - time.perf_counter(), 0) if under_way else None
        ready, _, _ = select.select(ends, (), (), left)
        due = time.perf_counter() + seconds
        under_way.extend((due, packet) for end in ready for packet in packets(end))
        while under_way and under_way[0][0] <= time.perf_counter():
            packet = under_way.popleft()[1]
            node = packet[ADDRESS] - 1
            if 0 <= node < len(ends):
                os.write(ends[node], packet)


def main(seconds: str, *pids: str) -> None:
    ends = []
    for node, pid in enumerate(pids):
        ends.append(tunnel(f"node{node}"))
        subprocess.run(f"ip link set node{node} netns {pid}".split(), check=True)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PREFERRED))
    print("in", flush=True)
    relay(ends, float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
