"""Groups of a race over a socket each, to which the server sends what they are to compute.

Whoever starts the groups replaces those that die. A new one connects, and is sent again what the
old one was at.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait

from optdyn.base.handshake import Address, Listener, connect
from optdyn.base.trees import Tree
from optdyn.race.messages import ComputeRequest, Forms, receive, send
from optdyn.race.worker import Compute, Workers


def serve_group(address: Address, key: bytes, forms: Forms, group: int, compute: Compute) -> None:
    """A group's side: it answers until the server is gone."""
    with contextlib.suppress(EOFError, OSError), connect(address, key, group) as line:
        while True:
            asked = receive(line, forms)
            send(line, forms, compute(asked.given, range(*map(int, asked.numbers))))


@contextlib.contextmanager
def connected_groups(
    door: Listener, forms: Forms, groups: int, check: Callable[[], None]
) -> Iterator[Workers]:
    """So many groups that connect there, each at one thing at a time; afterwards they are let go.

    `check` raises if one of them cannot come back. It is called while not all are connected.
    """
    lines = dict[int, Connection]()
    asked = dict[int, ComputeRequest]()  # what a group is at
    later = dict[int, ComputeRequest]()  # what it is to do then; what it is at is dropped
    ready = deque[Connection]()  # connections with something to read, the oldest first

    def ask(group: int) -> None:
        if group in lines:
            try:
                send(lines[group], forms, asked[group])
            except OSError:
                lines.pop(group).close()  # it died, and is asked again when it is back

    def set_to_work(group: int, given: Tree, numbers: range) -> None:
        what = ComputeRequest(given, (numbers.start, numbers.stop, numbers.step))
        if group in asked:
            later[group] = what
        else:
            asked[group] = what
            ask(group)

    def connected(group: int, line: Connection) -> None:
        if not 0 <= group < groups:
            return line.close()
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
            message = receive(lines[group], forms)
        except (EOFError, OSError):
            lines.pop(group).close()
            return None
        del asked[group]
        if group in later:
            asked[group] = later.pop(group)
            ask(group)
            return None
        return group, message

    def next_message(seconds: float) -> tuple[int, Tree] | None:
        until = time.monotonic() + seconds
        while True:
            if len(lines) < groups:
                check()
            if not ready:
                left = max(until - time.monotonic(), 0.0)
                some = wait([*door.sockets(), *lines.values()], left)
                ready.extend(line for line in some if isinstance(line, Connection))
                for group, line in door.accept():
                    connected(group, line)
            if ready:
                if said := heard(ready.popleft()):
                    return said
            elif time.monotonic() >= until:
                return None

    try:
        yield Workers(set_to_work, next_message)
    finally:
        for line in lines.values():
            line.close()
