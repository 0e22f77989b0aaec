"""Groups of a race, each on a socket over which the server sends what to compute.

Whoever starts the groups replaces those that die. A new one connects, and is sent again the request
of the old one.
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
    """Computes messages for the server at that address, as `group`, until it is gone."""
    with contextlib.suppress(EOFError, OSError), connect(address, key, group) as line:
        while True:
            request = receive(line, forms)
            send(line, forms, compute(request.inputs, range(*map(int, request.numbers))))


@contextlib.contextmanager
def connected_groups(
    door: Listener, forms: Forms, groups: int, check: Callable[[], None]
) -> Iterator[Workers]:
    """Yields the groups that connect at the door, each at one request at a time.

    `check` raises if one of them cannot come back. It is called while not all are connected.
    """
    lines = dict[int, Connection]()
    requests = dict[int, ComputeRequest]()  # that groups are working on
    later = dict[int, ComputeRequest]()  # the next ones; the message before is dropped
    ready = deque[Connection]()  # connections with something to read, the oldest first

    def send_request(group: int) -> None:
        if group in lines:
            try:
                send(lines[group], forms, requests[group])
            except OSError:
                lines.pop(group).close()  # it died, and is sent this again when it is back

    def set_to_work(group: int, inputs: Tree, numbers: range) -> None:
        request = ComputeRequest(inputs, (numbers.start, numbers.stop, numbers.step))
        if group in requests:
            later[group] = request
        else:
            requests[group] = request
            send_request(group)

    def add_line(group: int, line: Connection) -> None:
        if not 0 <= group < groups:
            return line.close()
        if group in lines:
            lines[group].close()
        lines[group] = line
        if group in requests:
            send_request(group)

    def receive_from(line: Connection) -> tuple[int, Tree] | None:
        """Returns the group and its message; None if that is dropped or the group is gone."""
        group = next((group for group, other in lines.items() if other is line), None)
        if group is None:
            return None
        try:
            message = receive(lines[group], forms)
        except (EOFError, OSError):
            lines.pop(group).close()
            return None
        del requests[group]
        if group in later:
            requests[group] = later.pop(group)
            send_request(group)
            return None
        return group, message

    def next_message(seconds: float) -> tuple[int, Tree] | None:
        until = time.monotonic() + seconds
        while True:
            if len(lines) < groups:
                check()
            if not ready:
                left = max(until - time.monotonic(), 0.0)
                readable = wait([*door.sockets(), *lines.values()], left)
                ready.extend(line for line in readable if isinstance(line, Connection))
                for group, line in door.accept():
                    add_line(group, line)
            if ready:
                if received := receive_from(ready.popleft()):
                    return received
            elif time.monotonic() >= until:
                return None

    try:
        yield Workers(set_to_work, next_message)
    finally:
        for line in lines.values():
            line.close()
