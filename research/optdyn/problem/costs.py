"""The costs of local parallelism: arithmetic, dependent arithmetic, memory and communication.

Laskin et al., "Parallel training of deep networks with local updates" (arXiv 2012.03837), plot loss
against *sequential* compute. With f_j and b_j the operations of trunk block j forward and backward,
and H_b those of a head and its loss both ways at the output of block b-1, for groups (a, b):

    own(a, b)  = f_a + ... + f_{b-1} + H_b + b_{b-1} + ... + b_a
    total      = f_0 + ... + f_{K-1} + sum over groups of (H_b + b_{b-1} + ... + b_a)
    sequential = max over groups of own(a, b)
    latency    = max over groups of (f_0 + ... + f_{a-1} + own(a, b))

b_a, of the first block of a group, lacks the gradient with respect to its input, which is not used.
Operations are XLA's count of floating-point operations, without transcendental functions and
optimizers, in the uncompiled program; that of a compiled one lacks library calls.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var

from optdyn.base.lookup import Is
from optdyn.base.trees import Examples, Params, Tree, bytes_of
from optdyn.clock.pipeline import StageWork
from optdyn.problem.models import base
from optdyn.problem.models.base import Block
from optdyn.problem.problem import Problem

Groups = tuple[tuple[int, int], ...]  # of trunk blocks that learn together: half-open (a, b)
Shapes = Tree  # a pytree of arrays or of jax.ShapeDtypeStruct
Abstract = tuple[jax.tree_util.PyTreeDef, tuple[jax.ShapeDtypeStruct, ...]]  # as a key of caches


class BlockCost(NamedTuple):
    """The costs of a block, or of a head and its loss, on one batch."""

    name: str
    forward: float  # floating-point operations
    backward: float  # operations of the gradients of parameters and input, given the activations
    backward_first: float  # operations of the gradients of the parameters only
    parameter_bytes: int
    activation_bytes: int  # from forward to backward, without parameters and constants
    output_bytes: int


class BlockCosts(NamedTuple):
    trunk: tuple[BlockCost, ...]  # of every block but the last, (K,)
    heads: tuple[BlockCost, ...]  # of the last block and the loss at the output of each, (K,)


class UpdateCost(NamedTuple):
    """The costs of one update; the first three are floating-point operations."""

    total: float
    sequential: float
    latency: float
    memory: tuple[int, ...]  # bytes, by group
    communicated_bytes: int  # bytes


def block_costs(problem: Problem, params: Shapes, batch: Shapes) -> BlockCosts:
    """Returns the costs on a batch, by shapes; a head costs what the last block would there."""
    return _block_costs(Is(problem), _shapes_key((params, batch)))


def _shapes_key(tree: Shapes) -> Abstract:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)


@lru_cache(maxsize=16)
def _block_costs(key: Is, inputs: Abstract) -> BlockCosts:
    problem: Problem = key.thing
    params, batch = jax.tree.unflatten(*inputs)
    *trunk, (last, head) = problem.blocks
    h = jax.eval_shape(problem.input, batch)
    blocks, heads = [], []
    for name, block in trunk:
        blocks.append(_cost(name, block, None, (params[name], h, {})))
        h = jax.eval_shape(_value(block, None), params[name], h, {})
        shapes = jax.eval_shape(head.init, jax.random.key(0), h)["params"]
        name = base.head_of(name)
        if len(blocks) == len(trunk):
            name, shapes = last, params[last]
        heads.append(_cost(name, head, problem.losses, (shapes, h, batch)))
    return BlockCosts(tuple(blocks), tuple(heads))


def update_cost(
    costs: BlockCosts, groups: Groups, shared: bool = False, cuts: Sequence[int] = ()
) -> UpdateCost:
    """Returns the costs of one update of these groups, each with its head or with a `shared` one.

    - sequential: operations between updates in the steady state, the largest mean of a cycle of
      dependencies: the largest `own`. A shared head closes cycles of two updates, too: from the
      head through a group to new parameters, from these forward to a use of the head.
    - latency: operations on the longest path through one update, with no other under way.
    - memory: parameters, their gradients and activations on a device with one group.
    - communicated_bytes: between devices that begin at the blocks `cuts`, by default one a group; a
      shared head's gradient and new parameters also travel to the last group and back.

    Paths assume enough devices, free communication, and undivided blocks, batches and passes.
    """
    trunk, heads = costs
    forward = [0.0]  # of all blocks before one
    for block in trunk:
        forward.append(forward[-1] + block.forward)
    back = [_backward_operations(costs, a, b) for a, b in groups]
    sequential = max(forward[b] - forward[a] + back[i] for i, (a, b) in enumerate(groups))
    begin = sorted({a for a, _ in groups})
    sent = communicated_bytes(costs, groups, [cut for cut in cuts or begin if cut])
    if shared:
        used = max(forward[b] + heads[b - 1].forward + heads[b - 1].backward for _, b in groups)
        trip = max(used - forward[a] + back[i] for i, (a, _) in enumerate(groups))
        sequential = max(sequential, trip / 2)
        sent += 2 * (len(groups) - 1) * heads[-1].parameter_bytes
    latency = max(forward[b] + back[i] for i, (_, b) in enumerate(groups))
    memory = tuple(
        sum(2 * part.parameter_bytes + part.activation_bytes for part in parts)
        for parts in ((*trunk[a:b], heads[b - 1]) for a, b in groups)
    )
    return UpdateCost(forward[-1] + sum(back), sequential, latency, memory, sent)


def stage_work(costs: BlockCosts, groups: Groups, cuts: Sequence[int]) -> StageWork:
    """Returns the work of stages that begin at the blocks `cuts`, of which the first is 0.

    The unit is the work of backpropagation on the batch through all blocks.
    """
    trunk, heads = costs
    unit = update_cost(costs, ((0, len(trunk)),)).total
    stage = np.searchsorted(cuts, np.arange(len(trunk)), side="right") - 1
    forward, backward, parameters = np.zeros((3, len(cuts)))
    for j, block in zip(stage, trunk, strict=True):
        forward[j] += block.forward / unit
        parameters[j] += block.parameter_bytes
    for a, b in groups:
        head = heads[b - 1]
        backward[stage[b - 1]] += (head.forward + head.backward) / unit
        parameters[stage[b - 1]] += head.parameter_bytes
        for j, block in zip(stage[a:b], trunk[a:b], strict=True):
            backward[j] += (block.backward_first if block is trunk[a] else block.backward) / unit
    sent = np.array([trunk[cut - 1].output_bytes for cut in cuts[1:]], float)
    return StageWork(forward, backward, sent, parameters)


def communicated_bytes(costs: BlockCosts, groups: Groups, cuts: Sequence[int]) -> int:
    """Returns the bytes sent in one update between devices that begin at the blocks `cuts`.

    Activations go forward over all cuts, and a gradient as large back over cuts inside a group.
    """
    sent = (1 + sum(a < cut < b for a, b in groups) for cut in cuts)
    return sum(n * costs.trunk[cut - 1].output_bytes for n, cut in zip(sent, cuts, strict=True))


def _backward_operations(costs: BlockCosts, a: int, b: int) -> float:
    head, first, others = costs.heads[b - 1], costs.trunk[a], costs.trunk[a + 1 : b]
    through = sum(block.backward for block in others)
    return head.forward + head.backward + through + first.backward_first


def _value(block: Block, losses: Callable[..., jax.Array] | None) -> Callable[..., jax.Array]:
    def value(params: Params, h: jax.Array, batch: Examples) -> jax.Array:
        y: Tree = block.apply({"params": params}, h)
        return jnp.mean(losses(y, batch)) if losses else y

    return value


def _cost(
    name: str, block: Block, losses: Callable[..., jax.Array] | None, arguments: Shapes
) -> BlockCost:
    return BlockCost(name, *_analyzed(block, losses, _shapes_key(arguments)))


@lru_cache(maxsize=256)
def _analyzed(block: Block, losses: Callable[..., jax.Array] | None, inputs: Abstract) -> tuple:
    """Returns a `BlockCost` without the name, for (params, h, batch) of these shapes."""
    arguments = jax.tree.unflatten(*inputs)
    value = _value(block, losses)
    output = jax.eval_shape(value, *arguments)

    def pull(wrt: int, *arguments: Tree) -> Tree:  # back to the first `wrt` arguments
        return jax.vjp(lambda *first: value(*first, *arguments[wrt:]), *arguments[:wrt])

    def gradient(wrt: int, cotangent: jax.Array, *arguments: Tree) -> Tree:
        y, back = pull(wrt, *arguments)
        return y, back(cotangent)

    forward = _operations(value, *arguments)
    backward, first = (
        _operations(partial(gradient, wrt), output, *arguments) - forward for wrt in (2, 1)
    )
    kept = _kept_bytes(partial(pull, 2), *arguments)
    return forward, backward, first, bytes_of(arguments[0]), kept, bytes_of(output)


def _operations(function: Callable[..., Tree], *arguments: Shapes) -> float:
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        analysis: Any = jax.jit(function).lower(*arguments).cost_analysis()
    return analysis["flops"]


def _kept_bytes(pull: Callable[..., Tree], params: Shapes, *data: Shapes) -> int:
    jaxpr = jax.make_jaxpr(lambda *arguments: pull(*arguments)[1])(params, *data).jaxpr
    depends = _variables(jaxpr.invars[len(jax.tree.leaves(params)) :])
    for equation in jaxpr.eqns:
        if depends & _variables(equation.invars):
            depends.update(equation.outvars)
    return bytes_of([variable.aval for variable in depends & _variables(jaxpr.outvars)])


def _variables(atoms: Sequence[object]) -> set[Var]:
    return {atom for atom in atoms if isinstance(atom, Var)}
