"""A lowering for every convolution: who gets which, and what cannot be."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from optdyn.experiment import Config
from optdyn.problem import models
from optdyn.problem.models import base
from optdyn.problem.models.convolution import Conv, lowerings_of
from tests.models import parameters

LENET = {"model.name": "cnn", "model.channels": (2, 3), "model.hidden": ()}
RESNET = {"model.name": "resnet", "model.channels": (2, 4), "model.blocks": 2}


def blocks(values, lowering):
    config = Config().with_({**values, "model.lowering": lowering})
    return models.make(config.model, classes=3)


def computed(values, lowering):
    """Lowerings of the convolutions in the order in which they are computed."""
    found = []

    def record(call, arguments, keywords, context):
        if isinstance(context.module, Conv) and context.method_name == "__call__":
            found.append(context.module.lowering)
        return call(*arguments, **keywords)

    made = blocks(values, lowering)
    x = np.zeros((2, 28, 28, 1), np.float32)
    params = parameters.shapes(made, x)
    with nn.intercept_methods(record):
        jax.eval_shape(lambda params, x: base.apply(made, params, x), params, x)
    return found


# The residual network's: stem, conv0, conv1; shortcut, conv0 (both of stride 2), conv1.
@pytest.mark.parametrize(
    ("values", "lowering"),
    [
        (LENET, "gemm,fft"),
        (LENET, "fft,gemm"),
        (RESNET, "xla,winograd,gemm,fft,gemm,winograd"),
    ],
)
def test_a_list_is_in_the_order_of_computation(values, lowering):
    assert computed(values, lowering) == lowering.split(",")


@pytest.mark.parametrize("values", [LENET, RESNET])
def test_one_name_is_for_all(values):
    assert set(computed(values, "fft")) == {"fft"}
    assert set(computed(values, "")) == {None}


def test_a_list_changes_no_output():
    x = np.random.default_rng(0).random((2, 12, 12, 1), np.float32)
    mixed, uniform = (blocks(RESNET, text) for text in ("gemm,winograd,fft,gemm,fft,xla", "xla"))
    params = parameters.some(uniform, x)
    # Numbers of size 1 through six convolutions of at most 36 terms, each rounded by 6e-8, and by
    # ten times that in the transform of Winograd.
    ours, theirs = jax.jit(lambda x: [base.apply(b, params, x) for b in (mixed, uniform)])(x)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert np.abs(theirs).max() > 0.1


SHAPES = [((3, 3), (1, 1)), ((3, 3), (2, 2)), ((5, 5), (1, 1))]


@pytest.mark.parametrize(
    ("lowering", "message"),
    [
        ("gemm,fft", "names 2: must be one for all, or one for each of 3 convolutions"),
        ("gemm,fft,xla,xla", "names 4: must be one"),
        ("gemm,nosuch,fft", "lowering 'nosuch' of a convolution: one of xla, gemm"),
        ("gemm,,fft", "lowering '' of a convolution"),
        ("winograd", "'winograd' of a convolution 3 x 3 with strides 2 x 2"),
        ("winograd,xla,winograd", "'winograd' of a convolution 5 x 5"),
    ],
)
def test_what_cannot_be(lowering, message):
    with pytest.raises(ValueError, match=message) as error:
        lowerings_of(lowering, SHAPES)
    assert "\n" not in str(error.value)


def test_served():
    assert lowerings_of("winograd,xla,fft", SHAPES) == ("winograd", "xla", "fft")
    assert lowerings_of(None, SHAPES) == (None, None, None)
