"""Groups of a race over sockets: one thing at a time, dropped, lost and asked again."""

import itertools
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from threading import Thread

import numpy as np
import pytest

from optdyn.racing.sockets import answer, at_work, door

WAIT = 20.0  # seconds, until what must come has come


@pytest.fixture(params=["", "127.0.0.1"])
def at(request):
    """A door for groups of this machine, and one for those of others."""
    with door(request.param) as opened:
        yield opened


def group(at, number):
    line = Client(at.address, authkey=at.key)
    line.send(number)
    return line


def fine():
    """No group is lost for good."""


def test_of_what_was_dropped_nothing_is_received(at):
    """A group is at one thing at a time; of what it was sent meanwhile it gets the last."""
    workers = at_work(at, 2, fine)
    workers.send(0, "old", range(1))  # before anybody is there
    workers.send(1, "other", range(1, 2))
    one, other = group(at, 0), group(at, 1)
    assert workers.receive(0.5) is None
    assert one.recv() == ("old", range(1)) and other.recv() == ("other", range(1, 2))
    for given in ("newer", "newest"):
        workers.send(0, given, range(1))
    assert workers.receive(0.0) is None and not one.poll()
    one.send("of the old one")
    assert workers.receive(0.1) is None  # it is let go
    assert one.recv() == ("newest", range(1))
    other.send("of the other")
    assert workers.receive(WAIT) == (1, "of the other")
    one.send("of the newest")
    assert workers.receive(WAIT) == (0, "of the newest")


def test_whoever_died_is_asked_the_same_again(at):
    lost = []
    workers = at_work(at, 1, lambda: lost.append(None))
    one = group(at, 0)
    workers.send(0, "x", range(3))
    assert workers.receive(0.5) is None
    lost.clear()
    assert one.recv() == ("x", range(3))
    one.close()
    assert workers.receive(0.2) is None and lost  # it is asked whether the group comes back
    again = group(at, 0)
    assert workers.receive(0.5) is None
    assert again.recv() == ("x", range(3))
    again.send("y")
    assert workers.receive(WAIT) == (0, "y")
    again.close()
    workers.send(0, "z", range(1))  # nobody may have noticed yet
    third = group(at, 0)
    assert workers.receive(0.5) is None
    assert third.recv() == ("z", range(1))


def test_who_does_not_know_the_secret_is_not_let_in(at):
    with pytest.raises((AuthenticationError, EOFError, ConnectionError)):
        Client(at.address, authkey=b"a guess").send(0)
    workers = at_work(at, 1, fine)
    workers.send(0, "x", range(1))
    one = group(at, 0)
    assert workers.receive(0.5) is None
    assert one.recv() == ("x", range(1))


def test_a_stranger_that_says_nothing_keeps_nobody_waiting(at):
    """It is connected first, and never answers the challenge."""
    with Client(at.address):
        workers = at_work(at, 1, fine)
        workers.send(0, "given", range(1))
        line = group(at, 0)
        assert workers.receive(0.5) is None
        assert line.poll(WAIT) and line.recv() == ("given", range(1))


def test_a_group_that_is_lost_for_good_ends_the_race(at):
    def check():
        raise RuntimeError("gone")

    workers = at_work(at, 1, check)
    with pytest.raises(RuntimeError, match="gone"):
        workers.receive(WAIT)


def test_messages_are_what_was_computed_and_groups_end_with_the_server():
    """Three groups, arrays that are larger than what a socket holds."""

    def compute(given, numbers):
        return given + numbers.start

    with door() as at:
        threads = [
            Thread(target=answer, args=(at.address, at.key, w, compute), daemon=True)
            for w in range(3)
        ]
        for thread in threads:
            thread.start()
        workers = at_work(at, 3, fine)
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
