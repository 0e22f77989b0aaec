"""A folder of one's own files: idx as MNIST's, npz, and records of TFDS wherever they lie."""

import gzip
import struct

import numpy as np
import pytest

from optdyn.problem import data
from optdyn.problem.data import folder, prepare
from tests.data import loaded
from tests.data.builders import examples, prepared

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 6, 5), dtype=np.uint8)
LABELS = (np.arange(20) % 3).astype(np.uint8)


def idx(array):
    """An idx file as http://yann.lecun.com/exdb/mnist describes it, byte by byte."""
    code = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
    head = bytes([0, 0, code[array.dtype.name], array.ndim])
    sizes = b"".join(struct.pack(">i", size) for size in array.shape)
    return head + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx(where, images=IMAGES, labels=LABELS, prefix="train", packed=True):
    for name, array in ((f"{prefix}-images-idx3", images), (f"{prefix}-labels-idx1", labels)):
        content = idx(array)
        path = where / f"{name}-ubyte{'.gz' * packed}"
        path.write_bytes(gzip.compress(content) if packed else content)


def load(where, **values):
    return loaded.load(f"folder:{where}", **values)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 3, 4, 5)])
def test_idx_of_every_type_and_rank(tmp_path, dtype, shape):
    array = (RNG.normal(size=shape) * 100).astype(dtype)
    (tmp_path / "a").write_bytes(idx(array))
    read = folder.read_idx(tmp_path / "a")
    assert read.shape == shape and read.dtype.name == dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("prefix", ["t10k", "test"])
def test_idx_files_are_read_as_they_are(tmp_path, packed, prefix):
    write_idx(tmp_path, packed=packed)
    write_idx(tmp_path, IMAGES[:4], LABELS[:4], prefix, packed)
    loaded = load(tmp_path)
    assert loaded.classes == 3 and loaded.train["label"].dtype == np.int32
    np.testing.assert_array_equal(loaded.train["image"], IMAGES[..., None])
    np.testing.assert_array_equal(loaded.train["label"], LABELS)
    np.testing.assert_array_equal(loaded.test["image"], IMAGES[:4, ..., None])


