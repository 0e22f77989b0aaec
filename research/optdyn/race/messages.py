"""What is sent in a race: pytrees of arrays, each of a form that both sides know before.

    the size of what follows, and that as JSON: number of the form, type and shape of each leaf
    the leaves' bytes

So nothing that arrives is run: the receiver makes arrays and puts them into a structure of its own.
"""

import json
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import jax
import numpy as np

from optdyn.base.trees import Params, Tree
from optdyn.core import Event

SIZE = 4  # bytes of the header's size
EVEN = 64  # the leaves begin at a multiple of so many bytes

WRONG = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)

Forms = Sequence[jax.tree_util.PyTreeDef]


class ComputeRequest(NamedTuple):
    """The server to a group: what it is to compute."""

    given: Tree
    numbers: tuple[int, int, int]  # of its batches, as a range


class StateMessage(NamedTuple):
    """The server to a part of it: the whole state. A part's answer to `StateRequest`: its own."""

    leaves: dict[str, np.ndarray]


class ApplyGradient(NamedTuple):
    """The server to a part of it: an update by what the group has sent."""

    event: Event
    group: int


class PrepareRead(NamedTuple):
    """The server to a part of it: what the group is to have that reads this slot, as number so."""

    slot: int
    group: int
    number: int


class StateRequest(NamedTuple):
    """The server to a part of it."""


class ReadRequest(NamedTuple):
    """A group to a part of the server: what it was to be given under this number."""

    number: int


class Blocks(NamedTuple):
    """A part's blocks for a group, or a group's gradients of these."""

    of: Params


class Receipt(NamedTuple):
    """A part of the server to a group: it has the gradients."""


def forms(*examples: Tree) -> Forms:
    """The forms that these have."""
    return [jax.tree.structure(example) for example in examples]


def send(line: Connection, known: Forms, message: Tree) -> None:
    """Sends a message of one of these forms."""
    leaves, form = jax.tree.flatten(message)
    arrays = [np.asarray(leaf) for leaf in leaves]
    about = [[array.dtype.name, array.shape] for array in arrays]
    header = json.dumps([list(known).index(form), about]).encode()
    header = header.ljust(-(-(SIZE + len(header)) // EVEN) * EVEN - SIZE)
    size = len(header).to_bytes(SIZE, "little")
    bytes_of = (np.ravel(array).view(np.uint8).data for array in arrays)
    line.send_bytes(b"".join([size, header, *bytes_of]))


def receive(line: Connection, known: Forms) -> Tree:
    """The next message, of one of these forms. Raises `EOFError` or `OSError` if there is none."""
    data = line.recv_bytes()
    try:
        at = SIZE + int.from_bytes(data[:SIZE], "little")
        form, about = json.loads(data[SIZE:at])
        leaves = []
        for name, shape in about:
            if not name.isidentifier() or min(shape, default=0) < 0 or np.dtype(name).hasobject:
                raise ValueError(name, shape)  # of objects the bytes would be addresses
            leaves.append(np.ndarray(shape, np.dtype(name), data, at))
            at += leaves[-1].nbytes
        return known[form].unflatten(leaves)
    except WRONG as error:
        raise ConnectionError("what came is no message of a race") from error
