"""Costs of local parallelism: against closed formulas, compiled programs and a simulated clock."""

from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import gpt, resnet
from optdyn.methods.local_losses import gradients, groups, heads
from optdyn.problem import problem
from optdyn.problem.costs import BlockCost, BlockCosts, block_costs, communicated_bytes, update_cost
from optdyn.problem.models import MLP, ResMLP, Transformer

BATCH, WIDTH, CLASSES, K = 32, 64, 10, 4
GROUPS = {
    "greedy": ((0, 1), (1, 2), (2, 3), (3, 4)),
    "chunked": ((0, 2), (2, 4)),
    "overlapping": ((0, 2), (1, 3), (2, 4)),
    "backprop": ((0, 4),),
}
# An image has as many pixels as the network is wide, so that all its blocks are alike.
MODELS = {
    "mlp": MLP(hidden=(WIDTH,) * K),
    "resmlp": ResMLP(blocks=2, width=WIDTH),
    "transformer": Transformer(blocks=2, width=16, attention_heads=2),
}
IMAGES = {
    "image": jax.ShapeDtypeStruct((BATCH, 8, 8, 1), jnp.uint8),
    "label": jax.ShapeDtypeStruct((BATCH,), jnp.int32),
}
TEXTS = {"text": jax.ShapeDtypeStruct((BATCH, 9), jnp.int32)}


def made(name, parts):
    """A problem with the heads that groups need, and the shapes of its parameters and batch."""
    model, batch = MODELS[name], TEXTS if name == "transformer" else IMAGES
    without = problem.make(model, CLASSES)
    whole = problem.make(model, CLASSES, heads(without.blocks, parts, False))
    return whole, jax.eval_shape(whole.init, jax.random.key(0), batch), batch


@cache
def costs(name):
    return block_costs(*made(name, ()))


def test_dense_block():
    """2 B I O for the product, twice that for both its gradients, and a few operations an output.

    Those are bias and ReLU; its mask, in two operations, and the sum of the bias's gradient.
    """
    product = 2 * BATCH * WIDTH * WIDTH
    for block in costs("mlp").trunk:
        assert block.forward == product + 2 * BATCH * WIDTH
        assert 0 <= block.backward - 2 * product <= 3 * BATCH * WIDTH
        assert block.backward - block.backward_first == product
        assert block.parameter_bytes == 4 * (WIDTH + 1) * WIDTH
        assert block.output_bytes == 4 * BATCH * WIDTH
        # Its input, and of its output at least a mask and at most the output itself.
        assert BATCH * WIDTH <= block.activation_bytes - 4 * BATCH * WIDTH <= 4 * BATCH * WIDTH
    product = 2 * BATCH * WIDTH * CLASSES
    for head in costs("mlp").heads:
        # Softmax, its logarithm and its gradient: at most 20 operations a logit, one in 6 here.
        assert 0 <= head.forward + head.backward - 3 * product <= 20 * BATCH * CLASSES
        assert head.parameter_bytes == 4 * (WIDTH + 1) * CLASSES


def test_names_are_the_keys_of_the_parameters():
    trunk, heads = costs("mlp")
    _, params, _ = made("mlp", GROUPS["greedy"])
    assert {cost.name for cost in trunk + heads} == set(params)
    assert heads[-1].name == "classifier"


@pytest.mark.parametrize(
    ("name", "parts"),
    [*(("mlp", parts) for parts in GROUPS.values()), ("resmlp", ((0, 1), (1, 2)))],
    ids=[*GROUPS, "resmlp"],
)
def test_total_against_the_compiled_gradient_of_all_groups(name, parts):
    whole, params, batch = made(name, parts)
    gradient = gradients(whole, parts)

    def step(params, batch):
        grads, _, loss = gradient(params, whole.input(batch), batch)
        return grads, loss

    analysis: Any = jax.jit(step).lower(params, batch).compile().cost_analysis()
    # Fusions repeat element-wise operations, up to 1 % here. The input gradient of one block too
    # many, or one forward pass too few, would be 4 % or more.
    assert update_cost(costs(name), parts).total == pytest.approx(analysis["flops"], rel=0.02)


