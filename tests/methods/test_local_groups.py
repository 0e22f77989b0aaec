"""Groups of blocks that learn together, and the heads that they need."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.methods.local_losses import VARIANTS, groups, heads
from optdyn.problem import models, problem
from optdyn.problem.models import MLP

WIDTH, CLASSES, K = 5, 4, 3
MODEL = MLP(hidden=(WIDTH,) * K)
TRUNK = [f"hidden{j}" for j in range(K)]
BATCH = {"image": np.zeros((6, WIDTH, 1, 1), np.uint8)}


@given(st.data())
def test_groups_cover_the_blocks_in_order(data):
    blocks = data.draw(st.integers(1, 12))
    window, chunks = data.draw(st.integers(1, blocks)), data.draw(st.integers(1, blocks))
    for variant in VARIANTS:
        made = groups(variant, blocks, window, chunks)
        sizes = [b - a for a, b in made]
        # From the first block to the last, each group further on, no block left between two.
        assert made[0][0] == 0 and made[-1][1] == blocks and min(sizes) > 0
        for (a, b), (c, d) in pairwise(made):
            assert a < c <= b < d
            assert (c == a + 1) if variant == "overlapping" else (c == b)
        expected = {
            "greedy": (blocks, 1),
            "overlapping": (blocks - window + 1, window),
            "chunked": (chunks, -(-blocks // chunks)),
            "backprop": (1, blocks),
        }
        assert (len(made), max(sizes)) == expected[variant]
        assert max(sizes) - min(sizes) <= 1
    # The family meets at its ends.
    assert groups("overlapping", blocks, 1, chunks) == groups("greedy", blocks, window, chunks)
    assert groups("chunked", blocks, window, blocks) == groups("greedy", blocks, window, chunks)
    assert groups("chunked", blocks, window, 1) == groups("backprop", blocks, window, chunks)


@given(st.integers(1, 8), st.integers(1, 8))
def test_heads_are_on_the_blocks_that_end_a_group_before_the_last(blocks, window):
    made = models.make(MODEL.with_(hidden=(WIDTH,) * blocks), CLASSES)
    window = min(window, blocks)
    overlapping = groups("overlapping", blocks, window, 0)
    assert heads(made, overlapping, False) == tuple(
        f"hidden{j}" for j in range(window - 1, blocks - 1)
    )
    assert heads(made, overlapping, True) == ()
    assert heads(made, groups("backprop", blocks, 0, 0), False) == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuch", 3, 1, 1), "'nosuch': one of greedy, overlapping, chunked, backprop"),
        (("greedy", 0, 1, 1), "needs a model with a block before its last"),
        (("overlapping", 3, 4, 1), "window 4: 1 to 3"),
        (("overlapping", 3, 0, 1), "window 0: 1 to 3"),
        (("chunked", 3, 1, 4), "chunks 4: 1 to 3"),
        (("chunked", 3, 1, 0), "chunks 0: 1 to 3"),
    ],
)
def test_groups_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        groups(*arguments)


def test_heads_leave_the_initial_parameters_of_the_model_as_they_are():
    key = jax.random.key(3)
    plain, one, all_heads = (
        problem.make(MODEL, CLASSES, chosen).init(key, BATCH)
        for chosen in ((), ("hidden1",), tuple(TRUNK))
    )
    assert set(all_heads) - set(plain) == {f"{name}_head" for name in TRUNK}
    assert set(one) - set(plain) == {"hidden1_head"}
    for made in (one, all_heads):
        same = {name: made[name] for name in plain}
        jax.tree.map(np.testing.assert_array_equal, same, plain)
    jax.tree.map(np.testing.assert_array_equal, one["hidden1_head"], all_heads["hidden1_head"])
    # And every head starts somewhere of its own.
    kernels = [
        np.asarray(all_heads[name]["Dense_0"]["kernel"])
        for name in (*(f"{name}_head" for name in TRUNK), "classifier")
    ]
    assert len({kernel.tobytes() for kernel in kernels}) == K + 1
    assert {kernel.shape for kernel in kernels} == {(WIDTH, CLASSES)}


@pytest.mark.parametrize("name", ["classifier", "nosuch"])
def test_heads_of_no_trunk_block_are_refused(name):
    with pytest.raises(ValueError, match=f"{name!r}: blocks before the last are hidden0, hidden1"):
        problem.make(MODEL, CLASSES, (name,)).init(jax.random.key(0), BATCH)
