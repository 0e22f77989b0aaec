"""A network of one's own for a few processes: each in a namespace, behind a link of a given rate.

Nodes are `node0`, `node1`, ... at 10.77.0.1, 10.77.0.2, ...; each hangs on a bridge by a pair of
virtual Ethernet devices, both ends of which are shaped by `tc`'s token bucket. All of it belongs to
namespaces without names, so it is gone when the processes are, however they end, and no file of the
machine is changed: nodes see an /etc/hosts of their own. To be root is enough, or where the kernel
allows it, to be anybody.
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

from launch.local import bound_to_parent

PORT = 5900  # of the plain transfer
FRAME, PAYLOAD = 1514, 1448  # bytes of an Ethernet frame, and of the data in it
BURST = 6e-4  # seconds of its rate that a token bucket lets pass at once
LEAST = 2 * FRAME + 72  # bytes of it
QUEUE = 32 * 2**20  # bytes that wait before any are dropped
LONGEST = 60.0  # seconds until a node that does not answer is given up
NICE = -15  # of a node's session
NAMESPACES = ("unshare", "--net", "--uts", "--mount")


def address(node: int) -> str:
    return f"10.77.0.{node + 1}"


def alone(command: Sequence[str]) -> list[str]:
    """The command in a network namespace of its own. Raises `OSError` where there can be none."""
    for more in ([], ["--map-root-user"]):
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*NAMESPACES, *more, "true"], capture_output=True).returncode == 0:
                return [*NAMESPACES, *more, *command]
    raise OSError("no network namespace can be made here: be root, and have util-linux")


class Network(NamedTuple):
    """Nodes that are there; `pids`: a process in the namespaces of each."""

    pids: tuple[int, ...]

    def at_node(self, node: int, command: Sequence[str]) -> list[str]:
        where = ["-t", str(self.pids[node]), "-n", "-u", "-m", f"--wd={Path.cwd()}"]
        return ["nsenter", *where, *command]

    def shape(self, bits: float) -> None:
        """So many bits a second on every link, in each direction.

        The bridge's end has twice the burst, so that the node's own decides.
        """
        for node in range(len(self.pids)):
            for device, wide in ((f"node{node}", 1), (f"bridge{node}", 2)):
                burst = wide * max(LEAST, BURST * bits / 8)
                line = f"tc qdisc replace dev {device} root tbf rate {bits:.0f}bit limit {QUEUE}"
                command = f"{line} burst {burst:.0f}".split()
                _call(self.at_node(node, command) if wide == 1 else command)


@contextlib.contextmanager
def network(nodes: int) -> Iterator[Network]:
    """So many nodes, in a network namespace that is this process's own (`alone`)."""
    with contextlib.ExitStack() as stack:
        hosts = Path(stack.enter_context(tempfile.TemporaryDirectory()), "hosts")
        names = [f"{address(node)} node{node}\n" for node in range(nodes)]
        hosts.write_text("127.0.0.1 localhost\n" + "".join(names))
        _lines("ip link set lo up", "ip link add bridge type bridge", "ip link set bridge up")
        stack.callback(_lines, "ip link del bridge")
        made = Network(tuple(stack.enter_context(_holder()) for _ in range(nodes)))
        for node, pid in enumerate(made.pids):
            _lines(
                f"ip link add bridge{node} type veth peer name node{node} netns {pid}",
                f"ip link set bridge{node} master bridge up",
            )
            for line in (
                f"hostname node{node}",
                f"mount --bind {hosts} /etc/hosts",
                "ip link set lo up",
                f"ip addr add {address(node)}/24 dev node{node}",
                f"ip link set node{node} up",
            ):
                _call(made.at_node(node, line.split()))
        yield made


@contextlib.contextmanager
def _holder() -> Iterator[int]:
    """A process that only holds a node's namespaces."""
    held = subprocess.Popen(
        [*NAMESPACES, "sh", "-c", "echo in; exec sleep infinity"],
        stdout=subprocess.PIPE,
        preexec_fn=bound_to_parent(),
    )
    with held:
        assert held.stdout
        try:
            held.stdout.readline()
            yield held.pid
        finally:
            held.kill()


def _lines(*lines: str) -> None:
    for line in lines:
        _call(line.split())


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LONGEST)


class Neighbours(NamedTuple):
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


def neighbours(node: int, nodes: int) -> Neighbours:
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
    return Neighbours(right, left)


def preferred(alone: bool) -> None:
    """This process has its core before all others, where that may be asked for.

    Other work on the machine would be stragglers that no clock knows of. Where it is `alone` on its
    core, its threads do not take the core from one another either (`links.md`). Else its session
    comes first: the kernel divides cores by session, so a niceness would say nothing.
    """
    policy, priority = (os.SCHED_FIFO, 1) if alone else (os.SCHED_OTHER, 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def sent_bytes(device: str) -> int:
    """Bytes, with all headers, that this network namespace's device has sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    of = dict(line.split(":") for line in lines if ":" in line)
    return int({name.strip(): counts for name, counts in of.items()}[device].split()[8])


def started(network: Network, command: Sequence[str]) -> list[str]:
    """The command of a job of `launch.local` whose processes are at the nodes, on a core each.

    Cores are shared in turns where there are fewer.
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
