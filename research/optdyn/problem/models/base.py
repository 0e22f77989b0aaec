"""A model is a tuple of (name, block); its parameters are a dict with the same names.

A block is a network of some library, which may have a state and draw random numbers
(`adapters.py`); those of this package are flax modules with parameters only.

The last block is the output head. An auxiliary head of another block is the same module with other
parameters, applied to that block's output.
"""

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from optdyn.base import lookup
from optdyn.base.errors import ConfigError, short_repr
from optdyn.base.fields import ConstantFunction, Custom, Value, field, plain
from optdyn.base.in_memory import name_of
from optdyn.base.ranges import BLOCKS, WIDE
from optdyn.base.trees import Array, Params
from optdyn.problem.models.adapters import Adapter, Block, haiku, linen, pair

KEY = "config.model.name"
STATE = "state of the model"  # beside the blocks' parameters, where they are evaluated
Blocks = tuple[tuple[str, Block], ...]
Networks = Sequence[tuple[str, nn.Module | Adapter]]  # of which blocks are made
# How to give a module {0} of another library.
FROM_LIBRARY = {
    "flax.nnx": "model=od.from_nnx(lambda rngs: {0}(..., rngs=rngs))",
    "equinox": "model=od.from_equinox(lambda key: {0}(..., key=key))",
}


@dataclass(frozen=True)
class Model(Value, section="model", union=True):
    """The model, a sequence of blocks."""

    _: KW_ONLY
    remat: bool = field(
        False, "Keep only the inputs of blocks and compute the rest again in the backward pass."
    )

    norm_examples: int = field(
        0,
        "Examples that a norm over the batch takes together; 0: those of one worker's gradient, or "
        "of a whole pass where a norm has no running averages.",
        at_least=0,
    )

    def blocks_for(self, classes: int) -> Networks:
        """Returns the blocks, the last with `classes` outputs. Raises `ValueError`."""
        raise NotImplementedError

    @property
    def lowering(self) -> str:
        return ""

    @classmethod
    def from_object(cls, thing: Any) -> Any:
        """Returns the model of a module, a pair, an adapter or a function. Raises `ConfigError`."""
        if isinstance(thing, nn.Module):
            words = f"the module {type(thing).__name__}"
            return OwnModel(name=name_of(ConstantFunction(thing), words, thing))
        if isinstance(thing, Adapter):
            return OwnModel(name=name_of(ConstantFunction(thing), "a network", thing))
        if _is_of("haiku", type(thing)) and type(thing).__name__.startswith("Transformed"):
            adapter = haiku(thing)
            return OwnModel(name=name_of(ConstantFunction(adapter), "a network", *thing))
        if isinstance(thing, tuple) and len(thing) == 2 and all(map(callable, thing)):
            return OwnModel(name=name_of(ConstantFunction(pair(*thing)), "two functions", *thing))
        first = thing[0] if isinstance(thing, tuple) and thing else thing  # of (module, state)
        kind = first if isinstance(first, type) else type(first)
        for library, line in FROM_LIBRARY.items():
            if _is_of(library, kind):
                raise ConfigError(
                    f"Experiment.model: {kind.__name__} is of {library}, so it must be given by a "
                    f"function that makes it: {line.format(kind.__name__)}"
                )
        return super().from_object(thing)


def _is_of(library: str, kind: type) -> bool:
    return any(f"{base.__module__}.".startswith(f"{library}.") for base in kind.__mro__)


@dataclass(frozen=True)
class LayeredModel(Model):
    _: KW_ONLY
    dtype: str = field(
        "float32", "Type of the computation; parameters stay float32.",
        one_of=("float32", "bfloat16"),
    )  # fmt: skip


@dataclass(frozen=True)
class ResidualModel(LayeredModel):
    blocks: int = field(8, "Residual blocks.", at_least=1, at_most=BLOCKS)
    width: int = field(256, "Width of the residual stream.", **WIDE)


@dataclass(frozen=True)
class OwnModel(Model, Custom, custom=True):
    """Your model: `make(classes, **options)` returns a network, or (name, network) pairs.

    A network is a flax.linen module, or what `optdyn.from_nnx` and its like return.
    """

    compute_dtype: str = field(
        "float32", "Type of the computation; parameters and running averages stay float32.",
        one_of=("float32", "bfloat16"),
    )  # fmt: skip

    def blocks_for(self, classes: int) -> Networks:
        function = lookup.find(KEY, self.name, {})
        result = lookup.call_user_code(KEY, self.name, function, classes, **plain(self.options))
        kinds = nn.Module, Adapter
        pairs = (("model", result),) if isinstance(result, kinds) else result
        try:
            blocks = tuple((block, module) for block, module in pairs)
        except (TypeError, ValueError):
            blocks = ()
        good = [isinstance(block, str) and isinstance(net, kinds) for block, net in blocks]
        if not blocks or not all(good) or len(dict(blocks)) < len(blocks):
            raise ConfigError(
                f"{lookup.key_value(KEY, self.name)}: must return a flax.linen module or a "
                "sequence of (name, module), all names different, and returned "
                f"{short_repr(result)}"
            )
        return blocks


