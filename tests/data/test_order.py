"""Batches as windows of an endless stream, and stratified orders."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from optdyn.problem.data.arrays import stratified
from optdyn.problem.data.order import BLOCK, EPOCH_RAMP, batches, distance_to_epoch, independent

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


@given(SEEDS, SEEDS, SIZES, SIZES, st.integers(0, 40))
def test_second_batches_are_of_what_the_first_could_still_be(seed, order, batch_size, examples, t):
    """Of what is left of the epoch at update t, or of a later epoch, which is whole."""
    second = independent(seed, order, t, t + 1, batch_size, examples)[0]
    stream = batches(order, 0, t + 1 + -(-2 * examples // batch_size), batch_size, examples).ravel()
    for j, example in enumerate(second):
        epoch = (t * batch_size + j) // examples
        first = max(t * batch_size, epoch * examples)
        assert example in stream[first : (epoch + 1) * examples]
    window = independent(seed, order, max(t - 2, 0), t + 3, batch_size, examples)
    np.testing.assert_array_equal(window[t - max(t - 2, 0)], second)


def test_second_batches_have_the_mean_of_what_is_left():
    own = batches(5, 0, 3, 4, 20)
    left = np.setdiff1d(np.arange(20), own[:2])
    drawn = np.concatenate([independent(seed, 5, 2, 3, 4, 20)[0] for seed in range(3000)])
    counts = np.bincount(drawn, minlength=20)
    assert counts[own[:2].ravel()].sum() == 0
    assert stats.chisquare(counts[left]).pvalue > 1e-4
    anything = independent(0, 5, 0, 500, 8, 20, replacement=True)
    assert stats.chisquare(np.bincount(anything.ravel(), minlength=20)).pvalue > 1e-4


@given(st.integers(0, 30), SIZES, SIZES, st.integers(1, 3))
def test_away_is_0_where_an_epoch_begins_and_rises_from_there(start, batch_size, examples, past):
    stop = start + 40
    epochs = np.arange((stop + EPOCH_RAMP) * batch_size).reshape(-1, batch_size) // examples
    begins = [
        t for t in range(stop + EPOCH_RAMP) if len(np.unique(epochs[max(t - past, 0) : t + 1])) > 1
    ]
    found = distance_to_epoch(start, stop, batch_size, examples, past)
    for t, value in zip(range(start, stop), found, strict=True):
        near = min((abs(t - begin) for begin in begins), default=EPOCH_RAMP)
        assert value == min(near / EPOCH_RAMP, 1)
    assert (distance_to_epoch(start, stop, batch_size, examples, past, replacement=True) == 1).all()
