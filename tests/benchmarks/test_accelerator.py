"""The command for accelerators: what it counts, and that no part stops another."""

import jax
import jax.numpy as jnp
import pytest

from optdyn.problem import problem
from optdyn.training.program import shapes
from tests.benchmarks import accelerator
from tests.benchmarks.peaks import published
from tests.values import as_experiment, as_model


def operations(config, classes, batch):
    one = {name: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype) for name, leaf in batch.items()}
    params = shapes(as_experiment(config), classes, jax.random.key(0), one)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return accelerator.operations(
        problem.make(as_model(config.model), classes), params, batch
    ), count


def test_operations_of_the_transformer_are_the_usual_estimate():
    """6 a parameter and token, embeddings aside, and 12 a layer, width and pair of tokens."""
    config, tokens, batch = accelerator.words(True), 1024, 2
    text = jax.ShapeDtypeStruct((batch, tokens + 1), jnp.int32)
    made, parameters = operations(config, 25_600, {"text": text})
    used = parameters - 25_600 * 768
    usual = batch * tokens * (6 * used + 12 * 12 * 768 * tokens)
    # Norms, rotations, softmax and the loss are some percent more.
    assert usual < made < 1.06 * usual


@pytest.mark.slow
def test_operations_of_resnet_50_are_the_published_ones():
    """4.09 thousand million products and additions forward, and twice as many backward."""
    config = accelerator.images(True)
    batch = {
        "image": jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.uint8),
        "label": jax.ShapeDtypeStruct((2,), jnp.int32),
    }
    made, _ = operations(config, 1000, batch)
    # Norms, additions and pooling are some percent more; the first block needs no gradient of
    # its input, and borders of images count as products where they are padded.
    assert made == pytest.approx(2 * 3 * 2 * 4.09e9, rel=0.06)


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v6 lite", 918e12),
        ("cpu", None),
    ],
)
def test_peaks_by_the_names_that_devices_give_themselves(kind, peak):
    assert published(kind) == peak


def test_a_part_that_fails_or_takes_too_long_says_so():
    (row,) = accelerator.measured("nosuch", 600)
    assert row["part"] == "nosuch" and row["what"].startswith("failed: ")
    assert "invalid choice" in row["what"]
    (row,) = accelerator.measured("meter", 0.05)
    assert row["what"] == "failed: stopped after 0 s"


def test_the_largest_batch_that_fits_is_taken(monkeypatch):
    """A batch that the device has no memory for is left out; another failure is not."""
    tried = []

    def ours(config, updates):
        tried.append(config.batch_size)
        if config.batch_size > 8:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        if config.batch_size < 8:
            raise jax.errors.JaxRuntimeError("INTERNAL: no")
        return lambda: 2.0

    monkeypatch.setattr(accelerator, "ours", ours)
    monkeypatch.setattr(accelerator, "operations_of", lambda config: 1e12)
    monkeypatch.setattr(accelerator, "published", lambda kind: 5e12)
    rows = list(accelerator.utilization(accelerator.words(False), [32, 16, 8, 4], 1, ""))
    assert tried == [32, 16, 8]
    assert rows[0]["median"] == 8 / 2 and rows[-1]["median"] == pytest.approx(0.1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        list(accelerator.utilization(accelerator.words(False), [4], 1, ""))
    with pytest.raises(MemoryError, match="batches of 16"):
        list(accelerator.utilization(accelerator.words(False), [32, 16], 1, ""))
