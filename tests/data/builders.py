"""Small data sets of images and of text for TFDS to prepare."""

import io

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image


def tiny(splits, config="", version="1.0.0", **features):
    """A builder of {split: [{"image": PIL image or array, "label": ...}]}; `features` add to these
    two, or take them away where they are None."""
    features = {
        "image": tfds.features.Image(shape=(None, None, 3)),
        "label": tfds.features.ClassLabel(num_classes=3),
    } | features
    features = {key: feature for key, feature in features.items() if feature is not None}

    def generate_examples(self, examples):
        for i, example in enumerate(examples):
            yield i, {key: png(example[key]) for key in features}

    body = {
        "name": "tiny",
        "VERSION": tfds.core.Version(version),
        "BUILDER_CONFIGS": [tfds.core.BuilderConfig(name=config)] if config else [],
        "_info": lambda self: tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        ),
        "_split_generators": lambda self, _: {
            key: self._generate_examples(examples) for key, examples in splits.items()
        },
        "_generate_examples": generate_examples,
    }
    base = tfds.core.GeneratorBasedBuilder
    return type(base)("Tiny", (base,), body, skip_registration=True)


def png(value):
    """An Image is handed over encoded, since TFDS encodes by TensorFlow."""
    if not isinstance(value, Image.Image):
        return value
    value.save(buffer := io.BytesIO(), "png")
    return buffer.getvalue()


def examples(count, seed=0, shape=(5, 4, 3)):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return [{"image": Image.fromarray(p), "label": i % 3} for i, p in enumerate(pixels)]


def texts(lines):
    return [{"text": line} for line in lines]


def prepare(folder, builder):
    tfds.disable_progress_bar()
    builder(data_dir=folder, file_format="array_record").download_and_prepare()


def prepared(folder, *arguments, **features):
    prepare(folder, tiny(*arguments, **features))


def prepared_text(folder, splits, **features):
    """Prepares {split: texts} in `folder`, with `features` besides or instead of the text."""
    features = {"image": None, "label": None, "text": tfds.features.Text()} | features
    prepared(folder, splits, **features)


def of_tfds(name, splits):
    """TFDS's own definition of a data set, with {split: examples} in place of what it downloads."""
    base = tfds.builder_cls(name)
    body = {
        "name": name,
        "_split_generators": lambda self, _: {
            key: self._generate_examples(examples) for key, examples in splits.items()
        },
        "_generate_examples": lambda self, examples: (
            (i, {key: png(value) for key, value in example.items()})
            for i, example in enumerate(examples)
        ),
    }
    return type(base)(base.__name__, (base,), body, skip_registration=True)