def make(model: Model, classes: int, examples: int = 0) -> Blocks:
    """Returns the blocks of a model with `classes` outputs.

    A norm over the batch takes `examples` together, 0: all of a batch. With `remat` all but the
    last, whose gradient comes first, keep only their inputs for the gradient. On a CPU that saves
    memory only with XLA_FLAGS=--xla_cpu_enable_concurrency_optimized_scheduler=false.
    """
    *trunk, (last, head) = model.blocks_for(classes)
    dtype = jnp.dtype(getattr(model, "compute_dtype", "float32"))

    def block(number: int, network: nn.Module | Adapter, remat: bool) -> Block:
        adapter = network if isinstance(network, Adapter) else linen(network)
        return Block(adapter, number, examples, dtype, remat)

    blocks = [(name, block(i, network, model.remat)) for i, (name, network) in enumerate(trunk)]
    return (*blocks, (last, block(len(trunk), head, False)))


def init(blocks: Blocks, key: jax.Array, x: jax.Array, heads: Collection[str] = ()) -> Params:
    """Returns the parameters of all blocks, for an input like `x`, and of auxiliary heads.

    No parameter depends on which heads there are. Raises `ValueError` for heads of anything but
    blocks before the last, and for parameters that are not float32.
    """
    return start(blocks, key, x, heads)[0]


def start(
    blocks: Blocks, key: jax.Array, x: jax.Array, heads: Collection[str] = ()
) -> tuple[Params, Params]:
    """Returns the parameters of `init`, and the state that blocks start from."""
    trunk, (_, last) = [name for name, _ in blocks[:-1]], blocks[-1]
    if unknown := sorted(set(heads) - set(trunk)):
        among = ", ".join(trunk) or "none"
        raise ValueError(f"auxiliary head of {unknown[0]!r}: blocks before the last are {among}")
    params: Params = {}
    state: Params = {}
    for index, (name, block) in enumerate(blocks):
        params[name], state[name] = block.adapter.init(jax.random.fold_in(key, index), x)
        if strange := {str(leaf.dtype) for leaf in jax.tree.leaves(params[name])} - {"float32"}:
            raise ValueError(f"block {name!r} has parameters of {min(strange)}: must be float32")
        x = block.apply({"params": params[name]}, x)
        if name in heads:
            head_key = jax.random.fold_in(key, len(blocks) + index)
            params[head_of(name)] = last.init(head_key, x)["params"]
    return params, state


def head_of(block: str) -> str:
    return f"{block}_head"


def apply(blocks: Blocks, params: Params, x: jax.Array, seeds: Array | None = None) -> jax.Array:
    return activations(blocks, params, x, seeds)[-1]


def activations(
    blocks: Blocks, params: Params, x: jax.Array, seeds: Array | None = None
) -> list[jax.Array]:
    """Returns `x` and the outputs of all blocks in order, in training.

    `seeds`, (B,) int32, are those of the examples, for blocks that draw random numbers.
    """
    hs = [x]
    for name, block in blocks:
        hs.append(block.apply({"params": params[name]}, hs[-1], seeds))
    return hs


def train(
    blocks: Blocks, params: Params, x: jax.Array, seeds: Array | None
) -> tuple[jax.Array, Params]:
    """Returns the outputs in training, and the blocks' state after it."""
    after: Params = {}
    for name, block in blocks:
        x, after[name] = block.train(params[name], x, seeds)
    return x, after


def evaluate(blocks: Blocks, params: Params, state: Params, x: jax.Array) -> jax.Array:
    """Returns the outputs in evaluation."""
    for name, block in blocks:
        x = block.evaluate(params[name], state.get(name, {}), x)
    return x


def recompute(blocks: Blocks, params: Params, x: jax.Array, seeds: jax.Array) -> Params:
    """Returns the averages of batch norms over k batches, (k, n, ...), one block after the other.

    `seeds`, (k,), are those of the batches.
    """
    state: Params = {}
    for name, block in blocks:
        x, state[name] = block.recompute(params[name], x, seeds)
    return state


def restore(blocks: Blocks, variables: Params) -> Any:
    """Returns the network of these parameters as its library has it; of several blocks a dict."""
    state = variables.get(STATE, {})
    found = {
        name: block.adapter.restore(variables[name], state.get(name, {})) for name, block in blocks
    }
    return found["model"] if list(found) == ["model"] else found
