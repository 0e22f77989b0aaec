"""Batches as windows of an endless stream, and stratified orders."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from research.data import batches, stratified
from research.data.order import BLOCK

SEEDS = st.integers(0, 2**31)
SIZES = st.integers(1, 40)


@given(SEEDS, SIZES, SIZES, st.booleans(), st.lists(st.integers(0, 60), min_size=2, max_size=2))
def test_a_window_is_the_same_window_of_the_whole(seed, batch_size, examples, replacement, ends):
    start, stop = sorted(ends)
    whole = batches(seed, 0, 60, batch_size, examples, replacement)
    window = batches(seed, start, stop, batch_size, examples, replacement)
    assert window.shape == (stop - start, batch_size)
    np.testing.assert_array_equal(window, whole[start:stop])


def test_a_window_across_blocks_with_replacement():
    whole = batches(3, 0, 5, BLOCK // 2 + 1, 1000, True)
    np.testing.assert_array_equal(batches(3, 1, 4, BLOCK // 2 + 1, 1000, True), whole[1:4])
    assert not np.array_equal(whole.ravel()[:1000], whole.ravel()[BLOCK : BLOCK + 1000])


@given(SEEDS, SIZES, SIZES)
def test_every_epoch_is_a_permutation(seed, batch_size, examples):
    updates = -(-3 * examples // batch_size)
    stream = batches(seed, 0, updates, batch_size, examples).ravel()
    for epoch in stream[: 3 * examples].reshape(3, examples):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(examples))


def test_epochs_and_seeds_differ():
    one, other = batches(0, 0, 2, 100, 100), batches(1, 0, 2, 100, 100)
    assert not np.array_equal(one[0], one[1])
    assert not np.array_equal(one, other)


def test_replacement_draws_uniformly_and_independently():
    drawn = batches(0, 0, 2000, 10, 20, replacement=True)
    # Seeded, so these p-values are fixed; a biased or dependent stream of 20,000 draws has ~0.
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=20)).pvalue > 1e-3
    pairs = np.bincount(20 * drawn[:, 0] + drawn[:, 1], minlength=400)
    assert stats.chisquare(pairs).pvalue > 1e-3


@pytest.mark.parametrize(
    ("start", "stop", "batch_size", "examples"),
    [(2, 1, 4, 4), (-1, 1, 4, 4), (0, 1, 0, 4), (0, 1, 4, 0)],
)
def test_no_such_batches(start, stop, batch_size, examples):
    with pytest.raises(ValueError, match="no batches"):
        batches(0, start, stop, batch_size, examples)


@given(SEEDS, st.lists(st.integers(0, 4), min_size=1, max_size=80))
def test_every_prefix_is_stratified(seed, labels):
    labels = np.array(labels)
    order = stratified(labels, seed)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(labels)))
    cumulative = np.cumsum(labels[order][:, None] == np.arange(5), axis=0)
    sizes = np.arange(1, len(labels) + 1)[:, None]
    share = np.bincount(labels, minlength=5) / len(labels)
    # A class is up to 1/2 off its own even spacing; so are the up to 4 others, which shifts the
    # size of the prefix by 4/2, of which this class has its share. 1e-9: rounding of floats.
    allowed = (1 - share) / 2 + share * 4 / 2 + 1e-9
    assert (np.abs(cumulative - sizes * share) <= allowed).all()
    np.testing.assert_array_equal(order, stratified(labels, seed))
