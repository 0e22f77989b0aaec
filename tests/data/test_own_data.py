"""Arrays and texts of one's own: which become data, losses in closed form, and on devices."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.experiment import ConfigError
from optdyn.problem import losses, problem
from optdyn.problem.data import synthetic
from optdyn.problem.data.arrays import DataError, make_dataset
from optdyn.problem.data.kinds import OwnData
from optdyn.train.trainer import prepare, train
from tests.data.loaded import load
from tests.devices.started import parameters
from tests.train.runs import refusal
from tests.values import as_model

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 2))
LABELS, TOKENS = np.arange(20) % 4, RNG.integers(0, 9, size=(20, 6))


def data(*, test=True, **arrays):
    splits = {"train": arrays} | ({"test": {k: v[:8] for k, v in arrays.items()}} if test else {})
    return make_dataset(splits, 0, "of the test")


@pytest.mark.parametrize(
    ("arrays", "dtypes", "shapes", "classes"),
    [
        ({"x": X, "y": Y}, "ff", [(3,), (2,)], 2),
        ({"x": X[:, 0], "y": Y[:, 0]}, "ff", [(1,), (1,)], 1),
        ({"x": X.astype(np.float16), "label": LABELS.astype(np.uint8)}, "fi", [(3,), ()], 4),
        ({"image": np.zeros((20, 5, 6), np.uint8), "y": Y}, "uf", [(5, 6, 1), (2,)], 2),
        ({"image": np.ones((20, 5, 6, 3)), "label": LABELS}, "fi", [(5, 6, 3), ()], 4),
        ({"text": TOKENS}, "u", [(6,)], 9),
        ({"text": TOKENS, "label": LABELS}, "ui", [(6,), ()], 4),
        ({"x": X}, "f", [(3,)], 0),
    ],
)
def test_arrays_become_what_runs_take(arrays, dtypes, shapes, classes):
    made = data(**arrays)
    assert made.classes == classes and list(made.train) == list(arrays)
    for split, count in ((made.train, 20), (made.test, 8)):
        assert [leaf.shape for leaf in split.values()] == [(count, *shape) for shape in shapes]
        assert [leaf.dtype.kind for leaf in split.values()] == list(dtypes)
        assert all(leaf.dtype == np.float32 for leaf in split.values() if leaf.dtype.kind == "f")
    for key, values in arrays.items():  # nothing but the type and the shape is another
        np.testing.assert_allclose(made.train[key].ravel(), np.ravel(values), rtol=1e-6)


def test_without_a_test_split_a_fifth_is_held_out_whole():
    made = data(test=False, x=X, y=Y)
    assert len(made.train["x"]) == 16 and len(made.test["x"]) == 4
    rows = np.concatenate([np.hstack([s["x"], s["y"]]) for s in (made.train, made.test)])
    expected = np.hstack([X, Y]).astype(np.float32)
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])
    again = data(test=False, x=X, y=Y)
    np.testing.assert_array_equal(made.test["x"], again.test["x"])
    labels = data(test=False, x=X, label=LABELS).test["label"]
    assert sorted(labels) == [0, 1, 2, 3]  # stratified


TRAIN = {"train": {"x": X, "y": Y}}


@pytest.mark.parametrize(
    ("splits", "classes", "message"),
    [
        *(
            ({"train": train}, 0, message)
            for train, message in (
                ({"x": X, "y": Y[:19]}, "20 of x and 19 of y: must be as many"),
                ({"x": X[:0], "y": Y[:0]}, "must not be empty"),
                ({"x": X, "target": Y}, "'target' of the train split of the data set of the test"),
                ({"x": X, "image": X, "y": Y}, "x and image and y: must have one of image, x, tex"),
                ({"y": Y}, "has y: must have one of image, x, text"),
                ({"x": np.arange(20), "y": Y}, "'x' of the train split of the data set of the te"),
                ({"x": np.full((20, 2), "a"), "y": Y}, "must be floats"),
                ({"x": np.where(X > 1, np.nan, X), "y": Y}, "'x' of the train split"),
                ({"x": X, "y": np.where(Y > 1, np.inf, Y)}, "not finite"),
                ({"x": X * 1e300, "y": Y}, "not finite in float32"),
                ({"x": X, "label": Y}, "must be one integer an example"),
                ({"x": X, "label": LABELS - 1}, "goes down to -1"),
                ({"x": X, "label": 2**32 * LABELS.astype(np.int64)}, "be at most 2,147,483,647"),
                ({"text": TOKENS[:, :1]}, "two tokens or more"),
                ({"text": TOKENS.astype(float)}, "must be integers"),
                ({"image": TOKENS, "label": LABELS}, "must be uint8 or floats (examples, height, "),
                ({"x": [[1.0], [1.0, 2.0]], "y": [1.0, 2.0]}, "cannot be read"),
            )
        ),
        (TRAIN | {"test": {"x": X}}, 0, "has x, y in train and x in test: must be the same"),
        (TRAIN | {"test": {"x": X[:, :2], "y": Y}}, 0, "differ in the number of examples only"),
        (TRAIN | {"test": {"x": X, "y": Y[:, :1]}}, 0, "differ in the number of examples only"),
        ({"train": {"x": X, "label": LABELS}}, 3, "runs from 0 to 3, and should from 0 to 2"),
        ({"train": {"x": X, "label": LABELS + 1}}, 4, "runs from 1 to 4, and should from 0 to 3"),
    ],
)
def test_arrays_that_cannot_be_used_are_one_line(splits, classes, message):
    with np.errstate(over="ignore"):
        assert message in refusal(make_dataset, splits, classes, "of the test", error=DataError)


@pytest.mark.parametrize("classes", ["two", 2.7, -1, True, [2]])
def test_classes_are_counted(classes):
    function = f"{__name__}:given"
    for five in (5, np.int8(5)):
        assert OwnData(name=function, options={"classes": five}).load().classes == 5
    with pytest.raises(DataError, match=r"has classes = .*: must count them"):
        OwnData(name=function, options={"classes": classes}).load()


def given(classes):
    return {"train": {"x": X, "label": LABELS}, "classes": classes}


def saved(folder, train, test):
    """The keys of a config of these arrays, in files."""
    np.savez(folder / "train.npz", **train)
    np.savez(folder / "test.npz", **test)
    return {"data.name": "folder", "data.path": str(folder)}


def test_a_folder_of_text(tmp_path):
    bytes_of = partial(load, tokenizer="byte", sequence_length=10)
    texts = tmp_path / "texts"
    texts.mkdir()
    lines = [f"line {i} of äö" for i in range(40)]
    (texts / "b.txt").write_text("\n".join(lines[20:]))
    (texts / "a.txt").write_text("\n".join(lines[:20]) + "\n")
    (texts / "not.md").write_text("zzz")
    (tmp_path / "one.txt").write_text("\n".join(lines))
    for made in (bytes_of(f"text:{texts}"), bytes_of(f"text:{tmp_path / 'one.txt'}")):
        read = made.train["text"]
        test_text = "\n".join(lines[38:]).encode()
        start = bytes([*read[0], *read[1, 1:], *read[2, 1:]])
        assert start == "\n".join(lines).encode()[: len(start)]  # in order, windows overlap by one
        assert bytes(made.test["text"][0]) == test_text[:11]
    (tmp_path / "text8").write_text("abcdefghij" * 40)  # without a line break
    made = bytes_of(f"text:{tmp_path / 'text8'}")
    assert [made.train["text"].size, made.test["text"].size] == [37 * 11, 11]  # of 380 and 20
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"\xff")
    for name, message in (
        ("empty.txt", "less than the 0 tokens"),
        ("nosuch.txt", "cannot read"),
        ("nothing", "cannot read"),
        ("latin.txt", "not UTF-8"),
    ):
        assert message in refusal(load, f"text:{tmp_path / name}", error=DataError)


def test_losses_in_closed_form():
    rng = np.random.default_rng(1)
    found, y = (rng.normal(size=(2, 5, 3)) * 2).astype(np.float32)
    far = np.abs(found - y)
    expected = {
        "squared_error": (far**2).sum(-1) / 2,
        "huber": np.where(far < 1, far**2 / 2, far - 0.5).sum(-1),
        "absolute_error": far.mean(-1),
    }
    for name, values in expected.items():
        loss = losses.METRICS[name]
        np.testing.assert_allclose(loss(found, {"y": y}), values, rtol=1e-5)  # float32 sums
        for shape in ((5,), (5, 3), (1, 1)):
            with pytest.raises(ValueError, match="needs outputs like y"):
                loss(jnp.zeros(shape), {"y": jnp.zeros((5, 1))})
    logits, labels = rng.normal(size=(5, 4)).astype(np.float32), np.array([0, 3, 1, 1, 2])
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    smoothed = -(0.9 * log_p[np.arange(5), labels] + 0.1 * log_p.mean(-1))
    made = losses.METRICS["label_smoothing"](logits, {"label": labels})
    np.testing.assert_allclose(made, smoothed, rtol=1e-5)


def test_a_linear_model_learns_a_regression_as_least_squares_does(config, tmp_path):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(64, 3)).astype(np.float32)
    y = (x @ [[1.0, -2.0], [0.5, 0.0], [3.0, 1.0]] + 0.1 * rng.normal(size=(64, 2)) + 1).astype("f")
    values = saved(tmp_path, {"x": x, "y": y}, {"x": x, "y": y})
    values |= {"model.name": "mlp", "model.hidden": (), "steps": 300, "log_every": 100}
    values |= {"checkpoint_every": 0, "method.name": "sync", "batch_size": 64}
    values |= {"optimizer.learning_rate": 0.2, "optimizer.momentum": 0.5}
    summary = train(config(values), tmp_path / "run")
    design = np.hstack([x, np.ones((64, 1))]).astype(np.float64)
    best, *_ = np.linalg.lstsq(design, y, rcond=None)
    least = ((design @ best - y) ** 2).sum(-1).mean() / 2
    # After 300 updates the error is (1 - 0.2 h)^300, nothing; what is left is float32's rounding.
    assert summary["train_loss"] == pytest.approx(least, rel=1e-4)
    assert summary["test_loss"] == summary["train_loss"]
    assert "test_accuracy" not in summary


def test_what_the_first_block_takes():
    pixels = problem.Pixels((0.5,), (2.0,))
    image = np.arange(24, dtype=np.uint8).reshape(2, 3, 4, 1)
    model = {"name": "mlp", "hidden": (), "dtype": "float32"}
    made = problem.make(as_model(model), 3, (), pixels)
    np.testing.assert_allclose(made.input({"image": image}), (image / 255 - 0.5) / 2, atol=1e-6)
    floats = image.astype(np.float32)
    np.testing.assert_allclose(made.input({"image": floats}), (floats - 0.5) / 2)
    np.testing.assert_array_equal(made.input({"x": X, "y": Y}), X)
    np.testing.assert_array_equal(made.input({"text": TOKENS}), TOKENS[:, :-1])
    np.testing.assert_array_equal(made.input({"text": TOKENS, "label": LABELS}), TOKENS)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"model.name": "cnn"}, "config.model: cannot be used"),
        ({"model.name": "transformer"}, "needs text"),
        ({"model.name": "mlp", "loss": "cross_entropy"}, "needs 'label', and the data have x, y"),
    ],
)
def test_a_model_does_not_fit_its_data_in_one_line(config, tmp_path, model, message):
    values = saved(tmp_path, {"x": X, "y": Y}, {"x": X, "y": Y})
    assert message in refusal(prepare, config(values | model), error=ValueError)


def test_real_devices_and_streams_carry_every_kind(tmp_path):
    some = {"x": RNG.normal(size=(256, 3)), "y": RNG.normal(size=(256, 2))}
    common = saved(tmp_path, some, {"x": X, "y": Y})
    common |= {"steps": 60, "log_every": 30, "checkpoint_every": 0, "batch_size": 16}
    common |= {"model.hidden": [8], "cluster.service.name": "constant", "loss": "huber"}
    common |= {"optimizer.learning_rate": 0.05, "optimizer.momentum": 0.5}
    configs = {"one": {}}
    for api in ("jit", "shard_map", "pmap"):
        configs[api] = {"parallel.api": api, "parallel.devices": 2}
    configs["streamed"] = configs["shard_map"] | {"data.streaming": True}
    configs["metered"] = {"probes.momentum": True, "probes.window": 55, "probes.every": 60}
    configs_of_all = {name: common | values for name, values in configs.items()}
    found = parameters(configs_of_all, tmp_path, devices=2)
    for name, flat in found.items():
        # Two devices sum 16 gradients in another order: 60 updates of 1e-2, each off by 2^-22.
        np.testing.assert_allclose(flat, found["one"], rtol=0, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(found["streamed"], found["shard_map"])
    assert np.abs(np.load(tmp_path / "metered" / "sketches.npy")).max() > 0


# Drawn images and tokens: of the shapes asked for, the same each time, and not of noise alone.


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
