"""Names for the types of pytrees, whose structure types cannot express, and of JSON; and sizes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    import numpy as np

    Array = jax.Array | np.ndarray  # on a device, or on the host
else:
    Array = Any  # commands that compute nothing start without importing jax

Tree = Any  # a pytree of arrays, or one leaf of it
Params = dict[str, Tree]  # parameters, or values for all of them, by block
Examples = dict[str, Tree]  # arrays by name, whose first axis counts examples
Plan = Tree  # what a timeline decides about updates: a NamedTuple of arrays
Hyper = Mapping[str, Array]  # float32, hyperparameters of an update by name
Json = dict[str, Any]  # an object of JSON: a line of a log, a summary, a result


def examples_in(examples: Examples) -> int:
    """Returns the number of examples: the length of all arrays' first axes."""
    return len(next(iter(examples.values())))


def head(examples: Examples, most: int) -> Examples:
    return {name: leaf[:most] for name, leaf in examples.items()}


def bytes_of(tree: Tree) -> int:
    """Returns the bytes of a pytree's arrays, or of its `ShapeDtypeStruct`s."""
    import jax  # here, for commands that compute nothing start without it

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def numbers_in(tree: Tree) -> int:
    """Returns how many numbers the arrays of a pytree have together."""
    import jax  # here, for commands that compute nothing start without it

    return sum(leaf.size for leaf in jax.tree.leaves(tree))
