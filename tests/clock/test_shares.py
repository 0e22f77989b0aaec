"""Batches cut by shares: every device's examples are its own, and all of them are the batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.timeline import padded_share, split_batches
from optdyn.experiment import Config
from optdyn.problem.problem import batches

N, BATCH, DEVICES = 5, 20, 4


@st.composite
def shares(draw):
    """(N, DEVICES) int32 with sum BATCH, zeros among them."""
    cuts = st.lists(st.integers(0, BATCH), min_size=DEVICES - 1, max_size=DEVICES - 1).map(sorted)
    return np.array([np.diff([0, *draw(cuts), BATCH]) for _ in range(N)], np.int32)


@given(shares(), st.booleans(), st.integers(0, 2**32))
def test_the_parts_of_all_devices_are_the_batch(shares, seeded, seed):
    """In its order, each example once and with its seed; all else repeats what is the device's."""
    shape = (N, BATCH, 2) if seeded else (N, BATCH)
    whole = np.random.default_rng(seed).permutation(np.prod(shape)).reshape(shape).astype(np.int32)
    room = padded_share(shares)
    given = split_batches(whole, shares, room)
    assert given.dtype == np.int32 and given.shape == (N, DEVICES * room, *shape[2:])
    for batch, own, parts in zip(whole, shares, given, strict=True):
        parts = parts.reshape(DEVICES, room, *shape[2:])
        kept = [part[:share] for part, share in zip(parts, own, strict=True)]
        np.testing.assert_array_equal(np.concatenate(kept), batch)
        for part, share in zip(parts, own, strict=True):
            assert (part[share:] == part[max(share - 1, 0)]).all()


@given(shares())
def test_nodes_that_divide_their_own_batches_are_cut_like_their_devices_in_a_row(shares):
    whole = np.arange(N * BATCH).reshape(N, BATCH)
    even = np.stack([shares, shares[:, ::-1]], axis=1)  # of two nodes, (N, nodes, devices)
    twice = np.concatenate([whole, whole + N * BATCH], axis=1)
    room = padded_share(shares)
    nodes = np.split(split_batches(twice, even, room), 2, axis=1)
    alone = [
        split_batches(np.split(twice, 2, axis=1)[node], even[:, node], room) for node in (0, 1)
    ]
    for node in (0, 1):  # but for what fills up a part that is empty
        own = (np.arange(room) < even[:, node, :, None]).reshape(N, -1)
        np.testing.assert_array_equal(nodes[node][own], alone[node][own])


@given(st.integers(0, 1000))
def test_there_is_room_for_the_largest_share_and_less_than_twice_it(share):
    room = padded_share(np.array([[share, 1]]))
    assert max(share, 1) <= room < 2 * max(share, 1) and room & (room - 1) == 0


def test_equal_shares_are_the_even_parts():
    whole = np.arange(N * 32).reshape(N, 32)
    equal = np.full((N, DEVICES), 32 // DEVICES)
    np.testing.assert_array_equal(split_batches(whole, equal, padded_share(equal)), whole)


def test_a_share_that_has_no_room_is_an_error():
    """And not an example that nobody computes."""
    with pytest.raises(ValueError, match="a share of 11 examples: there is room for 8"):
        split_batches(np.arange(20)[None], np.array([[11, 9]]), 8)


def test_every_example_once_an_epoch_however_shares_change():
    config, examples = Config(batch_size=BATCH), 200
    steps = examples // BATCH
    rng = np.random.default_rng(0)
    shares = rng.multinomial(BATCH, (0.1, 0.2, 0.3, 0.4), 3 * steps).astype(np.int32)
    parts = split_batches(batches(config, examples, 0, 3 * steps), shares, padded_share(shares))
    parts = parts.reshape(3, steps, DEVICES, -1)
    own = np.arange(parts.shape[-1]) < shares.reshape(3, steps, DEVICES)[..., None]
    for epoch in range(3):
        computed = np.sort(parts[epoch][own[epoch]])
        np.testing.assert_array_equal(computed, np.arange(examples))
