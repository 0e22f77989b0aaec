"""Connections between processes that share a key, by a challenge and response in both directions.

    listener   a nonce s
    caller     its number, a nonce c, HMAC(key, "caller", s, number, c)
    listener   HMAC(key, "door", s, number, c)

Before that only a greeting is read, of few connections, within `TIMEOUT` seconds.
"""

import contextlib
import errno
import hmac
import secrets
import socket
import struct
import tempfile
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

TIMEOUT = 10.0  # seconds for a greeting
MOST_PENDING = 32  # connections without a greeting; one more closes the oldest
BACKLOG = 128
ATTEMPTS, PAUSE = 100, 0.1  # of a caller that was dropped, and the seconds between them
NONCE = 32  # bytes, as many as of a digest
HELLO = struct.Struct(f"<i{NONCE}s")  # the caller's number and its nonce
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, and how often

Address = str | tuple[str, int]  # of a file on this machine, or a host and a port


class Pending(NamedTuple):
    socket: socket.socket
    nonce: bytes
    until: float
    received: bytearray


class Listener:
    """Accepts callers with the key, from this machine or, with a `host`, from others.

    Call `accept` when one of `sockets` can be read, and now and then.
    """

    def __init__(self, key: bytes, host: str = ""):
        self._key, self._pending = key, list[Pending]()
        self._folder = None if host else tempfile.TemporaryDirectory(prefix="optdyn-")
        self.address: Address
        if self._folder:  # which no other user can enter
            self.address = f"{self._folder.name}/door"
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self.address)
            self._listener.listen(BACKLOG)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, 0), family=family, backlog=BACKLOG)
            self.address = self._listener.getsockname()[:2]
        self._listener.setblocking(False)

    def sockets(self) -> list[socket.socket]:
        """Returns what `multiprocessing.connection.wait` is to wait for."""
        return [self._listener, *(caller.socket for caller in self._pending)]

    def accept(self) -> list[tuple[int, Connection]]:
        """Returns the numbers and connections of callers that have greeted since; never waits."""
        found, pending, self._pending = list[tuple[int, Connection]](), self._pending, []
        for caller in pending:
            try:
                if _has_greeted(caller, self._key):
                    number = HELLO.unpack_from(caller.received)[0]
                    found.append((number, _connection(caller.socket)))
                else:
                    self._pending.append(caller)
            except OSError:
                caller.socket.close()
        self._accept_socket()
        return found

    def close(self) -> None:
        """Accepts nobody any more. Connections that were accepted stay open."""
        for line in self.sockets():
            line.close()
        if self._folder:
            self._folder.cleanup()

    def _accept_socket(self) -> None:
        try:
            line, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # no more files: pending ones go
                self._drop_pending(0)
                time.sleep(PAUSE)
            return  # or nobody is there, or it died meanwhile
        self._drop_pending(MOST_PENDING - 1)
        line.setblocking(False)
        nonce = secrets.token_bytes(NONCE)
        with contextlib.suppress(OSError):  # it died meanwhile, as it will show
            line.send(nonce)
        self._pending.append(Pending(line, nonce, time.monotonic() + TIMEOUT, bytearray()))

    def _drop_pending(self, most: int) -> None:
        while len(self._pending) > most:
            self._pending.pop(0).socket.close()


def connect(address: Address, key: bytes, number: int, seconds: float | None = None) -> Connection:
    """Returns a connection to the listener at the address, which must know the key.

    It waits `seconds` for an answer, by default as long as the listener is there. Raises `OSError`.
    """
    for left in reversed(range(ATTEMPTS)):
        if isinstance(address, str):
            line = socket.socket(socket.AF_UNIX)
            line.settimeout(seconds)
            line.connect(address)
        else:
            line = socket.create_connection(address, seconds)
        try:
            nonce, hello = _receive(line, NONCE), HELLO.pack(number, secrets.token_bytes(NONCE))
            line.sendall(hello + _digest(key, b"caller", nonce, hello))
            if hmac.compare_digest(_receive(line, NONCE), _digest(key, b"door", nonce, hello)):
                line.settimeout(None)
                return _connection(line)
            raise ConnectionError("a stranger is at that door")
        except OSError as error:
            line.close()
            if not left or not isinstance(error, ConnectionError):
                raise
            time.sleep(PAUSE)
    raise AssertionError


def _has_greeted(caller: Pending, key: bytes) -> bool:
    """Returns whether the greeting is complete. Raises `OSError` if it is wrong or too late."""
    line, nonce, until, received = caller
    size = HELLO.size + NONCE
    try:
        more = line.recv(size - len(received))
    except BlockingIOError:
        more = None
    received += more or b""
    if len(received) < size:
        if more == b"" or time.monotonic() > until:
            raise ConnectionError
        return False
    hello, digest = bytes(received[: HELLO.size]), bytes(received[HELLO.size :])
    if not hmac.compare_digest(digest, _digest(key, b"caller", nonce, hello)):
        raise ConnectionError
    line.setblocking(True)
    line.sendall(_digest(key, b"door", nonce, hello))
    return True


def _digest(key: bytes, role: bytes, nonce: bytes, hello: bytes) -> bytes:
    return hmac.digest(key, role + nonce + hello, "sha256")


def _receive(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = line.recv(size - len(found))
        if not more:
            raise ConnectionError("nobody who knows the key answers there")
        found += more
    return found


def _connection(line: socket.socket) -> Connection:
    """Returns a connection that sends at once and notices a dead machine within a minute."""
    if line.family != socket.AF_UNIX:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):  # not everywhere
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(line.detach())
