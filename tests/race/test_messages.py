"""Messages of a race: pytrees of arrays come as they were sent, and nothing that comes is run."""

import json
import pickle
from multiprocessing.connection import Pipe
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.core import Message
from optdyn.race.messages import ComputeRequest, StateRequest, forms, receive, send

LEAVES = {
    "weights": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not in one piece
    "half": np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
    "flag": np.array(True),
    "none": np.zeros((0, 4), np.int32),
    "one": np.float32(0.1),
}
KNOWN = forms(ComputeRequest(LEAVES, (0, 0, 0)), Message(0.0, LEAVES), StateRequest())


def received(data, known=KNOWN):
    here, there = Pipe()
    with here, there:
        here.send_bytes(data)
        return receive(there, known)


def test_a_message_comes_as_it_was_sent():
    here, there = Pipe()
    with here, there:
        for message in (
            ComputeRequest(LEAVES, (3, 5, 1)),
            Message(np.float32(2), LEAVES),
            StateRequest(),
        ):
            send(here, KNOWN, message)
            came = receive(there, KNOWN)
            assert type(came) is type(message)
            for one, other in zip(jax.tree.leaves(message), jax.tree.leaves(came), strict=True):
                one = np.asarray(one)
                assert one.dtype == other.dtype and one.shape == other.shape
                assert one.tobytes() == other.tobytes()


def test_a_message_of_another_form_is_not_sent():
    here, there = Pipe()
    with here, there, pytest.raises(ValueError, match="is not in list"):
        send(here, KNOWN, Message(0.0, {}))


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_what_would_run_something_does_not(tmp_path):
    attack = pickle.dumps(Attack(tmp_path / "ran"))
    about = json.dumps([0, [["object", [1]]] * KNOWN[0].num_leaves]).encode()
    for data in (attack, len(about).to_bytes(4, "little") + about + attack + bytes(1000)):
        with pytest.raises(ConnectionError, match="not a message of a race"):
            received(data)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "header",
    [
        *([9, []], [-9, []], ["0", []], [2], 0, None, {}, [2, [["float32", [1]]]]),
        *([0, [["float32", [10**30]]] * 8], [0, [["float32", [-1]]] * 8], [2, 1]),
        *([0, [["(2,", [1]]] * 8], [0, [["V8", [1]]] * 8], [0, [[["f4"], [1]]] * 8]),
    ],
)
def test_a_header_that_holds_no_message(header):
    about = json.dumps(header).encode()
    with pytest.raises(ConnectionError, match="not a message of a race"):
        received(len(about).to_bytes(4, "little") + about + bytes(4))


@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_end_the_connection(data):
    with pytest.raises(ConnectionError):
        received(data)


def test_a_header_of_too_many_brackets():
    about = b"[" * 100_000
    with pytest.raises(ConnectionError):
        received(len(about).to_bytes(4, "little") + about)
