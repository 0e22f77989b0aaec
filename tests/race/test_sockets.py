"""Groups of a race over sockets: one thing at a time, dropped, lost and asked again."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Thread

import numpy as np
import pytest

from optdyn.base.handshake import Listener, connect
from optdyn.race import messages
from optdyn.race.messages import ComputeRequest
from optdyn.race.sockets import connected_groups, serve_group
from tests.test_handshake import stranger

WAIT = 20.0  # seconds, until what must come has come
KEY = b"a secret of this race"
KNOWN = messages.forms(ComputeRequest(0, (0, 0, 0)), 0)  # an array each


@pytest.fixture(params=["", "127.0.0.1"])
def door(request):
    """A door for groups of this machine, and one for those of others."""
    with closing(Listener(KEY, request.param)) as opened:
        yield opened


def group(door, workers, number):
    """A group that has greeted, while the server waits for a message and gets none."""
    with ThreadPoolExecutor(1) as pool:
        calling, until = (
            pool.submit(connect, door.address, KEY, number, WAIT),
            time.monotonic() + WAIT,
        )
        while not calling.done() and time.monotonic() < until:
            assert workers.receive(0.01) is None
        assert workers.receive(0.0) is None
        return calling.result()


def said(line, value):
    messages.send(line, KNOWN, np.asarray(value))


def heard(line):
    given, numbers = messages.receive(line, KNOWN)
    return given, range(*map(int, numbers))


def fine():
    """No group is lost for good."""


def test_of_what_was_dropped_nothing_is_received(door):
    """A group is at one thing at a time; of what it was sent meanwhile it gets the last."""
    with connected_groups(door, KNOWN, 2, fine) as workers:
        workers.send(0, 1, range(1))  # before anybody is there
        workers.send(1, 2, range(1, 2))
        one, other = group(door, workers, 0), group(door, workers, 1)
        assert heard(one) == (1, range(1)) and heard(other) == (2, range(1, 2))
        for given in (3, 4):
            workers.send(0, given, range(1))
        assert workers.receive(0.0) is None and not one.poll()
        said(one, 10)
        assert workers.receive(0.1) is None  # it is let go
        assert heard(one) == (4, range(1))
        said(other, 20)
        assert workers.receive(WAIT) == (1, 20)
        said(one, 40)
        assert workers.receive(WAIT) == (0, 40)


def test_whoever_died_is_asked_the_same_again(door):
    lost = []
    with connected_groups(door, KNOWN, 1, lambda: lost.append(None)) as workers:
        one = group(door, workers, 0)
        workers.send(0, 5, range(3))
        lost.clear()
        assert heard(one) == (5, range(3))
        one.close()
        assert workers.receive(0.2) is None and lost  # it is asked whether the group comes back
        again = group(door, workers, 0)
        assert heard(again) == (5, range(3))
        said(again, 50)
        assert workers.receive(WAIT) == (0, 50)
        again.close()
        workers.send(0, 6, range(1))  # nobody may have noticed yet
        assert heard(group(door, workers, 0)) == (6, range(1))


def test_what_is_no_message_is_of_one_who_died(door):
    with connected_groups(door, KNOWN, 1, fine) as workers:
        workers.send(0, 7, range(1))
        one, other = group(door, workers, 0), group(door, workers, 1)
        assert heard(one) == (7, range(1))
        one.send({"a": "pickle"})
        assert workers.receive(0.1) is None
        for line in (one, other):
            with pytest.raises((EOFError, ConnectionError)):
                heard(line)
        assert heard(group(door, workers, 0)) == (7, range(1))


def test_a_stranger_that_says_nothing_keeps_nobody_waiting(door):
    with ExitStack() as stack, connected_groups(door, KNOWN, 1, fine) as workers:
        workers.send(0, 8, range(1))
        for _ in range(100):
            stack.enter_context(stranger(door))
        assert heard(group(door, workers, 0)) == (8, range(1))


def test_strangers_that_come_all_the_time_do_not_stop_the_race(door, monkeypatch):
    """`receive` ends when its time has come though there is always somebody at the door."""
    monkeypatch.setattr(door, "accept", list)
    with connected_groups(door, KNOWN, 1, fine) as workers, stranger(door):
        assert workers.receive(0.1) is None


def test_a_group_that_is_lost_for_good_ends_the_race(door):
    def check():
        raise RuntimeError("gone")

    with (
        connected_groups(door, KNOWN, 1, check) as workers,
        pytest.raises(RuntimeError, match="gone"),
    ):
        workers.receive(WAIT)


def test_messages_are_what_was_computed_and_groups_end_with_the_server():
    """Three groups, arrays that are larger than what a socket holds."""

    def compute(given, numbers):
        return given + numbers.start

    with closing(Listener(KEY)) as door:
        threads = [
            Thread(target=serve_group, args=(door.address, KEY, KNOWN, w, compute), daemon=True)
            for w in range(3)
        ]
        for thread in threads:
            thread.start()
        with connected_groups(door, KNOWN, 3, fine) as workers:
            for w in range(3):
                workers.send(w, np.full(10**6, float(w)), range(10 * w, 10 * w + 1))
            for done in itertools.count(1):
                w, message = workers.receive(WAIT)
                assert message.size == 10**6 and (message == 11.0 * w).all()
                if done == 9:
                    break
                workers.send(w, np.full(10**6, float(w)), range(10 * w, 10 * w + 1))
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
