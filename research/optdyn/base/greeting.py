"""Sockets between processes that have one key. Whoever does not know it is a stranger.

    door     a nonce s
    caller   its number, a nonce c, HMAC(key, "caller", s, number, c)
    door     HMAC(key, "door", s, number, c)

Of a stranger the bytes of a greeting are read and no more. Strangers are few, and have so long.
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

PATIENCE = 10.0  # seconds that a stranger has
STRANGERS = 32  # at a time; when one more comes, the oldest goes
BACKLOG = 128
TRIES, PAUSE = 100, 0.1  # of a caller that had to go, and the seconds between them
NONCE = 32  # bytes, as many as of a digest
SAID = struct.Struct(f"<i{NONCE}s")  # the caller's number and its nonce
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, and how often

Address = str | tuple[str, int]  # of a file on this machine, or a host and a port


class Stranger(NamedTuple):
    """A connection that has not greeted yet."""

    line: socket.socket
    nonce: bytes
    until: float
    heard: bytearray


class Door:
    """Where callers with the key come in, from this machine alone, or to a `host` from others.

    It acts in `came`, which is to be called when one of `files` can be read, and now and then.
    """

    def __init__(self, key: bytes, host: str = ""):
        self._key, self._strangers = key, list[Stranger]()
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

    def files(self) -> list[socket.socket]:
        """What `multiprocessing.connection.wait` is to wait for."""
        return [self._listener, *(each.line for each in self._strangers)]

    def came(self) -> list[tuple[int, Connection]]:
        """The callers that have greeted since, with their numbers. It does not wait."""
        found, strangers, self._strangers = list[tuple[int, Connection]](), self._strangers, []
        for each in strangers:
            try:
                if _has_greeted(each, self._key):
                    found.append((SAID.unpack_from(each.heard)[0], _connection(each.line)))
                else:
                    self._strangers.append(each)
            except OSError:
                each.line.close()
        self._accept()
        return found

    def close(self) -> None:
        """Nobody comes in any more. Whoever has come stays."""
        for line in self.files():
            line.close()
        if self._folder:
            self._folder.cleanup()

    def _accept(self) -> None:
        try:
            line, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # no more files: those of strangers go
                self._let_go(0)
                time.sleep(PAUSE)
            return  # or nobody is there, or it died meanwhile
        self._let_go(STRANGERS - 1)
        line.setblocking(False)
        nonce = secrets.token_bytes(NONCE)
        with contextlib.suppress(OSError):  # it died meanwhile, as it will show
            line.send(nonce)
        self._strangers.append(Stranger(line, nonce, time.monotonic() + PATIENCE, bytearray()))

    def _let_go(self, most: int) -> None:
        while len(self._strangers) > most:
            self._strangers.pop(0).line.close()


def call(address: Address, key: bytes, number: int, seconds: float | None = None) -> Connection:
    """The connection to the door there, which knows the key.

    It waits `seconds` for an answer, or as long as the door is there. Raises `OSError`.
    """
    for left in reversed(range(TRIES)):
        if isinstance(address, str):
            line = socket.socket(socket.AF_UNIX)
            line.settimeout(seconds)
            line.connect(address)
        else:
            line = socket.create_connection(address, seconds)
        try:
            nonce, said = _exactly(line, NONCE), SAID.pack(number, secrets.token_bytes(NONCE))
            line.sendall(said + _digest(key, b"caller", nonce, said))
            if hmac.compare_digest(_exactly(line, NONCE), _digest(key, b"door", nonce, said)):
                line.settimeout(None)
                return _connection(line)
            raise ConnectionError("a stranger is at that door")
        except OSError as error:
            line.close()
            if not left or not isinstance(error, ConnectionError):
                raise
            time.sleep(PAUSE)
    raise AssertionError


def _has_greeted(stranger: Stranger, key: bytes) -> bool:
    """Whether it has, or else may still do so. Raises `OSError` if it is to go."""
    line, nonce, until, heard = stranger
    whole = SAID.size + NONCE
    try:
        more = line.recv(whole - len(heard))
    except BlockingIOError:
        more = None
    heard += more or b""
    if len(heard) < whole:
        if more == b"" or time.monotonic() > until:
            raise ConnectionError
        return False
    said, digest = bytes(heard[: SAID.size]), bytes(heard[SAID.size :])
    if not hmac.compare_digest(digest, _digest(key, b"caller", nonce, said)):
        raise ConnectionError
    line.setblocking(True)
    line.sendall(_digest(key, b"door", nonce, said))
    return True


def _digest(key: bytes, role: bytes, nonce: bytes, said: bytes) -> bytes:
    return hmac.digest(key, role + nonce + said, "sha256")


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = line.recv(size - len(found))
        if not more:
            raise ConnectionError("nobody who knows the key answers there")
        found += more
    return found


def _connection(line: socket.socket) -> Connection:
    """Its messages do not wait for more of them, and a dead machine is found in a minute."""
    if line.family != socket.AF_UNIX:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):  # not everywhere
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(line.detach())
