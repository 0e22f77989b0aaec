"""The residual network: shapes, and its equations in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.problem.models import base
from optdyn.problem.models.convnets import NORMS, ResNet
from tests.models.parameters import count, dense, shapes, some

CLASSES = 3
every_norm = pytest.mark.parametrize("norm", NORMS)


def images(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def convolution(x, kernel, bias, stride=1):
    """Padded 'SAME': outputs at every stride-th pixel, a missing pixel before rather than after."""
    size = kernel.shape[0]
    pads = []
    for n in x.shape[1:3]:
        missing = max((-(-n // stride) - 1) * stride + size - n, 0)
        pads.append((missing // 2, missing - missing // 2))
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))
    return np.einsum("bhwcij,ijco->bhwo", windows[:, ::stride, ::stride], kernel) + bias


def norm_relu(x, norm, scale, bias):
    if norm == "batch":
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    else:
        grouped = x.reshape(*x.shape[:3], min(8, x.shape[3]), -1)
        axes = {"axis": (1, 2, 4), "keepdims": True}
        mean = np.broadcast_to(grouped.mean(**axes), grouped.shape).reshape(x.shape)
        var = np.broadcast_to(grouped.var(**axes), grouped.shape).reshape(x.shape)
    return np.maximum((x - mean) / np.sqrt(var + 1e-6) * scale + bias, 0)


def in_float64(params):
    return jax.tree.map(lambda leaf: leaf.astype(np.float64), params)


def outputs(blocks, params, x, h, norm):
    """Of the network, and of its last block on what the one before it should have made."""
    output = in_float64(params["output"])
    pooled = norm_relu(h, norm, **output["GroupNorm_0"]).mean((1, 2))
    made = jax.jit(lambda params: base.apply(blocks, params, x))(params)
    return made, dense(pooled, **output["Dense_0"])


def test_every_stage_halves_the_image():
    x = jnp.zeros((2, 28, 28, 1))
    blocks = base.make(ResNet((4, 8, 16), 6), 10)
    assert [name for name, _ in blocks] == [*(f"block{k}" for k in range(6)), "output"]
    sizes = jax.eval_shape(lambda p: base.activations(blocks, p, x), shapes(blocks, x))
    assert [h.shape[1:] for h in sizes[1:]] == [
        *2 * [(14, 14, 4)],
        *2 * [(7, 7, 8)],
        *2 * [(4, 4, 16)],
        (10,),
    ]


@every_norm
def test_number_of_parameters(norm):
    def conv(size, before, after):
        return (size**2 * before + 1) * after

    x = jnp.zeros((2, 9, 9, 5))
    params = shapes(base.make(ResNet((4, 16), 4, norm), 10), x)
    same = {c: 2 * conv(3, c, c) + 4 * c for c in (4, 16)}  # norms: a scale and a bias a channel
    assert {name: count(block) for name, block in params.items()} == {
        "block0": conv(3, 5, 4) + same[4],
        "block1": same[4],
        "block2": 2 * 4 + conv(3, 4, 16) + 2 * 16 + conv(3, 16, 16) + conv(1, 4, 16),
        "block3": same[16],
        "output": 2 * 16 + 17 * 10,
    }


@pytest.mark.parametrize(
    ("stages", "bottleneck", "published"),
    [((2, 2, 2, 2), False, 11_689_512), ((3, 4, 6, 3), True, 25_557_032)],
)
def test_the_published_networks_on_imagenet(stages, bottleneck, published):
    """He et al.'s, as torchvision counts them, but for biases and the place of the norms."""
    widths, wider = (64, 128, 256, 512), 4 if bottleneck else 1
    x = jnp.zeros((2, 224, 224, 3))
    blocks = base.make(ResNet(widths, 8, "batch", stages, "quarter", bottleneck), 1000)
    params = shapes(blocks, x)
    kernels = [leaf.shape for leaf in jax.tree.leaves(params) if leaf.ndim == 4]
    biases = sum(shape[-1] for shape in kernels)
    # Theirs have a norm of two numbers a channel after every convolution, ours have one before
    # every convolution but the stem and the shortcuts, and one before the mean over pixels.
    theirs = 2 * biases
    mine, before = 2 * widths[-1] * wider, 64
    for width, depth in zip(widths, stages, strict=True):
        for _ in range(depth):
            mine += 2 * (before + (2 if bottleneck else 1) * width)
            before = width * wider
    assert count(params) == published + biases + mine - theirs
    assert abs(count(params) / published - 1) < 1e-3
    assert len(kernels) == 1 + (3 if bottleneck else 2) * sum(stages) + (4 if bottleneck else 3)
    sizes = jax.eval_shape(lambda p: base.activations(blocks, p, x), params)
    ends = np.cumsum(stages)
    assert [sizes[end].shape[1:] for end in ends] == [
        (56 // 2**k, 56 // 2**k, width * wider) for k, width in enumerate(widths)
    ]


def test_a_stem_keeps_the_size_or_quarters_it():
    x = jnp.zeros((2, 28, 28, 1))
    for stem, size, kernel in (("whole", 28, 3), ("half", 14, 3), ("quarter", 7, 7)):
        blocks = base.make(ResNet((4,), 1, stem=stem), 10)
        params = shapes(blocks, x)
        made = jax.eval_shape(lambda p, b=blocks: base.activations(b, p, x)[1], params)
        assert made.shape == (2, size, size, 4)
        assert params["block0"]["stem"]["kernel"].shape == (kernel, kernel, 1, 4)


def test_bottleneck_and_pooling_are_their_equations():
    blocks = base.make(ResNet((4, 8), 9, "group", (2, 1), "quarter", True), CLASSES)
    x = images(2, 13, 12, 2)
    params = some(blocks, x)
    wide = in_float64(params)
    h = convolution(np.asarray(x, np.float64), **wide["block0"]["stem"], stride=2)
    assert h.shape[1:3] == (7, 6)
    # The largest of 3 x 3 at every second pixel: 7 rows lack one before and one after, 6 columns
    # one after.
    h = np.pad(h, ((0, 0), (1, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    h = np.lib.stride_tricks.sliding_window_view(h, (3, 3), (1, 2))[:, ::2, ::2].max((-2, -1))
    for k, stride in enumerate((1, 1, 2)):
        block = wide[f"block{k}"]
        y = norm_relu(h, "group", **block["GroupNorm_0"])
        if k != 1:  # the number of channels or the size changes
            h = convolution(y, **block["shortcut"], stride=stride)
        y = norm_relu(convolution(y, **block["conv0"]), "group", **block["GroupNorm_1"])
        y = convolution(y, **block["conv1"], stride=stride)
        h = h + convolution(norm_relu(y, "group", **block["GroupNorm_2"]), **block["conv2"])
    # Numbers of size 1 to 10 through 14 layers, 1e-5 of which is a hundred roundings.
    made, expected = outputs(blocks, params, x, h, "group")
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


@every_norm
def test_is_its_equation(norm):
    """16 channels are eight groups of two; 7 x 6 pixels are padded on both sides or on one."""
    blocks, x = base.make(ResNet((4, 16), 2, norm), CLASSES), images(3, 13, 12, 2)
    params = some(blocks, x)
    wide = in_float64(params)
    h = convolution(np.asarray(x, np.float64), **wide["block0"]["stem"], stride=2)
    for k in range(2):
        block, stride = wide[f"block{k}"], 1 + k
        y = norm_relu(h, norm, **block["GroupNorm_0"])
        if k:
            h = convolution(y, **block["shortcut"], stride=2)
        y = convolution(y, **block["conv0"], stride=stride)
        h = h + convolution(norm_relu(y, norm, **block["GroupNorm_1"]), **block["conv1"])
    # Numbers of size 1 through 12 layers of sums of at most 144 terms: 1e-5 is a hundred times what
    # float32 rounds each by.
    np.testing.assert_allclose(*outputs(blocks, params, x, h, norm), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"blocks": 3}, "^resnet of 3 blocks: .* 2 stages"),
        ({"blocks": 0}, "model.blocks = 0: must be from 1 to "),
        ({"channels": ()}, "^resnet of 2 blocks: .* 0 stages"),
        ({"norm": "layer"}, "model.norm = 'layer': must be one of 'group', 'batch'$"),
        ({"channels": (8, 12)}, "^resnet of 12 channels .* multiple of 8, or less than 8$"),
        ({"stages": (1,)}, r"^resnet of stages \(1,\): must be one number .* of its 2 channels$"),
        ({"stages": (1, 0)}, r"model.stages = \(1, 0\): must be whole numbers from 1 "),
        ({"stem": "third"}, "model.stem = 'third': must be one of 'half', 'whole', 'quarter'$"),
    ],
)
def test_what_cannot_be_is_one_line(values, message):
    with pytest.raises(ValueError, match=message):
        base.make(ResNet(**{"channels": (4, 8), "blocks": 2} | values), CLASSES)
