"""A private network for a few processes: each in a namespace, behind a link of a fixed rate.

Nodes `node0`, ... at 10.77.0.1, ... hang on a bridge by pairs of virtual Ethernet devices, both
ends of which `tc`'s token bucket shapes; with a delay `relay.py` replaces the bridge. The
namespaces have no names, so all is gone when the processes are. It takes root, or, without the
relay, a kernel that lets anybody make namespaces.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from optdyn.cli.local import die_with_parent

FRAME, PAYLOAD = 1514, 1448  # bytes of an Ethernet frame, and of the data in it
BURST = 6e-4  # seconds of its rate that a token bucket lets pass at once
LEAST = 2 * FRAME + 72  # bytes of it
QUEUE = 32 * 2**20  # bytes that wait before any are dropped
LONGEST = 60.0  # seconds until a node that does not answer is given up
PORT = 5900  # of plain connections
NICE = -15  # of a node's session
RANDOM = 2**32 - 0x1000 + 56  # linux/filter.h: where a classifier finds a number that is drawn
NAMESPACES = ("unshare", "--net", "--uts", "--mount")


def address(node: int) -> str:
    return f"10.77.0.{node + 1}"


def in_namespace(command: Sequence[str]) -> list[str]:
    """Returns the command in a new network namespace. Raises `OSError` where there can be none."""
    for more in ([], ["--map-root-user"]):
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*NAMESPACES, *more, "true"], capture_output=True).returncode == 0:
                return [*NAMESPACES, *more, *command]
    raise OSError("no network namespace can be made here: be root, and have util-linux")


class Network(NamedTuple):
    """Nodes that exist; `pids`: a process in the namespaces of each."""

    pids: tuple[int, ...]
    has_bridge: bool = True

    def at_node(self, node: int, command: Sequence[str]) -> list[str]:
        where = ["-t", str(self.pids[node]), "-n", "-u", "-m", f"--wd={Path.cwd()}"]
        return ["nsenter", *where, *command]

    def shape(self, bits: float) -> None:
        """Limits all links, in both directions; the node's end decides, as its burst is smaller."""
        for node in range(len(self.pids)):
            for device, wide in ((f"node{node}", 1), (f"bridge{node}", 2))[: 1 + self.has_bridge]:
                burst = wide * max(LEAST, BURST * bits / 8)
                line = f"tc qdisc replace dev {device} root handle 1: tbf rate {bits:.0f}bit"
                command = f"{line} limit {QUEUE} burst {burst:.0f}".split()
                _call(self.at_node(node, command) if wide == 1 else command)

    def lose(self, share: float) -> None:
        """Loses a share of the packets to each node, by independent draws.

        To be called once, on links that are shaped and have a bridge, before any connection is
        made: nodes then send no packet that stands for several.
        """
        rate = f"rate 1gbit quantum {FRAME}"  # which nothing has
        drawn = f"4,32 0 0 {RANDOM},53 0 1 {share * 2**32:.0f},6 0 0 0,6 0 0 {2**32 - 1}"
        for node in range(len(self.pids)):
            _call(self.at_node(node, f"ip link set node{node} gso_max_segs 1".split()))
            _lines(
                f"tc qdisc add dev bridge{node} parent 1:1 handle 2: htb",
                f"tc class add dev bridge{node} parent 2: classid 2:1 htb {rate}",
                f"tc qdisc add dev bridge{node} parent 2:1 pfifo limit 0",
            )
            line = f"tc filter add dev bridge{node} parent 2: bpf bytecode"
            _call([*line.split(), drawn, "flowid", "2:1"])


