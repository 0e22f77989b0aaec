"""Messages of a race over a socket a group, where one server keeps all parameters.

    server   sends what the group is given and the numbers of its batches
    group    sends its message

A call of Ray with 200 kB each way takes several times as long as that. Ray starts the groups and
replaces those that die. A new one connects, and is sent again what the old one was at.
"""

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    Pipe,
    answer_challenge,
    deliver_challenge,
    wait,
)
from queue import SimpleQueue
from typing import Any, NamedTuple

from optdyn.basics.trees import Tree
from optdyn.racing.worker import Compute, Workers

KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, and how often


class Door(NamedTuple):
    """Where groups of a race connect."""

    address: Any  # of a file on this machine, or (host, port)
    key: bytes  # a secret that whoever connects must know
    came: SimpleQueue[tuple[int, Connection]]  # groups that have connected
    bell: Connection  # it has something to read for each of them


def answer(address: Any, key: bytes, group: int, compute: Compute) -> None:
    """A group's side: it answers until the server is gone."""
    with contextlib.suppress(EOFError, ConnectionError), Client(address, authkey=key) as line:
        _at_once(line)
        line.send(group)
        while True:
            given, numbers = line.recv()
            line.send(compute(given, numbers))


@contextlib.contextmanager
def door(host: str = "") -> Iterator[Door]:
    """Inside, groups can connect, from this machine alone, or to this `host` from others.

    Their connections end with it.
    """
    key, came, (bell, ring) = os.urandom(32), SimpleQueue[tuple[int, Connection]](), Pipe(False)
    lines, ringing, closing = list[Connection](), threading.Lock(), threading.Lock()
    listener = Listener((host, 0) if host else None, backlog=128)

    def greet(line: Connection) -> None:
        """Each side shows the other that it knows the key, in a thread: strangers may be silent."""
        try:
            deliver_challenge(line, key)
            answer_challenge(line, key)
            _at_once(line)
            came.put((line.recv(), line))
            with ringing:
                ring.send(None)
        except (AuthenticationError, EOFError, OSError):  # a stranger, or it died meanwhile
            with closing:  # two that close one line at once close its number twice
                line.close()

    def accept() -> None:
        while True:
            try:
                lines.append(line := listener.accept())
            except ConnectionError:
                continue  # it died meanwhile
            except OSError:
                return  # the door is closed
            threading.Thread(target=greet, args=(line,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield Door(listener.address, key, came, bell)
    finally:
        listener.close()
        with closing:
            for line in lines:
                line.close()


def at_work(at: Door, groups: int, check: Callable[[], None]) -> Workers:
    """So many groups that connect there, each at one thing at a time.

    `check` raises if one of them cannot come back. It is called while not all are connected.
    """
    lines = dict[int, Connection]()
    asked = dict[int, tuple[Tree, range]]()  # what a group is at
    later = dict[int, tuple[Tree, range]]()  # what it is to do then; what it is at is dropped
    ready = deque[Any]()  # connections with something to read, the oldest first

    def ask(group: int) -> None:
        if group in lines:
            try:
                lines[group].send(asked[group])
            except OSError:
                lines.pop(group).close()  # it died, and is asked again when it is back

    def send(group: int, given: Tree, numbers: range) -> None:
        if group in asked:
            later[group] = given, numbers
        else:
            asked[group] = given, numbers
            ask(group)

    def connected() -> None:
        at.bell.recv()
        group, line = at.came.get()
        if group in lines:
            lines[group].close()
        lines[group] = line
        if group in asked:
            ask(group)

    def heard(line: Connection) -> tuple[int, Tree] | None:
        """What a group says, unless it is dropped or the group is gone."""
        group = next((group for group, own in lines.items() if own is line), None)
        if group is None:
            return None
        try:
            message = line.recv()
        except (EOFError, OSError):
            lines.pop(group).close()
            return None
        del asked[group]
        if group in later:
            send(group, *later.pop(group))
            return None
        return group, message

    def receive(seconds: float) -> tuple[int, Tree] | None:
        until = time.monotonic() + seconds
        while True:
            if len(lines) < groups:
                check()
            if not ready:
                ready.extend(wait([at.bell, *lines.values()], max(until - time.monotonic(), 0.0)))
            if not ready:
                return None
            if (one := ready.popleft()) is at.bell:
                connected()
            elif said := heard(one):
                return said

    return Workers(send, receive)


def _at_once(line: Connection) -> None:
    """The end of a message does not wait for more of it, and a dead machine is found in a minute.

    TCP_NODELAY and keepalive.
    """
    with socket.socket(fileno=os.dup(line.fileno())) as own:
        if own.family == socket.AF_UNIX:
            return
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):  # not everywhere
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
