"""A large table of versions in a checkpoint: a plain array a leaf, `versions/BLOCK/.../LEAF.npy`.

Orbax needs twice the bytes that it writes, measured: too many for a table that fills the memory.
These files are written and read without a copy.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from optdyn.base.trees import Tree
from optdyn.core.snapshots import SnapshotState

FOLDER = "versions"
LARGE = 2**28  # bytes of a table


def has_large(state: Tree) -> bool:
    """Returns whether the state has a table of versions that is too large for Orbax."""
    if not isinstance(state, SnapshotState):
        return False
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state.slots)) >= LARGE


def write(checkpoint: Path, slots: Tree) -> None:
    for keys, leaf in flatten_dict(slots).items():
        path = checkpoint.joinpath(FOLDER, *keys).with_name(f"{keys[-1]}.npy")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.asarray(leaf))


def read(checkpoint: Path, like: Tree) -> Tree:
    """Returns the table, on the device where `like` is, else mapped from the disk.

    Raises ValueError if shapes or dtypes are not those of `like`.
    """

    def one(keys: tuple[str, ...], other: Tree) -> Tree:
        path = checkpoint.joinpath(FOLDER, *keys).with_name(f"{keys[-1]}.npy")
        leaf = np.load(path, mmap_mode="r")
        if (leaf.shape, leaf.dtype) != (other.shape, other.dtype):
            raise ValueError(f"{'.'.join(keys)} is {leaf.dtype}{list(leaf.shape)}")
        return jnp.array(leaf) if isinstance(other, jax.Array) else leaf

    return unflatten_dict({keys: one(keys, leaf) for keys, leaf in flatten_dict(like).items()})


def mapped(checkpoint: Path) -> Tree:
    """Returns the table mapped from the disk; only the rows that are used are read."""
    folder = checkpoint / FOLDER
    found = {path.relative_to(folder).parts: path for path in folder.rglob("*.npy")}
    return unflatten_dict(
        {(*keys[:-1], keys[-1][:-4]): np.load(path, mmap_mode="r") for keys, path in found.items()}
    )
