"""Drawn images and tokens: of the shapes asked for, the same each time, and not of noise alone."""

import numpy as np
import pytest

from optdyn.experiment import ConfigError
from optdyn.problem.data import synthetic
from tests.data.loaded import load


def test_images_are_their_classes_and_noise():
    made = synthetic.images(side=16, classes=3, examples=500, channels=2)
    assert made.train["image"].shape == (400, 16, 16, 2) and made.test["image"].shape[0] == 100
    assert made.train["image"].dtype == np.uint8 and made.classes == 3
    assert {*made.train["label"]} == {*made.test["label"]} == {0, 1, 2}
    means = np.stack(
        [made.train["image"][made.train["label"] == k].mean(0, dtype=float) for k in range(3)]
    )
    away = (made.test["image"][:, None] - means) ** 2
    # The nearest mean of a class is that of an image's own: noise of 512 pixels cannot hide it.
    np.testing.assert_array_equal(away.sum((2, 3, 4)).argmin(1), made.test["label"])


def test_tokens_are_walks_by_four_steps():
    made = synthetic.tokens(vocabulary=1000, length=20, examples=50)
    steps = np.diff(made.train["text"].astype(int), axis=1) % 1000
    assert made.train["text"].shape == (40, 21) and made.test["text"].shape == (10, 21)
    assert len(np.unique(steps)) <= 4 and made.classes == 1000
    assert made.train["text"].min() >= 0 and made.train["text"].max() < 1000


@pytest.mark.parametrize("make", [synthetic.images, synthetic.tokens])
def test_the_same_every_time(make):
    for one, other in zip(make(examples=10)[:2], make(examples=10)[:2], strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("name", "options"),
    [("images", {"side": 30}), ("images", {"examples": 4}), ("tokens", {"vocabulary": 1})],
)
def test_what_cannot_be_drawn_is_one_line(name, options):
    with pytest.raises(ConfigError, match=r"ValueError: .*at least") as error:
        load(f"optdyn.problem.data.synthetic:{name}", options=options)
    assert "\n" not in str(error.value)
