"""A large table of versions in a checkpoint: a plain array a leaf, `versions/BLOCK/.../LEAF.npy`.

Orbax holds twice what it writes besides, measured: too much of a table that fills the memory. These
are written from where they lie, and read to where they go.
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
    """Whether the state is one of a table that is not for Orbax."""
    if not isinstance(state, SnapshotState):
        return False
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state.slots)) >= LARGE


def write(checkpoint: Path, slots: Tree) -> None:
    """Writes the table, a file a leaf."""
    for keys, leaf in flatten_dict(slots).items():
        path = checkpoint.joinpath(FOLDER, *keys).with_name(f"{keys[-1]}.npy")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.asarray(leaf))


def read(checkpoint: Path, like: Tree) -> Tree:
    """The table: an array at a time on a device, where the other is, or as it lies on the disk.

    Raises ValueError if it is not of the other's shapes and dtypes.
    """

    def one(keys: tuple[str, ...], other: Tree) -> Tree:
        path = checkpoint.joinpath(FOLDER, *keys).with_name(f"{keys[-1]}.npy")
        leaf = np.load(path, mmap_mode="r")
        if (leaf.shape, leaf.dtype) != (other.shape, other.dtype):
            raise ValueError(f"{'.'.join(keys)} is {leaf.dtype}{list(leaf.shape)}")
        return jnp.array(leaf) if isinstance(other, jax.Array) else leaf

    return unflatten_dict({keys: one(keys, leaf) for keys, leaf in flatten_dict(like).items()})


def mapped(checkpoint: Path) -> Tree:
    """The table as it lies on the disk, of which only what is looked at is read."""
    folder = checkpoint / FOLDER
    found = {path.relative_to(folder).parts: path for path in folder.rglob("*.npy")}
    return unflatten_dict(
        {(*keys[:-1], keys[-1][:-4]): np.load(path, mmap_mode="r") for keys, path in found.items()}
    )
