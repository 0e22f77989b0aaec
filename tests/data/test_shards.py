"""Shards of the training set: whose examples are whose, and what nodes are then trained on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.experiment import Config, ConfigError
from optdyn.problem import problem
from optdyn.problem.data.order import contiguous, dirichlet, divide, shard_sizes
from optdyn.train import trainer
from optdyn.train.checks import check
from optdyn.train.run import batches_of, feed_of

LABELS = np.random.default_rng(0).integers(10, size=4000)


def shares(shards, labels=LABELS):
    """(nodes, classes): what part of a shard has a label."""
    return np.stack([np.bincount(labels[own], minlength=10) / len(own) for own in shards])


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
    assert [len(own) for own in shards] == list(shard_sizes(len(labels), nodes))
    assert np.ptp([len(own) for own in shards]) <= 1
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
    supply, each = np.array([75, 75, 50]), np.array([100, 100])
    np.testing.assert_array_equal(divide(mixtures, supply, each), [[50, 50, 0], [25, 25, 50]])
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
    for group, own in enumerate(run.shards):
        seen = batches[worker[:60] == group].reshape(-1)
        assert set(seen) <= set(own) and len(seen) > 50
        if not independent:
            np.testing.assert_array_equal(np.sort(seen[:50]), own)
    np.testing.assert_array_equal(batches_of(run, independent)(7, 19), batches[7:19])
    by_reader = run._replace(timeline=run.timeline._replace(batch=np.arange(60)[::-1]))
    np.testing.assert_array_equal(batches_of(by_reader, independent)(0, 60), batches)


@pytest.mark.parametrize("independent", [False, True])
def test_nodes_draw_from_their_own_in_epochs_of_their_own(config, mnist, independent):
    run = trainer.prepare(config(mnist | VALUES))
    batches = batches_of(run, independent)(0, 34).reshape(34, 4, 3)  # two epochs of 50, and a bit
    for node, own in enumerate(run.shards):
        seen = batches[:, node].reshape(-1)
        assert set(seen) <= set(own)
        if not independent:
            np.testing.assert_array_equal(np.sort(seen[:50]), own)
            np.testing.assert_array_equal(np.sort(seen[50:100]), own)
    np.testing.assert_array_equal(batches_of(run, independent)(7, 9).reshape(2, 4, 3), batches[7:9])
    held = feed_of(run)(5, batches_of(run, independent))
    other = trainer.prepare(config(mnist | VALUES | {"data.streaming": True}))
    streamed = feed_of(other)(5, batches_of(other, independent))
    labels = [
        np.asarray(block.examples["label"])[block.batches(5, 20)] for block in (held, streamed)
    ]
    np.testing.assert_array_equal(*labels)
    assert all(len(block.batches(5, 20)) == 15 for block in (held, streamed))


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
    assert [len(own) for own in run.shards] == [26, 25, 25, 25]


def test_one_example_is_too_few_for_shards(config):
    line = r"^config\.data\.dirichlet: 1 examples are too few for shards of[^\n]*$"
    with pytest.raises(ConfigError, match=line):
        trainer.prepare(config(VALUES | {"model.noise": 0.0}))


def test_synchronous_nodes_have_shards_too():
    check(Config().with_(VALUES | {"method.name": "sync"}))
