"""Whose examples are whose, where nodes hold unlike ones: shards of the training set.

Node i asks for labels in proportion to q_i ~ Dirichlet(alpha), as in arXiv 1909.06335 (there alpha
times the classes' shares): a small alpha leaves it one or two labels, a large one all alike. All
shards have one size, to one example, so what nodes ask for cannot be had by all to the last: labels
that are in short supply are divided in proportion.
"""

import numpy as np


def sizes(examples: int, nodes: int) -> np.ndarray:
    """(nodes,) int64, equal but for one example; the larger ones first."""
    return examples // nodes + (np.arange(nodes) < examples % nodes)


def contiguous(examples: int, nodes: int) -> tuple[np.ndarray, ...]:
    """The numbers of each node's examples, one stretch after the other."""
    return tuple(np.split(np.arange(examples), np.cumsum(sizes(examples, nodes))[:-1]))


def dirichlet(
    labels: np.ndarray, nodes: int, alpha: float, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """The numbers of each node's examples, ascending; each example is one node's."""
    classes, numbers = np.unique(labels, return_inverse=True)
    mixtures = rng.dirichlet(np.full(len(classes), alpha), nodes)
    counts = divided(mixtures, np.bincount(numbers), sizes(len(labels), nodes))
    shards: list[list[np.ndarray]] = [[] for _ in range(nodes)]
    for label, each in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(numbers == label))
        for own, part in zip(shards, np.split(members, np.cumsum(each)[:-1]), strict=True):
            own.append(part)
    return tuple(np.sort(np.concatenate(own)) for own in shards)


def divided(mixtures: np.ndarray, supply: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(nodes, classes) int64 whose rows sum to `sizes` and whose columns sum to `supply`.

    In rounds: each node asks for what it lacks, by its mixture of what is left; what is asked for
    too often is divided in proportion. Crumbs below one example go to who wants them most, one
    class a node and round. ValueError if the sums are not those of one table.
    """
    if supply.sum() != sizes.sum():
        raise ValueError(f"{supply.sum()} examples for shards of {sizes.sum()}")
    counts = np.zeros(mixtures.shape, np.int64)
    while (lack := sizes - counts.sum(axis=1)).any():
        left = supply - counts.sum(axis=0)
        wanted = mixtures * (left > 0)
        nothing = wanted.sum(axis=1) < 1e-9  # of what is left a node wants any
        wanted[nothing] = left
        asked = lack[:, None] * wanted / wanted.sum(axis=1, keepdims=True)
        many = asked.sum(axis=0)
        given = np.floor(asked * np.minimum(1, left / np.maximum(many, 1e-9))).astype(np.int64)
        if not given.any():
            for node in np.flatnonzero(lack):
                first = np.argmax(np.where(left > 0, wanted[node], -1))
                given[node, first] += 1
                left[first] -= 1
        counts += given
    return counts