@contextlib.contextmanager
def network(nodes: int, delay: float = 0.0) -> Iterator[Network]:
    """Makes nodes in this process's network namespace (`in_namespace`).

    A packet from one to the other is under way for `delay` seconds.
    """
    with contextlib.ExitStack() as stack:
        hosts = Path(stack.enter_context(tempfile.TemporaryDirectory()), "hosts")
        names = [f"{address(node)} node{node}\n" for node in range(nodes)]
        hosts.write_text("127.0.0.1 localhost\n" + "".join(names))
        hold = [*NAMESPACES, "sh", "-c", "echo in; exec sleep infinity"]
        network = Network(tuple(stack.enter_context(_held(hold)) for _ in range(nodes)), not delay)
        if delay:
            pids = map(str, network.pids)
            command = [sys.executable, "-m", "analysis.benchmarks.relay", str(delay), *pids]
            stack.enter_context(_held(command))
        else:
            _lines("ip link set lo up", "ip link add bridge type bridge", "ip link set bridge up")
            stack.callback(_lines, "ip link del bridge")
        for node, pid in enumerate(network.pids):
            if network.has_bridge:
                _lines(
                    f"ip link add bridge{node} type veth peer name node{node} netns {pid}",
                    f"ip link set bridge{node} master bridge up",
                )
                stack.callback(_lines, f"ip link del bridge{node}")
            for line in (
                f"hostname node{node}",
                f"mount --bind {hosts} /etc/hosts",
                "ip link set lo up",
                f"ip addr add {address(node)}/24 dev node{node}",
                f"ip link set node{node} up",
            ):
                _call(network.at_node(node, line.split()))
        yield network


@contextlib.contextmanager
def _held(command: Sequence[str]) -> Iterator[int]:
    """Yields the PID of a process that has printed a line, and kills it at the end."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent())
    with process:
        assert process.stdout
        try:
            if not process.stdout.readline():
                raise OSError(f"{' '.join(command)}: ended before it began")
            yield process.pid
        finally:
            process.kill()


def _lines(*lines: str) -> None:
    for line in lines:
        _call(line.split())


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LONGEST)


def preferred(fixed_core: bool) -> None:
    """Gives this process its core before all others, where the kernel allows it.

    With `fixed_core` it is the only one on its core, and its threads do not take the core from one
    another (`links.md`). Else its session comes first, as the kernel divides cores by session.
    """
    policy, priority = (os.SCHED_FIFO, 1) if fixed_core else (os.SCHED_OTHER, 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it may have ended
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def sent_bytes(device: str) -> int:
    """Returns the bytes, with all headers, that this network namespace's device has sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    fields = dict(line.split(":") for line in lines if ":" in line)
    return int({name.strip(): counts for name, counts in fields.items()}[device].split()[8])


def job_command(network: Network, command: Sequence[str]) -> list[str]:
    """Returns the command of a job of `launch.local` with a process at each node.

    Each has a core, which nodes share where there are fewer.
    """
    cores = sorted(os.sched_getaffinity(0))
    proxied = "${no_grpc_proxy:+no_grpc_proxy=" + address(0) + "}"
    enter = "; ".join(
        f'[ "$OPTDYN_PROCESS" = {node} ] && exec '
        + " ".join(network.at_node(node, ["taskset", "-c", str(cores[node % len(cores)])]))
        + f' env OPTDYN_COORDINATOR="$at" JAX_COORDINATOR_BIND_ADDRESS="$at" {proxied} "$@"'
        for node in range(len(network.pids))
    )
    shell = f'at={address(0)}:"${{OPTDYN_COORDINATOR##*:}}"; {enter}; exit 1'
    count = f"--processes={len(network.pids)}"
    return [sys.executable, "-m", "launch.local", count, "--", "sh", "-c", shell, "sh", *command]


class RingNeighbours(NamedTuple):
    right: socket.socket
    left: socket.socket

    def ring(self, size: int) -> float:
        """Returns the seconds in which all nodes at once send `size` bytes to the next one."""
        message, into = bytes(size), bytearray(min(size, 2**20))
        start = time.perf_counter()
        sending = Thread(target=self.right.sendall, args=(message,))
        sending.start()
        while size:
            size -= self.left.recv_into(into, min(size, len(into)))
        sending.join()
        return time.perf_counter() - start

    def turns(self, count: int) -> float:
        """Returns the seconds of a message of one byte, the mean of `count` in a row."""
        start = time.perf_counter()
        for _ in range(count):
            self.right.sendall(b".")
            self.left.recv(1)
        return (time.perf_counter() - start) / count


def neighbours(node: int, nodes: int) -> RingNeighbours:
    """Connects to the neighbours, on all nodes at once. Raises `OSError` if one does not come."""
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
