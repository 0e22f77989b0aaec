"""What has no class of its own: the types of pytrees and of JSON, and the sizes of pytrees.

A pytree's structure is a value, which no type can say: `Tree` is any. Where there is a NamedTuple
or a dataclass, that is the type, and none of these.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    import numpy as np

    Array = jax.Array | np.ndarray  # on a device, or on the host
else:
    Array = Any  # commands that compute nothing start without importing jax

Tree = Any  # a pytree of arrays, or one leaf of it
Params = dict[str, Tree]  # parameters, or what is like them, by block
Examples = dict[str, Tree]  # arrays by name, whose first axis counts examples
Plan = Tree  # what a timeline decides of updates: a NamedTuple of arrays
Hyper = Mapping[str, Array]  # float32, hyperparameters of an update by name
Json = dict[str, Any]  # an object of JSON: a line of a log, a summary, a result


def examples_in(examples: Examples) -> int:
    """How many examples there are: the length of the first axis, which all arrays have alike."""
    return len(next(iter(examples.values())))


def head(examples: Examples, most: int) -> Examples:
    """The first `most` of the examples, or all of them if there are fewer."""
    return {name: leaf[:most] for name, leaf in examples.items()}


def bytes_of(tree: Tree) -> int:
    """Bytes of all arrays of a pytree, or of the arrays that have such shapes and types."""
    import jax  # here, for commands that compute nothing start without it

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def numbers_in(tree: Tree) -> int:
    """How many numbers the arrays of a pytree have together; of parameters, how many these are."""
    import jax  # here, for commands that compute nothing start without it

    return sum(leaf.size for leaf in jax.tree.leaves(tree))
