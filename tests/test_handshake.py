"""A door: who has the key comes in, and strangers, silent, slow or many, keep nobody out."""

import contextlib
import os
import resource
import socket
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from optdyn.base import handshake
from optdyn.base.handshake import HELLO, MOST_PENDING, NONCE, Listener, connect

KEY, OTHER = b"k" * 32, b"o" * 32
WAIT = 20.0  # seconds, until what must come has come


@pytest.fixture(params=["", "127.0.0.1"])
def door(request):
    """One for callers of this machine, and one for those of others."""
    with closing(Listener(KEY, request.param)) as opened:
        yield opened


def stranger(door):
    """A connection that says nothing."""
    if not isinstance(door.address, str):
        return socket.create_connection(door.address, WAIT)
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(WAIT)
    line.connect(door.address)
    return line


def is_let_go(line):
    """It is told a nonce, and then nothing more for good."""
    try:
        return line.recv(NONCE) == b"" or line.recv(1) == b""
    except ConnectionError:
        return True


def let_in(door, number, key=KEY):
    """The caller's connection and the door's; None and None if the door lets it go."""
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(connect, door.address, key, number, WAIT)
        while not calling.done():
            wait(door.sockets(), 0.1)
            for came, line in door.accept():
                assert came == number
                return calling.result(), line
        with contextlib.suppress(ConnectionError):
            calling.result()
    return None, None


def test_who_has_the_key_comes_in_and_both_can_talk(door):
    caller, line = let_in(door, 7)
    caller.send_bytes(b"one")
    line.send_bytes(b"other")
    assert line.recv_bytes() == b"one" and caller.recv_bytes() == b"other"


def test_who_has_another_key_does_not(door, monkeypatch):
    monkeypatch.setattr(handshake, "ATTEMPTS", 1)
    assert let_in(door, 0, OTHER) == (None, None)
    assert let_in(door, 0)[0]


def test_a_greeting_that_was_heard_before_is_no_key(door):
    """A stranger repeats what a caller said to another nonce."""
    with stranger(door) as caller, stranger(door) as other:
        for _ in range(2):
            door.accept()
        said = HELLO.pack(1, bytes(NONCE))
        said += handshake._digest(KEY, b"caller", caller.recv(NONCE), said)
        for line in (caller, other):
            line.send(said)
        ((number, mine),) = door.accept()
        assert number == 1 and is_let_go(other)
        mine.close()


def test_a_caller_goes_from_a_door_that_has_not_the_key(monkeypatch):
    monkeypatch.setattr(handshake, "ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(connect, listener.getsockname(), KEY, 0, WAIT)
        line, _ = listener.accept()
        with line:
            line.sendall(bytes(NONCE))
            said = line.recv(1000)
            line.sendall(said[-NONCE:])  # the caller's own digest is not the answer
            with pytest.raises(ConnectionError, match="a stranger is at that door"):
                calling.result()


def test_a_thousand_silent_strangers_keep_nobody_out(door):
    """The oldest go."""
    with ExitStack() as stack:
        lines = []
        for _ in range(1000):
            lines.append(stack.enter_context(stranger(door)))
            door.accept()
            assert len(door.sockets()) <= 1 + MOST_PENDING
            if len(lines) > 100:
                lines.pop(0).close()
        assert is_let_go(lines[0])
        assert let_in(door, 3)[0]


def test_a_greeting_has_its_time_however_slowly_it_comes(door, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(handshake.time, "monotonic", lambda: now)
    with stranger(door) as line:
        for seconds in (0, 0.1, handshake.TIMEOUT - 0.1):
            now += seconds
            line.send(b"x")
            door.accept()
            assert len(door.sockets()) == 2
        now += 1
        line.send(b"x")
        door.accept()
        assert len(door.sockets()) == 1 and is_let_go(line)


@contextlib.contextmanager
def no_more_files():
    """Inside, this process can open no file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 1, limits[1])
    )
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for number in taken:
            os.close(number)


def test_a_door_without_files_goes_on_when_there_are_some(door, monkeypatch):
    monkeypatch.setattr(handshake, "PAUSE", 0.0)
    with stranger(door) as early, stranger(door):
        door.accept()
        with no_more_files():
            assert door.accept() == []
        assert is_let_go(early)  # its file was wanted
        assert let_in(door, 4)[0]


def test_nobody_comes_in_when_it_is_closed(door):
    caller, line = let_in(door, 5)
    with stranger(door) as silent:
        door.accept()
        door.close()
        assert is_let_go(silent)
        with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
            connect(door.address, KEY, 5, WAIT)
    caller.send_bytes(b"who has come stays")
    assert line.recv_bytes()


def test_no_other_user_reaches_the_door_of_one_machine():
    with closing(Listener(KEY)) as door:
        folder = Path(door.address).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()
