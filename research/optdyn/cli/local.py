"""Several processes on this machine, as one JAX job:

    python -m launch.local --processes=4 -- python -m launch.train --config=FILE --workdir=DIR

Starts the command that many times and prints the lines of the processes after their numbers.
Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 go to all of them, and a second Ctrl-C or SIGTERM kills them. If
one fails, the others are ended, and its last lines are printed last. The exit code is 0, or that of
the first process that failed (128 + the signal's number, if a signal ended it).
"""

import contextlib
import ctypes
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Lock, Thread
from typing import IO, NamedTuple

from absl import app, flags

from optdyn.base import signals
from optdyn.base.errors import fail
from optdyn.cli.app import parse_flags

GRACE = 5.0  # seconds from SIGTERM to SIGKILL
PAUSE = 0.1  # seconds that a wait lasts at most; a signal that came just before it is handled after
DRAIN = 2.0  # seconds to wait for output whose writer is gone
LAST_LINES = 20  # lines of standard error repeated for the process that failed
STDOUT, STDERR = 1, 2


class Child(NamedTuple):
    """A process, leader of a process group, and its last lines on standard error."""

    rank: int
    process: subprocess.Popen[bytes]
    errors: deque[bytes]

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def code(self) -> int:
        """Returns the exit code of a shell: 128 + the signal's number if a signal ended it."""
        code = self.process.wait()
        return code if code >= 0 else 128 - code


Event = int | Child  # a signal that came, or a process that ended


def run(command: Sequence[str], processes: int, devices: int | None = None) -> int:
    """Runs `command` in so many processes until all have ended; returns the exit code for all.

    `devices` of a process are GPUs, by default one, or virtual ones on the CPU. Handles signals.
    Raises `OSError` if the command cannot be started.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    signals.take(lambda number, _: events.put(number), *signals.ENDING, *signals.SAVING)
    children: list[Child] = []
    threads: list[Thread] = []
    output = Lock()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # which is free now
    try:
        for rank in range(processes):
            process = subprocess.Popen(
                command,
                env=environment(os.environ, rank, processes, port, devices),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
            children.append(Child(rank, process, deque(maxlen=LAST_LINES)))
        for child in children:
            threads += _start_threads(child, events, output)
        stopped, failed = _watch(children, events)
    finally:
        for child in children:
            if child.process.poll() is None:
                child.send(signal.SIGKILL)
        for child in children:
            child.process.wait()
        deadline = time.monotonic() + DRAIN
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    if failed:
        with contextlib.suppress(OSError):
            code = failed.process.returncode
            how = f"exit code {code}"
            if code < 0:
                how = f"signal {-code} ({signal.strsignal(-code)})"
            how += ":" if failed.errors else " and wrote nothing to standard error"
            line = f"process {failed.rank} ended with {how}".encode()
            _write(STDERR, b"\n".join([line, *failed.errors, b""]))
        return failed.code()
    return 128 + stopped if any(child.code() for child in children) else 0


def environment(
    base: Mapping[str, str], rank: int, processes: int, port: int, devices: int | None = None
) -> dict[str, str]:
    """Returns the environment of process `rank`: `base`, and what `base/processes.py` reads."""
    address, count = f"127.0.0.1:{port}", devices or 1
    # A thread a device, for all may wait in a collective at once; threads beyond the cores take
    # time from others by watching for work.
    threads, first = str(max(count, cores() // processes)), rank * count
    env = {
        "PYTHONUNBUFFERED": "1",  # a line is forwarded when it is printed
        "NPROC": threads,  # XLA's thread pool on the CPU
        "OMP_NUM_THREADS": threads,
        "JAX_LOCAL_DEVICE_IDS": ",".join(str(first + i) for i in range(count)),  # GPUs
        **base,
        "OPTDYN_COORDINATOR": address,
        "OPTDYN_PROCESSES": str(processes),
        "OPTDYN_PROCESS": str(rank),
        "JAX_COORDINATOR_BIND_ADDRESS": address,  # by default it listens to the whole network
    }
    if any("_proxy" in name.lower() for name in base):
        env["no_grpc_proxy"] = "127.0.0.1"  # or processes would look for others beyond the proxy
    if devices:
        flag = f"--xla_force_host_platform_device_count={devices}"
        env["XLA_FLAGS"] = f"{base.get('XLA_FLAGS', '')} {flag}".strip()
    return env


def die_with_parent() -> Callable[[], None] | None:
    """Returns a `preexec_fn` with which the kernel kills the new process if this one is killed."""
    if sys.platform != "linux":
        return None
    prctl, parent, set_death_signal = ctypes.CDLL(None).prctl, os.getpid(), 1

    def bind() -> None:
        prctl(set_death_signal, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)

    return bind


def _start_threads(child: Child, events: queue.SimpleQueue[Event], output: Lock) -> list[Thread]:
    process, prefix = child.process, f"[{child.rank}] ".encode()

    def forward(source: IO[bytes], target: int, last: deque[bytes]) -> None:
        with source:
            for line in source:
                last.append(prefix + line.removesuffix(b"\n"))
                try:
                    with output:
                        _write(target, last[-1] + b"\n")
                except OSError:  # nobody reads any more
                    if target == STDOUT:
                        return  # so that the process's next write fails, too

    def wait() -> None:
        process.wait()
        child.send(signal.SIGKILL)  # to processes that it left behind
        events.put(child)

    assert process.stdout and process.stderr
    threads = [
        Thread(target=forward, args=(process.stdout, STDOUT, deque(maxlen=1)), daemon=True),
        Thread(target=forward, args=(process.stderr, STDERR, child.errors), daemon=True),
        Thread(target=wait, daemon=True),
    ]
    for thread in threads:
        thread.start()
    return threads


def _write(target: int, data: bytes) -> None:
    # Unbuffered, for Python could not end while a thread waits in a buffer for a sleeping reader.
    while data:
        data = data[os.write(target, data) :]


def _watch(children: Sequence[Child], events: queue.SimpleQueue[Event]) -> tuple[int, Child | None]:
    """Waits until all have ended or must be killed; returns the signal and who failed first."""
    running = list(children)
    stopped = pressed = 0
    failed: Child | None = None
    deadline = math.inf

    def send(number: int) -> None:
        for child in running:
            child.send(number)

    while running:
        try:
            event = events.get(timeout=PAUSE)
        except queue.Empty:
            if time.monotonic() > deadline:
                break
            continue
        if isinstance(event, Child):
            running.remove(event)
            expected = {0, *(128 + number for number in (stopped, pressed) if number)}
            if failed is None and event.code() not in expected:
                failed, deadline = event, time.monotonic() + GRACE
                send(signal.SIGTERM)
        elif event in (signal.SIGINT, signal.SIGTERM):
            if pressed or failed:
                break
            pressed, stopped = event, stopped or event
            send(event)
        else:
            if event == signal.SIGHUP:
                stopped = stopped or event
            send(event)
    return stopped, failed


def cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def main() -> None:
    processes = flags.DEFINE_integer(
        "processes", None, "Number of processes.", lower_bound=1, required=True
    )
    devices = flags.DEFINE_integer(
        "devices_per_process", None, "Virtual CPU devices, or GPUs, a process.", lower_bound=1
    )

    def start(arguments: Sequence[str]) -> int:
        if not arguments[1:]:
            fail("no command; write it after two dashes: --processes=2 -- python -m launch.train")
        try:
            return run(arguments[1:], processes.value, devices.value)
        except OSError as error:
            fail(f"cannot start {arguments[1]}: {error.strerror}")

    app.run(start, flags_parser=parse_flags)


if __name__ == "__main__":
    main()
