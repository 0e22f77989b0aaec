"""What nodes exchange by itself: fragments of the parameters, and moments of optimizers."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optdyn.base.errors import ConfigError
from optdyn.base.trees import Tree

Path = tuple[jax.tree_util.DictKey | jax.tree_util.GetAttrKey, ...]  # to a leaf


def cut(tree: Tree, fragments: int) -> tuple[Tree, ...]:
    """The tree once a fragment, with None in place of the leaves of all others.

    A fragment is of leaves that follow one another, one at least. It ends where what is before its
    end is nearest to equal parts, so that none is larger than an equal part and the largest leaf
    together. Raises `ConfigError` where there are fewer leaves than fragments.
    """
    leaves, tree_of = jax.tree.flatten(tree)
    if fragments > len(leaves):
        raise ConfigError(
            f"config.method.fragments = {fragments}: must be at most {len(leaves)}, the number "
            "of arrays that the network's parameters are in"
        )
    filled = np.cumsum([leaf.size for leaf in leaves])
    ends = [0]
    for q in range(1, fragments):
        nearest = 1 + int(np.abs(filled - filled[-1] * q / fragments).argmin())
        ends.append(min(max(nearest, ends[-1] + 1), len(leaves) - fragments + q))
    return tuple(
        jax.tree.unflatten(tree_of, [leaf if a <= i < b else None for i, leaf in enumerate(leaves)])
        for a, b in pairwise([*ends, len(leaves)])
    )


def join(trees: Sequence[Tree]) -> Tree:
    """The tree that was cut in these."""
    return jax.tree.map(
        lambda *own: next(leaf for leaf in own if leaf is not None),
        *trees,
        is_leaf=lambda leaf: leaf is None,
    )


def moments(opt_state: Tree) -> tuple[list[jax.Array], list[jax.Array]]:
    """Floats of an optimizer's state: optax's `nu`, means of squares, are second; others first."""
    leaves = jax.tree_util.tree_leaves_with_path(opt_state)
    floats = [(_is_second(path), leaf) for path, leaf in leaves if _is_float(leaf)]
    first, second = ([leaf for is_second, leaf in floats if is_second == kind] for kind in (0, 1))
    return first, second


def averaged(
    opt_state: Tree, now: tuple[jax.Array, jax.Array], mean: Callable[[Tree], Tree]
) -> Tree:
    """The state with `mean` of its first and second moments, of those whose turn it is `now`."""
    first, second = (
        iter(lax.cond(turn, mean, lambda own: own, own) if own else ())
        for turn, own in zip(now, moments(opt_state), strict=True)
    )

    def of(path: Path, leaf: jax.Array) -> jax.Array:
        if not _is_float(leaf):
            return leaf
        return next(second if _is_second(path) else first)

    return jax.tree_util.tree_map_with_path(of, opt_state)


def _is_second(path: Path) -> bool:
    return any(getattr(key, "name", "") == "nu" for key in path)


def _is_float(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