def test_unpacked_files_go_before_packed_ones(tmp_path):
    write_idx(tmp_path, packed=False)
    for path in list(tmp_path.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(b"what gunzip -k leaves")
    np.testing.assert_array_equal(load(tmp_path).classes, 3)


def test_npz_with_channels_and_a_fifth_held_out(tmp_path):
    images = RNG.integers(0, 256, (30, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", image=images, label=np.arange(30) % 3, names=["a"])
    loaded = load(tmp_path, train_examples=12)
    assert loaded.train["image"].shape == (12, 4, 4, 3) and len(loaded.test["label"]) == 6
    np.testing.assert_array_equal(np.bincount(loaded.test["label"]), [2, 2, 2])
    both = {image.tobytes() for split in load(tmp_path)[:2] for image in split["image"]}
    assert both == {image.tobytes() for image in images}


def test_records_of_tfds_wherever_they_lie(tmp_path):
    prepared(tmp_path, {"train": examples(30), "test": examples(6)})
    moved = (tmp_path / "tiny" / "1.0.0").rename(tmp_path / "anywhere")
    assert load(moved).train["image"].shape == (30, 5, 4, 3)


def test_images_are_scaled_to_a_size(tmp_path):
    """An image of one colour stays so, and what is far from the middle of a wide one is cut off."""
    wide = np.zeros((2, 8, 16), np.uint8)
    wide[0], wide[1, :, 0], wide[1, :, -1] = 7, 200, 200
    for name in ("train", "test"):
        np.savez(tmp_path / f"{name}.npz", image=wide, label=[0, 1])
    scaled = load(tmp_path, image_size=4).train["image"]
    assert scaled.shape == (2, 4, 4, 1)
    assert (scaled[0] == 7).all() and (scaled[1] == 0).all()


def wrong_idx(content, name="train-images-idx3-ubyte", packed=False):
    """Writes idx files, and another content of one of them; without content it goes."""

    def write(where):
        write_idx(where, packed=packed)
        if content:
            (where / name).write_bytes(content)
        else:
            (where / name).unlink()

    return write


def npz(**arrays):
    return lambda where: np.savez(where / "train.npz", **arrays)


WRONG = {
    "nothing": (lambda where: None, "no training images in .*, only nothing: it needs train.npz"),
    "other files": (
        lambda where: (where / "a.csv").touch(),
        r"no training images in .*, only a\.csv: it needs train\.npz .*train-labels-idx1-ubyte",
    ),
    "bare records": (
        lambda where: (where / "train.array_record").touch(),
        "no training images .*array_record files with TFDS's features.json",
    ),
    "absent": (lambda where: where.rmdir(), r"no folder .*, which config\.data\.name"),
    "no labels": (
        wrong_idx(b"", "train-labels-idx1-ubyte"),
        "has no idx file of the train labels",
    ),
    "two files": (
        wrong_idx(idx(IMAGES), "train-images-small-idx3-ubyte"),
        "several idx files of the train images: .*small",
    ),
    "fewer labels": (
        lambda where: write_idx(where, labels=LABELS[:-1]),
        "the train split .* has 20 of image and 19 of label",
    ),
    "no idx": (wrong_idx(b"PNG"), "cannot read .*train-images-idx3-ubyte: not an idx file"),
    "short idx": (wrong_idx(idx(IMAGES)[:-7]), "cannot read .*train-images-idx3-ubyte: "),
    "no gzip": (
        wrong_idx(b"x", "train-images-idx3-ubyte.gz", packed=True),
        "cannot read .*idx3-ubyte.gz: ",
    ),
    "names": (npz(a=IMAGES, b=LABELS), "train.npz has no 'image', only a, b"),
    "floats": (
        npz(image=IMAGES / 255, label=LABELS),
        r"'image' of the data set .* is float32 \(\d+, 6, 5, 1\): must be uint8",
    ),
    "npz": (lambda where: (where / "train.npz").write_bytes(b"no"), "cannot read .*train.npz"),
    "shapes": (
        lambda where: [write_idx(where), write_idx(where, IMAGES[:, :3], prefix="test")],
        r"uint8 \(20, 6, 5, 1\) in train and uint8 \(20, 3, 5, 1\) in test: must differ",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_that_cannot_be_used_are_one_clear_line(tmp_path, case):
    write, message = WRONG[case]
    write(tmp_path)
    with pytest.raises(data.DataError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


# Prepared once as records of TFDS, which a run opens at once.


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["prepare", *map(str, arguments)])
    prepare.main()


def test_a_folder_is_prepared_under_any_name(tmp_path, monkeypatch, capsys):
    write_idx(tmp_path)
    write_idx(tmp_path, IMAGES[:4], LABELS[:4], "t10k")
    root = tmp_path / "root"
    for _ in range(2):
        command(monkeypatch, "mine", f"--data_dir={root}", f"--source={tmp_path}")
        mean, std = IMAGES.mean() / 255, IMAGES.std() / 255
        assert capsys.readouterr().out.splitlines()[-1] == (
            f"tfds:mine is ready under {root}/mine/1.0.0: 20 + 4 images (6, 5, 1), 3 classes; "
            f"config.data.mean=({mean:.4f},) config.data.std=({std:.4f},)"
        )
    prepared, original = loaded.load("tfds:mine", root), load(tmp_path)
    assert prepared.classes == original.classes
    for one, other in zip(prepared[:2], original[:2], strict=True):
        rows = [sorted(zip(map(bytes, s["image"]), s["label"], strict=True)) for s in (one, other)]
        assert rows[0] == rows[1]


def test_what_is_in_the_way_of_a_folder_is_one_line(tmp_path, monkeypatch):
    for arguments, message in (
        (["mine", "--source=/nowhere"], "no folder /nowhere"),
        (["my set", f"--source={tmp_path}"], "'my set' cannot be the name"),
        (["fashion_mnist"], "install Debian's package dataset-absent, or name .* --source"),
    ):
        monkeypatch.setitem(prepare.DEBIAN, "fashion_mnist", tmp_path / "absent")
        with pytest.raises(SystemExit, match=f"error: .*{message}") as stopped:
            command(monkeypatch, *arguments, f"--data_dir={tmp_path / 'root'}")
        assert "\n" not in stopped.value.code
        assert not (tmp_path / "root").exists()


def test_fashion_mnist_is_where_debian_has_it(tmp_path, monkeypatch, capsys):
    write_idx(tmp_path)
    write_idx(tmp_path, prefix="t10k")
    monkeypatch.setitem(prepare.DEBIAN, "fashion_mnist", tmp_path)
    command(monkeypatch, "fashion_mnist", f"--data_dir={tmp_path / 'root'}")
    assert "tfds:fashion_mnist is ready" in capsys.readouterr().out
    assert loaded.load("tfds:fashion_mnist", tmp_path / "root").train["image"].shape[0] == 20
