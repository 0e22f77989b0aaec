"""Images of our own as a data set that TFDS has prepared, as array_record, without TensorFlow."""

import contextlib
import io
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from optdyn.problem.data import records
from optdyn.problem.data.arrays import DataError, Split

Example = tuple[int, dict[str, np.ndarray | int]]  # its number, and what it has by name


class ImageSplits(NamedTuple):
    """Splits of images of one shape. TFDS orders the examples of a split by their numbers' hash."""

    description: str
    splits: Mapping[str, Split]  # of "image" and "label", and "number", which no two share
    classes: int


def write(root: Path, name: str, version: str, data: ImageSplits) -> Path:
    """Writes root/name/version, whole or not at all, whoever else is doing the same; the folder.

    Raises DataError if it cannot be written.
    """
    folder = root / name / version
    then = "; set OPTDYN_DATA_DIR or data_dir to a folder that can be written"
    with DataError.at(f"cannot prepare {name} under {root}", OSError, then=then):
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as aside:
            made = _prepare(Path(aside), name, version, data)
            records.load(made)  # decoded, too
            folder.parent.mkdir(exist_ok=True)
            _rename(made, folder)
    return folder


def _rename(aside: Path, folder: Path) -> None:
    try:
        aside.rename(folder)
    except OSError:
        if not records.is_prepared(folder):  # else another process was first, with the same records
            raise


def _prepare(root: Path, name: str, version: str, data: ImageSplits) -> Path:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.registered import skip_registration

    # A Tensor, because encoding an Image needs TensorFlow.
    features = {
        "image": tfds.features.Tensor(
            shape=data.splits["train"]["image"].shape[1:], dtype=np.uint8
        ),
        "label": tfds.features.ClassLabel(num_classes=data.classes),
    }

    with skip_registration():

        class Builder(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version(version)

            def _info(self) -> tfds.core.DatasetInfo:
                return tfds.core.DatasetInfo(
                    builder=self,
                    description=data.description,
                    features=tfds.features.FeaturesDict(features),
                    supervised_keys=("image", "label"),
                )

            def _split_generators(self, _: object) -> dict[str, Iterator[Example]]:
                return {key: self._generate_examples(split) for key, split in data.splits.items()}

            def _generate_examples(self, split: Split) -> Iterator[Example]:
                columns = (split[key] for key in ("number", "image", "label"))
                for number, image, label in zip(*columns, strict=True):
                    yield int(number), {"image": image, "label": int(label)}

    Builder.name = name
    builder = Builder(data_dir=root, file_format="array_record")
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare()
    return Path(builder.data_dir)
