"""SPARTA: the numbers that are drawn; `test_pairs.py` has its equation."""

import jax
import numpy as np

from optdyn.methods.sparse import places


def test_numbers_are_drawn_anew_and_all_as_often():
    """800 draws of 3 of 12: each number 200 times, to 5 standard deviations of 12."""
    draw = jax.jit(jax.vmap(lambda seed: places(seed, 0, 12, 0.25)))
    chosen = np.asarray(draw(np.arange(800)))
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    counts = np.bincount(chosen.ravel(), minlength=12)
    assert np.abs(counts - 200).max() < 60
    other = np.asarray(jax.jit(jax.vmap(lambda seed: places(seed, 1, 12, 0.25)))(np.arange(800)))
    assert (chosen != other).any(axis=1).mean() > 0.9  # another array has others
