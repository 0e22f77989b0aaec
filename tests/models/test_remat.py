"""Blocks that keep their inputs only: the same function, with less kept and more computed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.problem import costs, models, problem
from optdyn.problem.models import OwnModel, base
from optdyn.problem.models.transformer import TransformerBase
from tests.models.parameters import shapes, some
from tests.values import as_model

CASES = {
    "resnet": {"channels": (8,), "stages": (2,), "norm": "batch", "stem": "whole"},
    "modern_transformer": {"blocks": 2, "width": 16, "attention_heads": 2},
    "transformer": {"blocks": 2, "width": 16, "attention_heads": 2},
    "resmlp": {"blocks": 3, "width": 16},
}


def of(name, remat):
    return as_model({"name": name, "remat": remat, **CASES[name]})


def examples(name, batch=2):
    if isinstance(as_model({"name": name}), TransformerBase):
        return jnp.arange(batch * 64, dtype=jnp.int32).reshape(batch, 64) % 11
    return jnp.asarray(np.random.default_rng(0).normal(size=(batch, 12, 12, 3)), jnp.float32)


def gradient(blocks, x):
    return jax.jit(jax.value_and_grad(lambda p: (base.apply(blocks, p, x) ** 2).mean()))


@pytest.mark.parametrize("name", CASES)
def test_is_the_same_function_with_the_same_parameters(name):
    x = examples(name)
    plain, again = (models.make(of(name, remat), 11) for remat in (False, True))
    params = some(plain, x)
    assert jax.tree.map(jnp.shape, shapes(again, x)) == jax.tree.map(jnp.shape, params)
    (loss, grads), (their_loss, theirs) = (gradient(blocks, x)(params) for blocks in (plain, again))
    # Beside its gradient XLA may fuse a loss otherwise, which is as much as float32 rounds.
    assert float(loss) == pytest.approx(float(their_loss), rel=1e-6)
    alone = [jax.jit(partial(base.apply, blocks))(params, x) for blocks in (plain, again)]
    np.testing.assert_array_equal(*alone)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(grads))
    for mine, other in zip(jax.tree.leaves(grads), jax.tree.leaves(theirs), strict=True):
        # The equations are the same, but XLA may fuse those of the second time otherwise: sums of
        # some thousand numbers in another order are rounded by some 1e-6 of the largest. (That of a
        # bias before a batch normalization is nothing but rounding.)
        np.testing.assert_allclose(other, mine, rtol=0, atol=1e-5 * largest)


def test_initial_parameters_are_the_same_to_the_bit():
    x = examples("resmlp")
    models_of_both = [models.make(of("resmlp", remat), 11) for remat in (False, True)]
    draw = [jax.jit(partial(base.init, blocks, x=x)) for blocks in models_of_both]
    one, other = (draw_params(jax.random.key(0)) for draw_params in draw)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("name", CASES)
def test_blocks_keep_their_inputs_only(name):
    x = examples(name)
    kept, operations = {}, {}
    for remat in (False, True):
        task = problem.make(of(name, remat), 11)
        batch = {"text" if name in problem.TEXT else "image": x}
        batch |= {"label": jnp.zeros(len(x), jnp.int32)}
        task = task._replace(losses=lambda y, _: (y**2).reshape(len(x), -1).mean(-1))
        found = costs.block_costs(task, shapes(task.blocks, x), batch)
        kept[remat] = [cost.activation_bytes for cost in found.trunk]
        operations[remat] = [cost.backward for cost in found.trunk]
        forward = [cost.forward for cost in found.trunk]
        inputs = [leaf.nbytes for leaf in base_inputs(task, x)]
    assert kept[True] == inputs
    assert all(more > less for more, less in zip(kept[False], kept[True], strict=True))
    # What is computed again is a forward pass, less what no gradient needs: the last addition and
    # the last product of each, which for these blocks is at most half of it.
    for again, plain, once in zip(operations[True], operations[False], forward, strict=True):
        assert plain + once / 2 <= again <= plain + once


def base_inputs(task, x):
    """What every block of the trunk takes, as arrays of zeros."""
    params = shapes(task.blocks, x)
    hs = jax.eval_shape(lambda p: base.activations(task.blocks, p, x), params)
    return [jnp.zeros(h.shape, h.dtype) for h in hs[:-2]]


def test_of_a_model_of_ones_own_all_blocks_but_the_last():
    blocks = models.make(OwnModel(name="configs.custom.model:make", remat=True), 10)
    x = examples("resmlp")
    params = some(blocks, x)
    program = str(jax.make_jaxpr(jax.grad(lambda p: base.apply(blocks, p, x).sum()))(params))
    # One for each of its two sines, computed once more on the way back.
    assert program.count("prevent_cse=True") == 2
