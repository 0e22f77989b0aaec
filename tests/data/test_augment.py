"""Crops and flips on the device, and runs whose images go through them."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from optdyn.experiment import Config
from optdyn.problem import data, problem
from optdyn.problem.data import order
from optdyn.problem.data.augment import augment
from optdyn.problem.models import MLP
from tests.devices.started import parameters

RNG = np.random.default_rng(0)
MANY = 4000
CROP_FLIP = jax.jit(partial(augment, "crop_flip"))
TEXT = "optdyn.problem.data.synthetic:tokens"
SEEDS = RNG.integers(2**31, size=MANY, dtype=np.int32)


def repeated(image):
    return np.broadcast_to(image, (MANY, *image.shape))


def counts(rows):
    """How often each of them is there."""
    return np.unique(np.reshape(rows, (len(rows), -1)), axis=0, return_counts=True)[1]


def likely(found, cells):
    """That all cells are there, and no oftener than evenly drawn ones."""
    # A fixed seed; one of a hundred other seeds would fail.
    return len(found) == cells and chisquare(found).pvalue > 0.01


def test_nothing_is_augmented_unless_asked_for():
    images = RNG.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    assert augment("", SEEDS[:5], images) is images


def test_a_crop_is_any_window_of_the_padded_image():
    """All (2 p + 1)^2 places of it, equally often; p = 2 for 16, 1 for 8."""
    image = RNG.integers(1, 256, (16, 8, 2), dtype=np.uint8)
    padded = np.pad(image, [(2, 2), (1, 1), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (16, 8), (0, 1))
    windows = np.moveaxis(windows, 2, -1).reshape(5 * 3, -1)
    made = np.asarray(augment("crop", SEEDS, repeated(image)))
    assert made.dtype == np.uint8 and made.shape == (MANY, 16, 8, 2)
    assert {row.tobytes() for row in made} == {row.tobytes() for row in windows}
    assert likely(counts(made), 5 * 3)


def test_padding_is_that_of_cifar():
    """4 pixels of 32: at most 4 rows of zeros above or below, and 4 columns."""
    made = np.asarray(augment("crop", SEEDS, repeated(np.ones((32, 32, 1), np.uint8))))
    kept = made.any(axis=(2, 3)).sum(1), made.any(axis=(1, 3)).sum(1)
    for rows in kept:
        assert set(rows) == {28, 29, 30, 31, 32}


def test_a_flip_is_the_image_or_its_mirror_image():
    image = RNG.integers(0, 256, (3, 5, 2), dtype=np.uint8)
    made = np.asarray(augment("flip", SEEDS, repeated(image)))
    same = (made == image).all(axis=(1, 2, 3))
    assert (made[~same] == image[:, ::-1]).all()
    assert likely(np.bincount(same), 2)


def test_crop_and_flip_are_drawn_independently():
    image = RNG.integers(1, 256, (8, 8, 1), dtype=np.uint8)
    assert likely(counts(augment("crop_flip", SEEDS, repeated(image))), 9 * 2)


@given(st.permutations(range(6)))
@settings(max_examples=10)
def test_an_example_depends_on_its_own_seed_only(order):
    order, seeds = np.array(order), SEEDS[:6]
    images = np.random.default_rng(1).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)
    whole = np.asarray(CROP_FLIP(seeds, images))
    np.testing.assert_array_equal(CROP_FLIP(seeds[order], images[order]), whole[order])
    np.testing.assert_array_equal(CROP_FLIP(seeds[:3], images[:3]), whole[:3])


# Seeds of the examples of updates.


@given(st.integers(0, 2**63 - 1), st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_any_window_of_the_draws_is_that_of_the_whole(seed, start, more, batch_size):
    whole = order.augmentation_seeds(seed, 0, start + more, batch_size)
    assert whole.shape == (start + more, batch_size) and whole.dtype == np.int32
    np.testing.assert_array_equal(
        order.augmentation_seeds(seed, start, start + more, batch_size), whole[start:]
    )


def test_draws_differ_between_updates_places_and_seeds():
    drawn = np.concatenate([order.augmentation_seeds(seed, 0, 50, 20) for seed in (0, 1)])
    assert len(np.unique(drawn)) == drawn.size  # 2,000 of 2^31: a pair is equal in 1 of 1,000 cases


# The problem.


def config(**values):
    return Config(model=MLP((4,))).with_({f"data.{key}": v for key, v in values.items()})


def test_batches_are_the_same_examples_with_seeds_besides():
    plain = problem.batches(config(), 100, 3, 7)
    seeded = problem.batches(config(augment="flip"), 100, 3, 7)
    assert plain.shape == (4, 64) and seeded.shape == (4, 64, 2) and seeded.dtype == np.int32
    np.testing.assert_array_equal(seeded[..., 0], plain)


def test_only_the_images_of_a_training_batch_are_augmented():
    made = problem.make(MLP((4,)), 3, (), problem.Pixels(augment="crop_flip"))
    examples = {
        "image": RNG.integers(0, 256, (9, 8, 8, 1), dtype=np.uint8),
        "label": np.arange(9),
    }
    chosen = np.array([7, 2, 2])
    seeds = SEEDS[:3]
    plain, batch = (made.batch(examples, c) for c in (chosen, np.stack([chosen, seeds], -1)))
    np.testing.assert_array_equal(plain["image"], examples["image"][chosen])
    np.testing.assert_array_equal(batch["label"], chosen)
    expected = augment("crop_flip", seeds, examples["image"][chosen])
    np.testing.assert_array_equal(batch["image"], expected)


def test_channels_are_normalized():
    """(x - mean) / std of pixels from 0 to 1: zero mean and unit variance of the set it is of."""
    images = RNG.integers(0, 256, (50, 6, 6, 3)) // np.array([1, 2, 4])
    x = images / 255
    pixels = problem.Pixels(tuple(x.mean((0, 1, 2))), tuple(x.std((0, 1, 2))))
    made = problem.make(MLP((4,)), 3, (), pixels)
    out = np.asarray(made.input({"image": images.astype(np.uint8)}))
    # Means of 1,800 float32 numbers of size 1: some 1e-7 each.
    np.testing.assert_allclose(out.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(out.std((0, 1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"augment": "flip", "model": "quadratic"}, r"not of config\.model\.name"),
        (
            {"augment": "flip", "name": TEXT, "model": "transformer"},
            "config.data.augment = 'flip': only of images",
        ),
        (
            {"mean": (0.5, 0.5), "std": (1.0, 1.0)},
            r"data.mean = \(0.5, 0.5\): .* of the 1 channels",
        ),
        ({"mean": (0.5,)}, r"config.data.std = \(\): must be a finite number above 0 for each"),
        ({"mean": (0.5,), "std": (0.0,)}, r"config.data.std = \(0.0,\): .* above 0"),
    ],
)
def test_what_the_examples_cannot_have_is_one_clear_line(mnist, values, message):
    model, values = values.get("model", "mlp"), {k: v for k, v in values.items() if k != "model"}
    chosen = config(dir=mnist["data.dir"], **values).with_({"model.name": model})
    with pytest.raises(data.DataError, match=message) as error:
        problem.load_data(chosen.model, chosen.data, chosen.seed)
    assert "\n" not in str(error.value)


# Runs.

RUN = {
    "steps": 12,
    "batch_size": 64,
    "log_every": 6,
    "checkpoint_every": 0,
    "model.hidden": [8],
    "data.train_examples": 200,
    "data.augment": "crop_flip",
    "data.mean": [0.13],
    "data.std": [0.31],
}


@pytest.fixture(scope="module")
def run(mnist):
    """The whole run, its data held in memory."""
    return RUN | {"data.dir": mnist["data.dir"]}


STREAMED = {"data.streaming": True}
STAGES = {
    "model.name": "resmlp",
    "model.width": 8,
    "model.blocks": 2,
    "method.name": "local",
    "cluster.service.name": "constant",
}
ON_STAGES = STAGES | {"cluster.nodes": 2, "parallel.api": "shard_map"}
LAYOUTS = {
    "sync": {
        "simulated": {},
        "jit": {"parallel.api": "jit"},
        "shard_map": {"parallel.api": "shard_map"} | STREAMED,
        "pmap": {"parallel.api": "pmap"} | STREAMED,
    },
    "local": {"simulated": STAGES, "real": ON_STAGES | STREAMED},
    "gpipe": {
        name: values | {"method.variant": "backprop"}
        for name, values in (("simulated", STAGES), ("real", ON_STAGES | STREAMED))
    },
}


@pytest.mark.parametrize(
    "layouts",
    ["sync", *(pytest.param(name, marks=pytest.mark.slow) for name in ("local", "gpipe"))],
)
def test_devices_share_an_augmented_batch(run, tmp_path, layouts):
    configs = {name: run | values for name, values in LAYOUTS[layouts].items()}
    found = parameters(configs, tmp_path, devices=2)
    for flat in found.values():
        # Sums of 64 gradients in another order, a relative 5e-7 of 12 updates of some 1e-1.
        np.testing.assert_allclose(flat, found["simulated"], rtol=0, atol=5e-6)
