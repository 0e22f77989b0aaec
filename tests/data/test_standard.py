"""The data sets of papers, as TFDS defines them, holding a few examples of ours."""

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from configs.images import STANDARD, get_config
from optdyn.problem import data, problem
from optdyn.train.checks import check
from tests.data.builders import examples, of_tfds, prepare
from tests.data.loaded import load

DEFINED = {  # images and classes
    "mnist": ((28, 28, 1), 10),
    "fashion_mnist": ((28, 28, 1), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
}

EXTRA = {"cifar10": {"id": "a"}, "cifar100": {"id": "a", "coarse_label": 3}}


def prepared(root, name, splits):
    prepare(root, of_tfds(name, splits))


def labelled(count, shape, classes, seed=0):
    """Images with the features of any of these data sets."""
    made = examples(count, seed, shape if shape[-1] == 3 else shape[:2])
    return [{"image": e["image"], "label": classes - 1 - i % 3} for i, e in enumerate(made)]


def assert_its_config_runs(name, root, count):
    """On the images that TFDS has under that name."""
    of = get_config(name).with_({"data.dir": str(root)})
    check(of)
    assert len(problem.load_data(of.model, of.data, of.seed).train["image"]) == count


@pytest.mark.parametrize("name", DEFINED)
def test_images_of_one_size(tmp_path, name):
    shape, classes = DEFINED[name]
    splits = {"train": labelled(12, shape, classes), "test": labelled(5, shape, classes, 1)}
    extra = EXTRA.get(name, {})
    prepared(tmp_path, name, {key: [e | extra for e in rows] for key, rows in splits.items()})
    assert_its_config_runs(name, tmp_path, 12)
    train, test, found = load(f"tfds:{name}", tmp_path)
    assert found == classes and train["image"].shape == (12, *shape) and len(test["label"]) == 5
    expected = {(np.asarray(e["image"]).tobytes(), e["label"]) for e in splits["train"]}
    rows = zip(train["image"], train["label"], strict=True)
    assert {(image.tobytes(), int(label)) for image, label in rows} == expected


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """Two colours side by side, in images of many sizes; no label in the test split."""
    root = tmp_path_factory.mktemp("imagenet")

    def image(i, height, width, mode):
        halves = np.full((height, width, 3), (200, 10 * i, 30), np.uint8)
        halves[:, width // 2 :] = (20, 10 * i, 100)
        made = Image.fromarray(halves).convert(mode)
        return {"image": made, "label": 990 + i, "file_name": f"n0_{i}.JPEG"}

    sizes = [(40, 40, "RGB"), (60, 40, "RGB"), (40, 90, "RGB"), (300, 40, "L"), (8, 8, "RGB")]
    train = [image(i, *size) for i, size in enumerate(sizes)]
    unlabelled = [train[0] | {"label": -1}]
    splits = {"train": train, "validation": train[2:4], "test": unlabelled}
    prepared(root, "imagenet2012", splits)
    return root


def test_imagenet_is_cut_and_scaled_to_one_size(imagenet):
    loaded = load("tfds:imagenet2012", imagenet, image_size=16)
    assert loaded.classes == 1000
    assert loaded.train["image"].shape == (5, 16, 16, 3)
    assert sorted(loaded.train["label"]) == [990, 991, 992, 993, 994]
    assert sorted(loaded.test["label"]) == [992, 993]
    for image, label in zip(loaded.train["image"], loaded.train["label"], strict=True):
        green = 10 * (label - 990)
        left, right = image[:, :5].reshape(-1, 3), image[:, -5:].reshape(-1, 3)
        if label == 993:  # gray
            assert np.ptp(image, axis=-1).max() == 0
            continue
        # Away from the edge nothing is interpolated, but bicubic weights round.
        np.testing.assert_allclose(left, np.tile((200, green, 30), (80, 1)), atol=1)
        np.testing.assert_allclose(right, np.tile((20, green, 100), (80, 1)), atol=1)


def test_every_size_has_a_cache_of_its_own(imagenet):
    for size in (8, 16, 8):
        assert load("tfds:imagenet2012", imagenet, image_size=size).train["image"].shape == (
            5,
            size,
            size,
            3,
        )


def test_images_of_many_sizes_need_one(imagenet):
    with pytest.raises(data.DataError, match=r"differ in shape.*config\.data\.image_size"):
        load("tfds:imagenet2012", imagenet)


def test_the_config_of_imagenet_runs(imagenet):
    assert_its_config_runs("imagenet2012", imagenet, 5)
    assert set(STANDARD) == {*DEFINED, "imagenet2012"}


def test_lm1b_by_the_generator_of_tfds(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).write_text("".join(f"{name} {i} .\n" for i in range(9)))
    base = tfds.builder_cls("lm1b")

    def split_generators(self, _):
        return {name: self._generate_examples([tmp_path / name]) for name in ("train", "test")}

    body = {"name": "lm1b", "_split_generators": split_generators}
    made = type(base)("Lm1b", (base,), body, skip_registration=True)
    prepare(tmp_path, made)
    loaded = load("tfds:lm1b", tmp_path, tokenizer="byte", sequence_length=9)
    assert loaded.classes == 256
    for split, name in ((loaded.train, "train"), (loaded.test, "test")):
        assert split["text"].shape[1] == 10
        text = bytes(np.append(split["text"][0, :1], split["text"][:, 1:])).decode()
        lines = {f"{name} {i} ." for i in range(9)}
        assert set(text.split("\n")[:-1]) <= lines and len(text.split("\n")) >= 8
