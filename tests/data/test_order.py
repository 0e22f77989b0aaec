"""Batches as windows of an endless stream, stratified orders, and shards of nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from optdyn.experiment import Config, ConfigError
from optdyn.problem import problem
from optdyn.problem.data.arrays import stratified
from optdyn.problem.data.order import (
    BLOCK,
    EPOCH_RAMP,
    batches,
    contiguous,
    dirichlet,
    distance_to_epoch,
    divide,
    independent,
    shard_sizes,
)
from optdyn.train import trainer
from optdyn.train.checks import check
from optdyn.train.run import batches_of, feed_of

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
    first = batches(5, 0, 3, 4, 20)
    left = np.setdiff1d(np.arange(20), first[:2])
    drawn = np.concatenate([independent(seed, 5, 2, 3, 4, 20)[0] for seed in range(3000)])
    counts = np.bincount(drawn, minlength=20)
    assert counts[first[:2].ravel()].sum() == 0
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


# Shards: whose examples are whose, and what nodes are then trained on.


LABELS = np.random.default_rng(0).integers(10, size=4000)


def shares(shards, labels=LABELS):
    """(nodes, classes): what part of a shard has a label."""
    return np.stack([np.bincount(labels[shard], minlength=10) / len(shard) for shard in shards])


@given(
    st.integers(1, 12),
    st.integers(0, 300),
    st.integers(1, 12),
    st.sampled_from([1e-30, 0.01, 0.1, 1.0, 1e30]),
    st.integers(0, 99),
)
def test_every_example_is_one_nodes(nodes, more, classes, alpha, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=nodes + more)
    shards = dirichlet(labels, nodes, alpha, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))
    assert [len(shard) for shard in shards] == list(shard_sizes(len(labels), nodes))
    assert np.ptp([len(shard) for shard in shards]) <= 1
    again = dirichlet(labels, nodes, alpha, np.random.default_rng(seed))
    for one, other in zip(shards, again, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(contiguous(len(labels), nodes), shards, strict=True):
        assert len(one) == len(other) and (np.diff(one) == 1).all()


def test_a_large_concentration_leaves_shards_alike_and_a_small_one_does_not():
    def largest(alpha):
        return shares(dirichlet(LABELS, 8, alpha, np.random.default_rng(1))).max(axis=1).mean()

    # 500 examples of ten labels that are not quite equally many, 0.11 of the most frequent one.
    assert largest(1e6) < 0.12
    assert 0.2 < largest(1.0) < 0.45
    assert largest(0.01) > 0.55  # eight nodes and ten labels: some take two, or a rest


def test_what_can_be_had_is_in_the_proportions_that_were_drawn():
    """Where labels are plenty for what is asked for, to one example."""
    mixtures = np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    supply, sizes = np.array([75, 75, 50]), np.array([100, 100])
    np.testing.assert_array_equal(divide(mixtures, supply, sizes), [[50, 50, 0], [25, 25, 50]])
    with pytest.raises(ValueError, match="200 examples for shards of 201"):
        divide(mixtures, supply, np.array([100, 101]))


VALUES = {
    "method.name": "gossip",
    "data.dirichlet": 0.1,
    "batch_size": 12,
    "cluster.nodes": 4,
}


GROUPS = VALUES | {
    "method.name": "asynchronous",
    "method.groups": 4,
    "cluster.service.name": "exponential",
}


@pytest.mark.parametrize("independent", [False, True])
def test_a_group_draws_its_whole_batch_from_its_own_however_often_it_comes(
    config, mnist, independent
):
    run = trainer.prepare(config(mnist | GROUPS))
    batches, worker = batches_of(run, independent)(0, 60), run.timeline.worker
    for group, shard in enumerate(run.shards):
        seen = batches[worker[:60] == group].reshape(-1)
        assert set(seen) <= set(shard) and len(seen) > 50
        if not independent:
            np.testing.assert_array_equal(np.sort(seen[:50]), shard)
    np.testing.assert_array_equal(batches_of(run, independent)(7, 19), batches[7:19])
    by_reader = run._replace(timeline=run.timeline._replace(batch=np.arange(60)[::-1]))
    np.testing.assert_array_equal(batches_of(by_reader, independent)(0, 60), batches)


@pytest.mark.parametrize("independent", [False, True])
def test_nodes_draw_from_their_own_in_epochs_of_their_own(config, mnist, independent):
    run = trainer.prepare(config(mnist | VALUES))
    batches = batches_of(run, independent)(0, 34).reshape(34, 4, 3)  # two epochs of 50, and a bit
    for node, shard in enumerate(run.shards):
        seen = batches[:, node].reshape(-1)
        assert set(seen) <= set(shard)
        if not independent:
            np.testing.assert_array_equal(np.sort(seen[:50]), shard)
            np.testing.assert_array_equal(np.sort(seen[50:100]), shard)
    np.testing.assert_array_equal(batches_of(run, independent)(7, 9).reshape(2, 4, 3), batches[7:9])
    in_memory = feed_of(run)(5, batches_of(run, independent))
    other = trainer.prepare(config(mnist | VALUES | {"data.streaming": True}))
    streamed = feed_of(other)(5, batches_of(other, independent))
    labels = [
        np.asarray(block.examples["label"])[block.batches(5, 20)] for block in (in_memory, streamed)
    ]
    np.testing.assert_array_equal(*labels)
    assert all(len(block.batches(5, 20)) == 15 for block in (in_memory, streamed))


def test_without_a_concentration_batches_are_what_they_were(config, mnist):
    """To the bit, by the streams' names, and with the second batches and the augmentation's seeds.

    The sums are those of the commit before there were shards.
    """
    run = trainer.prepare(config(mnist | VALUES | {"data.dirichlet": 0.0}))
    assert run.shards == ()
    augmented = run.config.with_({"data.augment": "crop"})
    place = np.arange(1, 7)[:, None, None] * np.arange(1, 13)[:, None]
    found = [
        (np.int64(place) * problem.batches(augmented, 200, 30, 36, second)).sum((0, 1)).tolist()
        for second in (False, True)
    ]
    assert found == SUMS


SUMS = [[154266, 1521446553288], [127345, 1766012613694]]


def test_data_without_labels_is_cut_into_stretches(config):
    run = trainer.prepare(config(VALUES | {"data.train_examples": 101}))
    np.testing.assert_array_equal(np.concatenate(run.shards), np.arange(101))
    assert [len(shard) for shard in run.shards] == [26, 25, 25, 25]


def test_one_example_is_too_few_for_shards(config):
    line = r"^config\.data\.dirichlet: 1 examples are too few for shards of[^\n]*$"
    with pytest.raises(ConfigError, match=line):
        trainer.prepare(config(VALUES | {"model.noise": 0.0}))


def test_synchronous_nodes_have_shards_too():
    check(Config().with_(VALUES | {"method.name": "sync"}))
