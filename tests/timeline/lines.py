"""Timelines held against one another, whatever they decide."""

import jax
import numpy as np
from hypothesis import strategies as st

from optdyn.basics.type_checks import SMALL
from optdyn.timeline.base import at


def numbers(most):
    """Of a config: 0, or of a size that it may have."""
    return st.just(0.0) | st.floats(SMALL, most)


def arrays(line):
    """All but the number of slots."""
    return line._replace(slots=None)


def begins_with(long, short):
    """The longer of two timelines begins with the shorter one, to the bit."""
    steps, both = len(short.seconds), (arrays(long), arrays(short))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:steps], b), *both)


def replica(many, i):
    """One of the replicas of a timeline."""
    return at(arrays(many), i)._replace(slots=many.slots)