def of_update(config, classes, batch):
    """Operations of an update by the whole gradient, and the number of parameters."""
    config = config.with_({"model.remat": False})
    whole = problem.make(config.model, classes)
    params = jax.eval_shape(whole.init, jax.random.key(0), batch)
    found = block_costs(whole, params, batch)
    total = update_cost(found, ((0, len(found.trunk)),)).total
    return total, sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.slow
def test_operations_of_a_transformer_are_the_usual_estimate():
    """6 a parameter and token, embeddings aside, and 12 a layer, width and pair of tokens."""
    tokens, batch = 1024, 2
    text = jax.ShapeDtypeStruct((batch, tokens + 1), jnp.int32)
    total, parameters = of_update(gpt.get_config("124m,synthetic"), 25_600, {"text": text})
    usual = batch * tokens * (6 * (parameters - 25_600 * 768) + 12 * 12 * 768 * tokens)
    # Norms, rotations, softmax and the loss are some percent more.
    assert usual < total < 1.06 * usual


@pytest.mark.slow
def test_operations_of_resnet_50_are_the_published_ones():
    """4.09 thousand million products and additions forward, and twice as many backward."""
    batch = {
        "image": jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.uint8),
        "label": jax.ShapeDtypeStruct((2,), jnp.int32),
    }
    config = resnet.get_config("50,synthetic")
    config = config.with_({"model.norm": "batch"})
    total, _ = of_update(config, 1000, batch)
    # Norms, additions and pooling are some percent more; the first block needs no gradient of
    # its input, and borders of images count as products where they are padded.
    assert total == pytest.approx(2 * 3 * 2 * 4.09e9, rel=0.06)


def test_words_have_no_gradient():
    first, second = costs("transformer").trunk[:2]
    assert first.backward == first.backward_first
    assert second.backward > second.backward_first


def test_equal_blocks_are_analyzed_once():
    """Four heads alike call the loss as often as one."""

    def calls(blocks):
        seen = []

        def losses(outputs, batch):
            seen.append(outputs.shape)
            return whole.losses(outputs, batch)

        whole, params, batch = made("mlp", GROUPS["greedy"])
        *trunk, last = whole.blocks
        block_costs(whole._replace(blocks=(*trunk[:blocks], last), losses=losses), params, batch)
        return seen

    assert calls(4) == calls(1)


def test_arrays_cost_what_their_shapes_do():
    whole, params, batch = made("mlp", ())
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (params, batch))
    assert block_costs(whole, *zeros) == block_costs(whole, params, batch)


def test_equal_chunks_divide_the_sequential_part():
    for variant in ("greedy", "chunked"):
        cost = update_cost(costs("mlp"), GROUPS[variant])
        assert cost.sequential == cost.total / len(GROUPS[variant])  # sums of whole numbers


def test_a_shared_head_goes_around_in_two_updates():
    """It changes block 0, whose activations reach the last block, where it is used and changed."""
    trunk, heads = costs("mlp")
    head = heads[0].forward + heads[0].backward
    around = sum(block.forward for block in trunk) + 2 * head + trunk[0].backward_first
    alone, shared = (
        update_cost(costs("mlp"), GROUPS["greedy"], shared) for shared in (False, True)
    )
    assert shared.sequential == around / 2 > alone.sequential
    assert (shared.total, shared.latency) == (alone.total, alone.latency)


def test_windows_from_greedy_to_backpropagation():
    windows = [
        update_cost(costs("mlp"), groups("overlapping", K, window, 1)) for window in range(1, K + 1)
    ]
    assert windows[0] == update_cost(costs("mlp"), GROUPS["greedy"])
    assert windows[-1] == update_cost(costs("mlp"), GROUPS["backprop"])
    for key in (
        lambda cost: cost.sequential,
        lambda cost: cost.sequential / cost.total,
        lambda cost: max(cost.memory),
    ):
        assert all(key(one) < key(other) for one, other in pairwise(windows))


