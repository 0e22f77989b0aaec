"""The parameters in fragments, which are exchanged at different times (arXiv 2501.18512)."""

from collections.abc import Sequence
from itertools import pairwise

import jax
import numpy as np

from optdyn.errors import ConfigError
from optdyn.trees import Tree


def cut(tree: Tree, fragments: int) -> tuple[Tree, ...]:
    """The tree once a fragment, with None in place of the leaves of all others.

    A fragment is of leaves that follow one another, one at least. It ends where what is before its
    end is nearest to equal parts, so that none is larger than an equal part and the largest leaf
    together. Raises `ConfigError` where there are fewer leaves than fragments.
    """
    leaves, tree_of = jax.tree.flatten(tree)
    if fragments > len(leaves):
        raise ConfigError(
            f"config.strategy.fragments = {fragments}: must be at most {len(leaves)}, the number "
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
