"""States of unlike shapes as rows of one array, so that each device of a mesh axis holds a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from optdyn.base.trees import Array, Tree
from optdyn.methods.sync import SyncState


class Form(NamedTuple):
    """What makes a pytree of a vector again."""

    tree: jax.tree_util.PyTreeDef
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(leaf.size for leaf in self.leaves)


class Forms(NamedTuple):
    """The forms of a part of a `SyncState`."""

    params: Form
    opt_state: Form


@partial(
    jax.tree_util.register_dataclass, data_fields=("params", "opt_state"), meta_fields=("forms",)
)
@dataclass(frozen=True)
class Stacked:
    """`SyncState` in parts: row j is part j as a float32 vector, padded with zeros to the longest.

    Integers such as adam's count become floats: exact below 2^24.
    """

    params: Array  # (S, P)
    opt_state: Array  # (S, Q)
    forms: tuple[Forms, ...]


def stack(names: Sequence[Sequence[str]], state: SyncState) -> Stacked:
    """The state as NumPy rows; row j holds the keys `names[j]`."""
    host = jax.device_get(state)
    parts = [SyncState(*({name: tree[name] for name in own} for tree in host)) for own in names]
    forms = tuple(Forms(*map(form_of, part)) for part in parts)

    def rows(trees: Sequence[Tree]) -> np.ndarray:
        length = max(form_of(tree).size for tree in trees)
        return np.stack([ravel(tree, length) for tree in trees])

    params, opt_state = map(rows, zip(*parts, strict=True))
    return Stacked(params, opt_state, forms)


def merge(stacked: Stacked) -> SyncState:
    """The state whole, from NumPy rows."""
    whole = SyncState({}, {})
    rows = zip(stacked.forms, stacked.params, stacked.opt_state, strict=True)
    for own, params, opt_state in rows:
        whole.params.update(unravel(own.params, params))
        whole.opt_state.update(unravel(own.opt_state, opt_state))
    return whole


def form_of(tree: Tree) -> Form:
    """The form of a pytree of arrays, or of their shapes."""
    leaves, treedef = jax.tree.flatten(tree)
    return Form(treedef, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves))


def ravel(tree: Tree, length: int, dtype: DTypeLike = jnp.float32) -> Array:
    """All numbers of the tree, (length,), zeros after the last; NumPy's if all of those are."""
    leaves = jax.tree.leaves(tree)
    numpy: ModuleType = jnp if any(isinstance(leaf, jax.Array) for leaf in leaves) else np
    flat = [leaf.reshape(-1).astype(dtype) for leaf in leaves]
    return numpy.concatenate([*flat, numpy.zeros(length - sum(map(len, flat)), dtype)])


def unravel(form: Form, flat: Array) -> Tree:
    """The tree that `flat`, (at least form.size,), begins with: of NumPy arrays if that is one."""
    numpy: ModuleType = jnp if isinstance(flat, jax.Array) else np
    # A split's transpose is one concatenation; that of slices would be a sum of padded vectors.
    parts = numpy.split(flat, np.cumsum([leaf.size for leaf in form.leaves]))
    leaves = [
        part.reshape(leaf.shape).astype(leaf.dtype)
        for part, leaf in zip(parts, form.leaves, strict=False)  # the rest is padding
    ]
    return jax.tree.unflatten(form.tree, leaves)