def test_memory_of_groups():
    """Backpropagation holds every block and one head; groups the same and their other heads."""
    trunk, heads = costs("mlp")
    heads = tuple(head._replace(activation_bytes=10**b) for b, head in enumerate(heads))
    held = [2 * cost.parameter_bytes + cost.activation_bytes for cost in trunk + heads]
    greedy, chunked, backprop = (
        update_cost(BlockCosts(trunk, heads), GROUPS[variant]).memory
        for variant in ("greedy", "chunked", "backprop")
    )
    assert backprop == (sum(held[:K]) + held[-1],)
    assert chunked == (held[0] + held[1] + held[K + 1], held[2] + held[3] + held[K + 3])
    assert greedy == tuple(held[k] + held[K + k] for k in range(K))


def test_communication():
    trunk, heads = costs("mlp")
    activation = trunk[0].output_bytes
    sent = {variant: update_cost(costs("mlp"), parts) for variant, parts in GROUPS.items()}
    assert sent["greedy"].communicated_bytes == 3 * activation
    assert sent["chunked"].communicated_bytes == activation
    assert sent["overlapping"].communicated_bytes == 2 * 2 * activation  # gradients come back
    assert sent["backprop"].communicated_bytes == 0
    # Backpropagation over the devices of the greedy groups sends gradients, too.
    assert communicated_bytes(costs("mlp"), GROUPS["backprop"], (1, 2, 3)) == 2 * 3 * activation
    shared = update_cost(costs("mlp"), GROUPS["greedy"], shared=True)
    assert shared.communicated_bytes == 3 * activation + 2 * 3 * heads[-1].parameter_bytes


@st.composite
def networks(draw):
    """Blocks of whole numbers of operations, and groups in which every block is."""
    blocks = draw(st.integers(1, 5))
    few = st.integers(0, 9)
    trunk, heads = [], []
    for _ in range(blocks):
        forward, first, through = draw(st.tuples(few, few, few))
        trunk.append(BlockCost("", forward, first + through, first, 0, 0, 1))
        heads.append(BlockCost("", draw(few), draw(few), 0, 0, 0, 0))
    variant = draw(st.sampled_from(["chunked", "overlapping", "any"]))
    if variant != "any":
        size = draw(st.integers(1, blocks))
        return BlockCosts(tuple(trunk), tuple(heads)), groups(variant, blocks, size, size)
    ends = sorted({blocks, *draw(st.lists(st.integers(1, blocks)))})
    starts = [0, *(draw(st.integers(0, end)) for end in ends[:-1])]
    return BlockCosts(tuple(trunk), tuple(heads)), tuple(zip(starts, ends, strict=True))


@given(networks(), st.booleans())
def test_order_of_the_paths(network, shared):
    whole, parts = network
    cost = update_cost(whole, parts, shared)
    assert cost.sequential <= cost.latency <= cost.total
    alone = update_cost(whole, ((0, len(whole.trunk)),), shared)
    assert alone.sequential == alone.latency == alone.total


def clock(whole, parts, shared, updates):
    """When the last block of each update has its new parameters, if nothing waits for a device.

    A pass starts as soon as there are both its input and the parameters that it needs.
    """
    trunk, heads = whole
    blocks_ready, heads_ready, times = [0] * len(trunk), [0] * len(parts), []
    for _ in range(updates):
        now, outputs = 0, []
        for block, ready in zip(trunk, blocks_ready, strict=True):
            now = max(now, ready) + block.forward
            outputs.append(now)
        blocks_ready = [0] * len(trunk)
        for i, (a, b) in enumerate(parts):
            now = max(outputs[b - 1], heads_ready[i])
            now += heads[b - 1].forward + heads[b - 1].backward
            heads_ready[i] = now
            for k in reversed(range(a, b)):
                now += trunk[k].backward if k > a else trunk[k].backward_first
                blocks_ready[k] = max(blocks_ready[k], now)
        if shared:
            heads_ready = [max(heads_ready)] * len(parts)
        times.append(max(blocks_ready + heads_ready))
    return times


@given(networks(), st.booleans())
def test_paths_against_a_clock(network, shared):
    whole, parts = network
    cost, updates = update_cost(whole, parts, shared), 200
    times = clock(whole, parts, shared, updates)
    assert times[0] == cost.latency
    # A path through all updates is cycles, none slower than `sequential`, and at most six steps
    # more, as there are at most five blocks and a head; none of those is longer than `latency`.
    assert abs(times[-1] - updates * cost.sequential) <= 6 * cost.latency
