"""A part of a server, called by others: what is asked is answered once, whoever dies meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import SimpleNamespace

import numpy as np
import pytest

from optdyn.base.handshake import Listener, connect
from optdyn.race import messages, shards
from optdyn.race.messages import (
    ApplyGradient,
    Blocks,
    PrepareRead,
    ReadRequest,
    Receipt,
    StateMessage,
    StateRequest,
)

KEY, WAIT = b"a secret of this race", 20.0
ONE = {"a": np.float32(0)}
KNOWN = messages.forms(
    ApplyGradient((), 0),
    PrepareRead(0, 0, 0),
    StateRequest(),
    ReadRequest(0),
    Receipt(),
    StateMessage(ONE),
    Blocks(ONE),
)


def test_a_group_that_dies_gets_what_it_was_given_once():
    steps = []
    part = SimpleNamespace(
        read_slot=lambda slot: {"a": np.float32(slot)},
        step=lambda event, grads: steps.append(float(grads["a"])),
        get=lambda: {"a": np.float32(7)},
    )
    with closing(Listener(KEY)) as door, ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        keeping = pool.submit(shards.serve_part, part, door, KNOWN)

        def caller(number):
            line = stack.enter_context(connect(door.address, KEY, number, WAIT))
            return lambda message: messages.send(line, KNOWN, message), line

        def heard(line):
            assert line.poll(WAIT)
            return messages.receive(line, KNOWN)

        tell, command = caller(shards.COMMAND)
        say, line = caller(0)
        say(ReadRequest(3))  # before it is there
        line.close()
        for _ in range(3):  # until the part has seen both
            tell(StateRequest())
            assert heard(command).leaves["a"] == 7
        tell(PrepareRead(5, 0, 3))
        say, line = caller(0)
        assert not line.poll(0.1)  # it has not asked
        say(ReadRequest(3))
        assert heard(line).params["a"] == 5
        say(Blocks({"a": np.float32(1)}))
        assert isinstance(heard(line), Receipt)
        line.close()
        say, line = caller(0)  # and does it again
        say(ReadRequest(3))
        assert heard(line).params["a"] == 5
        say(Blocks({"a": np.float32(2)}))
        assert isinstance(heard(line), Receipt) and not line.poll(0.1)
        tell(ApplyGradient((), 0))
        tell(StateRequest())
        assert heard(command).leaves["a"] == 7 and steps == [2.0]
        command.close()
        keeping.result(WAIT)


def test_a_part_that_is_gone_is_lost():
    with ExitStack() as stack, closing(Listener(KEY)) as door, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(connect, door.address, KEY, shards.COMMAND, WAIT)
        came = []
        while not came:
            came = door.accept()
        server = shards.server_parts([stack.enter_context(calling.result())], KNOWN, ONE)
        came[0][1].close()
        for ask in (server.get, lambda: server.prepare_read(0, 0, 0)):
            with pytest.raises(shards.PartLost):
                ask()
