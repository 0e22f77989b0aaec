"""Examples that are brought to the devices as they are needed."""

import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.experiment import Config
from optdyn.problem.data import order
from optdyn.train import run as runs
from optdyn.train import trainer

RNG = np.random.default_rng(0)
TRAIN = {"image": RNG.integers(0, 256, (50, 4), dtype=np.uint8), "label": np.arange(50)}


def chosen(start, stop, seeded=False):
    """Batches of 3; those of update t depend on t only."""
    shape = (3, 2) if seeded else (3,)
    rows = [np.random.default_rng(t).integers(50, size=shape) for t in range(start, stop)]
    return np.array(rows, np.int32).reshape(stop - start, *shape)


def streamed(updates, put=lambda of: of(0), seeded=False, known=10**6):
    """A feed of batches of which so many are known, unless it is asked otherwise."""
    blocks = order.streamed(TRAIN, put, 1, 3, updates)

    def batches(start, stop, known=known):
        return chosen(start, max(min(stop, known), start), seeded)

    return lambda step, known=known: blocks(step, partial(batches, known=known))


def here_and_there(block, step, stop):
    """The labels that updates find in a block, and those that they should."""
    return block.examples["label"][block.batches(step, stop)], chosen(step, stop)


@given(st.integers(1, 9), st.lists(st.integers(0, 30), min_size=1, max_size=8), st.booleans())
def test_every_update_finds_the_examples_that_it_would_in_memory(updates, steps, seeded):
    feeding = streamed(updates, seeded=seeded)
    for step in steps:
        part = feeding(step)
        assert step < part.stop and len(part.examples["label"]) == 3 * updates
        here = part.batches(step, part.stop)
        whole = chosen(step, part.stop, seeded)
        assert here.shape == whole.shape and here.dtype == np.int32
        if seeded:
            np.testing.assert_array_equal(here[..., 1], whole[..., 1])
            here, whole = here[..., 0], whole[..., 0]
        for name, values in TRAIN.items():
            np.testing.assert_array_equal(part.examples[name][here], values[whole])


def test_the_next_part_is_gathered_while_this_one_is_used():
    put, gathered = [], threading.Semaphore(0)

    def record(of):
        put.append(threading.current_thread())
        gathered.release()
        return of(0)

    feeding = streamed(2, record)
    feeding(0)
    for _ in range(2):  # the second is there without a call
        assert gathered.acquire(timeout=60)
    assert feeding(1) is feeding(0) and len(put) == 2
    feeding(2)
    assert gathered.acquire(timeout=60) and len(put) == 3
    assert threading.main_thread() not in put

    def full(of):
        raise MemoryError("the device is full")

    with pytest.raises(MemoryError, match="the device is full"):
        streamed(2, full)(0)


def test_a_block_ends_where_batches_are_not_known_and_goes_on_there():
    feeding = streamed(4)
    short = feeding(0, known=3)
    assert short.stop == 3 and len(short.examples["label"]) == 4 * 3
    np.testing.assert_array_equal(*here_and_there(short, 0, 3))
    assert feeding(2, known=3) is short  # and nothing beyond, which was asked for meanwhile
    after = feeding(3, known=10)
    assert after.stop == 7 and len(after.examples["label"]) == 4 * 3
    np.testing.assert_array_equal(*here_and_there(after, 3, 7))


def test_every_device_reads_its_own_rows_and_each_once():
    read = []

    class Rows(np.ndarray):
        def __getitem__(self, index):
            read.append(index)
            return np.asarray(self)[index]

    train = {"label": TRAIN["label"].view(Rows)}
    numbers = np.array([[7, 7, 3, 9, 5, 5], [7, 1, 9, 9, 2, 8]], np.int32)  # two updates
    local = 0, 2
    feeding = order.streamed(train, lambda of: {i: of(i) for i in local}, 3, 6, 2)
    block = feeding(0, lambda start, stop: numbers[start:stop])
    assert list(map(list, read)) == [[1, 7], [2, 5, 8]]
    assert block.batches(0, 2).max() < 2 * 2  # rows of a device: two updates of two columns
    for i in local:
        columns = slice(2 * i, 2 * i + 2)
        found = block.examples[i]["label"]
        assert len(found) == 4
        np.testing.assert_array_equal(found[block.batches(0, 2)[:, columns]], numbers[:, columns])


@pytest.mark.parametrize(("size", "updates"), [(1200, 1), (400, 1), (200, 2), (100, 4), (1, 7)])
def test_a_part_is_as_large_as_fits(monkeypatch, size, updates):
    """Three examples an update; at least one update, at most 7."""
    monkeypatch.setattr(order, "BLOCK_BYTES", 1200)
    train = {"image": np.zeros((50, size), np.uint8)}
    part = order.streamed(train, lambda of: of(0), 1, 3, 7)(0, chosen)
    assert part.stop == updates and part.examples["image"].shape == (3 * updates, size)


# Runs.


@pytest.fixture(scope="module")
def train(mnist, tmp_path_factory):
    """`train(values)`: the summary and the losses logged."""

    def train(**values):
        config = Config(steps=60, log_every=20, checkpoint_every=20, batch_size=16)
        config = config.with_({**mnist, "data.train_evaluated": 100})
        config = config.with_(data=config.data.with_(**values))
        return trainer.train(config, tmp_path_factory.mktemp("run"))

    return train


@pytest.mark.parametrize("augment", ["", "crop_flip"])
def test_a_streamed_run_is_the_run_in_memory(train, monkeypatch, augment):
    monkeypatch.setattr(order, "BLOCK_BYTES", 7 * 16 * (28 * 28 + 4))
    whole, parts = (train(augment=augment, streaming=on) for on in (False, True))
    assert parts["parameters_crc32"] == whole["parameters_crc32"]
    assert parts["train_loss"] == whole["train_loss"]
    assert parts["test_loss"] == whole["test_loss"]


def test_a_streamed_run_never_holds_the_training_set(train, monkeypatch):
    monkeypatch.setattr(order, "BLOCK_BYTES", 16 * (28 * 28 + 4))
    put, sizes = runs.streamed, []

    def watched(examples, to_device, *rest):
        def record(of):
            sizes.append(len(of(0)["label"]))
            return to_device(of)

        return put(examples, record, *rest)

    monkeypatch.setattr(runs, "streamed", watched)
    monkeypatch.setattr(runs, "whole_set", lambda *_: 1 / 0)
    train(streaming=True)
    assert set(sizes) == {16} and 60 <= len(sizes) <= 62  # a batch each; two were prefetched
