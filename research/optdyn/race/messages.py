"""The messages of a race: pytrees of arrays, in forms that both sides know before.

    the size of what follows, and that as JSON: number of the form, type and shape of each leaf
    the leaves' bytes

Nothing that arrives is run: the receiver makes arrays and puts them into its own structure.
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
    """From the server to a group: compute a message."""

    inputs: Tree  # what the group reads
    numbers: tuple[int, int, int]  # of its batches, as a range


class StateMessage(NamedTuple):
    """From the server to a part: the whole state. A part's answer to `StateRequest`: its state."""

    leaves: dict[str, np.ndarray]


class StateRequest(NamedTuple):
    """From the server to a part: send your state."""


class ApplyGradient(NamedTuple):
    """From the server to a part: make an update by the gradient that the group has sent."""

    event: Event
    group: int


class PrepareRead(NamedTuple):
    """From the server to a part: the group will read this slot, for its batch of that number."""

    slot: int
    group: int
    number: int


class ReadRequest(NamedTuple):
    """From a group to a part: send what `PrepareRead` has prepared for this batch."""

    number: int


class Blocks(NamedTuple):
    """A part's blocks for a group, or a group's gradients of these."""

    params: Params


class Receipt(NamedTuple):
    """From a part: it has the state, or the gradients."""


def forms(*examples: Tree) -> Forms:
    return [jax.tree.structure(example) for example in examples]


def send(line: Connection, known: Forms, message: Tree) -> None:
    leaves, form = jax.tree.flatten(message)
    arrays = [np.asarray(leaf) for leaf in leaves]
    types = [[array.dtype.name, array.shape] for array in arrays]
    header = json.dumps([list(known).index(form), types]).encode()
    header = header.ljust(-(-(SIZE + len(header)) // EVEN) * EVEN - SIZE)
    size = len(header).to_bytes(SIZE, "little")
    buffers = (np.ravel(array).view(np.uint8).data for array in arrays)
    line.send_bytes(b"".join([size, header, *buffers]))


def receive(line: Connection, known: Forms) -> Tree:
    """Returns the next message. Raises `EOFError` or `OSError` if there is none of these forms."""
    data = line.recv_bytes()
    try:
        place = SIZE + int.from_bytes(data[:SIZE], "little")
        form, types = json.loads(data[SIZE:place])
        leaves = []
        for name, shape in types:
            if not name.isidentifier() or min(shape, default=0) < 0 or np.dtype(name).hasobject:
                raise ValueError(name, shape)  # bytes of objects would be addresses
            leaves.append(np.ndarray(shape, np.dtype(name), data, place))
            place += leaves[-1].nbytes
        return known[form].unflatten(leaves)
    except WRONG as error:
        raise ConnectionError("not a message of a race") from error
