"""Data of every kind, in memory and on devices, and what is refused at once."""

import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.problem import losses, problem
from optdyn.problem.data import DataError, load, own
from optdyn.problem.data.own import checked
from tests.devices.started import parameters
from tests.train.runs import prepare, refusal, train
from tests.values import as_model

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 2))
LABELS, TOKENS = np.arange(20) % 4, RNG.integers(0, 9, size=(20, 6))


def data(*, test=True, **arrays):
    splits = {"train": arrays} | ({"test": {k: v[:8] for k, v in arrays.items()}} if test else {})
    return checked(splits, 0, "of the test")


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
    held = data(test=False, x=X, label=LABELS).test["label"]
    assert sorted(held) == [0, 1, 2, 3]  # stratified


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X, "y": Y[:19]}, "20 of x and 19 of y: must be as many"),
        ({"x": X[:0], "y": Y[:0]}, "must not be empty"),
        ({"x": X, "target": Y}, "'target' of the train split of the data set of the test: must be"),
        ({"x": X, "image": X, "y": Y}, "has x and image and y: must have one of image, x, text"),
        ({"y": Y}, "has y: must have one of image, x, text"),
        ({"x": np.arange(20), "y": Y}, "'x' of the train split of the data set of the test is int"),
        ({"x": np.full((20, 2), "a"), "y": Y}, "must be floats"),
        ({"x": np.where(X > 1, np.nan, X), "y": Y}, "'x' of the train split"),
        ({"x": X, "y": np.where(Y > 1, np.inf, Y)}, "not finite"),
        ({"x": X * 1e300, "y": Y}, "not finite in float32"),
        ({"x": X, "label": Y}, "must be one integer an example"),
        ({"x": X, "label": LABELS - 1}, "goes down to -1"),
        ({"x": X, "label": 2**32 * LABELS.astype(np.int64)}, "must be at most 2,147,483,647"),
        ({"text": TOKENS[:, :1]}, "two tokens or more"),
        ({"text": TOKENS.astype(float)}, "must be integers"),
        ({"image": TOKENS, "label": LABELS}, "must be uint8 or floats (examples, height, width)"),
        ({"x": [[1.0], [1.0, 2.0]], "y": [1.0, 2.0]}, "cannot be read"),
    ],
)
def test_arrays_that_cannot_be_used_are_one_line(arrays, said):
    with np.errstate(over="ignore"):
        assert said in refusal(data, test=False, **arrays, error=DataError)


@pytest.mark.parametrize("classes", ["two", 2.7, -1, True, [2]])
def test_classes_are_counted(classes):
    function = f"{__name__}:given"
    assert (
        own.load(function, {"classes": 5}).classes
        == own.load(function, {"classes": np.int8(5)}).classes
    )
    with pytest.raises(DataError, match=r"has classes = .*: must count them"):
        own.load(function, {"classes": classes})


def given(classes):
    return {"train": {"x": X, "label": LABELS}, "classes": classes}


def test_splits_must_be_alike():
    for test in ({"x": X}, {"x": X[:, :2], "y": Y}, {"x": X, "y": Y[:, :1]}):
        with pytest.raises(DataError, match=r"must be the same|differ in the number of examples"):
            checked({"train": {"x": X, "y": Y}, "test": test}, 0, "of the test")
    for classes, labels in ((3, LABELS), (4, LABELS + 1)):
        with pytest.raises(DataError, match="and should from 0 to"):
            checked({"train": {"x": X, "label": labels}}, classes, "of the test")


def test_a_folder_of_npz_and_a_folder_of_text(tmp_path):
    np.savez(tmp_path / "train.npz", x=X, y=Y)
    np.savez(tmp_path / "test.npz", x=X[:5], y=Y[:5])
    made = load(f"folder:{tmp_path}")
    np.testing.assert_array_equal(made.train["x"], X.astype(np.float32))
    assert made.classes == 2 and len(made.test["y"]) == 5
    texts = tmp_path / "texts"
    texts.mkdir()
    lines = [f"line {i} of äö" for i in range(40)]
    (texts / "b.txt").write_text("\n".join(lines[20:]))
    (texts / "a.txt").write_text("\n".join(lines[:20]) + "\n")
    (texts / "not.md").write_text("zzz")
    (tmp_path / "one.txt").write_text("\n".join(lines))
    many, one = (
        load(f"text:{path}", tokenizer="byte", sequence_length=10)
        for path in (texts, tmp_path / "one.txt")
    )
    for made in (many, one):
        read = made.train["text"]
        held = "\n".join(lines[38:]).encode()
        start = bytes([*read[0], *read[1, 1:], *read[2, 1:]])
        assert start == "\n".join(lines).encode()[: len(start)]  # in order, windows overlap by one
        assert bytes(made.test["text"][0]) == held[:11]
    (tmp_path / "text8").write_text("abcdefghij" * 40)  # without a line break, as text8
    made = load(f"text:{tmp_path / 'text8'}", tokenizer="byte", sequence_length=10)
    assert [made.train["text"].size, made.test["text"].size] == [37 * 11, 11]  # of 380 and 20
    (tmp_path / "empty.txt").write_text("")
    for name, said in (
        (f"text:{tmp_path / 'empty.txt'}", "less than the 0 tokens"),
        (f"text:{tmp_path / 'nosuch.txt'}", "cannot read"),
        (f"text:{texts.parent / 'nothing'}", "cannot read"),
        (f"text:{tmp_path / 'train.npz'}", "not UTF-8"),
    ):
        with pytest.raises(DataError, match=said):
            load(name)


def test_losses_in_closed_form():
    """Against sums written out, an example at a time."""
    rng = np.random.default_rng(1)
    found, y = rng.normal(size=(2, 5, 3)) * 2
    logits, labels = rng.normal(size=(5, 4)), np.array([0, 3, 1, 1, 2])
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = log_p[np.arange(5), labels]
    far = np.abs(found - y)
    expected = {
        "squared_error": (far**2).sum(-1) / 2,
        "huber": np.where(far < 1, far**2 / 2, far - 0.5).sum(-1),
        "absolute_error": far.mean(-1),
        "cross_entropy": -own,
        "label_smoothing": -(0.9 * own + 0.1 * log_p.mean(-1)),
        "accuracy": (logits.argmax(-1) == labels).astype(float),
    }
    for name, values in expected.items():
        regression = name in ("squared_error", "huber", "absolute_error")
        batch = {"y": jnp.asarray(y, jnp.float32)} if regression else {"label": jnp.asarray(labels)}
        outputs = jnp.asarray(found if regression else logits, jnp.float32)
        # Float32 sums of a few numbers of about 1.
        np.testing.assert_allclose(losses.METRICS[name](outputs, batch), values, rtol=1e-5)


def test_outputs_are_never_broadcast_against_targets():
    batch = {"y": jnp.zeros((5, 1))}
    for shape in ((5,), (5, 3), (1, 1)):
        for loss in (losses.squared_error, losses.huber, losses.absolute_error):
            with pytest.raises(ValueError, match="needs outputs like y"):
                loss(jnp.zeros(shape), batch)


def test_a_linear_model_learns_a_regression_as_least_squares_does(config, tmp_path):
    """Full batches of a linear model: a run must end where the normal equations say."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(64, 3)).astype(np.float32)
    y = (x @ [[1.0, -2.0], [0.5, 0.0], [3.0, 1.0]] + 0.1 * rng.normal(size=(64, 2)) + 1).astype("f")
    np.savez(tmp_path / "train.npz", x=x, y=y)
    np.savez(tmp_path / "test.npz", x=x, y=y)
    values = {
        **{
            "data.name": "folder",
            "data.path": str(tmp_path),
            "data.train_examples": 0,
            "batch_size": 64,
        },
        **{"model.name": "mlp", "model.hidden": (), "steps": 300, "log_every": 100},
        **{"checkpoint_every": 0, "method.name": "sync"},
        **{"optimizer.learning_rate": 0.2, "optimizer.momentum": 0.5},
    }
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


def test_a_model_does_not_fit_its_data_in_one_line(config, tmp_path):
    np.savez(tmp_path / "train.npz", x=X, y=Y)
    values = {"data.name": "folder", "data.path": str(tmp_path), "data.train_examples": 0}
    for name, said in (("cnn", "config.model: cannot be used"), ("transformer", "needs text")):
        assert said in refusal(prepare, config({"model.name": name, **values}), error=ValueError)
    with pytest.raises(ValueError, match=r"config.loss: .*needs 'label', and the data have x, y"):
        prepare(config({"model.name": "mlp", "loss": "cross_entropy", **values}))


def test_blocks_without_parameters_are_trained_and_saved(config, tmp_path, monkeypatch, final):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "flat_blocks.py").write_text(
        "from flax import linen as nn\n\n\nclass Flat(nn.Module):\n"
        "    def __call__(self, x):\n        return x.reshape(len(x), -1)\n\n\n"
        "def make(classes):\n    return [('flat', Flat()), ('out', nn.Dense(classes))]\n"
    )
    values = {"model.name": "flat_blocks:make", "data.name": "configs.own.data:load"}
    values |= {"data.train_examples": 0, "steps": 20, "metrics": ("absolute_error",)}
    whole = train(config(values), tmp_path / "whole")
    assert whole["parameters"] == 3 * 2 + 2
    run = prepare(config(values))
    assert run.params["flat"] == {}
    step, state = final(run, tmp_path / "whole")
    assert step == 20 and state.params["flat"] == {} and len(state.params["out"]) == 2


def test_real_devices_and_streams_carry_every_kind(tmp_path):
    """Regression on 2 devices in each idiom, streamed and metered, against one."""
    np.savez(tmp_path / "train.npz", x=RNG.normal(size=(256, 3)), y=RNG.normal(size=(256, 2)))
    np.savez(tmp_path / "test.npz", x=X, y=Y)
    common = {
        **{"steps": 60, "log_every": 30, "checkpoint_every": 0, "batch_size": 16},
        **{
            "data.name": "folder",
            "data.path": str(tmp_path),
            "model.hidden": [8],
            "cluster.service.name": "constant",
        },
        **{"optimizer.learning_rate": 0.05, "optimizer.momentum": 0.5, "loss": "huber"},
    }
    configs = {"one": {}}
    for api in ("jit", "shard_map", "pmap"):
        configs[api] = {"parallel.api": api, "parallel.devices": 2}
    configs["streamed"] = configs["shard_map"] | {"data.streaming": True}
    configs["metered"] = {"probes.momentum": True, "probes.window": 55, "probes.every": 60}
    every = {name: common | values for name, values in configs.items()}
    found = parameters(every, tmp_path, devices=2)
    for name, flat in found.items():
        # Two devices sum 16 gradients in another order: 60 updates of 1e-2, each off by 2^-22.
        np.testing.assert_allclose(flat, found["one"], rtol=0, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(found["streamed"], found["shard_map"])
    assert np.abs(np.load(tmp_path / "metered" / "sketches.npy")).max() > 0
